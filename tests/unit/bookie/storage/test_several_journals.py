"""A store with several journals: where records are written, what a start refuses, and what a failing journal does."""

from __future__ import annotations

import asyncio

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.index_format import MARK_KEY, CheckpointMark
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation, yield_control
from bookie.storage.errors import DamagedJournalError, WrongJournalError
from bookie.storage.inspection import inspect
from bookie.storage.journal.mark import SLOT_NAMES
from bookie.storage.journal.replay import DIRECTORY
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.rebuilding import rebuild
from bookie.storage.salvaging import begin_journals, damage_of, salvage
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.unit.bookie.storage.test_rebuilding import KEY, SETTINGS, add, read
from tests.worlds.entries import raw_entry

EVEN, ODD = LedgerId(2), LedgerId(3)
"""A ledger of the first journal and one of the second."""


class Disks:
    """The disks of a stopped store."""

    def __init__(self, journals: int = 2) -> None:
        self.journals = [MemoryDisk() for _ in range(journals)]
        self.ledgers, self.index = MemoryDisk(), MemoryIndex()

    async def open(self, *journals: MemoryDisk) -> LedgerStorage:
        first, *others = journals or self.journals
        return await LedgerStorage.open(first, self.ledgers, self.index, SETTINGS, SystemClock(), more_journals=others)

    def killed(self) -> Disks:
        """Return the disks after the process was killed."""
        other = Disks(0)
        other.journals = [disk.restarted() for disk in self.journals]
        other.ledgers, other.index = self.ledgers.restarted(), self.index.restarted()
        return other


def files(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".journal")]


async def used() -> Disks:
    """Return a killed store: two entries of each ledger in the index, and one only in its journal."""
    disks = Disks()
    store = await disks.open()
    for ledger_id in (EVEN, ODD):
        await add(store, ledger_id, 0, 1)
    await store.checkpoint()
    for ledger_id in (EVEN, ODD):
        await add(store, ledger_id, 2)
    assert (await store.fence(ODD, KEY)).status is Status.OK
    await store.abort()
    return disks.killed()


async def check_whole(store: LedgerStorage, refusal: Status = Status.FENCED) -> None:
    for ledger_id in (EVEN, ODD):
        expected = [(Status.OK, raw_entry(ledger_id, number)) for number in range(3)]
        assert await read(store, ledger_id, 0, 1, 2) == expected
    assert (await store.add(AddBatch(ODD, KEY, [raw_entry(ODD, 9)]))).status is refusal


async def test_each_ledger_uses_one_journal_and_all_are_replayed() -> None:
    disks = await used()
    for disk, here, elsewhere in zip(disks.journals, (EVEN, ODD), (ODD, EVEN), strict=True):
        content = b"".join(disk.content(path) for path in files(disk))
        assert raw_entry(here, 2) in content
        assert raw_entry(elsewhere, 2) not in content
    store = await disks.open()
    await check_whole(store)
    await store.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_journal_from_before_a_later_start_is_refused(count: int) -> None:
    """It lacks what was acknowledged since, which would then count as never stored."""
    disks = Disks(count)
    store = await disks.open()
    await add(store, ODD, 0)
    await store.close()
    copy = disks.killed().journals[-1]
    for number in (1, 2):  # the epoch of a start is in the index after its first checkpoint
        disks = disks.killed()
        store = await disks.open()
        await add(store, ODD, number)
        await store.close()
    whole, disks = disks.killed(), disks.killed()
    disks.journals[-1] = copy.restarted()
    with pytest.raises(DamagedJournalError, match="is an older copy"):
        await inspect(disks.journals, disks.ledgers, disks.index, SETTINGS)
    for _ in range(2):
        disks = disks.killed()
        with pytest.raises(DamagedJournalError, match="is an older copy"):
            await disks.open()
    store = await whole.open()
    assert [status for status, _ in await read(store, ODD, 0, 1, 2, 3)] == [Status.OK] * 3 + [Status.NO_ENTRY]
    await store.close()

    disks = disks.killed()
    assert await damage_of(disks.journals, disks.index) is not None
    found = await salvage(disks.journals, disks.ledgers, disks.index, SETTINGS)
    disks.journals = [MemoryDisk() for _ in range(count)]
    await begin_journals(disks.journals, disks.index, found.epoch + 1)
    store = await disks.open()
    assert [status for status, _ in await read(store, ODD, 2, 3)] == [Status.OK, Status.LIMBO]
    await store.abort()


