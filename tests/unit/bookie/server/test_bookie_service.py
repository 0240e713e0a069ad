"""Request handling around the storage: behavior that the transport contract cannot test from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.packet import pack_lac
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.fault_points import inject_faults
from bookie.server.service import ServiceLimits
from bookie.storage.disks.memory import MemoryDisk, Operation, yield_control
from bookie.storage.entry_logs.entry_log import log_path
from bookie.storage.port import DiskError
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, AddReply, EntryResult, LacReply, ReadReply, Status
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac
from tests.deadlines import STATE_S
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import MemoryBookie, open_bookie
from tests.worlds.entries import DIGEST, packed_entry
from tests.worlds.virtual_time import in_virtual_time

LEDGER = LedgerId(3)
KEY = b"key"


class Gate:
    """A ``before`` hook that blocks one kind of operation."""

    def __init__(self, held: Operation) -> None:
        self.has_begun = asyncio.Event()
        self._held = held
        self._may_go = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        if operation is self._held:
            self.has_begun.set()
            await self._may_go.wait()

    def open(self) -> None:
        self._may_go.set()


class Bookie:
    def __init__(self, bookie: MemoryBookie) -> None:
        self.storage, self.service = bookie.storage, bookie.service
        self.journal, self.ledgers, self.index = bookie.journal, bookie.ledgers, bookie.index

    async def add(self, entry_id: int, size: int = 10, lac: int = NO_ENTRY) -> AddReply:
        return await self.service.add("uuid", AddBatch(LEDGER, KEY, [entry(entry_id, size, lac)]))

    def adding(self, entry_id: int, size: int = 10) -> asyncio.Task[AddReply]:
        return asyncio.create_task(self.add(entry_id, size))

    async def wait_lac(self, beyond: int, wait_s: float = STATE_S) -> LacReply:
        return await self.service.answer("uuid", WaitLac(LEDGER, EntryId(beyond), wait_s))

    async def waiting(self, beyond: int) -> asyncio.Task[LacReply]:
        """Start a long poll, and return when it has taken its place."""
        gate = self.index.before = Gate(Operation.INDEX_READ)
        poll = asyncio.create_task(self.wait_lac(beyond))
        await gate.has_begun.wait()
        self.index.before = yield_control
        gate.open()
        return poll


def entry(entry_id: int, size: int = 10, lac: int = NO_ENTRY) -> bytes:
    return packed_entry(LEDGER, entry_id, bytes(size), last_add_confirmed=lac)


def found(entry_id: int, lac: int) -> EntryResult:
    return EntryResult(EntryId(entry_id), Status.OK, entry(entry_id, lac=lac))


@asynccontextmanager
async def a_bookie(clock: Clock) -> AsyncIterator[Bookie]:
    bookie = await open_bookie(clock, limits=ServiceLimits(add_bytes_max=1000, reads_max=2, lac_waiters_max=2))
    yield Bookie(bookie)
    bookie.journal.before = bookie.index.before = yield_control
    await bookie.storage.abort()


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    async with a_bookie(SystemClock()) as bookie:
        yield bookie


async def test_a_drain_waits_for_requests_that_have_begun(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    add = bookie.adding(0)
    await gate.has_begun.wait()
    bookie.service.refuse_everything()
    assert (await bookie.add(1)).status is Status.SHUTTING_DOWN
    assert not await bookie.service.drain(deadline_s=0.0)
    gate.open()
    assert await bookie.service.drain(STATE_S)
    assert (await add).status is Status.OK
    assert await bookie.service.drain(deadline_s=0.0)


async def test_a_request_whose_caller_disconnects_still_completes(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    fence = asyncio.create_task(bookie.service.answer("", Fence(LEDGER, KEY)))
    await gate.has_begun.wait()
    fence.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fence
    gate.open()
    assert await bookie.service.drain(STATE_S)
    assert (await bookie.add(0)).status is Status.FENCED


async def test_room_is_released_whatever_the_outcome_of_the_add(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    waiting = [bookie.adding(n, size=400) for n in range(2)]
    await gate.has_begun.wait()
    assert (await bookie.add(2, size=400)).status is Status.TOO_MANY_REQUESTS
    waiting[0].cancel()
    gate.open()
    assert (await waiting[1]).status is Status.OK
    assert await bookie.service.drain(STATE_S)
    assert (await bookie.add(2, size=400)).status is Status.OK
    assert (await bookie.add(3, size=5000)).status is Status.OK  # the limit never refuses a single request


async def test_reads_beyond_the_limit_wait_for_their_turn(bookie: Bookie) -> None:
    gate = bookie.index.before = Gate(Operation.INDEX_READ)
    reads = [asyncio.create_task(bookie.service.answer("", Read(LedgerId(n), [EntryId(0)]))) for n in range(5)]
    await gate.has_begun.wait()
    gate.open()
    assert {(await read).status for read in reads} == {Status.OK}


async def test_a_read_whose_caller_disconnects_keeps_its_slot(bookie: Bookie) -> None:
    gate = bookie.index.before = Gate(Operation.INDEX_READ)
    reads = [asyncio.create_task(bookie.service.answer("uuid", ListEntries(LEDGER))) for _ in range(2)]
    await gate.has_begun.wait()
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)
    begun: list[str] = []

    async def count(operation: Operation, path: str) -> None:
        begun.append(path)

    bookie.index.before = count
    late = asyncio.create_task(bookie.service.answer("uuid", Read(LedgerId(99), [EntryId(0)])))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not begun
    gate.open()
    assert (await late).status is Status.OK
    assert begun


async def test_a_bug_in_one_request_is_answered_and_logged(bookie: Bookie, caplog: pytest.LogCaptureFixture) -> None:
    async def bug(operation: Operation, path: str) -> None:
        raise ZeroDivisionError

    bookie.index.before = bug
    reply = await bookie.service.answer("", ReadLast(LEDGER))
    assert (reply.status, "ZeroDivisionError" in reply.detail) == (Status.IO_ERROR, False)
    assert "ZeroDivisionError" in caplog.text
    bookie.index.before = yield_control
    assert (await bookie.add(0)).status is Status.OK


async def test_a_device_that_does_not_answer_is_an_io_error(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(disk: MemoryDisk) -> tuple[int, int]:
        raise DiskError("the device is gone")

    monkeypatch.setattr(MemoryDisk, "space", no_answer)
    assert (await bookie.service.answer("", Info())).status is Status.IO_ERROR


async def test_an_add_to_a_full_disk_is_answered_with_read_only(bookie: Bookie) -> None:
    bookie.journal.capacity_bytes = bookie.journal.used_bytes()
    assert (await bookie.add(0)).status is Status.READ_ONLY


async def test_a_refusal_by_a_read_only_bookie_gives_no_reason_that_may_be_wrong(bookie: Bookie) -> None:
    bookie.service.is_read_only = True  # as an operator, a drain or a disk may have requested
    refused = await bookie.add(0)
    assert refused.status is Status.READ_ONLY
    assert refused.detail == "this bookie is read-only, and its log says why: it takes recovery adds only"


@pytest.mark.parametrize(
    ("wait_s", "waited_s"),
    [(0.0, 0.0), (-5.0, 0.0), (float("nan"), 0.0), (10.0, 10.0), (1000.0, 30.0), (float("inf"), 30.0)],
)
def test_a_long_poll_waits_as_requested_and_never_longer_than_the_limit(wait_s: float, waited_s: float) -> None:
    @in_virtual_time
    async def run() -> None:
        clock = VirtualClock()
        async with a_bookie(clock) as bookie:
            begun_s = clock.monotonic_s()
            assert await bookie.wait_lac(5, wait_s) == LacReply(Status.NO_LEDGER)
            assert clock.monotonic_s() - begun_s == pytest.approx(waited_s)

    run()


async def test_an_add_during_the_check_is_not_missed(bookie: Bookie) -> None:
    await bookie.add(0)
    gate = bookie.index.before = Gate(Operation.INDEX_READ)
    poll = asyncio.create_task(bookie.wait_lac(NO_ENTRY))
    await gate.has_begun.wait()  # the cache has been checked, but not the index
    assert (await bookie.add(1, lac=0)).status is Status.OK
    gate.open()
    assert await poll == LacReply(Status.OK, b"", found(1, lac=0), found(0, lac=NO_ENTRY))


async def test_an_explicit_lac_during_the_check_is_not_missed(bookie: Bookie) -> None:
    await bookie.add(0)
    gate = bookie.index.before = Gate(Operation.INDEX_READ)
    poll = asyncio.create_task(bookie.wait_lac(NO_ENTRY))
    await gate.has_begun.wait()
    explicit = pack_lac(DIGEST, LEDGER, 0)
    assert await bookie.service.answer("uuid", WriteLac(LEDGER, KEY, explicit)) == AddReply(Status.OK)
    gate.open()
    assert (await poll).explicit == explicit


async def test_a_long_poll_whose_caller_disconnects_releases_its_slot(bookie: Bookie) -> None:
    await bookie.add(0)
    gone = [await bookie.waiting(n) for n in range(2)]
    assert (await bookie.wait_lac(NO_ENTRY)).last_entry == found(0, NO_ENTRY)  # no free place: no wait
    assert bookie.service.polls_refused == 1
    for poll in gone:
        poll.cancel()
    await asyncio.wait(gone)
    poll = await bookie.waiting(NO_ENTRY)
    await bookie.add(1, lac=0)
    assert (await poll).last_entry == found(1, lac=0)


async def test_a_long_poll_goes_on_until_an_answer_can_prove_the_lac(bookie: Bookie) -> None:
    """Entries out of order: the last entry was sent before the others were confirmed."""
    await bookie.add(9, lac=NO_ENTRY)
    poll = await bookie.waiting(NO_ENTRY)
    await bookie.add(5, lac=4)
    assert not poll.done()
    await bookie.add(10, lac=9)
    assert await poll == LacReply(Status.OK, b"", found(10, lac=9))


async def test_a_failed_add_wakes_no_waiter(bookie: Bookie) -> None:
    async def broken(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            raise DiskError("the disk is broken")

    await bookie.add(0)
    poll = await bookie.waiting(NO_ENTRY)
    bookie.journal.before = broken
    assert (await bookie.add(1, lac=0)).status is Status.IO_ERROR
    assert (await bookie.service.answer("uuid", ReadLac(LEDGER))).last_entry == found(0, NO_ENTRY)
    assert not poll.done()
    poll.cancel()


async def test_a_drain_does_not_wait_for_long_polls(bookie: Bookie) -> None:
    poll = await bookie.waiting(NO_ENTRY)
    bookie.service.refuse_everything()
    assert await bookie.service.drain(STATE_S)
    assert (await poll).status is Status.SHUTTING_DOWN
    assert (await bookie.wait_lac(NO_ENTRY)).status is Status.SHUTTING_DOWN


@pytest.mark.parametrize(
    "fires",
    [
        lambda name: name == "lac_board.forget_explicit",
        lambda name: name == "lac_board.wake_for_nothing",
        lambda name: name == "lac_board.no_place",
        lambda name: name == "service.short_read",
    ],
    ids=["forget", "wake", "no place", "short read"],
)
async def test_unlikely_branches_make_no_answer_worse(bookie: Bookie, fires: Callable[[str], bool]) -> None:
    with inject_faults(fires):
        await bookie.add(0)
        await bookie.service.answer("uuid", WriteLac(LEDGER, KEY, pack_lac(DIGEST, LEDGER, 0)))
        await bookie.add(1, lac=0)
        reply = await bookie.wait_lac(NO_ENTRY)
        assert (reply.status, reply.last_entry, reply.entry) == (Status.OK, found(1, lac=0), found(0, NO_ENTRY))
        read = await bookie.service.answer("uuid", Read(LEDGER, [EntryId(0), EntryId(1)]))
        assert (read.status, read.results[0]) == (Status.OK, found(0, NO_ENTRY))


async def test_damage_is_recorded_although_the_read_cache_has_the_intact_bytes(bookie: Bookie) -> None:
    for entry_id in range(20):
        await bookie.add(entry_id)
    await bookie.storage.checkpoint()
    ahead = Read(LEDGER, [EntryId(entry_id) for entry_id in range(18)])
    assert len((await bookie.service.answer("uuid", ahead)).results) == 18
    path = log_path(1)
    bookie.ledgers.flip_bit(path, bookie.ledgers.content(path).index(entry(5)) * 8)
    assert (await bookie.service.answer("uuid", Read(LEDGER, [EntryId(5)]))).results == [found(5, NO_ENTRY)]
    await bookie.service.verify(LEDGER, [EntryId(5)])
    listed = await bookie.service.answer("uuid", ListEntries(LEDGER))
    assert (listed.status, list(listed.entries)) == (Status.CORRUPT, [n for n in range(20) if n != 5])


async def test_checking_a_key_leaves_no_trace(bookie: Bookie) -> None:
    assert await bookie.storage.check_key(LEDGER, KEY) is Status.NO_LEDGER
    assert bookie.storage.ledger_count == 0
    await bookie.add(0)
    assert await bookie.storage.check_key(LEDGER, KEY) is Status.OK
    assert await bookie.storage.check_key(LEDGER, b"other") is Status.UNAUTHORIZED
    await bookie.storage.set_limbo([LedgerId(9)])
    assert await bookie.storage.check_key(LedgerId(9), KEY) is Status.LIMBO

    async def broken(operation: Operation, path: str) -> None:
        raise DiskError("the disk is broken")

    bookie.index.before = broken
    assert await bookie.storage.check_key(LedgerId(10), KEY) is Status.IO_ERROR


@pytest.mark.parametrize("status", [Status.CORRUPT, Status.IO_ERROR])
async def test_a_last_entry_that_does_not_verify_is_reported_as_such(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    damaged = EntryResult(EntryId(4), status)

    async def read_last(storage: LedgerStorage, ledger_id: LedgerId) -> ReadReply:
        return ReadReply(Status.OK, [damaged])

    monkeypatch.setattr(LedgerStorage, "read_last", read_last)
    assert await bookie.service.answer("uuid", ReadLac(LEDGER)) == LacReply(Status.OK, b"", damaged)
    assert await bookie.wait_lac(NO_ENTRY, 0.0) == LacReply(Status.OK, b"", damaged)
