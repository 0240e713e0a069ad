"""Small reads of several ledgers in one call over gRPC: each reply is the same as from a separate call."""

# ruff: noqa: N802  # method names of the service are gRPC's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import grpc.aio
import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.joint_calls import ANSWER_BYTES_MAX
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import JOINT_LEDGERS_MAX, EntryResult, ReadReply, Status, Transport
from bookie.wire.requests import Read
from tests.contract.transport_world import BOOKIE, DEADLINE_S, KEY, LEDGER, TransportWorld, a_world, entry, served

SOON_S = 0.2
"""For calls expected to time out."""
OLD = grpc.StatusCode.UNIMPLEMENTED


def piece(entry_ids: Sequence[int], packet: bytes = b"stored", *, is_last: bool = True) -> pb.EntryBatch:
    return pb.EntryBatch(entry_ids=entry_ids, packets=[packet] * len(entry_ids), is_last=is_last)


class Shelf(rpc.BookieServicer):
    """Has every entry of every ledger, and answers joint reads as set by the test."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.alone: list[int] = []
        self.pieces: dict[int, list[pb.EntryBatch]] = {}
        """The batches sent for a ledger in place of its entries."""
        self.cut_after: int | None = None
        """The number of ledgers of a call answered before it ends."""
        self.code: grpc.StatusCode | None = None
        """The final status of each joint call."""
        self.unasked: list[int] = []
        self.stuck: set[int] = set()
        self.has_ended = asyncio.Event()
        """Set after a call was cancelled."""

    async def Read(self, request: pb.ReadRequest, context: object) -> AsyncIterator[pb.EntryBatch]:
        self.alone.append(request.ledger_id)
        yield piece(request.entry_ids)

    async def ReadLedgers(
        self, request: pb.ReadLedgersRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.LedgerBatches]:
        self.calls.append([read.ledger_id for read in request.reads])
        if self.code is not None:
            await context.abort(self.code, "as the test says")
        free = [read for read in request.reads if read.ledger_id not in self.stuck]
        for read in free[: self.cut_after]:
            for each in self.pieces.get(read.ledger_id, [piece(read.entry_ids)]):
                yield batches([(read.ledger_id, each)])
        for ledger_id in self.unasked:
            yield batches([(ledger_id, piece([0]))])
        if len(free) < len(request.reads) and self.cut_after is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.has_ended.set()


def batches(pieces: Iterable[tuple[int, pb.EntryBatch]]) -> pb.LedgerBatches:
    return pb.LedgerBatches(batches=[pb.LedgerBatch(ledger_id=ledger_id, piece=each) for ledger_id, each in pieces])


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def transport(shelf: Shelf) -> AsyncIterator[GrpcTransport]:
    async with served(shelf) as transport:
        yield transport


@pytest.fixture
async def world() -> AsyncIterator[TransportWorld]:
    async with a_world("grpc") as world:
        yield world


def reading(
    transport: Transport, ledger_id: int, *entry_ids: int, timeout_s: float = DEADLINE_S
) -> asyncio.Task[ReadReply]:
    wanted = [EntryId(entry_id) for entry_id in entry_ids or (0, 1)]
    read = Read(LedgerId(ledger_id), wanted, is_small=True)
    return asyncio.create_task(transport.ask(BOOKIE, read, timeout_s))


async def replies(readings: Iterable[asyncio.Task[ReadReply]]) -> list[tuple[Status, list[int]]]:
    return [(each.status, [result.entry_id for result in each.results]) for each in await asyncio.gather(*readings)]


async def test_a_bookie_reads_several_ledgers_in_one_answer(world: TransportWorld) -> None:
    await world.add(entry(0), entry(2, b"other"))
    mine, unknown, wrong = await asyncio.gather(
        reading(world.transport, LEDGER, 0, 1, 2), reading(world.transport, 8), reading(world.transport, 9, 4, 3)
    )
    assert mine == ReadReply(
        Status.OK,
        (
            EntryResult(EntryId(0), Status.OK, entry(0)),
            EntryResult(EntryId(1), Status.NO_ENTRY),
            EntryResult(EntryId(2), Status.OK, entry(2, b"other")),
        ),
    )
    assert [result.status for result in unknown.results] == [Status.NO_LEDGER] * 2
    assert (wrong.status, wrong.results) == (Status.BAD_REQUEST, ())


async def test_concurrent_small_reads_share_one_call(transport: GrpcTransport, shelf: Shelf) -> None:
    large = Read(LedgerId(1), [EntryId(0)])
    fencing = Read(LedgerId(2), [EntryId(0)], KEY, is_small=True)
    others = [asyncio.create_task(transport.ask(BOOKIE, read, DEADLINE_S)) for read in (large, fencing)]
    assert await replies([*others, reading(transport, 3)]) == [(Status.OK, [0])] * 2 + [(Status.OK, [0, 1])]
    assert sorted(shelf.alone) == [1, 2, 3]  # the third request waited, and no other of its kind did
    assert await replies(reading(transport, n) for n in range(4)) == [(Status.OK, [0, 1])] * 4
    assert shelf.calls == [[0, 1, 2, 3]]


async def test_each_ledger_is_sent_once(transport: GrpcTransport, shelf: Shelf) -> None:
    assert await replies(reading(transport, n, n) for n in (5, 6, 5)) == [(Status.OK, [n]) for n in (5, 6, 5)]
    assert all(len(set(call)) == len(call) for call in shelf.calls)


async def test_a_bookie_of_an_earlier_version_is_read_one_ledger_at_a_time(
    transport: GrpcTransport, shelf: Shelf
) -> None:
    shelf.code = OLD
    for _ in range(2):
        assert await replies(reading(transport, n) for n in (1, 2)) == [(Status.OK, [0, 1])] * 2
    assert (len(shelf.calls), sorted(shelf.alone)) == (1, [1, 1, 2, 2])


async def test_the_results_of_a_broken_call_are_used_and_the_rest_is_unknown(
    transport: GrpcTransport, shelf: Shelf
) -> None:
    shelf.cut_after, shelf.pieces = 2, {2: [piece([0], is_last=False)]}
    found = await replies(reading(transport, n) for n in (1, 2, 3))
    assert found == [(Status.OK, [0, 1]), (Status.UNREACHABLE, [0]), (Status.UNREACHABLE, [])]
    shelf.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await replies(reading(transport, n) for n in (1, 2)) == [(Status.TOO_MANY_REQUESTS, [])] * 2


@pytest.mark.parametrize(
    ("unasked", "pieces"),
    [([9], {}), ([1], {}), ([], {2: [piece([1])]}), ([], {2: [piece([])]})],
    ids=["another ledger", "a ledger twice", "another entry", "no entry"],
)
async def test_unrequested_entries_are_not_an_answer(
    transport: GrpcTransport, shelf: Shelf, unasked: list[int], pieces: dict[int, list[pb.EntryBatch]]
) -> None:
    shelf.unasked, shelf.pieces, shelf.stuck = unasked, pieces, {3}
    first, second = reading(transport, 1), reading(transport, 2 if pieces else 3)
    assert await replies([first, second]) == [(Status.OK, [0, 1]), (Status.IO_ERROR, [])]


async def test_a_call_with_too_large_an_answer_ends_and_the_rest_is_read_separately(
    transport: GrpcTransport, shelf: Shelf
) -> None:
    megabytes = 8
    count = 1 + ANSWER_BYTES_MAX // (megabytes << 20)
    shelf.pieces = {1: [piece([n], bytes(megabytes << 20), is_last=False) for n in range(count)]}
    found = await replies([reading(transport, 1, *range(count + 1)), reading(transport, 2)])
    assert found == [(Status.OK, [*range(count + 1)]), (Status.OK, [0, 1])]
    assert (shelf.calls, shelf.alone) == ([[1, 2]], [1, 2])


async def test_a_call_ends_with_its_last_caller(transport: GrpcTransport, shelf: Shelf) -> None:
    shelf.stuck = {1, 2}
    found = await replies(reading(transport, n, timeout_s=SOON_S) for n in (1, 2, 3))
    assert found == [(Status.TIMEOUT, []), (Status.TIMEOUT, []), (Status.OK, [0, 1])]
    async with asyncio.timeout(DEADLINE_S):
        await shelf.has_ended.wait()


@pytest.mark.parametrize("ledger_ids", [[], [1, 1], range(JOINT_LEDGERS_MAX + 1)], ids=["none", "twice", "many"])
async def test_a_bookie_refuses_a_malformed_call(world: TransportWorld, ledger_ids: Sequence[int]) -> None:
    assert world.directory.address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.directory.address.port}") as channel:
        reads = [pb.LedgerRead(ledger_id=ledger_id, entry_ids=[0]) for ledger_id in ledger_ids]
        call = rpc.BookieStub(channel).ReadLedgers(pb.ReadLedgersRequest(reads=reads))  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
