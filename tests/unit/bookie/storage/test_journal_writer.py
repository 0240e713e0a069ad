"""Group commit: acknowledged records are durable, failures are reported, and every wait is bounded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.model.errors import FatalError
from bookie.runtime.clock import Clock
from bookie.storage.disks.memory import MemoryDisk, Operation
from bookie.storage.errors import DamagedJournalError
from bookie.storage.journal.format import RecordKind
from bookie.storage.journal.journal import Journal, JournalBusyError, JournalStoppedError, Records
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.replay import DIRECTORY, ClosedFile, JournalReplay, file_path
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from tests.worlds.clocks import ManualClock


class Switch:
    """A ``before`` hook that blocks or fails the chosen operations, and counts all operations."""

    def __init__(self) -> None:
        self.held: set[Operation] = set()
        self.failing: dict[Operation, DiskError] = {}
        self.seen: list[Operation] = []
        self.go = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        self.seen.append(operation)
        if operation in self.held:
            await self.go.wait()
        await asyncio.sleep(0)
        if operation in self.failing:
            raise self.failing[operation]


async def begin(
    disk: MemoryDisk,
    settings: StorageSettings | None = None,
    files: list[ClosedFile] | None = None,
    clock: Clock | None = None,
) -> Journal:
    await disk.make_directory(DIRECTORY)
    slots = MarkSlots(disk, DIRECTORY)
    await slots.load()
    settings, clock = settings or StorageSettings(), clock or ManualClock()
    journal = Journal(disk, settings, slots, clock, epoch=5, sequence=0, files=files or [])
    journal.start()
    return journal


@asynccontextmanager
async def journal_on(
    disk: MemoryDisk, settings: StorageSettings | None = None, clock: Clock | None = None
) -> AsyncIterator[Journal]:
    journal = await begin(disk, settings, clock=clock)
    try:
        yield journal
    finally:
        await journal.abort()


def put(journal: Journal, body: bytes, log: list[str] | None = None) -> asyncio.Future[FatalError | None]:
    records = Records()
    records.add(RecordKind.ENTRY, 7, body)
    events = [] if log is None else log
    name = body.decode()
    return journal.enqueue(
        records, lambda: events.append(f"{name} durable"), lambda error: events.append(f"{name} failed")
    )


async def survivors(disk: MemoryDisk) -> list[bytes]:
    slots = MarkSlots(disk, DIRECTORY)
    await slots.load()
    return [record.body async for batch in JournalReplay(disk, 0).batches(slots.mark) for record in batch]


async def lost_power(disk: MemoryDisk) -> list[bytes]:
    return await survivors(disk.crash(random.Random(1)))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def let_interval_pass(clock: ManualClock) -> None:
    for _ in range(2):
        clock.now_s += StorageSettings().journal_mark_after_s
        await settle()


async def test_acknowledged_only_after_the_sync() -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    async with journal_on(disk) as journal:
        assert await put(journal, b"first") is None
        switch.held = {Operation.SYNC}
        waiting = put(journal, b"second")
        await settle()
        assert not waiting.done()
        switch.go.set()
        assert await waiting is None


async def test_every_acknowledged_record_survives_power_loss() -> None:
    for seed in range(30):
        disk = MemoryDisk()
        async with journal_on(disk) as journal:
            for number in range(5):
                assert await put(journal, b"%d" % number) is None
            put(journal, b"not acknowledged")
            await asyncio.sleep(0)
            found = await survivors(disk.crash(random.Random(seed)))
        assert found[:5] == [b"0", b"1", b"2", b"3", b"4"]
        assert found[5:] in ([], [b"not acknowledged"])


async def test_records_that_arrive_during_a_sync_share_the_next_one() -> None:
    switch = Switch()
    switch.held = {Operation.SYNC}
    disk = MemoryDisk(before=switch)
    async with journal_on(disk) as journal:
        first = put(journal, b"first")
        await settle()
        rest = [put(journal, b"%d" % number) for number in range(100)]
        switch.go.set()
        await asyncio.gather(first, *rest)
        assert switch.seen.count(Operation.SYNC) == 3  # the file header, the first record, all other records


async def test_a_single_record_is_synced_at_once_without_a_timer() -> None:
    switch = Switch()
    async with journal_on(MemoryDisk(before=switch), clock=ManualClock()) as journal:  # time does not pass
        for number in range(10):
            assert await put(journal, b"%d" % number) is None
        assert switch.seen.count(Operation.SYNC) == 11  # the file header and each record


async def test_a_group_is_bounded_by_bytes() -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    async with journal_on(disk, StorageSettings(journal_batch_bytes=300)) as journal:
        await asyncio.gather(*(put(journal, b"x" * 83) for _ in range(9)))  # 100 bytes including the record header
        assert switch.seen.count(Operation.APPEND) == 1 + 3


async def test_record_larger_than_a_group_is_written_alone() -> None:
    disk = MemoryDisk()
    async with journal_on(disk, StorageSettings(journal_batch_bytes=10)) as journal:
        await asyncio.gather(put(journal, b"x" * 50), put(journal, b"y" * 50))
        assert await survivors(disk) == [b"x" * 50, b"y" * 50]


async def test_callbacks_run_in_the_order_of_the_journal_before_any_caller_wakes() -> None:
    log: list[str] = []
    async with journal_on(MemoryDisk()) as journal:

        async def caller(body: bytes) -> None:
            await put(journal, body, log)
            log.append(f"{body.decode()} woke")

        await asyncio.gather(caller(b"a"), caller(b"b"), caller(b"c"))
    assert log[:3] == ["a durable", "b durable", "c durable"]
    assert sorted(log[3:]) == ["a woke", "b woke", "c woke"]


async def test_a_crash_leaves_the_reserved_space_and_a_close_frees_it() -> None:
    for is_crash in (True, False):
        disk = MemoryDisk()
        journal = await begin(disk, StorageSettings(journal_reserve_bytes=1000))
        assert await put(journal, b"first") is None
        await (journal.abort() if is_crash else journal.close())
        file = await disk.restarted().open(file_path(1))
        reserved = await file.size() - len(disk.content(file_path(1)))
        assert bool(reserved) is is_crash
        assert await survivors(disk.restarted()) == [b"first"]


async def test_the_end_of_a_full_file_frees_its_reserved_space() -> None:
    disk = MemoryDisk()
    async with journal_on(disk, StorageSettings(journal_file_bytes=1, journal_reserve_bytes=1000)) as journal:
        assert await put(journal, b"first") is None
        assert await put(journal, b"second") is None
        for number in (1, 2):
            file = await disk.open(file_path(number))
            assert await file.size() == len(disk.content(file_path(number)))


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_damaged_last_batch_is_a_torn_tail_only_right_after_it_was_written(is_silent: bool) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    async with journal_on(disk, clock=clock) as journal:
        assert await put(journal, b"first") is None
        assert await put(journal, b"last") is None
        await settle()
        if is_silent:
            await let_interval_pass(clock)
    disk.cut(file_path(1), len(disk.content(file_path(1))) - 1)
    if is_silent:
        with pytest.raises(DamagedJournalError, match="batches 3 to 3"):
            await survivors(disk)
    else:
        assert await survivors(disk) == [b"first"]


async def test_the_end_is_recorded_every_second_under_load_and_not_without_new_batches() -> None:
    switch, clock = Switch(), ManualClock()
    async with journal_on(MemoryDisk(before=switch), clock=clock) as journal:
        assert await put(journal, b"0") is None
        await let_interval_pass(clock)
        switch.seen.clear()
        for number in range(1, 5):
            for _ in range(4):
                assert await put(journal, b"%d" % number) is None
                await settle()
                clock.now_s += StorageSettings().journal_mark_after_s / 4
                await settle()
            assert switch.seen.count(Operation.REPLACE) == number
        await let_interval_pass(clock)
        assert switch.seen.count(Operation.REPLACE) == 4


async def test_batches_behind_a_cut_are_damage_if_more_followed_for_a_second() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    async with journal_on(disk, clock=clock) as journal:
        assert await put(journal, b"first") is None
        size = len(disk.content(file_path(1)))
        for _ in range(3):
            assert await put(journal, b"next") is None
            await settle()
            clock.now_s += StorageSettings().journal_mark_after_s / 2
            await settle()
    disk.cut(file_path(1), size)
    with pytest.raises(DamagedJournalError, match="batches 3 to"):
        await survivors(disk)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_batches_behind_a_cut_are_damage_only_up_to_the_mark(is_silent: bool) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    async with journal_on(disk, clock=clock) as journal:
        assert await put(journal, b"first") is None
        size = len(disk.content(file_path(1)))
        for body in (b"second", b"third"):
            assert await put(journal, body) is None
        if is_silent:
            await let_interval_pass(clock)
    disk.cut(file_path(1), size)
    if is_silent:
        with pytest.raises(DamagedJournalError, match="batches 3 to 4"):
            await survivors(disk)
    else:
        assert await survivors(disk) == [b"first"]


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_mark_that_cannot_be_written_stops_the_journal_unless_the_disk_is_full(is_full: bool) -> None:
    switch, clock = Switch(), ManualClock()
    async with journal_on(MemoryDisk(before=switch), clock=clock) as journal:
        assert await put(journal, b"first") is None
        await settle()
        switch.failing = {Operation.REPLACE: (DiskFullError if is_full else DiskError)("replace")}
        await let_interval_pass(clock)
        assert journal.fatal.done() is not is_full
        if is_full:
            assert await put(journal, b"second") is None


async def test_cancelled_caller_does_not_affect_the_others() -> None:
    log: list[str] = []
    disk = MemoryDisk()
    async with journal_on(disk) as journal:
        gone = put(journal, b"gone", log)
        there = put(journal, b"there", log)
        gone.cancel()
        assert await there is None
        assert log == ["gone durable", "there durable"]
        assert await lost_power(disk) == [b"gone", b"there"]


async def test_queue_is_bounded_and_drains() -> None:
    switch = Switch()
    switch.held = {Operation.SYNC}
    disk = MemoryDisk(before=switch)
    async with journal_on(disk, StorageSettings(journal_queue_bytes_max=250)) as journal:
        waiting = [put(journal, b"x" * 83), put(journal, b"y" * 83)]
        await settle()
        with pytest.raises(JournalBusyError):
            put(journal, b"z" * 83)
        switch.go.set()
        await asyncio.gather(*waiting)
        assert await put(journal, b"z" * 83) is None


async def test_record_larger_than_the_queue_is_accepted_if_the_queue_is_empty() -> None:
    async with journal_on(MemoryDisk(), StorageSettings(journal_queue_bytes_max=10)) as journal:
        assert await put(journal, b"x" * 50) is None


@pytest.mark.parametrize("operation", [Operation.APPEND, Operation.SYNC, Operation.CREATE, Operation.SYNC_DIRECTORY])
async def test_disk_error_ends_the_acknowledgements_permanently(
    operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    log: list[str] = []
    async with journal_on(disk, StorageSettings(journal_file_bytes=1)) as journal:
        assert await put(journal, b"fine", log) is None
        error = DiskError("input/output error")
        switch.failing = {operation: error}
        failed = [put(journal, b"failed", log), put(journal, b"behind", log)]
        assert [await done for done in failed] == [error, error]
        assert await journal.fatal is error
        switch.failing.clear()
        with pytest.raises(JournalStoppedError):
            put(journal, b"after")
        assert log == ["fine durable", "failed failed", "behind failed"]
        assert disk.syncs_after_failure == 0
    [logged] = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert logged.__dict__["error"] == "input/output error"
    assert logged.exc_info is None, "a disk failed, which is no defect of the program"


async def test_internal_error_ends_the_acknowledgements_too(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    async with journal_on(disk) as journal:

        def broken() -> None:
            raise ValueError("a bug")

        records = Records()
        records.add(RecordKind.FENCE, 7)
        journal.enqueue(records, broken, lambda error: None)
        behind = put(journal, b"behind")
        assert isinstance(await behind, JournalStoppedError)
        assert "a bug" in str(await journal.fatal)
    assert "a bug" in caplog.text


async def test_after_a_full_disk_later_records_go_to_a_new_file() -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    log: list[str] = []
    async with journal_on(disk) as journal:
        assert await put(journal, b"before") is None
        switch.failing = {Operation.APPEND: DiskFullError("no space left")}
        failed = await asyncio.gather(put(journal, b"full", log), put(journal, b"behind", log))
        assert all(isinstance(error, DiskFullError) for error in failed)
        assert log == ["full failed", "behind failed"]
        switch.failing.clear()
        assert await put(journal, b"after") is None
        assert not journal.fatal.done()
        assert await lost_power(disk) == [b"before", b"after"]


async def test_a_full_disk_also_fails_records_waiting_for_a_later_group() -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    log: list[str] = []
    async with journal_on(disk, StorageSettings(journal_batch_bytes=10)) as journal:
        assert await put(journal, b"before") is None
        switch.failing = {Operation.APPEND: DiskFullError("no space left")}
        full, behind = put(journal, b"full", log), put(journal, b"behind", log)
        assert isinstance(await full, DiskFullError)
        switch.failing.clear()
        assert isinstance(await behind, DiskFullError)
        assert log == ["full failed", "behind failed"]
        assert await put(journal, b"after") is None
        assert await lost_power(disk) == [b"before", b"after"]


async def test_full_disk_at_a_sync_abandons_the_file() -> None:
    switch = Switch()
    disk = MemoryDisk(before=switch)
    async with journal_on(disk) as journal:
        assert await put(journal, b"before") is None
        switch.failing = {Operation.SYNC: DiskFullError("no space left")}
        assert isinstance(await put(journal, b"full"), DiskFullError)
        switch.failing.clear()
        assert await put(journal, b"after") is None
        assert disk.syncs_after_failure == 0
        assert await lost_power(disk) in ([b"before", b"after"], [b"before", b"full", b"after"])


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.APPEND, Operation.REPLACE])
async def test_full_disk_at_the_beginning_of_a_file_can_be_tried_again(operation: Operation) -> None:
    switch = Switch()
    switch.failing = {operation: DiskFullError("no space left")}
    disk = MemoryDisk(before=switch)
    async with journal_on(disk) as journal:
        for _ in range(3):
            assert isinstance(await put(journal, b"full"), DiskFullError)
        switch.failing.clear()
        assert await put(journal, b"fits") is None
        assert await lost_power(disk) == [b"fits"]


async def test_files_are_rolled_and_removed_once_checkpointed() -> None:
    disk = MemoryDisk()
    async with journal_on(disk, StorageSettings(journal_file_bytes=1)) as journal:
        sequences = []
        for number in range(4):
            await put(journal, b"%d" % number)
            sequences.append(journal.durable_sequence)
        await journal.trim(sequences[1])
        assert [path for path in disk.paths() if path.endswith(".journal")] == [file_path(3), file_path(4)]
        crashed = disk.crash(random.Random(1))
        slots = MarkSlots(crashed, DIRECTORY)
        await slots.load()
        assert slots.mark == JournalMark(sequences[3], 5)
        replay = JournalReplay(crashed, sequences[1])
        assert [record.body async for batch in replay.batches(slots.mark) for record in batch] == [b"2", b"3"]


async def test_open_file_is_never_removed() -> None:
    disk = MemoryDisk()
    async with journal_on(disk) as journal:
        await put(journal, b"one")
        await journal.trim(journal.durable_sequence)
        await put(journal, b"two")
        assert await survivors(disk) == [b"one", b"two"]


async def test_trim_frees_space_before_it_needs_some() -> None:
    disk = MemoryDisk()
    async with journal_on(disk, StorageSettings(journal_file_bytes=1)) as journal:
        await put(journal, b"x" * 100)
        disk.capacity_bytes = disk.used_bytes()
        await journal.trim(journal.durable_sequence)
        assert not [path for path in disk.paths() if path.endswith(".journal")]


async def test_close_writes_queued_records() -> None:
    disk = MemoryDisk()
    journal = await begin(disk)
    waiting = [put(journal, b"%d" % number) for number in range(3)]
    await journal.close()
    assert [await done for done in waiting] == [None] * 3
    with pytest.raises(JournalStoppedError):
        put(journal, b"late")
    assert await lost_power(disk) == [b"0", b"1", b"2"]


async def test_abort_answers_every_caller() -> None:
    switch = Switch()
    switch.held = {Operation.SYNC}
    log: list[str] = []
    journal = await begin(MemoryDisk(before=switch))
    waiting = [put(journal, b"a", log), put(journal, b"b", log)]
    await settle()
    await journal.abort()
    for done in waiting:
        assert isinstance(await done, JournalStoppedError)
    assert log == ["a failed", "b failed"]


async def test_new_epoch_skips_a_sequence_number_for_a_torn_batch_before_it() -> None:
    async with journal_on(MemoryDisk()) as journal:
        await put(journal, b"x")
        assert journal.durable_sequence == 2


async def test_file_numbers_continue_after_existing_files() -> None:
    disk = MemoryDisk()
    journal = await begin(disk, files=[ClosedFile(41, 0)])
    await put(journal, b"x")
    assert file_path(42) in disk.paths()
    await journal.abort()


async def test_concurrent_marks_leave_the_greatest_one() -> None:
    disk, replaced = MemoryDisk(), list[str]()
    slots = MarkSlots(disk, DIRECTORY)
    await slots.write(JournalMark(1, 1))

    async def delay_the_first(operation: Operation, path: str) -> None:
        if operation is Operation.REPLACE:
            replaced.append(path)
            for _ in range(20 if len(replaced) == 1 else 0):
                await asyncio.sleep(0)

    disk.before = delay_the_first
    await asyncio.gather(*(slots.write(JournalMark(sequence, 1)) for sequence in (2, 3)))
    assert len(set(replaced)) == 2  # damage to one slot leaves the other intact
    found = MarkSlots(disk, DIRECTORY)
    await found.load()
    assert found.mark == slots.mark == JournalMark(3, 1)
