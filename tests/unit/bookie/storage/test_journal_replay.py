"""Which damage to a journal is a torn tail and which is a loss (J3, J4, J8); with journals of the real writer."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from bookie.model.ids import LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.journal.format import FILE_HEADER_SIZE, FileHeader, RecordKind, encode_file_header
from bookie.storage.journal.journal import Journal, Records
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.replay import DIRECTORY, JournalReplay, check_same_store, file_path
from bookie.storage.journal.salvage import JournalSalvage
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.clocks import ManualClock

ONE = [b"one"]
THREE = [b"one", b"two", b"three"]
FIRST = file_path(1)


@dataclass
class Replayed:
    bodies: list[bytes]
    replay: JournalReplay


async def replay(disk: MemoryDisk, checkpoint: int = 0, *, with_mark: bool = True) -> Replayed:
    await disk.make_directory(DIRECTORY)
    slots = MarkSlots(disk, DIRECTORY)
    await slots.load()
    running = JournalReplay(disk, checkpoint)
    mark = slots.mark if with_mark else None
    bodies = [record.body async for batch in running.batches(mark) for record in batch]
    return Replayed(bodies, running)


async def write(disk: MemoryDisk, bodies: list[bytes], *, epoch: int = 10, file_bytes: int = 1 << 20) -> list[int]:
    """Append one batch per body, and return the file size after each."""
    before = (await replay(disk)).replay
    slots = MarkSlots(disk, DIRECTORY)
    await slots.load()
    settings = StorageSettings(journal_file_bytes=file_bytes)
    journal = Journal(disk, settings, slots, ManualClock(), epoch=epoch, sequence=before.reached, files=before.files)
    journal.start()
    ends = []
    for body in bodies:
        records = Records()
        records.add(RecordKind.ENTRY, 7, body)
        assert await journal.enqueue(records, lambda: None, lambda error: None) is None
        ends.append(len(disk.content(journal_files(disk)[0])))
    await journal.close()
    return ends


def journal_files(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".journal")]


async def test_records_are_replayed_in_order() -> None:
    disk = MemoryDisk()
    await write(disk, THREE)
    assert (await replay(disk)).bodies == THREE


async def test_journal_over_several_files_and_epochs_is_replayed_in_order() -> None:
    disk = MemoryDisk()
    await write(disk, THREE, epoch=10, file_bytes=1)
    await write(disk, [b"four"], epoch=11)
    await write(disk, [b"five"], epoch=12)
    assert len(journal_files(disk)) == 5
    assert (await replay(disk)).bodies == [*THREE, b"four", b"five"]


async def test_replay_starts_after_the_checkpoint() -> None:
    disk = MemoryDisk()
    await write(disk, THREE)
    assert (await replay(disk, checkpoint=3)).bodies == THREE[2:]


async def test_empty_journal_has_nothing_to_replay() -> None:
    assert (await replay(MemoryDisk())).bodies == []


async def test_file_truncated_at_any_byte_replays_the_complete_batches_before_it() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    data = disk.content(FIRST)
    for size in range(len(data) + 1):
        disk.cut(FIRST, 0)
        disk.overwrite(FIRST, 0, data[:size])
        whole = sum(end <= size for end in ends)
        assert (await replay(disk, with_mark=False)).bodies == THREE[:whole], f"cut at {size}"


async def test_zeros_after_the_end_are_not_damage(caplog: pytest.LogCaptureFixture) -> None:
    for bodies in (THREE, [b"ends with zeros" + bytes(40)]):
        disk = MemoryDisk()
        await write(disk, bodies)
        data = disk.content(FIRST)
        disk.overwrite(FIRST, len(data), bytes(5000))
        assert (await replay(disk)).bodies == bodies
        assert not caplog.records
        salvage = JournalSalvage(disk, 0)
        assert [record.body async for batch in salvage.batches() for record in batch] == bodies
        assert not salvage.findings.findings


async def test_a_file_truncated_before_zeros_is_treated_as_ending_there() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    data = disk.content(FIRST)
    for size in range(FILE_HEADER_SIZE, len(data)):
        disk.overwrite(FIRST, 0, data[:size] + bytes(len(data) - size + 100))
        whole = sum(not any(data[size:end]) for end in ends)
        assert (await replay(disk, with_mark=False)).bodies == THREE[:whole], f"cut at {size}"


async def test_any_flipped_bit_in_the_last_batch_drops_it() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    for bit in range(ends[1] * 8, ends[2] * 8):
        disk.flip_bit(FIRST, bit)
        assert (await replay(disk)).bodies == THREE[:2], f"bit {bit}"
        disk.flip_bit(FIRST, bit)


async def test_any_flipped_bit_before_the_last_batch_is_refused() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    for bit in range(ends[1] * 8):
        disk.flip_bit(FIRST, bit)
        with pytest.raises(DamagedJournalError, match=rf"{FIRST} offset \d+.*Restore the file"):
            await replay(disk)
        disk.flip_bit(FIRST, bit)


async def test_damage_is_reported_with_its_own_offset_and_not_that_of_its_proof() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    disk.flip_bit(FIRST, ends[0] * 8 + 3)
    with pytest.raises(DamagedJournalError, match=f"{FIRST} offset {ends[0]}"):
        await replay(disk)


async def test_damage_before_a_torn_batch_is_proved_by_the_header_of_the_torn_one() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    disk.cut(FIRST, ends[2] - 1)
    assert (await replay(disk)).bodies == THREE[:2]
    disk.flip_bit(FIRST, ends[1] * 8 - 1)
    with pytest.raises(DamagedJournalError, match=f"{FIRST} offset {ends[0]}.*batches 3 to 3"):
        await replay(disk)


async def test_damage_at_the_end_of_a_file_is_proved_by_the_next_file() -> None:
    disk = MemoryDisk()
    await write(disk, THREE, file_bytes=1)
    first = journal_files(disk)[0]
    disk.cut(first, len(disk.content(first)) - 1)
    with pytest.raises(DamagedJournalError, match=first):
        await replay(disk, with_mark=False)


async def test_damage_at_the_end_of_an_epoch_is_proved_by_the_next_epoch() -> None:
    disk = MemoryDisk()
    await write(disk, THREE, epoch=10)
    await write(disk, [b"four"], epoch=11)
    disk.cut(FIRST, len(disk.content(FIRST)) - 1)
    with pytest.raises(DamagedJournalError, match=FIRST):
        await replay(disk, with_mark=False)


async def test_lost_file_in_the_middle_is_refused() -> None:
    disk = MemoryDisk()
    await write(disk, THREE, file_bytes=1)
    disk.lose(journal_files(disk)[1])
    with pytest.raises(DamagedJournalError, match="batches 3 to 3"):
        await replay(disk, with_mark=False)


async def test_lost_last_file_is_refused_because_of_the_mark() -> None:
    disk = MemoryDisk()
    await write(disk, THREE, file_bytes=1)
    disk.lose(journal_files(disk)[-1])
    disk.lose(journal_files(disk)[-1])
    with pytest.raises(DamagedJournalError, match="the end of the journal"):
        await replay(disk)


async def test_damage_before_the_checkpoint_is_ignored() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    disk.flip_bit(FIRST, ends[0] * 8 + 3)
    assert (await replay(disk, checkpoint=3)).bodies == THREE[2:]


async def test_torn_tail_is_ignored_and_the_next_epoch_is_replayed_after_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE, epoch=10)
    disk.cut(FIRST, ends[2] - 1)
    await write(disk, [b"four"], epoch=11)
    caplog.clear()
    assert (await replay(disk)).bodies == [b"one", b"two", b"four"]
    assert [record.__dict__["place"] for record in caplog.records] == [f"{FIRST} offset {ends[1]}"]


@pytest.mark.parametrize("junk", [b"\0" * 500, b"\xff" * 7, b"\x93bkhjbat" * 20])
async def test_random_bytes_at_the_end_are_a_torn_tail(junk: bytes) -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    disk.overwrite(FIRST, ends[-1], junk)
    assert (await replay(disk)).bodies == THREE


@pytest.mark.parametrize("size", [0, 1, FILE_HEADER_SIZE - 1, FILE_HEADER_SIZE])
async def test_file_that_ends_within_its_header_was_never_used(size: int) -> None:
    disk = MemoryDisk()
    await write(disk, THREE)
    file = await disk.create(file_path(2))
    await file.append([encode_file_header(FileHeader(11, 2, 4))[:size]])
    assert (await replay(disk)).bodies == THREE


async def test_file_of_random_bytes_is_refused() -> None:
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    file = await disk.create(FIRST)
    await file.append([b"junk" * 100])
    with pytest.raises(DamagedJournalError, match=f"{FIRST} offset 0"):
        await replay(disk)


async def test_renamed_file_is_refused() -> None:
    disk = MemoryDisk()
    await write(disk, THREE)
    file = await disk.create(file_path(2))
    await file.append([disk.content(FIRST)])
    with pytest.raises(DamagedJournalError, match="has the header of file 1 of epoch 10, expected file 2"):
        await replay(disk)


async def test_file_of_an_earlier_epoch_after_a_later_one_is_refused() -> None:
    disk = MemoryDisk()
    await write(disk, ONE, epoch=10)
    file = await disk.create(file_path(2))
    await file.append([encode_file_header(FileHeader(9, 2, 0))])
    with pytest.raises(DamagedJournalError, match="epoch 9"):
        await replay(disk)


async def test_replay_changes_nothing_on_the_disk() -> None:
    disk = MemoryDisk()
    ends = await write(disk, THREE)
    disk.cut(FIRST, ends[2] - 1)
    before = {path: disk.content(path) for path in disk.paths()}
    await replay(disk)
    assert {path: disk.content(path) for path in disk.paths()} == before


async def test_new_epoch_never_continues_an_old_file() -> None:
    disk = MemoryDisk()
    await write(disk, ONE, epoch=10)
    before = disk.content(FIRST)
    await write(disk, [b"two"], epoch=11)
    assert disk.content(FIRST) == before
    assert journal_files(disk) == [FIRST, file_path(2)]


async def test_marks_alternate_and_the_greater_one_is_used() -> None:
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    slots = MarkSlots(disk, DIRECTORY)
    for sequence in (3, 5, 4):
        await slots.write(JournalMark(sequence, 1))
    assert [path for path in disk.paths() if "mark" in path] == [f"{DIRECTORY}/mark-0", f"{DIRECTORY}/mark-1"]
    again = MarkSlots(disk, DIRECTORY)
    await again.load()
    assert again.mark == JournalMark(5, 1)


async def test_after_damage_to_one_mark_the_other_is_used(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    slots = MarkSlots(disk, DIRECTORY)
    await slots.write(JournalMark(3, 1))
    await slots.write(JournalMark(5, 1))
    disk.flip_bit(f"{DIRECTORY}/mark-1", 70)
    again = MarkSlots(disk, DIRECTORY)
    await again.load()
    assert again.mark == JournalMark(3, 1)
    assert "mark slot damaged" in caplog.text
    await again.write(JournalMark(6, 1))
    healed = MarkSlots(disk, DIRECTORY)
    await healed.load()
    assert healed.mark == JournalMark(6, 1)


async def test_store_without_a_readable_mark_is_refused() -> None:
    disk = MemoryDisk()
    await disk.make_directory(DIRECTORY)
    await MarkSlots(disk, DIRECTORY).write(JournalMark(3, 1))
    for bit in range(len(disk.content(f"{DIRECTORY}/mark-0")) * 8):
        disk.flip_bit(f"{DIRECTORY}/mark-0", bit)
        with pytest.raises(DamagedJournalError, match="mark-0"):
            await MarkSlots(disk, DIRECTORY).load()
        disk.flip_bit(f"{DIRECTORY}/mark-0", bit)


@pytest.mark.parametrize(
    ("has_logs", "mark", "files"), [(True, None, 0), (False, JournalMark(1, 1), 0), (False, JournalMark(0, 0), 1)]
)
def test_empty_index_with_used_files_is_refused(has_logs: bool, mark: JournalMark | None, files: int) -> None:
    with pytest.raises(LostIndexError, match="bkheal bookie rebuild-index"):
        check_same_store(False, has_logs, mark, files)


def test_used_index_without_a_journal_is_refused() -> None:
    with pytest.raises(DamagedJournalError, match="journal was lost"):
        check_same_store(True, True, None, 0)


@pytest.mark.parametrize("mark", [None, JournalMark(0, 0)])
async def test_new_store_is_accepted_even_if_its_creation_was_interrupted(mark: JournalMark | None) -> None:
    journal = MemoryDisk()
    await journal.make_directory(DIRECTORY)
    if mark is not None:
        await MarkSlots(journal, DIRECTORY).write(mark)
    store = await LedgerStorage.open(journal, MemoryDisk(), MemoryIndex(), StorageSettings(), SystemClock())
    assert await store.ledger_ids() == []
    entry = struct.pack(">qqqq", 7, 0, -1, 0)
    assert (await store.add(AddBatch(LedgerId(7), b"key", [entry]))).status is Status.OK
    await store.close()
