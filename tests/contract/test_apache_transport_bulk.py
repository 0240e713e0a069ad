"""Copies in bulk over Apache's protocol: which requests use version 2, and which need version 3.

Source: docs/formats.md#version-2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.bulk import ANSWERS_BYTES_MAX
from bookie.wire.apache.bulk_link import BulkLink
from bookie.wire.apache.framing import FRAME_BYTES_MAX, FrameSplitter, framed
from bookie.wire.apache.reading import WINDOW_MAX
from bookie.wire.apache.statuses import EFENCED_V2, EIO_V2, ENOENTRY_V2, EOK_V2
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import READ_BYTES_MAX, AddReply, EntryResult, ReadReply, Status
from bookie.wire.requests import Read
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress
from bookie.wire.security import PLAINTEXT, BookieSecurity, SaslCredentials, SaslMechanism
from tests.contract.scripted_apache_bookie import (
    AFTER_AN_ANSWER_S,
    BOOKIE,
    DEADLINE_S,
    LEDGER,
    SOON_S,
    Directory,
    batch,
    entry,
)

STORED = {entry_id: entry(entry_id) for entry_id in range(100)}


@dataclass(eq=False)
class Peer(asyncio.Protocol):
    """One connection to ``Bookie``."""

    bookie: Bookie
    splitter: FrameSplitter = field(default_factory=FrameSplitter)
    asked: list[object] = field(default_factory=list)
    is_lost: asyncio.Event = field(default_factory=asyncio.Event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.bookie.peers.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()

    def data_received(self, data: bytes) -> None:
        for body in self.splitter.feed(data):
            if body[0] == v2.VERSION:
                request = v2.decode_request(body)
                self.asked.append(request)
                self.bookie.asked_v2.append(request)
                self.bookie.on_v2(self, request)
            else:
                asked = pb.Request.FromString(body)
                self.asked.append(asked)
                self.bookie.asked_v3.append(asked)
                self.send(self.bookie.answered_v3(asked))

    def send(self, *bodies: bytes) -> None:
        self.transport.write(b"".join(map(framed, bodies)))

    def say(self, *answers: v2.ResponseV2) -> None:
        self.send(*map(v2.encode_response, answers))


class Bookie:
    """Serves ``entries`` in both versions; a test changes its behaviour in version 2 through ``on_v2``."""

    def __init__(self) -> None:
        self.entries = dict(STORED)
        self.port = 0
        self.peers: list[Peer] = []
        self.asked_v2: list[v2.RequestV2] = []
        self.asked_v3: list[pb.Request] = []
        self.on_v2: Callable[[Peer, v2.RequestV2], None] = self.serve
        self.refusal: int = pb.EOK
        """The status of adds over version 3."""

    def serve(self, peer: Peer, request: v2.RequestV2) -> None:
        peer.say(self.answered_v2(request))

    def answered_v2(self, request: v2.RequestV2) -> v2.ResponseV2:
        match request:
            case v2.AddV2():
                self.entries[request.entry_id] = request.entry
                return v2.AddedV2(EOK_V2, request.ledger_id, request.entry_id)
            case v2.ReadV2():
                packet = self.entries.get(request.entry_id)
                code = ENOENTRY_V2 if packet is None else EOK_V2
                return v2.EntryV2(code, request.ledger_id, request.entry_id, packet or b"")
            case v2.BatchReadV2():
                found: list[bytes] = []
                while len(found) < request.count_max and request.start_entry_id + len(found) in self.entries:
                    found.append(self.entries[request.start_entry_id + len(found)])
                code = EOK_V2 if found else ENOENTRY_V2
                return v2.BatchV2(code, request.ledger_id, request.start_entry_id, request.request_id, tuple(found))
            case _:
                raise AssertionError(request)

    def answered_v3(self, request: pb.Request) -> bytes:
        header = pb.BKPacketHeader(
            version=pb.VERSION_THREE, operation=request.header.operation, txnId=request.header.txnId
        )
        response = pb.Response(header=header, status=pb.EOK)
        if request.HasField("addRequest"):
            response.status = self.refusal  # type: ignore[assignment]
            added = response.addResponse
            added.status, added.ledgerId, added.entryId = (
                response.status,
                request.addRequest.ledgerId,
                request.addRequest.entryId,
            )
            return response.SerializeToString()
        asked = request.readRequest
        packet = self.entries.get(asked.entryId)
        response.status = pb.EOK if packet is not None else pb.ENOENTRY
        read = response.readResponse
        read.status, read.ledgerId, read.entryId = response.status, asked.ledgerId, asked.entryId
        if packet is not None:
            read.body = packet
        return response.SerializeToString()

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the requests in version 2."""
        return [type(request).__name__ for request in self.asked_v2]


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    bookie = Bookie()
    server = await asyncio.get_running_loop().create_server(lambda: Peer(bookie), "127.0.0.1", 0)
    bookie.port = server.sockets[0].getsockname()[1]
    yield bookie
    server.close()
    for peer in bookie.peers:
        peer.transport.abort()
    await server.wait_closed()


