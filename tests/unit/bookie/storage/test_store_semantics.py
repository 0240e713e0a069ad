"""Races, damage, full and failing disks: the answers of the store under abnormal conditions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.index_format import MARK_KEY, state_key
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.entry_logs import entry_log
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE
from bookie.storage.entry_logs.log_ends import uncounted
from bookie.storage.errors import DamagedJournalError, LostIndexError, UnsupportedFormatError
from bookie.storage.journal.replay import DIRECTORY as JOURNAL
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, AddReply, EntryResult, FenceReply, ListReply, ReadReply, Status
from tests.worlds.clocks import ManualClock
from tests.worlds.entries import raw_entry

LEDGER = LedgerId(7)
KEY = b"secret-key-of-ledger"
WRITES = frozenset({Operation.CREATE, Operation.APPEND, Operation.SYNC, Operation.REPLACE, Operation.INDEX_WRITE})
_NEEDING_SPACE = WRITES - {Operation.SYNC}
"""Without new data, a sync needs no space."""


class Valve:
    """A ``before`` hook that delays the given operations or makes them fail."""

    def __init__(self) -> None:
        self.is_held: Callable[[Operation, str], bool] = lambda operation, path: False
        self.failure: Callable[[Operation, str], DiskError | None] = lambda operation, path: None
        self._moved = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        await asyncio.sleep(0)
        while self.is_held(operation, path):
            await self._moved.wait()
        if (error := self.failure(operation, path)) is not None:
            raise error

    def hold(self, *operations: Operation) -> None:
        self.is_held = lambda operation, path: operation in operations

    def fail(self, error: DiskError, *operations: Operation, directory: str = "") -> None:
        self.failure = lambda operation, path: error if operation in operations and path.startswith(directory) else None

    def open(self) -> None:
        self.is_held = lambda operation, path: False
        self.failure = lambda operation, path: None
        self._moved.set()
        self._moved = asyncio.Event()


class StorageWorld:
    """A store on in-memory twins, with a valve for each."""

    def __init__(self) -> None:
        self.valve = Valve()
        self.clock = ManualClock()
        self.journal = MemoryDisk(before=self.valve)
        self.ledgers = MemoryDisk(before=self.valve)
        self.index = MemoryIndex(before=self.valve)
        self.store: LedgerStorage

    async def start(self, **settings: int) -> None:
        self.store = await LedgerStorage.open(
            self.journal, self.ledgers, self.index, StorageSettings(**settings), self.clock
        )

    async def restart(self, **settings: int) -> None:
        """Restart the store as after the process was killed."""
        await self.store.abort()
        self.journal, self.ledgers, self.index = (twin.restarted() for twin in (self.journal, self.ledgers, self.index))  # type: ignore[assignment]
        for twin in (self.journal, self.ledgers, self.index):
            twin.before = self.valve
        await self.start(**settings)

    async def add(self, *entry_ids: int, is_recovery: bool = False, key: bytes = KEY) -> AddReply:
        entries = [entry(entry_id) for entry_id in entry_ids]
        return await self.store.add(AddBatch(LEDGER, key, entries, is_recovery))

    async def status_of(self, entry_id: int) -> Status:
        reply = await self.store.read(LEDGER, [EntryId(entry_id)])
        assert reply.status is Status.OK
        return reply.results[0].status

    def let_retry(self) -> None:
        """Let the time pass after which a full disk is used again."""
        self.clock.now_s += StorageSettings().flush_retry_s

    def is_full(self) -> bool:
        return self.store.is_full

    def log_path(self) -> str:
        [path] = [path for path in self.ledgers.paths() if path.startswith(entry_log.DIRECTORY)]
        return path


def entry(entry_id: int, payload: bytes = b"payload") -> bytes:
    return raw_entry(LEDGER, entry_id, payload)


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[StorageWorld]:
    world = StorageWorld()
    await world.start()
    yield world
    world.valve.open()
    await world.store.abort()


# Fences and adds


async def test_fence_enqueued_before_an_add_refuses_it(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.hold(Operation.SYNC)
    fence = asyncio.create_task(world.store.fence(LEDGER, KEY))
    await settle()
    assert (await world.add(1)).status is Status.FENCED
    assert not fence.done()
    world.valve.open()
    reply = await fence
    assert reply.last_entry is not None
    assert reply.last_entry.entry_id == 0


async def test_add_enqueued_before_a_fence_is_in_the_answer_to_the_fence(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.hold(Operation.SYNC)
    add = asyncio.create_task(world.add(1))
    await settle()
    fence = asyncio.create_task(world.store.fence(LEDGER, KEY))
    await settle()
    world.valve.open()
    assert (await add).status is Status.OK
    reply = await fence
    assert reply.last_entry == EntryResult(EntryId(1), Status.OK, entry(1))


@pytest.mark.parametrize("seed", range(30))
async def test_no_add_is_acknowledged_after_a_fence_answer_without_it(world: StorageWorld, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: list[int] = []

    async def yield_at_random(operation: Operation, path: str) -> None:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)

    world.journal.before = world.index.before = world.ledgers.before = yield_at_random

    async def writer() -> None:
        for number in range(30):
            if (await world.add(number)).status is not Status.OK:
                return
            acknowledged.append(number)

    async def recovery() -> FenceReply:
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)
        return await world.store.fence(LEDGER, KEY)

    async def checkpoints() -> None:
        for _ in range(rng.randrange(3)):
            await world.store.checkpoint()

    _, reply, _ = await asyncio.gather(writer(), recovery(), checkpoints())
    assert reply.status is Status.OK
    last = -1 if reply.last_entry is None else reply.last_entry.entry_id
    assert last == max(acknowledged, default=-1) or last == len(acknowledged)
    assert acknowledged == list(range(len(acknowledged)))


async def test_concurrent_fences_share_one_record(world: StorageWorld) -> None:
    await world.add(0)
    before = sum(len(world.journal.content(path)) for path in world.journal.paths())
    world.valve.hold(Operation.SYNC)
    fences = [asyncio.create_task(world.store.fence(LEDGER, KEY)) for _ in range(50)]
    await settle()
    world.valve.open()
    assert {reply.status for reply in await asyncio.gather(*fences)} == {Status.OK}
    assert sum(len(world.journal.content(path)) for path in world.journal.paths()) - before < 200


async def test_a_cancelled_fence_caller_does_not_cancel_the_answer_to_the_others(world: StorageWorld) -> None:
    world.valve.hold(Operation.SYNC)
    fences = [asyncio.create_task(world.store.fence(LEDGER, KEY)) for _ in range(3)]
    await settle()
    fences[0].cancel()
    await settle()
    world.valve.open()
    assert [(await fence).status for fence in fences[1:]] == [Status.OK, Status.OK]


async def test_add_whose_caller_is_cancelled_is_still_stored_and_keeps_its_key() -> None:
    world = StorageWorld()
    await world.start(ledgers_in_memory=0)
    world.valve.hold(Operation.SYNC)
    add = asyncio.create_task(world.add(0))
    await settle()
    add.cancel()
    await settle()
    assert (await world.add(1, key=b"other")).status is Status.UNAUTHORIZED
    world.valve.open()
    await settle()
    assert await world.status_of(0) is Status.OK
    await world.store.close()


async def test_fence_whose_caller_is_cancelled_still_holds() -> None:
    world = StorageWorld()
    await world.start(ledgers_in_memory=0)
    world.valve.hold(Operation.SYNC)
    fence = asyncio.create_task(world.store.fence(LEDGER, KEY))
    await settle()
    fence.cancel()
    await settle()
    assert (await world.add(0)).status is Status.FENCED
    world.valve.open()
    await world.restart()
    assert (await world.add(0)).status in (Status.FENCED, Status.OK)
    await world.store.close()


async def test_unacknowledged_entry_is_not_served(world: StorageWorld) -> None:
    world.valve.hold(Operation.SYNC)
    add = asyncio.create_task(world.add(0))
    await settle()
    assert await world.status_of(0) is Status.NO_LEDGER
    world.valve.open()
    await add
    assert await world.status_of(0) is Status.OK


async def test_an_add_in_flight_when_the_ledger_was_marked_is_not_collected(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.hold(Operation.SYNC)
    adding = asyncio.create_task(world.add(1, is_recovery=True))
    await settle()
    mark = world.store.mark(LEDGER)
    world.valve.open()
    assert (await adding).status is Status.OK
    assert not await world.store.collect(LEDGER, mark)
    assert [await world.status_of(number) for number in range(2)] == [Status.OK, Status.OK]


async def test_an_add_clears_the_mark_when_it_arrives_and_not_only_when_it_is_durable(world: StorageWorld) -> None:
    """Entries stored before may be among those on which the client of the new add relies."""
    await world.add(0)
    await world.store.checkpoint()
    await world.store.fence(LEDGER, KEY)  # a collection of a fenced ledger does not wait for the journal
    mark = world.store.mark(LEDGER)
    world.valve.hold(Operation.SYNC)
    adding = asyncio.create_task(world.add(1, is_recovery=True))
    await settle()
    is_collected = await world.store.collect(LEDGER, mark)
    world.valve.open()
    assert (await adding).status is Status.OK
    assert not is_collected
    assert [await world.status_of(number) for number in range(2)] == [Status.OK, Status.OK]


async def test_a_flush_during_a_listing_does_not_hide_entries() -> None:
    world = StorageWorld()
    await world.start(list_page_keys=1)
    await world.add(5)
    await world.store.checkpoint()
    await world.add(*range(5))
    reads, is_flushed = 0, asyncio.Event()

    async def wait_at_the_second_page(operation: Operation, path: str) -> None:
        nonlocal reads
        await asyncio.sleep(0)
        if operation is Operation.INDEX_READ and asyncio.current_task() is listing:
            reads += 1
            if reads == 2:
                await is_flushed.wait()

    listing = asyncio.create_task(world.store.list_entries(LEDGER))
    world.index.before = wait_at_the_second_page
    while reads < 2:  # noqa: ASYNC110 (turns of the loop)
        await asyncio.sleep(0)
    await world.store.checkpoint()
    is_flushed.set()
    assert await listing == ListReply(Status.OK, EntryRuns(((0, 5),)))
    await world.store.close()


async def test_a_listing_contains_nothing_that_a_running_collection_deletes(world: StorageWorld) -> None:
    await world.add(0, 1)
    await world.store.checkpoint()
    world.valve.hold(Operation.INDEX_WRITE)
    collecting = asyncio.create_task(world.store.collect(LEDGER, world.store.mark(LEDGER)))
    await settle()
    listing = asyncio.create_task(world.store.list_entries(LEDGER))
    await settle()
    world.valve.open()
    listed = (await listing).entries
    await collecting
    assert [await world.status_of(number) for number in listed] == [Status.OK] * len(list(listed))
    assert listed == (await world.store.list_entries(LEDGER)).entries


async def test_first_key_holds_from_the_moment_it_is_enqueued(world: StorageWorld) -> None:
    world.valve.hold(Operation.SYNC)
    first = asyncio.create_task(world.add(0))
    await settle()
    assert (await world.add(1, key=b"other")).status is Status.UNAUTHORIZED
    world.valve.open()
    assert (await first).status is Status.OK


async def test_fence_is_not_answered_before_a_concurrent_key_is_durable(world: StorageWorld) -> None:
    await world.store.set_limbo([LEDGER])
    world.valve.hold(Operation.SYNC)
    add = asyncio.create_task(world.add(0, is_recovery=True))
    fence = asyncio.create_task(world.store.fence(LEDGER, KEY))
    await settle()
    assert not fence.done()
    world.valve.open()
    assert (await add).status is (await fence).status is Status.OK


async def test_limbo_holds_from_the_moment_it_is_enqueued(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.hold(Operation.SYNC)
    limbo = asyncio.create_task(world.store.set_limbo([LEDGER]))
    await settle()
    assert await world.status_of(1) is Status.LIMBO
    assert (await world.add(1)).status is Status.LIMBO
    world.valve.open()
    await limbo


async def test_limbo_set_while_an_earlier_one_is_being_cleared_holds(world: StorageWorld) -> None:
    await world.store.set_limbo([LEDGER])
    world.valve.hold(Operation.SYNC)
    clearing = asyncio.create_task(world.store.clear_limbo(LEDGER))
    await settle()
    limbo = asyncio.create_task(world.store.set_limbo([LEDGER]))
    await settle()
    world.valve.open()
    await asyncio.gather(clearing, limbo)
    assert await world.status_of(0) is Status.LIMBO
    await world.store.checkpoint()
    for _ in range(2):
        await world.restart()
        assert await world.status_of(0) is Status.LIMBO


async def test_an_entry_restored_at_the_end_of_limbo_is_not_absent_for_an_earlier_request(world: StorageWorld) -> None:
    await world.store.set_limbo([LEDGER])
    world.valve.hold(Operation.INDEX_READ)
    read = asyncio.create_task(world.store.read(LEDGER, [EntryId(0)]))
    last = asyncio.create_task(world.store.read_last(LEDGER))
    listed = asyncio.create_task(world.store.list_entries(LEDGER))
    await settle()
    await world.add(0, is_recovery=True)
    await world.store.clear_limbo(LEDGER)
    world.valve.open()
    assert [(await reply).results[0].status for reply in (read, last)] == [Status.LIMBO] * 2
    assert await listed == ListReply(Status.LIMBO)
    assert await world.status_of(0) is Status.OK


async def test_evicted_ledger_is_still_fenced() -> None:
    world = StorageWorld()
    await world.start(ledgers_in_memory=0)
    await world.store.fence(LEDGER, KEY)
    await world.store.checkpoint()
    for number in range(100, 110):
        await world.store.read(LedgerId(number), [EntryId(0)])
    assert (await world.add(0)).status is Status.FENCED
    assert (await world.add(0, key=b"other", is_recovery=True)).status is Status.UNAUTHORIZED
    await world.store.close()


async def test_key_is_never_logged_or_returned(world: StorageWorld, caplog: pytest.LogCaptureFixture) -> None:
    await world.add(0)
    reply = await world.add(1, key=b"wrong-key")
    await world.store.fence(LEDGER, b"wrong-key")
    await world.restart()
    assert "key-of" not in caplog.text
    assert "wrong-key" not in caplog.text + reply.detail
    assert "secret" not in repr(AddBatch(LEDGER, KEY, []))


# Damage


async def test_damaged_entry_is_corrupt_and_its_neighbours_are_ok(world: StorageWorld) -> None:
    await world.add(0, 1, 2)
    await world.store.checkpoint()
    place = world.ledgers.content(world.log_path()).index(entry(1))
    for offset in (0, 8, 32, len(entry(1)) - 1):
        world.ledgers.flip_bit(world.log_path(), (place + offset) * 8)
        assert await world.status_of(1) is Status.CORRUPT
        world.ledgers.flip_bit(world.log_path(), (place + offset) * 8)
    world.ledgers.flip_bit(world.log_path(), place * 8)
    assert await world.status_of(0) is Status.OK
    assert await world.status_of(2) is Status.OK
    assert (await world.store.list_entries(LEDGER)).entries == EntryRuns(((0, 2),))


async def test_bytes_of_another_entry_are_corrupt(world: StorageWorld) -> None:
    await world.add(0, 1)
    await world.store.checkpoint()
    content = world.ledgers.content(world.log_path())
    world.ledgers.overwrite(world.log_path(), content.index(entry(0)), entry(1))
    assert await world.status_of(0) is Status.CORRUPT


async def test_damaged_last_entry_keeps_its_true_id(world: StorageWorld) -> None:
    await world.add(0, 1)
    await world.store.checkpoint()
    world.ledgers.cut(world.log_path(), len(world.ledgers.content(world.log_path())) - 1)
    assert (await world.store.read_last(LEDGER)).results == [EntryResult(EntryId(1), Status.CORRUPT)]
    reply = await world.store.fence(LEDGER, KEY)
    assert (reply.status, reply.last_entry) == (Status.OK, EntryResult(EntryId(1), Status.CORRUPT))


async def test_an_entry_log_ends_at_its_size_limit_whatever_the_size_of_a_flush(world: StorageWorld) -> None:
    await world.restart(flush_page_entries=2, flush_sync_entries=2, entry_log_bytes=4 * len(entry(0)))
    await world.add(*range(10))
    await world.store.checkpoint()
    sizes = [len(world.ledgers.content(path)) for path in world.ledgers.paths()]
    assert len(sizes) == 3
    assert max(sizes) < 6 * len(entry(0))
    assert await uncounted(world.index) == []  # every log was ended properly
    for _ in range(2):
        assert [await world.status_of(number) for number in range(10)] == [Status.OK] * 10
        await world.restart()


async def test_lost_entry_log_is_corrupt_not_absent(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    world.ledgers.lose(world.log_path())
    assert await world.status_of(0) is Status.CORRUPT


async def test_damaged_entry_is_repaired_by_adding_it_again(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    world.ledgers.cut(world.log_path(), 30)
    assert await world.status_of(0) is Status.CORRUPT
    assert (await world.add(0, is_recovery=True)).status is Status.OK
    await world.store.checkpoint()
    assert await world.status_of(0) is Status.OK


async def test_unreadable_sector_fails_its_entry_only(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    await world.add(1)
    world.valve.fail(DiskError("input/output error"), Operation.READ)
    assert await world.status_of(0) is Status.IO_ERROR
    assert await world.status_of(1) is Status.OK
    assert not world.store.fatal.done()


async def test_unreadable_index_never_means_absence(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.fail(DiskError("corrupted block"), Operation.INDEX_READ)
    other = LedgerId(8)
    replies: list[AddReply | FenceReply | ListReply | ReadReply] = [
        await world.store.read(LEDGER, [EntryId(1)]),
        await world.store.read(other, [EntryId(0)]),
        await world.store.read_last(LEDGER),
        await world.store.list_entries(LEDGER),
        await world.store.fence(other, KEY),
        await world.store.add(AddBatch(other, KEY, [raw_entry(8, 0, b"")])),
    ]
    assert [reply.status for reply in replies] == [Status.IO_ERROR] * len(replies)
    world.valve.open()
    assert await world.status_of(1) is Status.NO_ENTRY


async def test_ledger_state_of_a_newer_version_is_refused(world: StorageWorld) -> None:
    await world.index.write([(state_key(LEDGER), b"\x63newer")])
    assert (await world.add(0)).status is Status.IO_ERROR
    assert (await world.store.read(LEDGER, [EntryId(0)])).status is Status.IO_ERROR


# Back-pressure


async def test_records_waiting_for_the_journal_are_bounded() -> None:
    world = StorageWorld()
    await world.start(journal_queue_bytes_max=500)
    await world.add(0)
    world.valve.hold(Operation.SYNC)
    adds = [asyncio.create_task(world.add(number)) for number in range(1, 40)]
    await settle()
    refused = [add for add in adds if add.done()]
    assert {(await add).status for add in refused} == {Status.TOO_MANY_REQUESTS}
    assert 20 < len(refused) < 39
    world.valve.open()
    assert {(await add).status for add in adds if add not in refused} == {Status.OK}
    assert (await world.add(50)).status is Status.OK
    await world.store.close()


async def test_entries_waiting_for_the_entry_logs_are_bounded() -> None:
    world = StorageWorld()
    await world.start(cache_bytes_max=2000)
    world.valve.hold(Operation.INDEX_WRITE)
    statuses = []
    for number in range(100):
        statuses.append((await world.add(number)).status)
        await settle()
    accepted = statuses.index(Status.TOO_MANY_REQUESTS)
    assert set(statuses[:accepted]) == {Status.OK}
    assert set(statuses[accepted:]) == {Status.TOO_MANY_REQUESTS}
    assert 10 < accepted < 20  # two caches of 2,000 bytes, and about 300 bytes per entry
    assert (await world.store.fence(LEDGER, KEY)).status is Status.OK
    world.valve.open()
    await settle()
    assert (await world.add(100, is_recovery=True)).status is Status.OK
    assert await world.status_of(0) is Status.OK
    await world.store.close()


async def test_fences_without_adds_are_flushed_and_their_journal_is_trimmed() -> None:
    world = StorageWorld()
    await world.start(cache_bytes_max=5000, journal_file_bytes=500, ledgers_in_memory=10)
    for number in range(300):
        assert (await world.store.fence(LedgerId(number), KEY)).status is Status.OK
        await settle()
    assert len([path for path in world.journal.paths() if path.endswith(".journal")]) < 20
    assert len(world.store._states._states) < 50
    assert world.store.ledger_count == 300
    await world.store.close()


# Full disks


async def test_full_journal_disk_makes_the_store_read_only_until_there_is_space(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.fail(DiskFullError("no space left"), *WRITES, directory=JOURNAL)
    assert (await world.add(1)).status is Status.READ_ONLY
    assert world.is_full()
    await settle()
    assert (await world.add(2)).status is Status.READ_ONLY
    assert await world.status_of(0) is Status.OK
    assert await world.status_of(1) is Status.NO_ENTRY
    assert world.clock.sleepers
    world.valve.open()
    world.let_retry()
    await settle()
    assert not world.is_full()
    assert (await world.add(1)).status is Status.OK
    assert not world.store.fatal.done()
    await world.restart()
    assert [await world.status_of(number) for number in range(3)] == [Status.OK, Status.OK, Status.NO_ENTRY]


async def test_key_refused_by_a_full_disk_is_not_kept(world: StorageWorld) -> None:
    world.valve.fail(DiskFullError("no space left"), *WRITES, directory=JOURNAL)
    assert (await world.add(0, key=b"first")).status is Status.READ_ONLY
    assert await world.status_of(0) is Status.NO_LEDGER
    world.valve.open()
    await settle()
    world.let_retry()
    await settle()
    assert (await world.add(0, key=b"second")).status is Status.OK
    await world.restart()
    assert (await world.add(1, key=b"first")).status is Status.UNAUTHORIZED
    assert (await world.add(1, key=b"second")).status is Status.OK


async def test_fence_refused_by_a_full_disk_is_retried_and_holds_until_then(world: StorageWorld) -> None:
    await world.add(0)
    world.valve.fail(DiskFullError("no space left"), *WRITES, directory=JOURNAL)
    assert (await world.store.fence(LEDGER, KEY)).status is Status.READ_ONLY
    world.valve.open()
    await settle()
    world.let_retry()
    await settle()
    assert (await world.add(1)).status is Status.FENCED
    assert (await world.store.fence(LEDGER, KEY)).status is Status.OK
    await world.restart()
    assert (await world.add(1)).status is Status.FENCED


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.APPEND, Operation.SYNC, Operation.INDEX_WRITE])
async def test_full_ledger_disk_loses_nothing_and_the_flush_is_retried(
    world: StorageWorld, operation: Operation
) -> None:
    await world.add(0, 1)
    first = [Operation.INDEX_WRITE]  # this write announces the log to which the next write to the index refers

    def fail(found: Operation, path: str) -> DiskFullError | None:
        if found in first:
            first.remove(found)
            return None
        return DiskFullError("no space left") if found is operation and not path.startswith(JOURNAL) else None

    world.valve.failure = fail
    with pytest.raises(DiskFullError):
        await world.store.checkpoint()
    assert world.is_full()
    assert (await world.add(2)).status is Status.READ_ONLY
    assert (await world.store.fence(LEDGER, KEY)).status is Status.OK
    assert await world.status_of(0) is Status.OK
    world.valve.open()
    for _ in range(2):
        world.let_retry()
        await settle()
    assert not world.is_full()
    assert (await world.add(2, is_recovery=True)).status is Status.OK
    await world.store.checkpoint()
    logs = [path for path in world.ledgers.paths() if path.startswith(entry_log.DIRECTORY)]
    assert len(logs) == (3 if operation is Operation.INDEX_WRITE else 2)  # the index may refer to the first one
    await world.restart()
    assert [await world.status_of(number) for number in range(3)] == [Status.OK] * 3
    assert (await world.add(3)).status is Status.FENCED


async def test_collecting_a_ledger_while_a_flush_waits_for_space_keeps_entries_of_others() -> None:
    world, other = StorageWorld(), LedgerId(LEDGER + 1)
    await world.start(flush_page_entries=1, flush_sync_entries=1)
    await world.add(0, 1)
    await world.store.add(AddBatch(other, KEY, [raw_entry(other, number) for number in range(3)]))
    appends = 0

    def fail(operation: Operation, path: str) -> DiskFullError | None:
        nonlocal appends
        if operation is not Operation.APPEND or not path.startswith(entry_log.DIRECTORY):
            return None
        appends += 1
        return DiskFullError("no space left") if appends > 3 else None  # the header and both entries are written

    world.valve.failure = fail
    with pytest.raises(DiskFullError):
        await world.store.checkpoint()
    assert await world.store.collect(LEDGER, world.store.mark(LEDGER))
    world.valve.open()
    await world.store.checkpoint()
    await world.restart()
    reply = await world.store.read(other, [EntryId(number) for number in range(3)])
    assert [result.status for result in reply.results] == [Status.OK] * 3
    await world.store.close()


async def test_a_flush_on_a_full_disk_resumes_where_it_stopped() -> None:
    world, record = StorageWorld(), len(entry(0)) + RECORD_HEADER_SIZE
    await world.start(flush_page_entries=1, flush_sync_entries=1)
    await world.add(*range(8))
    for room in (HEADER_SIZE + 4 * record, HEADER_SIZE + 2 * record):
        world.ledgers.capacity_bytes = world.ledgers.used_bytes() + room
        with pytest.raises(DiskFullError):
            await world.store.checkpoint()
    world.ledgers.capacity_bytes = world.ledgers.used_bytes() + HEADER_SIZE + 2 * record
    await world.store.checkpoint()
    await world.restart()
    assert [await world.status_of(number) for number in range(8)] == [Status.OK] * 8
    await world.store.close()


async def test_damage_in_an_entry_log_cut_off_by_a_full_disk_spares_later_entries() -> None:
    world = StorageWorld()
    world.clock = ManualClock(turns=1)
    await world.start(flush_page_entries=1, flush_sync_entries=1)
    await world.add(*range(5))
    world.ledgers.capacity_bytes = HEADER_SIZE + 3 * (len(entry(0)) + RECORD_HEADER_SIZE) + 1
    with pytest.raises(DiskFullError):
        await world.store.checkpoint()
    world.ledgers.capacity_bytes = 1 << 40
    await world.store.checkpoint()
    path = entry_log.log_path(1)
    world.ledgers.flip_bit(path, world.ledgers.content(path).index(entry(0)) * 8)
    assert (await world.store.compact(1.0)).kept_damaged == 1
    assert [await world.status_of(number) for number in range(5)] == [Status.CORRUPT, *[Status.OK] * 4]
    await world.store.close()


async def world_with_dead_bytes_of_a_removed_log() -> StorageWorld:
    """Return a store killed between the removal of the newest entry log and that of the log's count of dead bytes."""
    world, other = StorageWorld(), LedgerId(LEDGER + 1)
    world.clock = ManualClock(turns=1)
    await world.start()
    await world.add(*range(3))
    await world.store.add(AddBatch(other, KEY, [raw_entry(other, number) for number in range(9)]))
    await world.store.checkpoint()
    assert await world.store.collect(other, world.store.mark(other))
    assert (await world.store.compact()).removed_logs == 1
    assert await world.store.collect(LEDGER, world.store.mark(LEDGER))
    is_removed = False

    def die_after_the_removal(operation: Operation, path: str) -> DiskError | None:
        nonlocal is_removed
        is_removed = is_removed or operation is Operation.UNLINK
        return DiskError("the power is off") if is_removed and operation is Operation.INDEX_WRITE else None

    world.valve.failure = die_after_the_removal
    with pytest.raises(DiskError):
        await world.store.compact()
    assert is_removed
    world.valve.open()
    await world.restart()
    return world