async def test_a_lost_mark_is_no_evidence_of_an_older_journal() -> None:
    disks = Disks(1)
    for number in range(3):
        disks = disks.killed()
        store = await disks.open()
        await add(store, ODD, number)
        await store.close()
    for slot in SLOT_NAMES:
        copy = disks.killed()
        copy.journals[0].lose(f"{DIRECTORY}/{slot}")
        store = await copy.open()
        assert [status for status, _ in await read(store, ODD, 0, 1, 2)] == [Status.OK] * 3
        await store.abort()


async def test_a_stopped_store_is_inspected_with_all_its_journals() -> None:
    disks = await used()
    storage = await inspect(disks.journals, disks.ledgers, disks.index, SETTINGS)
    assert (await storage.status()).journal_records == 3  # two entries and a fence
    for ledger_id in (EVEN, ODD):
        assert [result.packet for result in await storage.read(ledger_id, [EntryId(2)])] == [raw_entry(ledger_id, 2)]
    with pytest.raises(WrongJournalError):
        await inspect(disks.journals[:1], disks.ledgers, disks.index, SETTINGS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((1, 0), "has journal 2 of 2, and is given as journal 1 of 2"),
        ((0,), "has journal 1 of 2, and is given as journal 1 of 1"),
        ((1,), "has journal 2 of 2"),
        ((0, 1, 2), "has journal 1 of 2, and is given as journal 1 of 3"),
    ],
)
async def test_journals_that_are_exchanged_left_out_or_added_are_refused(given: tuple[int, ...], problem: str) -> None:
    disks = await used()
    places = [*disks.journals, MemoryDisk()]
    before = [{path: disk.content(path) for path in disk.paths()} for disk in disks.journals]
    with pytest.raises(WrongJournalError, match=problem):
        await disks.open(*(places[number] for number in given))
    with pytest.raises(WrongJournalError):
        await damage_of([places[number] for number in given], disks.index)
    with pytest.raises(WrongJournalError):
        await rebuild([places[number] for number in given], disks.ledgers, MemoryIndex())
    assert [{path: disk.content(path) for path in disk.paths()} for disk in disks.journals] == before
    store = await disks.open()
    await check_whole(store)
    await store.abort()


async def test_a_store_with_one_journal_gets_no_second_one() -> None:
    disks = Disks(1)
    store = await disks.open()
    await add(store, EVEN, 0)
    await store.close()
    [value] = await disks.index.restarted().get_many([MARK_KEY])
    assert value is not None
    assert len(value) == len(CheckpointMark().encode())  # the format of earlier releases
    disks = disks.killed()
    with pytest.raises(WrongJournalError, match="has journal 1 of 1, and is given as journal 1 of 2"):
        await disks.open(*disks.journals, MemoryDisk())


async def test_a_lost_journal_and_one_without_its_position_are_refused() -> None:
    disks = await used()
    with pytest.raises(DamagedJournalError, match="has no mark"):
        await disks.open(disks.journals[0], MemoryDisk())
    disks.journals[1].lose("journal/place")
    with pytest.raises(WrongJournalError, match="is given as journal 2 of 2"):
        await disks.open()


async def test_a_damaged_position_file_is_damage_of_the_journal() -> None:
    disks = await used()
    disks.journals[1].flip_bit("journal/place", 77)
    with pytest.raises(DamagedJournalError, match="journal/place is damaged"):
        await disks.open()
    assert await damage_of(disks.journals, disks.index) is not None