def transport_to(bookie: Bookie, security: BookieSecurity = PLAINTEXT) -> ApacheTransport:
    return ApacheTransport(Directory(bookie.port), security=security, bulk_entries_min=4)


@pytest.fixture
async def transport(bookie: Bookie) -> AsyncIterator[ApacheTransport]:
    transport = transport_to(bookie)
    yield transport
    await transport.close()


async def read(transport: ApacheTransport, entry_ids: Iterable[int], timeout_s: float = DEADLINE_S) -> ReadReply:
    return await transport.ask(BOOKIE, Read(LEDGER, [EntryId(each) for each in entry_ids]), timeout_s)


def found(entry_ids: Iterable[int]) -> tuple[EntryResult, ...]:
    return tuple(EntryResult(EntryId(each), Status.OK, STORED[each]) for each in entry_ids)


async def test_consecutive_entries_are_read_in_one_answer(bookie: Bookie, transport: ApacheTransport) -> None:
    assert await read(transport, range(100)) == ReadReply(Status.OK, found(range(100)))
    assert bookie.kinds == ["BatchReadV2"]
    assert bookie.asked_v3 == []


async def test_scattered_entries_are_read_one_by_one(bookie: Bookie, transport: ApacheTransport) -> None:
    wanted = range(0, 100, 3)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    assert bookie.kinds == ["ReadV2"] * len(wanted)
    assert bookie.asked_v3 == []


async def test_a_missing_entry_is_determined_over_version_3(bookie: Bookie, transport: ApacheTransport) -> None:
    del bookie.entries[40]
    expected = (*found(range(40)), EntryResult(EntryId(40), Status.NO_ENTRY), *found(range(41, 100)))
    assert await read(transport, range(100)) == ReadReply(Status.OK, expected)
    assert [request.readRequest.entryId for request in bookie.asked_v3] == list(range(40, 100))


@pytest.mark.parametrize("wanted", [range(30), range(0, 60, 2)])
async def test_a_too_long_entry_is_reported_over_version_3_and_bulk_reads_continue(
    bookie: Bookie, transport: ApacheTransport, wanted: range
) -> None:
    bookie.entries[10] = entry(10, bytes(FRAME_BYTES_MAX))
    reply = await transport.ask(BOOKIE, Read(LEDGER, list(map(EntryId, wanted))), DEADLINE_S)
    assert {result.entry_id: result.status for result in reply.results if result.status is not Status.OK} == {
        10: Status.IO_ERROR
    }
    assert [result.entry_id for result in reply.results] == list(wanted)
    asked = len(bookie.asked_v2)
    bookie.asked_v3.clear()
    others = range(wanted.start + 20, wanted.start + 60, wanted.step)
    assert (await transport.ask(BOOKIE, Read(LEDGER, list(map(EntryId, others))), DEADLINE_S)).results == found(others)
    assert len(bookie.asked_v2) > asked
    assert not bookie.asked_v3
    assert len(bookie.peers) == 2


async def test_recovery_adds_are_acknowledged_in_bulk(bookie: Bookie, transport: ApacheTransport) -> None:
    adds = batch(*range(200, 300), is_recovery=True)
    assert await transport.add(BOOKIE, adds, DEADLINE_S) == AddReply(Status.OK)
    assert [bookie.entries[each] for each in range(200, 300)] == list(adds.entries)
    assert bookie.asked_v3 == []
    flags = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
    assert bookie.asked_v2 == [v2.AddV2(adds.master_key, each, flags) for each in adds.entries]


