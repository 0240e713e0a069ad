"""Bulk reads: how requests are divided, the effects of damaged replies, and the encoding of ``multi`` replies."""

from __future__ import annotations

import asyncio
import struct

import pytest

from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    StoreUnavailableError,
)
from bookie.metadata.store.jute import (
    OP_CREATE,
    OP_DELETE,
    OP_GET_CHILDREN,
    OP_SET_DATA,
    MalformedReplyError,
    multi_reply,
    read_children,
)
from bookie.metadata.store.multiread import (
    PATHS_PER_REQUEST_MAX,
    REPLY_BYTES_TARGET,
    REQUEST_BYTES_MAX,
    REQUESTS_IN_FLIGHT,
    BulkReader,
)
from bookie.metadata.store.zookeeper_errors import answer_error, multi_error

STAT = bytes(68)
END = struct.pack(">iBi", -1, 1, -1)


class Server:
    """A server that answers every read with ``data``, or with an error code for some paths."""

    def __init__(self, data: bytes, codes: dict[str, int] | None = None) -> None:
        self.data = data
        self.codes = codes or {}
        self.counts: list[int] = []
        self.body_bytes_max = 0
        self.in_flight = 0
        self.in_flight_max = 0

    async def send(self, body: bytes) -> bytes:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        paths = _paths(body)
        self.body_bytes_max = max(self.body_bytes_max, len(body))
        self.counts.append(len(paths))
        return b"".join(self._answer(path) for path in paths) + END

    def _answer(self, path: str) -> bytes:
        if path in self.codes:
            return struct.pack(">iBii", -1, 0, self.codes[path], self.codes[path])
        return struct.pack(">iBii", 4, 0, 0, len(self.data)) + self.data + STAT


def _paths(body: bytes) -> list[str]:
    paths, offset = [], 0
    while body[offset : offset + 9] != END:
        (size,) = struct.unpack_from(">i", body, offset + 9)
        paths.append(body[offset + 13 : offset + 13 + size].decode())
        offset += 13 + size + 1
    return paths


async def test_small_nodes_are_read_in_full_requests_several_at_a_time() -> None:
    server = Server(b"x" * 170)
    paths = [f"/{i}" for i in range(20_000)]
    assert await BulkReader(server.send).data(paths) == [b"x" * 170] * 20_000
    assert server.in_flight_max == REQUESTS_IN_FLIGHT
    assert server.counts[0] < 100 < max(server.counts) == PATHS_PER_REQUEST_MAX


async def test_large_nodes_are_read_in_small_requests() -> None:
    server = Server(bytes(200_000))
    reader = BulkReader(server.send)
    for _ in range(3):
        await reader.nodes([f"/{i}" for i in range(64)])
    assert max(server.counts[-10:]) * 200_000 <= REPLY_BYTES_TARGET * 1.2
    await BulkReader(Server(bytes(2_000_000)).send).data(["/a", "/b", "/c"])


async def test_large_nodes_after_small_ones_do_not_fill_a_reply() -> None:
    """Several concurrent replies of many megabytes would exhaust the heap of a small ZooKeeper."""
    server = Server(b"x" * 100)
    reader = BulkReader(server.send)
    await reader.data([f"/small/{i}" for i in range(8000)])
    assert max(server.counts) == PATHS_PER_REQUEST_MAX
    server.counts, server.data = [], bytes(100_000)
    assert len(await reader.data([f"/large/{i}" for i in range(500)])) == 500
    assert server.counts[0] <= 64
    assert max(server.counts[1:]) * 100_000 <= REPLY_BYTES_TARGET


async def test_small_nodes_need_few_requests_in_each_call() -> None:
    server = Server(b"x" * 170)
    reader = BulkReader(server.send)
    await reader.data([f"/{i}" for i in range(4000)])
    server.counts = []
    await reader.data([f"/below/{i}" for i in range(4000)])
    assert server.counts == [64, *[PATHS_PER_REQUEST_MAX] * 7, 436]


async def test_each_part_of_a_long_list_needs_one_request() -> None:
    server = Server(b"x" * 170)
    reader = BulkReader(server.send)
    for first in range(0, 10_000, 100):
        await reader.data([f"/00/0000/L{i:04}" for i in range(first, first + 100)])
    assert server.counts == [64, 36, *[100] * 99]


@pytest.mark.parametrize("letter", ["x", "主"])
async def test_long_paths_are_read_in_requests_of_bounded_size(letter: str) -> None:
    """A server closes the connection if a request exceeds its ``jute.maxbuffer``."""
    server = Server(b"x", {"/absent": -101})
    reader = BulkReader(server.send)
    await reader.data([f"/{i}" for i in range(4000)])
    paths = [f"/{letter * 3000}/{i}" for i in range(1000)]
    server.body_bytes_max = 0
    assert await reader.data([*paths, "/absent"]) == [b"x"] * 1000 + [None]
    assert 0.9 * REQUEST_BYTES_MAX < server.body_bytes_max <= REQUEST_BYTES_MAX + len(END)