async def test_a_new_entry_log_has_no_dead_bytes_of_a_removed_one() -> None:
    world = await world_with_dead_bytes_of_a_removed_log()
    await world.add(*range(3), is_recovery=True)
    await world.store.checkpoint()
    compacted = await world.store.compact()
    assert (compacted.copied_bytes, compacted.removed_logs) == (0, 0)
    assert [await world.status_of(number) for number in range(3)] == [Status.OK] * 3
    await world.store.close()


async def test_dead_bytes_of_a_removed_entry_log_do_not_remove_a_new_one_being_written() -> None:
    world = await world_with_dead_bytes_of_a_removed_log()
    await world.add(*range(3), is_recovery=True)
    appends = 0

    def is_first_page(operation: Operation, path: str) -> bool:
        nonlocal appends
        is_append = operation is Operation.APPEND and path.startswith(entry_log.DIRECTORY)
        appends += is_append
        return is_append and appends == 2  # the header is already written

    world.valve.is_held = is_first_page
    flush = asyncio.create_task(world.store.checkpoint())
    await settle()
    assert appends == 2
    await world.store.compact()
    world.valve.open()
    await flush
    assert [await world.status_of(number) for number in range(3)] == [Status.OK] * 3
    await world.store.close()


async def test_a_compaction_after_a_cancelled_one_keeps_what_that_one_copied() -> None:
    world = StorageWorld()
    world.clock = ManualClock(turns=1)
    await world.start()
    for entry_ids in (range(3), range(1)):
        await world.add(*entry_ids)
        await world.store.checkpoint()
    syncs, is_writing, may_write = 0, asyncio.Event(), asyncio.Event()

    async def before(operation: Operation, path: str) -> None:
        nonlocal syncs
        syncs += operation is Operation.SYNC and path.endswith(f"{3:016x}.log")
        if operation is Operation.INDEX_WRITE and syncs == 2:  # the copies are durable, and the index has other places
            is_writing.set()
            await may_write.wait()
        await asyncio.sleep(0)

    world.ledgers.before = world.index.before = before
    cancelled = asyncio.create_task(world.store.compact(below=2.0))
    await is_writing.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    compaction = asyncio.create_task(world.store.compact(below=2.0))
    await settle()
    assert world.store._parts.checkpointer.exclusive().locked()
    may_write.set()
    await compaction
    assert [await world.status_of(number) for number in range(3)] == [Status.OK] * 3
    await world.store.abort()