async def test_a_writers_adds_stay_on_version_3_to_keep_their_order(bookie: Bookie, transport: ApacheTransport) -> None:
    assert await transport.add(BOOKIE, batch(*range(200, 300)), DEADLINE_S) == AddReply(Status.OK)
    assert (len(bookie.asked_v2), len(bookie.asked_v3)) == (0, 100)


async def test_a_few_entries_do_not_open_a_second_connection(bookie: Bookie, transport: ApacheTransport) -> None:
    assert await read(transport, range(3)) == ReadReply(Status.OK, found(range(3)))
    assert await transport.add(BOOKIE, batch(1, 2, 3, is_recovery=True), DEADLINE_S) == AddReply(Status.OK)
    assert len(bookie.peers) == 1


async def test_a_refused_add_is_repeated_over_version_3(bookie: Bookie, transport: ApacheTransport) -> None:
    def all_but_one(peer: Peer, request: v2.RequestV2) -> None:
        answer = bookie.answered_v2(request)
        if isinstance(answer, v2.AddedV2) and answer.entry_id == 205:
            answer = replace(answer, code=EFENCED_V2)
        peer.say(answer)

    bookie.on_v2, bookie.refusal = all_but_one, pb.EREADONLY
    adds = batch(*range(200, 210), is_recovery=True)
    assert (await transport.add(BOOKIE, adds, DEADLINE_S)).status is Status.READ_ONLY
    bookie.refusal = pb.EOK
    assert await transport.add(BOOKIE, adds, DEADLINE_S) == AddReply(Status.OK)


async def test_a_bookie_without_version_2_gets_only_one_request_in_it(
    bookie: Bookie, transport: ApacheTransport
) -> None:
    bookie.on_v2 = lambda peer, request: peer.transport.abort()
    wanted = range(0, 100, 3)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    asked = len(bookie.asked_v2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    assert await transport.add(BOOKIE, batch(*range(4), is_recovery=True), DEADLINE_S) == AddReply(Status.OK)
    assert (len(bookie.asked_v2), len(bookie.peers)) == (asked, 2)


async def test_a_bookie_without_batch_reads_is_read_entry_by_entry(bookie: Bookie, transport: ApacheTransport) -> None:
    """Before 4.17 a bookie closes the connection after a request it cannot decode."""

    def without_batches(peer: Peer, request: v2.RequestV2) -> None:
        if isinstance(request, v2.BatchReadV2):
            peer.transport.abort()
        else:
            bookie.serve(peer, request)

    bookie.on_v2 = without_batches
    assert await read(transport, range(50)) == ReadReply(Status.OK, found(range(50)))
    bookie.asked_v3.clear()
    assert await read(transport, range(50)) == ReadReply(Status.OK, found(range(50)))
    assert bookie.kinds == ["BatchReadV2"] + ["ReadV2"] * 50
    assert bookie.asked_v3 == []


@pytest.mark.parametrize("wanted", [range(50), range(0, 50, 2)])
async def test_only_one_request_times_out_if_version_2_gets_no_answer(
    bookie: Bookie, transport: ApacheTransport, wanted: range
) -> None:
    bookie.on_v2 = lambda peer, request: None
    assert (await read(transport, wanted, AFTER_AN_ANSWER_S)).status is Status.TIMEOUT
    bookie.on_v2 = bookie.serve
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))


