"""A store with several ledger directories: where entry logs are written, and what a full or failing one does (R114)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.server.damaged_entries import DamagedEntries
from bookie.storage.disks.index_format import dead_range
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.entry_logs.entry_log import DIRECTORY
from bookie.storage.entry_logs.log_ends import uncounted
from bookie.storage.port import DirectoryFailedError, DiskError, DiskFullError
from bookie.storage.rebuilding import rebuild
from bookie.storage.salvaging import salvage
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, EntryResult, ListReply, Status
from tests.worlds.clocks import ManualClock
from tests.worlds.entries import raw_entry

LEDGER = LedgerId(7)
KEY = b"secret-key-of-ledger"
LOST = "it has no file VERSION"
SMALL_LOGS = StorageSettings(flush_page_entries=1, flush_sync_entries=1, entry_log_bytes=1)
"""Settings with which each entry gets a log of its own."""
Hook = Callable[[Operation, str], DiskError | None]


@dataclass
class Directories:
    """A store on three ledger directories in memory."""

    disks: list[MemoryDisk] = field(
        default_factory=lambda: [MemoryDisk(capacity_bytes=size) for size in (300, 400, 500)]
    )
    journal: MemoryDisk = field(default_factory=MemoryDisk)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    clock: ManualClock = field(default_factory=lambda: ManualClock(turns=1))
    missing: set[int] = field(default_factory=set)
    unlisted: set[int] = field(default_factory=set)
    unremovable: set[int] = field(default_factory=set)
    """The directories from which no file can be removed."""
    unsyncable: set[int] = field(default_factory=set)
    """The directories that cannot be synced."""
    settings: StorageSettings = field(default_factory=StorageSettings)
    spread: SpreadDisk = field(init=False)
    store: LedgerStorage = field(init=False)

    async def start(self) -> None:
        for number in self.unlisted:
            self.fail(number, broken(Operation.LIST))
        for number in self.unremovable:
            self.fail(number, broken(Operation.UNLINK))
        for number in self.unsyncable:
            self.fail(number, broken(Operation.SYNC_DIRECTORY))
        self.spread = await SpreadDisk.over(self.parts(), self.clock)
        self.store = await LedgerStorage.open(self.journal, self.spread, self.index, self.settings, self.clock)

    def parts(self) -> list[SpreadDirectory]:
        return [
            SpreadDirectory(f"/{number}", None, LOST) if number in self.missing else SpreadDirectory(f"/{number}", disk)
            for number, disk in enumerate(self.disks)
        ]

    async def restart(self, *missing: int) -> None:
        """Kill the store, and start it without some of the directories."""
        await self.store.abort()
        self.journal, self.index = self.journal.restarted(), self.index.restarted()
        self.disks = [disk.restarted() for disk in self.disks]
        self.missing = set(missing)
        await self.start()

    def fail(self, number: int, hook: Hook) -> None:
        async def before(operation: Operation, path: str) -> None:
            if (error := hook(operation, path)) is not None:
                raise error

        self.disks[number].before = before

    async def add(self, *entry_ids: int, is_recovery: bool = False) -> Status:
        entries = [entry(entry_id) for entry_id in entry_ids]
        return (await self.store.add(AddBatch(LEDGER, KEY, entries, is_recovery))).status

    async def flush(self, *entry_ids: int) -> None:
        assert await self.add(*entry_ids) is Status.OK
        await self.store.checkpoint()

    async def statuses(self, *entry_ids: int) -> list[Status]:
        reply = await self.store.read(LEDGER, [EntryId(entry_id) for entry_id in entry_ids])
        assert reply.status is Status.OK
        for result in reply.results:
            assert result.status is not Status.OK or result.packet == entry(result.entry_id)
        return [result.status for result in reply.results]

    async def listed(self) -> tuple[Status, EntryRuns]:
        reply = await self.store.list_entries(LEDGER)
        return reply.status, reply.entries

    def logs(self) -> list[int]:
        """Return the number of entry logs in each directory."""
        return [sum(path.endswith(".log") for path in disk.paths()) for disk in self.disks]

    def problems(self) -> list[bool]:
        return [bool(directory.problem) for directory in self.spread.directories]


def entry(entry_id: int) -> bytes:
    return raw_entry(LEDGER, entry_id)


def broken(*operations: Operation, after: int = 0) -> Hook:
    """Make these operations fail, except the first ``after`` of them."""
    left = [after]

    def hook(operation: Operation, path: str) -> DiskError | None:
        if operation not in operations:
            return None
        left[0] -= 1
        return DiskError("input/output error") if left[0] < 0 else None

    return hook


def full(operation: Operation, path: str) -> DiskError | None:
    return DiskFullError("no space left") if operation is Operation.APPEND else None


@pytest.fixture
async def world() -> AsyncIterator[Directories]:
    world = Directories()
    await world.start()
    yield world
    await world.store.abort()


async def test_new_logs_go_to_the_directory_with_most_space_and_other_files_to_the_first(
    world: Directories,
) -> None:
    found = []
    for number in range(4):
        await world.flush(number)
        found.append(world.logs())
    assert found == [[0, 0, 1], [0, 0, 2], [0, 1, 2], [0, 1, 3]], "300, 400 and 500 bytes are free; a log takes 71"
    await world.spread.replace("read-only", b"")
    assert "read-only" in world.disks[0].paths()
    await world.restart()
    assert await world.statuses(0, 1, 2, 3, 4) == [Status.OK] * 4 + [Status.NO_ENTRY]
    assert len(await world.spread.names("entries")) == 4, "ids are unique across all directories"


async def test_space_is_the_total_and_room_that_of_the_emptiest_directory(world: Directories) -> None:
    await world.flush(0)
    assert await world.spread.space() == (1200, 1200 - 71)
    assert await world.spread.room() == 500 - 71
    await world.restart(2)
    assert await world.spread.space() == (700, 700)
    assert await world.spread.room() == 400


async def test_a_full_directory_is_skipped_at_once_and_the_store_stays_writable(world: Directories) -> None:
    world.fail(2, full)
    await world.flush(0, 1)
    assert not world.store.is_full
    await world.flush(2)
    assert world.logs() == [1, 1, 0]
    assert await world.statuses(0, 1, 2) == [Status.OK] * 3
    assert world.problems() == [False, False, False]


async def test_the_store_is_full_only_if_all_directories_are(world: Directories) -> None:
    for number in range(3):
        world.fail(number, full)
    assert await world.add(0) is Status.OK
    with pytest.raises(DiskFullError):
        await world.store.checkpoint()
    assert world.store.is_full
    assert await world.add(1) is Status.READ_ONLY
    assert await world.statuses(0) == [Status.OK]


@pytest.mark.parametrize(
    "operations",
    [(Operation.CREATE,), (Operation.APPEND,), (Operation.SYNC,), (Operation.SYNC_DIRECTORY,)],
    ids=lambda operations: operations[0].value,
)
@pytest.mark.parametrize("after", range(4))
async def test_entries_flushed_to_a_failing_directory_are_written_again_to_the_others(
    operations: tuple[Operation, ...], after: int
) -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()], settings=SMALL_LOGS)
    await world.start()
    world.fail(1, broken(*operations, after=after))
    await world.flush(*range(6))
    assert world.problems() == [False, True, False]
    assert not world.store.fatal.done()
    await world.flush(6)
    await world.restart(1)
    assert await world.statuses(*range(7)) == [Status.OK] * 7, "all entries are readable without the directory"
    assert await world.listed() == (Status.OK, EntryRuns(((0, 6),)))
    await world.restart()
    assert await world.statuses(*range(7)) == [Status.OK] * 7
    await world.store.compact()
    assert world.logs()[1] == 0, "the superseded logs are removed after the directory has returned"
    assert await uncounted(world.index) == []
    assert await world.statuses(*range(7)) == [Status.OK] * 7
    await world.store.abort()


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_directory_that_fills_up_or_fails_in_a_compaction_does_not_make_the_store_full(is_full: bool) -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    await world.flush(*range(10))
    await world.flush(*range(7))
    world.fail(1, full if is_full else broken(Operation.APPEND))
    assert (await world.store.compact()).removed_logs == 0
    assert (world.store.is_full, world.store.fatal.done()) == (False, False)
    assert world.problems() == [False, not is_full, False]
    assert (await world.store.compact()).removed_logs == int(is_full), "the entries are moved to another directory"
    assert await world.statuses(*range(10)) == [Status.OK] * 10
    await world.store.abort()


async def test_a_log_of_an_unfinished_flush_that_could_not_be_removed_is_removed_by_a_later_start() -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    world.fail(1, broken(Operation.SYNC))
    await world.flush(*range(6))
    world.unremovable = {1}
    await world.restart()
    assert (world.logs()[1], world.problems()) == (1, [False, True, False])
    world.unremovable = set()
    await world.restart()
    assert (world.logs()[1], world.problems()) == (0, [False] * 3)
    assert await world.statuses(*range(6)) == [Status.OK] * 6
    await world.store.abort()


@pytest.mark.parametrize("seed", range(8))
async def test_a_removed_log_does_not_come_back_after_a_power_loss(seed: int) -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    await world.flush(*range(10))
    await world.flush(*range(10))
    assert (await world.store.compact()).removed_logs == 1
    left = world.logs()
    await world.store.abort()
    rng = random.Random(seed)
    world.disks = [disk.crash(rng) for disk in world.disks]
    world.journal, world.index = world.journal.crash(rng), world.index.crash(rng)
    await world.start()
    assert world.logs() == left
    assert await world.statuses(*range(10)) == [Status.OK] * 10
    await world.store.abort()


@pytest.mark.parametrize("seed", range(4))
async def test_a_removed_log_that_comes_back_with_a_failed_directory_is_removed_again(seed: int) -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    await world.flush(*range(10))
    await world.flush(*range(10))
    world.fail(1, broken(Operation.SYNC_DIRECTORY))
    for _ in range(2):
        await world.store.compact()
    assert (world.logs()[1], world.problems()) == (1, [False, True, False])
    await world.store.abort()
    world.disks = [disk.crash(random.Random(seed)) for disk in world.disks]
    for _ in range(2):
        await world.restart()
        await world.store.compact()
    assert sum(world.logs()) == 1
    assert [key for key, _ in await world.index.range(*dead_range(), 10)] == []
    assert await world.statuses(*range(10)) == [Status.OK] * 10
    await world.store.abort()


@pytest.mark.parametrize("seed", range(4))
async def test_a_leftover_log_that_comes_back_with_a_failed_directory_is_removed_again(seed: int) -> None:
    world = Directories([MemoryDisk(), MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    world.fail(1, broken(Operation.SYNC, after=1))
    await world.flush(*range(6))
    world.unsyncable = {1}
    await world.restart()
    assert (world.logs()[1], world.problems()) == (0, [False, True, False])
    world.unsyncable = set()
    await world.store.abort()
    world.disks = [disk.crash(random.Random(seed)) for disk in world.disks]
    await world.restart()
    assert (world.logs()[1], world.problems()) == (0, [False] * 3)
    assert await world.statuses(*range(6)) == [Status.OK] * 6
    await world.store.abort()


async def test_a_directory_sync_that_fails_for_open_files_is_made_up_by_the_next_sync(world: Directories) -> None:
    await world.flush(0)
    [log] = [path for path in world.disks[2].paths() if path.endswith(".log")]
    await world.spread.unlink(log)
    world.fail(2, lambda op, _: DiskFullError("too many open files") if op is Operation.SYNC_DIRECTORY else None)
    with pytest.raises(DiskFullError):
        await world.spread.sync_directory(DIRECTORY)
    world.fail(2, lambda *_: None)
    await world.spread.sync_directory(DIRECTORY)
    for seed in range(8):
        assert log not in world.disks[2].crash(random.Random(seed)).paths()


async def test_a_checkpoint_waits_for_a_directory_sync_that_another_task_has_begun(world: Directories) -> None:
    """Otherwise the journal could be trimmed while a power loss can still remove the new entry log."""
    await world.flush(0)
    syncing, may_end = asyncio.Event(), asyncio.Event()
    others: list[asyncio.Task[None]] = []

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC and not others:  # the header of the new log, before the sync of its name
            others.append(asyncio.create_task(world.spread.sync_directory(DIRECTORY)))
            await syncing.wait()
        elif operation is Operation.SYNC_DIRECTORY:
            syncing.set()
            await may_end.wait()

    world.disks[2].before = before
    assert await world.add(1) is Status.OK
    checkpoint = asyncio.create_task(world.store.checkpoint())
    await syncing.wait()
    await settle()
    assert not checkpoint.done()
    may_end.set()
    await asyncio.gather(*others, checkpoint)
    assert await world.statuses(0, 1) == [Status.OK] * 2


async def test_a_directory_sync_whose_caller_was_cancelled_is_made_up_by_the_next_sync(world: Directories) -> None:
    await world.flush(0)
    syncing, may_end = asyncio.Event(), asyncio.Event()

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC_DIRECTORY:
            syncing.set()
            await may_end.wait()

    world.disks[2].before = before
    await world.spread.create(f"{DIRECTORY}/new")
    cancelled = asyncio.create_task(world.spread.sync_directory(DIRECTORY))
    await syncing.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    may_end.set()
    await world.spread.sync_directory(DIRECTORY)
    for seed in range(8):
        assert f"{DIRECTORY}/new" in world.disks[2].crash(random.Random(seed)).paths()


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.UNLINK])
async def test_a_change_that_takes_effect_after_a_directory_sync_is_made_durable_by_the_next_sync(
    world: Directories, operation: Operation
) -> None:
    path = f"{DIRECTORY}/changed"
    if operation is Operation.UNLINK:
        world.disks[2].before = MemoryDisk().before
        await world.spread.create(path)
        await world.spread.sync_directory(DIRECTORY)
    is_begun, may_end = asyncio.Event(), asyncio.Event()

    async def before(now: Operation, path: str) -> None:
        if now is operation:
            is_begun.set()
            await may_end.wait()

    world.disks[2].before = before
    is_removal = operation is Operation.UNLINK
    change = asyncio.ensure_future(world.spread.unlink(path) if is_removal else world.spread.create(path))
    await is_begun.wait()
    await world.spread.sync_directory(DIRECTORY)
    may_end.set()
    await change
    await world.spread.sync_directory(DIRECTORY)
    for seed in range(8):
        assert (path in world.disks[2].crash(random.Random(seed)).paths()) == (not is_removal)


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_log_that_is_removed_while_it_is_opened_does_not_fail_its_directory(world: Directories) -> None:
    """The reader then finds its entry in another log."""
    await world.flush(0)
    [log] = [path for path in world.disks[2].paths() if path.endswith(".log")]
    is_opening, may_open = asyncio.Event(), asyncio.Event()

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            is_opening.set()
            await may_open.wait()

    world.disks[2].before = before
    opening = asyncio.ensure_future(world.spread.open(log))
    await is_opening.wait()
    await world.spread.unlink(log)
    may_open.set()
    with pytest.raises(FileNotFoundError):
        await opening
    assert world.problems() == [False] * 3


async def test_a_failed_write_to_the_first_directory_stops_the_bookie() -> None:
    world = Directories([MemoryDisk(capacity_bytes=1 << 41), MemoryDisk()])
    await world.start()
    world.fail(0, broken(Operation.APPEND))
    assert await world.add(0) is Status.OK
    with pytest.raises(DiskError):
        await world.store.checkpoint()
    assert world.store.fatal.done()
    await world.store.abort()


async def test_entries_in_a_missing_directory_are_never_absent_and_copies_replace_them(world: Directories) -> None:
    await world.flush(0, 1, 2)
    assert world.logs() == [0, 0, 1]
    await world.restart(2)
    assert world.store.directories_out_of_use == 1
    assert await world.statuses(0, 1, 2, 3) == [Status.IO_ERROR] * 3 + [Status.NO_ENTRY]
    assert await world.listed() == (Status.CORRUPT, EntryRuns(()))
    [last] = (await world.store.read_last(LEDGER)).results
    assert (last.entry_id, last.status) == (2, Status.IO_ERROR)
    fenced = await world.store.fence(LEDGER, KEY)
    assert fenced.last_entry is not None
    assert (fenced.last_entry.entry_id, fenced.last_entry.status) == (2, Status.IO_ERROR)
    assert await world.add(1, is_recovery=True) is Status.OK
    assert await world.listed() == (Status.CORRUPT, EntryRuns(((1, 1),)))
    await world.store.checkpoint()
    assert await world.listed() == (Status.CORRUPT, EntryRuns(((1, 1),)))
    assert await world.statuses(0, 1, 2) == [Status.IO_ERROR, Status.OK, Status.IO_ERROR]
    assert await world.add(0, 2, is_recovery=True) is Status.OK
    assert await world.listed() == (Status.OK, EntryRuns(((0, 2),)))
    await world.restart()
    assert await world.statuses(0, 1, 2) == [Status.OK] * 3


async def test_a_directory_that_cannot_be_listed_at_the_start_is_out_of_use_and_kept(
    world: Directories,
) -> None:
    await world.flush(0, 1)
    await world.flush(2)
    assert await world.add(1, is_recovery=True) is Status.OK
    await world.store.checkpoint()
    assert world.logs() == [0, 1, 2], "one of the two logs has an entry that was replaced"
    records = await world.index.range(b"", b"\xff" * 32, 100)
    world.unlisted = {2}
    await world.restart()
    assert world.problems() == [False, False, True]
    assert await world.statuses(0, 1, 2, 3) == [Status.IO_ERROR, Status.IO_ERROR, Status.OK, Status.NO_ENTRY]
    assert await world.listed() == (Status.CORRUPT, EntryRuns(((2, 2),)))
    await world.store.compact()
    assert await world.index.range(b"", b"\xff" * 32, 100) == records, "the records about its logs are kept too"


async def test_a_rebuild_and_a_salvage_need_all_directories(world: Directories) -> None:
    """Otherwise the next start would remove the logs of an omitted directory: the index does not refer to them."""
    await world.flush(0, 1)
    await world.store.abort()
    world.disks = [disk.restarted() for disk in world.disks]
    journal, index = world.journal.restarted(), world.index.restarted()
    world.fail(2, broken(Operation.LIST))
    spread = await SpreadDisk.over(world.parts(), None)
    with pytest.raises(DiskError, match="out of use"):
        await rebuild([journal], spread, MemoryIndex())
    with pytest.raises(DiskError, match="out of use"):
        await salvage([journal], spread, index, world.settings)

    async def hang(operation: Operation, path: str) -> None:
        if operation is Operation.READ:
            await asyncio.Event().wait()

    world.disks[2].before = hang
    with pytest.raises(DiskError, match="out of use"):
        await rebuild([journal], await SpreadDisk.over(world.parts(), None, silent_s=0.05), MemoryIndex())


async def test_a_scrub_skips_entries_in_a_missing_directory(world: Directories) -> None:
    """A disk may hold many such entries; each would cause an error in the log and a request for a copy."""
    await world.flush(0, 1)
    await world.restart(2)
    await world.flush(2)
    steps = [step async for step in world.store.scrub()]
    assert [(step.entries, list(step.damaged), step.last) for step in steps] == [(1, [], (LEDGER, 2))]
    await world.restart()
    assert sum([step.entries async for step in world.store.scrub()]) == 3


async def test_limbo_is_kept_if_a_directory_is_missing(world: Directories) -> None:
    await world.flush(0)
    await world.store.set_limbo([LEDGER])
    await world.restart(2)
    assert await world.statuses(0, 1) == [Status.IO_ERROR, Status.LIMBO]
    assert await world.listed() == (Status.LIMBO, EntryRuns(()))


async def test_logs_in_a_missing_directory_keep_their_records(world: Directories) -> None:
    await world.flush(0, 1)
    await world.store.collect(LEDGER, world.store.mark(LEDGER))
    await world.restart(2)
    assert (await world.store.compact()).removed_logs == 0
    await world.restart()
    assert world.logs()[2] == 1
    assert (await world.store.compact()).removed_logs == 1


async def test_a_directory_that_refuses_writes_is_still_read_but_not_listed(world: Directories) -> None:
    await world.flush(0)
    world.fail(2, broken(Operation.CREATE, Operation.UNLINK, Operation.REPLACE))
    await world.flush(1)
    assert world.problems() == [False, False, True]
    assert await world.statuses(0, 1) == [Status.OK] * 2
    assert await world.listed() == (Status.CORRUPT, EntryRuns(((1, 1),))), "repair replaces the entry"
    await world.store.compact()
    assert world.logs() == [0, 1, 1]


async def test_a_bad_sector_damages_its_entries_and_a_failed_probe_the_directory(
    world: Directories,
) -> None:
    await world.flush(0)
    world.fail(2, broken(Operation.READ))
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert world.problems() == [False] * 3
    assert ".probe" in world.disks[2].paths()
    assert await world.listed() == (Status.OK, EntryRuns(((0, 0),)))
    world.fail(2, broken(Operation.READ, Operation.REPLACE))
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert world.problems() == [False] * 3, "a directory is probed once in ten seconds"
    world.clock.now_s += 10
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert world.problems() == [False, False, True]
    assert await world.listed() == (Status.CORRUPT, EntryRuns(()))


async def test_a_bad_sector_in_a_full_directory_does_not_fail_the_directory(world: Directories) -> None:
    await world.flush(0)

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.READ:
            raise DiskError("input/output error")
        if operation is Operation.REPLACE:
            raise DiskFullError("no space left")

    world.disks[2].before = before
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert world.problems() == [False] * 3


async def test_too_many_open_files_do_not_fail_a_directory(world: Directories) -> None:
    await world.flush(0)
    [path] = [path for path in world.disks[2].paths() if path.endswith(".log")]

    def refused(operation: Operation, path: str) -> DiskError | None:
        return DiskFullError("too many open files") if operation is Operation.OPEN else None

    world.fail(2, refused)
    with pytest.raises(DiskFullError):
        await world.spread.open(path)
    assert world.problems() == [False, False, False]


async def test_a_directory_in_which_no_file_could_be_opened_gets_new_logs_again(world: Directories) -> None:
    """Otherwise the others, and the index in the first one, would run out of space while it has room."""
    error = DiskFullError("cannot open entries/a.log: Too many open files")
    error.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    world.fail(2, lambda operation, _: error if operation is Operation.CREATE else None)
    assert await world.add(0) is Status.OK
    with pytest.raises(DiskFullError):
        await world.store.checkpoint()
    assert world.store.is_full
    world.fail(2, lambda *_: None)
    await world.store.checkpoint()
    assert world.logs() == [0, 0, 1]


async def test_a_directory_that_was_unmounted_is_out_of_use(world: Directories) -> None:
    await world.flush(0)
    for path in world.disks[2].paths():
        world.disks[2].lose(path)
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert world.problems() == [False, False, True]


async def test_a_directory_that_does_not_answer_is_out_of_use_and_gets_no_more_requests(world: Directories) -> None:
    await world.flush(0)
    asked: list[Operation] = []

    async def silent(operation: Operation, path: str) -> None:
        asked.append(operation)
        raise TimeoutError  # as after a deadline

    world.disks[2].before = silent
    await world.flush(1, 2)
    assert world.problems() == [False, False, True]
    assert asked == [Operation.CREATE]
    assert world.logs() == [0, 1, 1]
    assert await world.statuses(0, 1, 2, 3) == [Status.IO_ERROR, Status.OK, Status.OK, Status.NO_ENTRY]
    assert await world.listed() == (Status.CORRUPT, EntryRuns(((1, 2),)))
    assert asked == [Operation.CREATE]


async def test_entries_in_a_directory_out_of_use_are_not_logged_one_by_one(
    world: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    await world.flush(0)
    await world.restart(2)
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert "stored entry" not in caplog.text
    await world.restart()
    world.fail(2, broken(Operation.READ))
    assert await world.statuses(0) == [Status.IO_ERROR]
    assert [record.getMessage() for record in caplog.records] == ["stored entry does not verify"]


async def test_an_operation_that_never_ends_has_a_deadline(world: Directories) -> None:
    await world.flush(0)
    [name] = await world.spread.names("entries")
    parts = [SpreadDirectory(f"/{number}", disk) for number, disk in enumerate(world.disks)]
    spread = await SpreadDisk.over(parts, world.clock, silent_s=0.05)

    async def hang(operation: Operation, path: str) -> None:
        await asyncio.Event().wait()

    world.disks[2].before = hang
    with pytest.raises(DirectoryFailedError, match="did not answer"):
        await spread.open(f"entries/{name}")
    assert [directory.is_silent for directory in parts] == [False, False, True]


def test_known_damage_and_a_directory_out_of_use_are_both_left_out_of_a_list() -> None:
    damaged = DamagedEntries()
    with damaged.reading(LEDGER) as stored:
        damaged.read(LEDGER, [EntryResult(EntryId(4), Status.CORRUPT)], stored)
    reply = damaged.without_damaged_entries(
        LEDGER, ListReply(Status.CORRUPT, EntryRuns(((0, 9),)), "3 entries are elsewhere")
    )
    assert (reply.status, reply.entries) == (Status.CORRUPT, EntryRuns(((0, 3), (5, 9))))
    assert reply.detail == "1 damaged: 4; 3 entries are elsewhere"

    reply = damaged.without_damaged_entries(
        LEDGER, ListReply(Status.CORRUPT, EntryRuns(((5, 9),)), "5 entries are elsewhere")
    )
    assert reply.entries == EntryRuns(((5, 9),))
    assert damaged.ledgers(9) == [(LEDGER, [EntryId(4)])], "the damage is still known after the directory has returned"
    assert damaged.without_damaged_entries(LEDGER, ListReply(Status.OK, EntryRuns(((5, 9),)))).status is Status.OK
    assert damaged.count == 0, "the entry was deleted"
