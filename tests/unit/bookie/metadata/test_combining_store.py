"""Requests that are combined have the same results as single ones, and fewer requests are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, bookie_path
from bookie.metadata.nodes import ensure_path, find
from bookie.metadata.port import (
    MULTI_OPS_MAX,
    AccessDeniedError,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.store.combining import JOINED_BYTES_MAX, JOINED_PATHS_MAX, CombiningStore
from bookie.metadata.store.lane import BATCHES_MAX
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from tests.worlds.virtual_time import in_virtual_time


class Server:
    """A twin that records its requests; they can be made to wait or to fail."""

    def __init__(self) -> None:
        self.inner = MemoryStore(MemoryCell(), fault_hook=self._note)
        self.store = CombiningStore(self.inner)
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        """Faults of the next combined transactions."""
        self.gate = asyncio.Event()
        self.gate.set()
        """No request is carried out while this is cleared."""

    async def _note(self, operation: str, path: str) -> Fault | None:
        self.requests.append(operation)
        fault = self.faults.pop(0) if self.faults and operation == "multi" else None
        await self.gate.wait()
        return fault

    def exists(self, path: str) -> bool:
        return self.inner.cell.stat(path) is not None


async def outcomes(*requests: Any) -> list[Any]:
    """Return the results of requests made in the same step of the loop; for a failure, its type and text."""
    results = await asyncio.gather(*requests, return_exceptions=True)
    return [(type(result), str(result)) if isinstance(result, BkhealError) else result for result in results]


@in_virtual_time
async def test_concurrent_transactions_are_one_request() -> None:
    server = Server()
    made = [server.store.create("/lock", is_ephemeral=True), server.store.multi([Create("/a", b"1"), Check("/a", 0)])]
    assert await outcomes(*made, server.store.create("/b")) == ["/lock", None, "/b"]
    assert server.requests == ["multi"]
    assert all(map(server.exists, ("/a", "/b")))
    assert (await server.inner.get("/lock")).stat.ephemeral_owner == server.inner.session.session_id
    server.requests.clear()
    assert await outcomes(server.store.delete("/a", 0), server.store.delete("/b")) == [None, None]
    assert server.requests == ["multi"]
    assert not any(map(server.exists, ("/a", "/b")))


@in_virtual_time
async def test_a_single_request_is_sent_unchanged() -> None:
    server = Server()
    await server.store.create("/a")
    await server.store.get("/a")
    await server.store.sync("/a")
    await server.store.delete("/a")
    assert server.requests == ["create", "get", "sync", "delete"]


@in_virtual_time
async def test_requests_made_during_others_are_sent_together_when_one_ends() -> None:
    server = Server()
    server.gate.clear()
    creates = []
    for number in range(20):
        creates.append(asyncio.ensure_future(server.store.create(f"/{number}")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(server.requests) == BATCHES_MAX
    server.gate.set()
    await asyncio.gather(*creates)
    assert len(server.requests) == BATCHES_MAX + 1
    assert all(server.exists(f"/{number}") for number in range(20))


@in_virtual_time
async def test_a_refused_transaction_has_its_own_error_and_the_others_are_carried_out() -> None:
    alone, joined = Server(), Server()
    for server in (alone, joined):
        await server.inner.create("/taken")
        server.requests.clear()

    def requests(store: MetadataStore) -> list[Any]:
        return [
            store.create("/a"),
            store.create("/taken"),
            store.multi([Create("/b"), Check("/taken", 7), Create("/c")]),
            store.delete("/missing"),
            store.create("/d/child"),
            store.create("/e"),
        ]

    expected = [(await outcomes(request))[0] for request in requests(alone.inner)]
    assert [kind for kind, _ in (each for each in expected if isinstance(each, tuple))] == [
        NodeExistsError,
        MultiFailedError,
        NoNodeError,
        NoNodeError,
    ]
    assert await outcomes(*requests(joined.store)) == expected
    assert all(map(joined.exists, ("/a", "/e")))
    assert not any(map(joined.exists, ("/b", "/c", "/d")))


@in_virtual_time
async def test_the_index_of_a_refused_operation_is_that_within_its_own_transaction() -> None:
    server = Server()
    first = server.store.multi([Create("/a"), Create("/b"), Create("/c")])
    second = server.store.multi([Create("/d"), Delete("/missing")])
    _, error = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(error, MultiFailedError)
    assert (error.index, type(error.cause)) == (1, NoNodeError)


@in_virtual_time
async def test_many_conflicts_need_few_joint_requests() -> None:
    server = Server()
    for number in range(0, 20, 2):
        await server.inner.create(f"/{number}")
    server.requests.clear()
    results = await outcomes(*(server.store.create(f"/{number}") for number in range(20)))
    assert [isinstance(result, str) for result in results] == [number % 2 == 1 for number in range(20)]
    assert server.requests.count("multi") < 10


@in_virtual_time
async def test_after_a_lost_answer_each_outcome_is_unknown_and_nothing_is_sent_again() -> None:
    server = Server()
    server.faults = [Fault.LOSE_ANSWER]
    kinds = [kind for kind, _ in await outcomes(server.store.create("/a"), server.store.multi([Create("/b")]))]
    assert kinds == [WriteOutcomeUnknownError] * 2
    assert server.requests == ["multi"]
    assert all(map(server.exists, ("/a", "/b")))  # so each caller has to check


@in_virtual_time
async def test_a_transaction_that_was_not_sent_is_not_carried_out_for_any_caller() -> None:
    server = Server()
    server.faults = [Fault.FAIL_BEFORE]
    kinds = [kind for kind, _ in await outcomes(server.store.create("/a"), server.store.create("/b"))]
    assert kinds == [StoreUnavailableError] * 2
    assert server.requests == ["multi"]
    assert not any(map(server.exists, ("/a", "/b")))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([Create("/x")], [Create("/x")]),
        ([Create("/x")], [Check("/x")]),
        ([Check("/y", 0)], [Delete("/y")]),
        ([Delete("/y"), Create("/a")], [Create("/y"), Create("/b")]),
    ],
)
@in_virtual_time
async def test_transactions_on_the_same_node_are_not_joined(
    first: Sequence[Operation], second: Sequence[Operation]
) -> None:
    """All nodes of a combined transaction get the same transaction id, so it must not create a node twice."""
    server = Server()
    await server.inner.create("/y")
    server.requests.clear()
    await outcomes(server.store.multi(first), server.store.multi(second))
    assert server.requests == ["multi", "multi"]


@in_virtual_time
async def test_checks_of_the_same_node_are_joined() -> None:
    server = Server()
    await server.inner.create("/bookie")
    server.requests.clear()
    works = [server.store.multi([Check("/bookie"), Create(f"/{number}")]) for number in range(5)]
    assert await outcomes(*works) == [None] * 5
    assert server.requests == ["multi"]


@in_virtual_time
async def test_a_joint_transaction_fits_into_one_request() -> None:
    server = Server()
    small = [server.store.multi([Create(f"/{i}-{j}") for j in range(7)]) for i in range(200)]
    assert await outcomes(*small) == [None] * 200
    assert len(server.requests) >= 200 * 7 / MULTI_OPS_MAX
    server.requests.clear()
    large = [server.store.create(f"/large-{i}", bytes(JOINED_BYTES_MAX // 3)) for i in range(8)]
    await asyncio.gather(*large)
    assert server.requests == ["multi"] * 4


@in_virtual_time
async def test_a_caller_that_is_cancelled_while_it_waits_sends_nothing() -> None:
    server = Server()
    server.gate.clear()
    begun = [asyncio.ensure_future(server.store.create(f"/begun-{number}")) for number in range(BATCHES_MAX)]
    for task in begun:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    waiting = [asyncio.ensure_future(server.store.create(f"/{name}")) for name in "abc"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    server.gate.set()
    await asyncio.gather(*begun, *waiting, return_exceptions=True)
    assert [server.exists(f"/{name}") for name in "abc"] == [True, False, True]


@in_virtual_time
async def test_cancelling_all_callers_drops_unsent_requests_and_frees_their_slot() -> None:
    server = Server()
    server.inner.suspend()
    server.inner.resume()
    server.gate.clear()
    tasks = [asyncio.ensure_future(server.store.create(f"/{name}")) for name in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert server.requests == ["multi"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.gate.set()
    await asyncio.gather(*(server.store.create(f"/later-{number}") for number in range(2 * BATCHES_MAX)))
    assert not any(map(server.exists, ("/a", "/b")))


@in_virtual_time
async def test_cancelling_one_caller_does_not_disturb_the_others() -> None:
    server = Server()
    server.gate.clear()
    tasks = [asyncio.ensure_future(server.store.create(f"/{name}")) for name in "abc"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    server.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == ["/b", "/c"]


@in_virtual_time
async def test_a_request_that_waits_is_never_sent_in_the_next_session() -> None:
    server = Server()
    server.gate.clear()
    begun = [asyncio.ensure_future(server.store.create(f"/begun-{number}")) for number in range(BATCHES_MAX)]
    for _ in begun:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(server.store.create(f"/{name}")) for name in "ab"]
    await asyncio.sleep(0)
    server.inner.expire()
    server.inner.resume()
    server.gate.set()
    results = await outcomes(*waiting)
    assert [kind for kind, _ in results] == [StoreUnavailableError] * 2
    await asyncio.gather(*begun, return_exceptions=True)
    assert not any(map(server.exists, ("/a", "/b")))
    assert await server.store.create("/new") == "/new"


@in_virtual_time
async def test_a_read_that_waits_is_not_answered_in_the_next_session() -> None:
    """The server of a new session may be behind the previous one."""
    server = Server()
    server.gate.clear()
    begun = [asyncio.ensure_future(server.store.get("/")) for _ in range(BATCHES_MAX)]
    for _ in begun:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(server.store.get("/")) for _ in range(2)]
    await asyncio.sleep(0)
    server.inner.expire()
    server.inner.resume()
    server.gate.set()
    assert [kind for kind, _ in await outcomes(*waiting)] == [StoreUnavailableError] * 2
    await asyncio.gather(*begun, return_exceptions=True)


@in_virtual_time
async def test_the_rest_of_a_refused_transaction_is_not_sent_in_the_next_session() -> None:
    class Expiring(MemoryStore):
        """The session ends immediately after a transaction was refused."""

        async def multi(self, operations: Sequence[Operation]) -> None:
            try:
                await super().multi(operations)
            except MultiFailedError:
                self.expire()
                self.resume()
                raise

    inner = Expiring(MemoryCell())
    store = CombiningStore(inner)
    await inner.create("/taken")
    results = await outcomes(*(store.create(path) for path in ("/taken", "/a", "/b")))
    assert [kind for kind, _ in results] == [StoreUnavailableError] * 3
    assert [inner.cell.stat(path) for path in ("/a", "/b")] == [None, None]


@in_virtual_time
async def test_requests_made_while_the_connection_is_interrupted_wait_for_it() -> None:
    server = Server()
    server.inner.suspend()
    tasks = [asyncio.ensure_future(server.store.create(f"/{name}")) for name in "ab"]
    await asyncio.sleep(1)
    assert not any(task.done() for task in tasks)
    server.inner.resume()
    assert await asyncio.gather(*tasks) == ["/a", "/b"]


@in_virtual_time
async def test_concurrent_reads_are_one_request() -> None:
    server = Server()
    for name in "abc":
        await server.inner.create(f"/{name}", name.encode())
    server.requests.clear()
    one, many, none = await asyncio.gather(
        server.store.get("/a"), server.store.get_many(["/c", "/missing", "/a"]), server.store.get_many([])
    )
    assert one.data == b"a"
    assert [None if node is None else node.data for node in many] == [b"c", None, b"a"]
    assert none == []
    assert server.requests.count("get_many") == 2  # and one request for the empty list, which the twin counts
    with pytest.raises(NoNodeError, match="/missing"):
        await asyncio.gather(server.store.get("/missing"), server.store.get("/a"))


@in_virtual_time
async def test_a_bookie_that_becomes_read_only_during_a_joint_read_is_registered() -> None:
    """Each combined request reads the read-only registration before and after the writable one."""
    bookies = [BookieId(f"bk{number}:3181") for number in range(2)]
    writable = [bookie_path("/ledgers", each, is_read_only=False) for each in bookies]
    read_only = [bookie_path("/ledgers", each, is_read_only=True) for each in bookies]

    class OneByOne(MemoryStore):
        """A server that answers the reads of a request one by one.

        The first answer is outdated by the time of the second.
        """

        @override
        async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
            nodes = [await find(self, path) for path in paths[:1]]
            for new, old in zip(read_only, writable, strict=True):
                await self.multi([Create(new, is_ephemeral=True), Delete(old)])
            return nodes + [await find(self, path) for path in paths[1:]]

    inner = OneByOne(MemoryCell())
    await ensure_path(inner, read_only[0].rpartition("/")[0])
    for path in writable:
        await inner.create(path, is_ephemeral=True)
    registrations = Registrations(CombiningStore(inner), Cluster("/ledgers", LayoutKind.HIERARCHICAL, ""))
    found = await asyncio.gather(*(registrations.numbers([each]) for each in bookies))
    assert [list(numbers) for numbers in found] == [[each] for each in bookies]


@in_virtual_time
async def test_a_denied_read_fails_without_the_others() -> None:
    server = Server()
    await server.inner.create("/secret")
    await server.inner.create("/open", b"x")
    server.inner.cell.deny("/secret")
    denied, node = await asyncio.gather(server.store.get("/secret"), server.store.get("/open"), return_exceptions=True)
    assert isinstance(denied, AccessDeniedError)
    assert not isinstance(node, BaseException)
    assert node.data == b"x"


@in_virtual_time
async def test_long_reads_are_not_joined_beyond_the_limit() -> None:
    server = Server()
    reads = [server.store.get_many([f"/{i}-{j}" for j in range(JOINED_PATHS_MAX // 2)]) for i in range(5)]
    assert await asyncio.gather(*reads) == [[None] * (JOINED_PATHS_MAX // 2)] * 5
    assert server.requests == ["get_many"] * 3


@in_virtual_time
async def test_a_read_does_not_share_the_answer_of_an_earlier_request() -> None:
    server = Server()
    await server.inner.create("/a", b"old")
    first = asyncio.gather(server.store.get("/a"), server.store.get("/a"))
    await server.inner.set("/a", b"new", 0)
    second = await asyncio.gather(server.store.get("/a"), server.store.get("/a"))
    await first
    assert [node.data for node in second] == [b"new"] * 2


@in_virtual_time
async def test_a_sync_serves_only_callers_that_called_before_it_was_sent() -> None:
    server = Server()
    server.gate.clear()
    first = [asyncio.ensure_future(server.store.sync("/a")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert server.requests == ["sync"]
    second = [asyncio.ensure_future(server.store.sync("/b")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.gate.set()
    await asyncio.gather(*first, *second)
    assert server.requests == ["sync", "sync"]


@in_virtual_time
async def test_concurrent_current_reads_are_one_sync_and_then_one_read() -> None:
    server = Server()
    await server.inner.create("/a", b"old")
    server.requests.clear()
    server.gate.clear()
    first = [asyncio.ensure_future(server.store.get_many_current(paths)) for paths in (["/a"], ["/a", "/b"])]
    for _ in range(3):
        await asyncio.sleep(0)
    assert server.requests == ["sync"]
    second = [asyncio.ensure_future(server.store.get_many_current(["/a"])) for _ in range(2)]
    await asyncio.sleep(0)
    server.inner.cell.set("/a", b"new", 0)
    server.gate.set()
    shown = [[node and node.data for node in nodes] for nodes in await asyncio.gather(*first, *second)]
    assert shown == [[b"new"], [b"new", None], [b"new"], [b"new"]]
    assert sorted(server.requests) == ["get_many", "get_many", "sync", "sync"]


@in_virtual_time
async def test_a_change_with_a_stale_version_fails_without_the_others() -> None:
    server = Server()
    await server.inner.create("/a")
    await server.inner.set("/a", b"", 0)
    results = await outcomes(server.store.delete("/a", 0), server.store.create("/b"))
    assert results[0][0] is BadVersionError
    assert results[1] == "/b"
    assert server.exists("/a")