async def test_damage_of_one_journal_is_salvaged_with_the_records_of_both() -> None:
    disks = await used()
    path = files(disks.journals[1])[0]
    disks.journals[1].cut(path, len(disks.journals[1].content(path)) - 200)
    disks = disks.killed()
    assert await damage_of(disks.journals, disks.index) is not None
    found = await salvage(disks.journals, disks.ledgers, disks.index, SETTINGS)
    assert found.ledgers == 2
    for journal in disks.journals:
        for name in journal.paths():
            journal.lose(name)
    with pytest.raises(DamagedJournalError):
        await disks.open()
    await begin_journals(disks.journals, disks.index, found.epoch + 1)
    store = await disks.open()
    assert await read(store, EVEN, 0, 1, 2) == [(Status.OK, raw_entry(EVEN, number)) for number in range(3)]
    assert await read(store, ODD, 0, 1) == [(Status.OK, raw_entry(ODD, number)) for number in range(2)]
    for ledger_id in (EVEN, ODD):
        assert await read(store, ledger_id, 7) == [(Status.LIMBO, b"")]
        assert (await store.add(AddBatch(ledger_id, KEY, [raw_entry(ledger_id, 9)]))).status is Status.LIMBO
    await store.close()


async def test_a_lost_index_is_rebuilt_and_all_journals_are_replayed() -> None:
    disks = await used()
    disks.index = MemoryIndex()
    await rebuild(disks.journals, disks.ledgers, disks.index)
    store = await disks.open()
    await check_whole(store, Status.LIMBO)
    await store.close()


async def test_checkpoints_trim_every_journal() -> None:
    disks = Disks()
    store = await disks.open()
    for number in range(100):
        await add(store, EVEN, number)
        await add(store, ODD, number)
    assert all(len(files(disk)) > 1 for disk in disks.journals)
    await store.checkpoint()
    assert all(len(files(disk)) <= 1 for disk in disks.journals)
    await store.close()


async def test_a_full_journal_does_not_prevent_trimming_of_the_others() -> None:
    disks = Disks()
    store = await disks.open()
    for number in range(100):
        await add(store, EVEN, number)
        await add(store, ODD, number)

    async def full(operation: Operation, path: str) -> None:
        if operation is Operation.REPLACE:
            raise DiskFullError("no space left")

    disks.journals[0].before = full
    with pytest.raises(DiskFullError):
        await store.checkpoint()
    assert len(files(disks.journals[1])) <= 1
    disks.journals[0].before = yield_control
    await store.close()


class Closed:
    """A disk that hangs on every sync until ``answers`` is set."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.answers = asyncio.Event()
        disk.before = self.before

    async def before(self, operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            await self.answers.wait()


async def test_a_journal_does_not_wait_for_the_sync_of_another_one() -> None:
    disks = Disks()
    store = await disks.open()
    hanging = Closed(disks.journals[1])
    waiting = asyncio.create_task(store.add(AddBatch(ODD, KEY, [raw_entry(ODD, 0)])))
    await add(store, EVEN, 0)
    assert not waiting.done()
    assert [write is not None for write in store.journal_changes] == [False, True]
    hanging.answers.set()
    assert (await waiting).status is Status.OK
    await store.close()


async def test_a_failing_journal_stops_all_of_them() -> None:
    disks = Disks()
    store = await disks.open()

    async def broken(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            raise DiskError("I/O error")

    disks.journals[1].before = broken
    assert (await store.add(AddBatch(ODD, KEY, [raw_entry(ODD, 0)]))).status is Status.IO_ERROR
    assert store.fatal.done()
    assert (await store.add(AddBatch(EVEN, KEY, [raw_entry(EVEN, 0)]))).status is Status.IO_ERROR
    await store.close()
    disks.journals[1].before = yield_control


async def test_a_full_journal_makes_the_store_read_only_and_the_others_still_accept_fences() -> None:
    disks = Disks()
    store = await disks.open()
    await add(store, EVEN, 0)
    await add(store, ODD, 0)
    disks.journals[1].capacity_bytes = disks.journals[1].used_bytes()
    assert (await store.add(AddBatch(ODD, KEY, [raw_entry(ODD, 1)]))).status is Status.READ_ONLY
    assert (await store.add(AddBatch(EVEN, KEY, [raw_entry(EVEN, 1)]))).status is Status.READ_ONLY
    assert (await store.fence(EVEN, KEY)).status is Status.OK
    disks.journals[1].capacity_bytes = 1 << 40
    await store.close()
    store = await disks.killed().open()
    assert await read(store, ODD, 0) == [(Status.OK, raw_entry(ODD, 0))]
    assert (await store.add(AddBatch(EVEN, KEY, [raw_entry(EVEN, 1)]))).status is Status.FENCED
    await store.close()