async def test_store_with_a_journal_to_replay_opens_read_only_on_a_full_disk(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.fence(LEDGER, KEY)
    world.valve.fail(DiskFullError("no space left"), *_NEEDING_SPACE)
    await world.restart()
    assert world.is_full()
    assert await world.status_of(0) is Status.OK
    assert (await world.add(1, is_recovery=True)).status is Status.READ_ONLY
    await settle()
    world.valve.open()
    for _ in range(2):
        world.let_retry()
        await settle()
    assert (await world.add(1, is_recovery=True)).status is Status.OK
    await world.restart()
    assert [await world.status_of(number) for number in range(2)] == [Status.OK] * 2


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_store_opens_read_only_on_a_full_journal_disk(world: StorageWorld, is_trimmed: bool) -> None:
    await world.add(0)
    if is_trimmed:
        await world.store.checkpoint()
    world.valve.fail(DiskFullError("no space left"), *WRITES, directory=JOURNAL)
    await world.restart()
    assert world.is_full()
    assert await world.status_of(0) is Status.OK
    assert (await world.add(1, is_recovery=True)).status is Status.READ_ONLY
    await settle()
    world.valve.open()
    for _ in range(2):
        world.let_retry()
        await settle()
    assert not world.is_full()
    assert (await world.add(1)).status is Status.OK
    await world.restart()
    assert [await world.status_of(number) for number in range(2)] == [Status.OK] * 2


async def test_store_whose_journal_exceeds_a_cache_opens_on_a_full_disk(world: StorageWorld) -> None:
    await world.add(*range(20))
    world.valve.fail(DiskFullError("no space left"), *_NEEDING_SPACE)
    await world.restart(cache_bytes_max=1000)
    assert world.is_full()
    assert [await world.status_of(number) for number in range(20)] == [Status.OK] * 20
    world.valve.open()
    for _ in range(2):
        world.let_retry()
        await settle()
    assert not world.is_full()
    await world.restart()
    assert [await world.status_of(number) for number in range(20)] == [Status.OK] * 20


# Failing disks


@pytest.mark.parametrize("operation", [Operation.APPEND, Operation.SYNC])
async def test_failing_journal_stops_every_acknowledgement(world: StorageWorld, operation: Operation) -> None:
    await world.add(0)
    error = DiskError("input/output error")
    world.valve.fail(error, operation)
    replies = await asyncio.gather(world.add(1), world.add(2), world.store.fence(LEDGER, KEY))
    assert {reply.status for reply in replies} == {Status.IO_ERROR}
    assert await world.store.fatal is error
    world.valve.open()
    assert (await world.add(3)).status is Status.IO_ERROR
    assert (await world.store.fence(LEDGER, KEY)).status is Status.IO_ERROR
    with pytest.raises(Exception, match="closing or its disk failed"):
        await world.store.set_limbo([LEDGER])
    assert await world.status_of(0) is Status.OK
    assert await world.status_of(1) is Status.NO_ENTRY


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.APPEND, Operation.SYNC, Operation.INDEX_WRITE])
async def test_failing_ledger_disk_stops_every_acknowledgement(world: StorageWorld, operation: Operation) -> None:
    await world.add(0)
    world.valve.failure = lambda found, path: (
        DiskError("input/output error") if found is operation and not path.startswith(JOURNAL) else None
    )
    with pytest.raises(DiskError):
        await world.store.checkpoint()
    assert world.store.fatal.done()
    assert (await world.add(1)).status is Status.IO_ERROR
    assert world.ledgers.syncs_after_failure == 0
    world.valve.open()
    await world.restart()
    assert await world.status_of(0) is Status.OK