async def test_results_keep_the_order_of_the_paths() -> None:
    class Echo(Server):
        def _answer(self, path: str) -> bytes:
            self.data = path.encode()
            return super()._answer(path)

    server = Echo(b"", {f"/{i}": -101 for i in range(0, 5000, 3)})
    found = await BulkReader(server.send).data([f"/{i}" for i in range(5000)])
    assert found == [None if i % 3 == 0 else f"/{i}".encode() for i in range(5000)]


async def test_denied_node_is_named() -> None:
    server = Server(b"", {"/b": -102})
    with pytest.raises(AccessDeniedError, match="/b"):
        await BulkReader(server.send).nodes(["/a", "/b"])


async def test_error_without_an_answer_is_not_mistaken_for_absence() -> None:
    server = Server(b"", {"/b": -2})
    with pytest.raises(StoreUnavailableError, match="/b"):
        await BulkReader(server.send).data(["/a", "/b"])


async def test_first_error_ends_all_requests() -> None:
    server = Server(b"x", {"/15000": -102})
    with pytest.raises(AccessDeniedError, match="/15000"):
        await BulkReader(server.send).data([f"/{i}" for i in range(50_000)])
    assert server.in_flight <= REQUESTS_IN_FLIGHT
    assert sum(server.counts) < 50_000


@pytest.mark.parametrize("cut", [0, 1, 12, 13, 40, -1])
@pytest.mark.parametrize("kind", ["nodes", "data", "children"])
async def test_damaged_reply_is_not_an_answer(kind: str, cut: int) -> None:
    async def send(body: bytes) -> bytes:
        return (await Server(b"abc").send(body))[:cut]

    with pytest.raises(StoreUnavailableError, match="malformed"):
        await getattr(BulkReader(send), kind)(["/a", "/b"])


def test_multi_reply_gives_a_code_per_operation() -> None:
    done = struct.pack(">iBii", OP_CREATE, 0, 0, 2) + b"/a" + struct.pack(">iBi", OP_SET_DATA, 0, 0) + STAT
    done += struct.pack(">iBi", OP_DELETE, 0, 0) + END
    assert multi_reply(b"header" + done, 6) == [0, 0, 0]
    failed = b"".join(struct.pack(">iBii", -1, 0, code, code) for code in (0, -103, -2)) + END
    assert multi_reply(failed, 0) == [0, -103, -2]
    with pytest.raises(MalformedReplyError):
        multi_reply(failed[:-1], 0)


def test_multi_error_names_the_operation_at_fault() -> None:
    assert multi_error([0, 0], ["/a", "/b"]) is None
    error = multi_error([0, -110, -2], ["/a", "/b", "/c"])
    assert isinstance(error, MultiFailedError)
    assert (error.index, type(error.cause)) == (1, NodeExistsError)
    assert "/b" in str(error)
    assert isinstance(multi_error([-2, -2], ["/a", "/b"]), StoreUnavailableError)
    assert isinstance(multi_error([0, -127], ["/a", "/b"]), StoreUnavailableError)


@pytest.mark.parametrize("verb", ["read", "list", "create", "change", "delete"])
def test_the_error_of_a_denied_request_is_a_sentence(verb: str) -> None:
    assert str(answer_error(-102, f"{verb} /a")).startswith(f"cannot {verb} /a: its ACL does not allow this")
    assert str(answer_error(-114, f"cannot {verb} /a")).startswith(f"cannot {verb} /a: the ACL for it is invalid")
    assert str(answer_error(-101, f"{verb} /a")) == f"{verb} /a: no such node", "callers expect it"


def test_writes_that_are_denied_together_have_the_error_of_one_of_them() -> None:
    error = multi_error([0, -102], ["/a", "/b"])
    assert isinstance(error, MultiFailedError)
    assert str(error).startswith("cannot change /b: its ACL does not allow this")


def test_codes_without_a_definite_outcome_have_no_own_error() -> None:
    assert isinstance(answer_error(-103, "set /a"), BadVersionError)
    for code in (None, -4, -7, -112, -1, 12345):
        assert answer_error(code, "set /a") is None


def test_a_name_of_negative_length_is_malformed() -> None:
    back_to_the_same_operation = struct.pack(">iBii", OP_CREATE, 0, 0, -13)
    with pytest.raises(MalformedReplyError, match="-13"):
        multi_reply(back_to_the_same_operation, 0)
    the_same_name_again = struct.pack(">iBiii", OP_GET_CHILDREN, 0, 0, (1 << 31) - 1, -4)
    with pytest.raises(MalformedReplyError, match="-4"):
        read_children(the_same_name_again, 1, lambda index, code: None)
