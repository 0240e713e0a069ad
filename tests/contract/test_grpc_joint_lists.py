"""Lists of several ledgers in one call over gRPC: each reply is the same as from a separate call."""

# ruff: noqa: N802  # method names of the service are gRPC's

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import grpc.aio
import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.joint_calls import CALLS_MAX
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import JOINT_LEDGERS_MAX, ListReply, Status
from bookie.wire.requests import ListEntries
from tests.contract.transport_world import BOOKIE, DEADLINE_S, LEDGER, TransportWorld, a_world, entry, served

SOON_S = 0.2
"""For calls expected to time out."""
NOTHING = EntryRuns(()).encode()


class Lister(rpc.BookieServicer):
    """Returns an empty list for each ledger, unless the test sets another one."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.alone: list[int] = []
        self.stuck: set[int] = set()
        self.unasked: set[int] = set()
        """Ledgers answered without a request for them."""
        self.cut_after: int | None = None
        """The number of ledgers of a call answered before it ends."""
        self.code: grpc.StatusCode | None = None
        """The final status of each joint call."""
        self.begun = asyncio.Semaphore(0)
        """Released by each joint call."""
        self.has_ended = asyncio.Event()
        """Set after a call was cancelled."""

    async def ListEntries(self, request: pb.ListEntriesRequest, context: object) -> AsyncIterator[pb.EntryList]:
        self.alone.append(request.ledger_id)
        await self._work([request.ledger_id])
        yield pb.EntryList(availability=NOTHING, is_last=True)

    async def ListLedgers(
        self, request: pb.ListLedgersRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.LedgerLists]:
        ledger_ids = list(request.ledger_ids)
        self.calls.append(ledger_ids)
        self.begun.release()
        if self.code is not None:
            await context.abort(self.code, "as the test says")
        free = [ledger_id for ledger_id in ledger_ids if ledger_id not in self.stuck]
        for ledger_id in [*free[: self.cut_after], *sorted(self.unasked)]:
            yield pb.LedgerLists(lists=[pb.LedgerList(ledger_id=ledger_id, piece=pb.EntryList(availability=NOTHING))])
            last = pb.EntryList(is_last=True, status=pb.STATUS_NO_LEDGER if ledger_id % 2 else pb.STATUS_OK)
            yield pb.LedgerLists(lists=[pb.LedgerList(ledger_id=ledger_id, piece=last)])
        if self.cut_after is None:
            await self._work(ledger_ids)

    async def _work(self, ledger_ids: Sequence[int]) -> None:
        if self.stuck.intersection(ledger_ids):
            try:
                await asyncio.Event().wait()
            finally:
                self.has_ended.set()


@pytest.fixture
def lister() -> Lister:
    return Lister()


@pytest.fixture
async def transport(lister: Lister) -> AsyncIterator[GrpcTransport]:
    async with served(lister) as transport:
        yield transport


@pytest.fixture
async def world() -> AsyncIterator[TransportWorld]:
    async with a_world("grpc") as world:
        yield world


def listing(transport: object, ledger_id: int, timeout_s: float = DEADLINE_S) -> asyncio.Task[ListReply]:
    assert isinstance(transport, GrpcTransport)
    return asyncio.create_task(transport.ask(BOOKIE, ListEntries(LedgerId(ledger_id)), timeout_s))


async def statuses(listings: Sequence[asyncio.Task[ListReply]]) -> list[Status]:
    return [reply.status for reply in await asyncio.gather(*listings)]


async def test_a_bookie_lists_several_ledgers_in_one_answer(world: TransportWorld) -> None:
    await world.add(entry(0), entry(2))
    listings = [listing(world.transport, ledger_id) for ledger_id in (LEDGER, 8, 9, -1)]
    known, *others = await asyncio.gather(*listings)
    assert (known.status, list(known.entries)) == (Status.OK, [0, 2])
    assert [reply.status for reply in others] == [Status.NO_LEDGER, Status.NO_LEDGER, Status.BAD_REQUEST]


async def test_concurrent_requests_share_one_call_and_a_single_one_has_its_own(
    transport: GrpcTransport, lister: Lister
) -> None:
    assert await statuses([listing(transport, 0)]) == [Status.OK]
    assert await statuses([listing(transport, n) for n in range(6)]) == [Status.OK, Status.NO_LEDGER] * 3
    assert (lister.alone, lister.calls) == ([0], [[0, 1, 2, 3, 4, 5]])


async def test_a_call_contains_a_bounded_number_of_ledgers_each_once(transport: GrpcTransport, lister: Lister) -> None:
    wanted = [*range(JOINT_LEDGERS_MAX + 2), 3, 3]
    await statuses([listing(transport, n) for n in wanted])
    assert all(len(set(call)) == len(call) <= JOINT_LEDGERS_MAX for call in lister.calls)
    assert sorted([*lister.alone, *itertools.chain(*lister.calls)]) == sorted(wanted)


async def test_a_bookie_of_an_earlier_version_is_queried_for_one_ledger_at_a_time(
    transport: GrpcTransport, lister: Lister
) -> None:
    lister.code = grpc.StatusCode.UNIMPLEMENTED
    for _ in range(2):
        assert await statuses([listing(transport, n) for n in (1, 2, 3)]) == [Status.OK] * 3
    assert (len(lister.calls), sorted(lister.alone)) == (1, [1, 1, 2, 2, 3, 3])


async def test_the_lists_of_a_broken_call_are_used_and_the_rest_is_unknown(
    transport: GrpcTransport, lister: Lister
) -> None:
    lister.cut_after = 2
    assert await statuses([listing(transport, n) for n in (2, 4, 6)]) == [Status.OK, Status.OK, Status.UNREACHABLE]
    lister.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await statuses([listing(transport, n) for n in (2, 4)]) == [Status.TOO_MANY_REQUESTS] * 2


@pytest.mark.parametrize("unasked", [9, 2], ids=["another ledger", "a ledger twice"])
async def test_an_unrequested_list_is_not_an_answer(transport: GrpcTransport, lister: Lister, unasked: int) -> None:
    lister.stuck, lister.unasked = {4}, {unasked}
    assert await statuses([listing(transport, n) for n in (2, 4)]) == [Status.OK, Status.IO_ERROR]


async def test_a_large_ledger_does_not_delay_others(transport: GrpcTransport, lister: Lister) -> None:
    lister.stuck = {100, 101, 102}
    stuck = [listing(transport, n) for n in (100, 2)]
    assert (await stuck[1]).status is Status.OK
    stuck += [listing(transport, 101), listing(transport, 102)]  # more than the bookie has places
    assert await statuses([listing(transport, n) for n in (2, 4, 6)]) == [Status.OK] * 3
    assert await statuses([listing(transport, 101, SOON_S)]) == [Status.TIMEOUT]
    for each in stuck:
        each.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_call_ends_with_its_last_caller(transport: GrpcTransport, lister: Lister) -> None:
    lister.stuck = {1, 2}
    assert await statuses([listing(transport, n, SOON_S) for n in (1, 2)]) == [Status.TIMEOUT] * 2
    async with asyncio.timeout(DEADLINE_S):
        await lister.has_ended.wait()


async def test_a_closed_transport_answers_its_waiting_callers(transport: GrpcTransport, lister: Lister) -> None:
    lister.stuck = {1, 2}
    waiting = [listing(transport, n) for n in (1, 2, 4)]
    assert (await waiting[2]).status is Status.OK
    await transport.close()
    assert await statuses(waiting[:2]) == [Status.UNREACHABLE] * 2


@pytest.mark.parametrize("waiting_count", [1, 5])
async def test_requests_waiting_for_a_slot_end_with_the_channel(
    transport: GrpcTransport, lister: Lister, waiting_count: int
) -> None:
    lister.stuck = set(range(4))
    listings = []
    for call in range(CALLS_MAX):  # these have a place
        listings += [listing(transport, 2 * call + n) for n in range(2)]
        async with asyncio.timeout(DEADLINE_S):
            await lister.begun.acquire()
    listings += [listing(transport, 100 + n) for n in range(waiting_count)]
    for _ in range(5):
        await asyncio.sleep(0)
    await transport.close()
    async with asyncio.timeout(DEADLINE_S / 2):
        assert await statuses(listings) == [Status.UNREACHABLE] * len(listings)


@pytest.mark.parametrize("ledger_ids", [[], [1, 1], list(range(JOINT_LEDGERS_MAX + 1))], ids=["none", "twice", "many"])
async def test_a_bookie_refuses_a_malformed_call(world: TransportWorld, ledger_ids: list[int]) -> None:
    assert world.directory.address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.directory.address.port}") as channel:
        call = rpc.BookieStub(channel).ListLedgers(pb.ListLedgersRequest(ledger_ids=ledger_ids))  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