async def test_failing_background_flush_is_fatal_too() -> None:
    world = StorageWorld()
    await world.start(cache_bytes_max=1000)
    world.valve.failure = lambda found, path: DiskError("no") if found is Operation.INDEX_WRITE else None
    for number in range(5):
        await world.add(number)
    assert isinstance(await world.store.fatal, DiskError)
    world.valve.open()
    await world.store.abort()


async def test_internal_error_in_the_background_is_fatal_too() -> None:
    world = StorageWorld()
    await world.start(cache_bytes_max=1000)

    def mistake(found: Operation, path: str) -> DiskError | None:
        if found is Operation.INDEX_WRITE:
            raise ValueError("a bug")
        return None

    world.valve.failure = mistake
    for number in range(5):
        await world.add(number)
    assert "a bug" in str(await world.store.fatal)
    world.valve.open()
    await world.store.abort()


async def test_entries_read_back_after_a_failed_sync_are_made_durable_before_they_are_served() -> None:
    world = StorageWorld()
    await world.start()
    await world.add(0)
    world.valve.fail(DiskError("input/output error"), Operation.SYNC)
    assert (await world.add(1)).status is Status.IO_ERROR
    world.valve.open()
    await world.restart()  # entry 1 is still in the page cache, but will never be on the disk
    served = await world.status_of(1)
    for seed in range(20):
        crashed = StorageWorld()
        rng = random.Random(seed)
        crashed.journal, crashed.ledgers = world.journal.crash(rng), world.ledgers.crash(rng)
        crashed.index = world.index.crash(rng)
        await crashed.start()
        assert await crashed.status_of(0) is Status.OK
        assert await crashed.status_of(1) is served
        await crashed.store.close()
    await world.store.close()