async def test_version_2_is_used_again_after_several_timeouts_if_it_succeeded_before(
    bookie: Bookie, transport: ApacheTransport
) -> None:
    wanted = range(0, 40, 2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    bookie.on_v2 = lambda peer, request: None
    for _ in range(3):
        assert (await read(transport, wanted, SOON_S)).status is Status.TIMEOUT
    bookie.on_v2 = bookie.serve
    before = len(bookie.peers)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    assert [type(request) for peer in bookie.peers[before:] for request in peer.asked] == [v2.ReadV2] * len(wanted)


async def test_a_late_answer_is_not_taken_for_another_one(bookie: Bookie, transport: ApacheTransport) -> None:
    """Without transaction ids, the answer to an abandoned request looks like the answer to the next one."""
    wanted = range(0, 40, 2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    [first] = [peer for peer in bookie.peers if peer.asked and isinstance(peer.asked[0], v2.ReadV2)]
    bookie.on_v2 = lambda peer, request: None
    assert (await read(transport, wanted, SOON_S)).status is Status.TIMEOUT
    bookie.on_v2 = bookie.serve
    fresh = {each: entry(each, b"written since") for each in wanted}
    bookie.entries |= fresh
    late = [v2.EntryV2(EOK_V2, LEDGER, each, STORED[each]) for each in wanted]
    first.say(*late)
    reply = await read(transport, wanted)
    assert [result.packet for result in reply.results] == list(fresh.values())
    await asyncio.wait_for(first.is_lost.wait(), DEADLINE_S)


async def test_the_same_entries_may_be_read_twice_at_once(bookie: Bookie, transport: ApacheTransport) -> None:
    wanted = range(0, 60, 3)
    replies = await asyncio.gather(*(read(transport, wanted) for _ in range(5)))
    assert replies == [ReadReply(Status.OK, found(wanted))] * 5


def sized(bookie: Bookie, size_of: Callable[[int], int]) -> Callable[[Peer, v2.RequestV2], None]:
    """Serve entries of these sizes."""

    def serve(peer: Peer, request: v2.RequestV2) -> None:
        assert isinstance(request, v2.ReadV2)
        packet = entry(request.entry_id, bytes(size_of(request.entry_id)))
        peer.say(v2.EntryV2(EOK_V2, request.ledger_id, request.entry_id, packet))

    return serve


async def test_small_entries_at_the_start_do_not_lead_to_requests_for_too_many_large_ones(
    bookie: Bookie, transport: ApacheTransport
) -> None:
    wanted = range(0, 400, 2)
    bookie.on_v2 = sized(bookie, lambda entry_id: 5 if entry_id < 32 else READ_BYTES_MAX // 16)
    reply = await read(transport, wanted)
    assert [result.entry_id for result in reply.results] == list(wanted[:32])
    assert len(bookie.asked_v2) == 32


async def test_the_bytes_of_one_round_are_bounded_even_if_the_first_entries_are_small(
    bookie: Bookie, transport: ApacheTransport
) -> None:
    wanted, large = range(0, 512, 2), 256 << 10
    bookie.on_v2 = sized(bookie, lambda entry_id: 5 if entry_id < 256 else large)
    reply = await read(transport, wanted)
    assert [result.entry_id for result in reply.results] == list(wanted[: len(reply.results)])
    assert READ_BYTES_MAX < sum(len(result.packet) for result in reply.results) < ANSWERS_BYTES_MAX + 2 * large
    asked = len(bookie.asked_v2)
    bookie.on_v2 = bookie.serve
    assert (await read(transport, range(0, 60, 2))).results == found(range(0, 60, 2))
    assert len(bookie.asked_v2) == asked + 30


async def test_large_entries_have_no_more_requests_in_flight_than_over_version_3(
    bookie: Bookie, transport: ApacheTransport
) -> None:
    serve, waiting, largest = sized(bookie, lambda _: 17 << 10), list[tuple[Peer, v2.RequestV2]](), 0

    def answer() -> None:
        nonlocal largest
        largest = max(largest, len(waiting))
        while waiting:
            serve(*waiting.pop(0))

    def later(peer: Peer, request: v2.RequestV2) -> None:
        if not waiting:
            asyncio.get_running_loop().call_soon(answer)
        waiting.append((peer, request))

    bookie.on_v2 = later
    reply = await read(transport, range(0, 800, 2))
    assert [result.entry_id for result in reply.results] == list(range(0, 800, 2))
    assert largest <= WINDOW_MAX


async def test_any_number_of_callers_may_wait_for_an_impossible_connection() -> None:
    link = BulkLink(BookieAddress("127.0.0.1", 1, APACHE_PROTOCOL), FRAME_BYTES_MAX)
    results: list[EntryResult] = []
    calls = [asyncio.create_task(link.fetch(LEDGER, [EntryId(1)], results))]
    async with asyncio.timeout(DEADLINE_S):
        while not calls[0].done():  # each turn of the event loop adds a call
            calls.append(asyncio.create_task(link.fetch(LEDGER, [EntryId(1)], results)))
            await asyncio.sleep(0)
        await asyncio.gather(*calls)
    await link.close()
    assert results == []


async def test_the_end_of_bulk_transfer_is_logged_once(
    bookie: Bookie, transport: ApacheTransport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bookie.on_v2 = lambda peer, request: None
    replies = await asyncio.gather(*(read(transport, range(first, 80, 4), AFTER_AN_ANSWER_S) for first in range(4)))
    assert {reply.status for reply in replies} == {Status.TIMEOUT}
    reported = [record for record in caplog.records if "no bulk transfer" in record.message]
    assert [record.__dict__["address"] for record in reported] == [f"127.0.0.1:{bookie.port}"]


async def test_a_batch_of_the_same_entry_twice_is_stored_in_order(bookie: Bookie, transport: ApacheTransport) -> None:
    adds = batch(200, 200, 201, 202, is_recovery=True)
    assert await transport.add(BOOKIE, adds, DEADLINE_S) == AddReply(Status.OK)
    assert bookie.asked_v2 == []


def _another_entry(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.EntryV2(EOK_V2, request.ledger_id, request.entry_id, STORED[99])


def _nothing(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.EntryV2(EOK_V2, request.ledger_id, request.entry_id, b"")


def _another_version(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.EntryV2(EOK_V2, request.ledger_id, request.entry_id, STORED[request.entry_id], version=1)


def _another_ledger(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.EntryV2(EOK_V2, LedgerId(8), request.entry_id, STORED[request.entry_id])


def _an_ack(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.AddedV2(EOK_V2, request.ledger_id, request.entry_id)


def _an_error(request: v2.RequestV2) -> v2.ResponseV2:
    assert isinstance(request, v2.ReadV2)
    return v2.EntryV2(EIO_V2, request.ledger_id, request.entry_id)


@pytest.mark.parametrize("nonsense", [_another_entry, _nothing, _another_version, _an_error])
async def test_garbage_in_version_2_does_no_harm(
    bookie: Bookie, transport: ApacheTransport, nonsense: Callable[[v2.RequestV2], v2.ResponseV2]
) -> None:
    bookie.on_v2 = lambda peer, request: peer.say(nonsense(request))
    wanted = range(0, 40, 2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))


@pytest.mark.parametrize("unasked", [_another_ledger, _an_ack])
async def test_unrequested_answers_are_dropped(
    bookie: Bookie, transport: ApacheTransport, unasked: Callable[[v2.RequestV2], v2.ResponseV2]
) -> None:
    bookie.on_v2 = lambda peer, request: peer.say(unasked(request), bookie.answered_v2(request))
    wanted = range(0, 40, 2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))
    assert bookie.asked_v3 == []


@pytest.mark.parametrize("raw", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\0\0\0", b"\0\0\0\x05\x02\x02\0\0\0"])
async def test_malformed_answers_end_only_the_second_connection(
    bookie: Bookie, transport: ApacheTransport, raw: bytes
) -> None:
    bookie.on_v2 = lambda peer, request: peer.transport.write(raw)
    wanted = range(0, 40, 2)
    assert await read(transport, wanted) == ReadReply(Status.OK, found(wanted))


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0\x50", b"\xff\xff\xff\xff"])
async def test_a_malformed_batch_is_discarded(bookie: Bookie, transport: ApacheTransport, tail: bytes) -> None:
    bookie.on_v2 = lambda peer, request: peer.send(v2.encode_response(bookie.answered_v2(request)) + tail)
    assert await read(transport, range(40)) == ReadReply(Status.OK, found(range(40)))
    assert len(bookie.asked_v3) == 40


async def test_a_lost_connection_is_reported_as_unreachable(bookie: Bookie, transport: ApacheTransport) -> None:
    assert (await read(transport, range(40))).status is Status.OK

    def die(peer: Peer, request: v2.RequestV2) -> None:
        for each in bookie.peers:
            each.transport.abort()

    bookie.on_v2 = die
    assert (await read(transport, range(40))).status is Status.UNREACHABLE
    bookie.on_v2 = bookie.serve
    assert await read(transport, range(40)) == ReadReply(Status.OK, found(range(40)))
    assert bookie.asked_v3 == []


async def test_a_client_that_has_to_log_in_stays_on_version_3(bookie: Bookie) -> None:
    login = SaslCredentials("user", "secret", SaslMechanism.DIGEST_MD5)
    transport = transport_to(bookie, BookieSecurity(sasl=login))
    await read(transport, range(40), SOON_S)
    assert bookie.asked_v2 == []
    await transport.close()