# Disks that do not belong together


async def test_lost_journal_is_refused(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.close()
    world.journal = MemoryDisk(before=world.valve)
    world.index = world.index.restarted()
    with pytest.raises(DamagedJournalError, match="journal was lost"):
        await world.start()


async def test_lost_index_is_refused(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    await world.store.abort()
    world.index = MemoryIndex(before=world.valve)
    with pytest.raises(LostIndexError):
        await world.start()
    assert world.log_path()


async def test_journal_lost_after_the_checkpoint_mark_is_refused(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    await world.add(1)
    await world.store.abort()
    world.index = world.index.restarted()
    for path in world.journal.paths():
        world.journal.lose(path)
    with pytest.raises(DamagedJournalError):
        await world.start()


async def test_index_older_than_the_journal_is_refused(world: StorageWorld) -> None:
    await world.add(0)
    await world.store.checkpoint()
    old = world.index.restarted()
    await world.restart()
    await world.add(1)
    await world.restart()
    await world.store.abort()
    world.index = old
    with pytest.raises(DamagedJournalError, match="batches"):
        await world.start()


async def test_index_of_a_newer_version_is_refused(world: StorageWorld) -> None:
    await world.store.abort()
    world.index = world.index.restarted()
    await world.index.write([(MARK_KEY, b"\x00\x02" + bytes(24))])
    with pytest.raises(UnsupportedFormatError, match="start the version"):
        await world.start()
