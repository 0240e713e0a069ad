"""Opening a store from the files on its disks.

Before any request is served, all journals are replayed into the write cache, and a checkpoint writes their data again:
data that a killed process left in the page cache can be read although it may never reach the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import packet_ids
from bookie.runtime.clock import Clock
from bookie.runtime.human import agreeing
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import EPOCHS_KEY, MARK_KEY, CheckpointMark, unpack_epochs
from bookie.storage.entry_logs import entry_log
from bookie.storage.entry_logs.entry_log import EntryLogs
from bookie.storage.entry_logs.leftovers import remove_leftovers
from bookie.storage.entry_logs.log_ends import last_recorded_log_id
from bookie.storage.errors import SALVAGE_HINT, DamagedJournalError, WrongJournalError
from bookie.storage.journal import replay as journal_replay
from bookie.storage.journal.format import Record, RecordKind
from bookie.storage.journal.journal import Journal, Records
from bookie.storage.journal.journals import Journals
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.place import place_files
from bookie.storage.journal.replay import JournalReplay
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.port import Disk, DiskFullError, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import CachedEntry, Caches

_log = logging.getLogger(__name__)


_REPLAYED_CACHES_MAX: Final = 8
"""The most replayed entries, in multiples of a cache's size, that are held in memory while the ledger disk is full."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a store. ``is_full``: a disk is too full for the first checkpoint, which must be repeated."""

    disk: Disk
    caches: Caches
    states: LedgerStates
    logs: EntryLogs
    checkpointer: Checkpointer
    journals: Journals
    is_full: bool


async def open_parts(
    journal_disks: Sequence[Disk], ledger_disk: Disk, index: EntryIndex, settings: StorageSettings, clock: Clock
) -> Parts:
    """Check that the disks belong together, replay all journals, run a checkpoint, and begin new journal epochs.

    Raises:
        DamagedJournalError: acknowledged records cannot be read back; nothing was removed.
        WrongJournalError: a disk belongs to another journal; nothing was removed.
        LostIndexError: the index does not belong to the other files; nothing was removed.
        UnsupportedFormatError: a file was written by a newer version or another program; nothing was removed.
        DiskError: a disk failed, or it is full and the journal holds more than fits into memory.
    """
    for disk in journal_disks:
        await disk.make_directory(journal_replay.DIRECTORY)
    await ledger_disk.make_directory(entry_log.DIRECTORY)
    slots = await loaded_slots(journal_disks)
    mark = await _checkpoint_mark(slots, ledger_disk, index)
    caches = Caches()
    states = LedgerStates(index, mark.ledger_count, settings.ledgers_in_memory)
    log_ids = await entry_log.log_ids(ledger_disk)
    last_id = max([*log_ids, await last_recorded_log_id(index)], default=0)
    logs = EntryLogs(ledger_disk, max(mark.next_log_id, last_id + 1), settings.open_logs)
    checkpointer = Checkpointer(
        caches, states, logs, index, settings, mark, journal_epochs=lambda: [_epoch(each) for each in slots]
    )
    replays = [JournalReplay(each.disk, sequence) for each, sequence in zip(slots, mark.sequences, strict=True)]
    may_hold_bytes = settings.cache_bytes_max
    for replay, each in zip(replays, slots, strict=True):
        async for batch in replay.batches(each.mark):
            await apply_records(batch, caches, states)
            if caches.active.size >= may_hold_bytes:
                has_room = await _checkpoint(checkpointer, lambda: tuple(each.reached for each in replays))
                may_hold_bytes = (
                    settings.cache_bytes_max
                    if has_room
                    else _next_full_disk_attempt_bytes(caches.active.size, settings)
                )
    journals = _journals(replays, slots, settings, clock)
    has_room = await _checkpoint(checkpointer, lambda: journals.durable_sequences)
    is_full = not has_room or index.needs_reopen  # a checkpoint without anything to write does not show that
    if is_full:
        for replay, journal in zip(replays, journals.each, strict=True):
            await _make_durable(replay, journal)
    else:
        is_full = not await _trim(journals, checkpointer.mark.sequences)
        leftovers = [log_id for log_id in log_ids if log_id >= mark.next_log_id]
        await remove_leftovers(ledger_disk, index, leftovers)
    journals.start()
    records, reached = sum(replay.record_count for replay in replays), journals.durable_sequences
    _log.info("storage opened", extra={"records_replayed": records, "sequence": " ".join(map(str, reached))})
    return Parts(ledger_disk, caches, states, logs, checkpointer, journals, is_full)


async def loaded_slots(journal_disks: Sequence[Disk]) -> list[MarkSlots]:
    """Check that each disk belongs to the journal in its place, and return the loaded marks of each journal.

    Raises:
        WrongJournalError: a disk belongs to another journal.
        DamagedJournalError: a mark, or the place of a journal, is unreadable.
        DiskError: a disk failed.
    """
    slots = [MarkSlots(disk, journal_replay.DIRECTORY) for disk in journal_disks]
    damages = []
    for each, place in zip(slots, place_files(journal_disks), strict=True):
        try:
            await each.load()
            await place.check(is_in_use=each.mark is not None)
        except DamagedJournalError as error:
            damages.append(error)
    if damages:
        raise damages[0]
    return slots


def _epoch(slots: MarkSlots) -> int:
    return 0 if slots.mark is None else slots.mark.epoch


def check_journal_epochs(epochs: bytes | None, slots: Sequence[MarkSlots]) -> None:
    """Check that no journal is a copy from before a later start of the bookie (R96).

    Nothing is checked for a journal with a damaged or missing slot, which may have had a greater epoch.

    Args:
        epochs: the value of ``EPOCHS_KEY`` in the index; None: an earlier release has written it.
        slots: the marks of each journal.

    Raises:
        DamagedJournalError: one is such a copy.
    """
    for number, (recorded, each) in enumerate(zip(unpack_epochs(epochs), slots, strict=False), 1):
        if each.are_whole and _epoch(each) < recorded:
            which = "the journal" if len(slots) == 1 else f"journal {number} of {len(slots)}"
            raise DamagedJournalError(
                f"{which} is an older copy: the index was written with a later one. Entries acknowledged since this "
                f"copy was made may be missing. Mount the right journal disk, or {SALVAGE_HINT}"
            )


def check_journal_count(mark: CheckpointMark, count: int) -> None:
    """Check that the number of journals is the one in the index.

    Raises:
        WrongJournalError: the store has another number of journals.
    """
    if len(mark.sequences) != count:
        were = agreeing(count, "was", "were")
        raise WrongJournalError(
            f"the number of journals of this bookie is {len(mark.sequences)}, and {count} {were} given: give all "
            "journal directories of this bookie, in their order"
        )


async def check_stores_journals(
    value: bytes | None, epochs: bytes | None, slots: Sequence[MarkSlots], ledger_disk: Disk
) -> CheckpointMark | None:
    """Check that neither the index nor a journal was lost or replaced, and return the checkpoint's mark.

    Args:
        value: the mark in the index; None: there is none.
        epochs: the recorded epochs of the journals in the index; None: there are none.
        slots: the marks of each journal.
        ledger_disk: the disk of the entry logs.

    Raises:
        DamagedJournalError, LostIndexError: a journal or the index was lost (``replay.check_same_store``), or a journal
            is an older copy.
        WrongJournalError: the store has another number of journals.
        DiskError: a directory cannot be read.
    """
    mark = None if value is None else CheckpointMark.decode(value)
    if mark is not None:
        check_journal_count(mark, len(slots))
    has_entry_logs = bool(await entry_log.log_ids(ledger_disk))
    for each in slots:
        journal_replay.check_same_store(
            has_checkpoint=mark is not None,
            has_entry_logs=has_entry_logs,
            mark=each.mark,
            file_count=len(await journal_replay.file_numbers(each.disk)),
        )
    check_journal_epochs(epochs, slots)
    return mark


def _journals(
    replays: Sequence[JournalReplay], slots: Sequence[MarkSlots], settings: StorageSettings, clock: Clock
) -> Journals:
    """Return the journals, ready to begin new files after the replayed batches."""
    fatal = asyncio.get_running_loop().create_future()
    return Journals(
        tuple(
            Journal(
                each.disk,
                settings,
                each,
                clock,
                epoch=max(replay.epoch + 1, clock.epoch_ms()),
                sequence=replay.reached,
                files=replay.files,
                fatal=fatal,
            )
            for replay, each in zip(replays, slots, strict=True)
        )
    )


async def _checkpoint_mark(slots: Sequence[MarkSlots], ledger_disk: Disk, index: EntryIndex) -> CheckpointMark:
    """Return the checkpoint mark in the index. For a new store, write all marks, those of the journals first."""
    value, epochs = await index.get_many([MARK_KEY, EPOCHS_KEY])
    found = await check_stores_journals(value, epochs, slots, ledger_disk)
    if found is not None:
        return found
    mark = CheckpointMark((0,) * len(slots))
    for each, place in zip(slots, place_files([each.disk for each in slots]), strict=True):
        await place.write()
        await each.write(JournalMark(0, 0))
    await index.write([(MARK_KEY, mark.encode())])
    return mark


async def _checkpoint(checkpointer: Checkpointer, sequences: Callable[[], tuple[int, ...]]) -> bool:
    """Run a checkpoint. Return False if the disk is too full for it."""
    try:
        await checkpointer.run(sequences)
    except DiskFullError as error:
        _log.error("disk full, replayed entries stay in memory and in the journal", extra={"error": str(error)})
        return False
    return True


async def _trim(journals: Journals, sequences: Sequence[int]) -> bool:
    """Remove the journal files that a checkpoint covers. Return False if a disk is too full for the mark.

    The former mark stays. It declares less to be durable, and the checkpoint covers all of that.
    """
    try:
        await journals.trim(sequences)
    except DiskFullError as error:
        _log.error("disk full, the mark of the journal is written later", extra={"error": str(error)})
        return False
    return True


async def _make_durable(replay: JournalReplay, journal: Journal) -> None:
    """Make the last batch of a replayed journal durable without a checkpoint (J13).

    It may have been written, but not synced, before its process ended. From now on it is served, and the next batch
    declares it durable. If its sync failed, another sync would succeed and write nothing, so the batch is written
    again. Only if the journal disk has no space for this, its files are synced.
    """
    if not replay.undeclared:
        return
    records = Records()
    for record in replay.undeclared:
        records.add(record.kind, LedgerId(record.ledger_id), record.body)
    try:
        await journal.repeat(records, replay.declared)
    except DiskFullError as error:
        _log.warning("end of the journal not written again", extra={"error": str(error)})
        for each in replay.files:
            file = await replay.disk.open(each.path)
            try:
                await file.sync()
            finally:
                await file.close()


def _next_full_disk_attempt_bytes(size_bytes: int, settings: StorageSettings) -> int:
    """Return the size of the active cache at which the next checkpoint is attempted on a full disk.

    A bookie accepts no adds after its disk is full, so its journal holds the content of two caches and the adds in
    progress.

    Raises:
        DiskFullError: this journal holds more than ``_REPLAYED_CACHES_MAX`` caches, which must not be held in memory.
    """
    if size_bytes >= _REPLAYED_CACHES_MAX * settings.cache_bytes_max:
        raise DiskFullError(
            f"the journal holds more than {size_bytes} bytes of entries, which must be written to the ledger disk "
            "first: free space on it"
        )
    return size_bytes + settings.cache_bytes_max


async def apply_records(records: Sequence[Record], caches: Caches, states: LedgerStates) -> None:
    """Put the records of one journal batch in the cache and the states.

    Raises:
        DiskError: the index cannot be read.
    """
    for ledger_id, those in groupby(records, lambda record: LedgerId(record.ledger_id)):
        async with states.using(ledger_id) as state:
            for record in those:
                is_entry = record.kind is RecordKind.ENTRY
                _apply_record(record, state, caches)
                if not is_entry:
                    caches.active.count_non_entry()
                if not is_entry or not state.is_known or state.is_collected:
                    state.is_collected = state.is_collected and not is_entry
                    states.changed(state)


def _apply_record(record: Record, state: StoredLedgerState, caches: Caches) -> None:
    match record.kind:
        case RecordKind.ENTRY:
            entry_id: EntryId = packet_ids(record.body)[1]
            caches.active.put(state.ledger_id, {entry_id: CachedEntry(record.body, record.crc)}, len(record.body))
        case RecordKind.MASTER_KEY:
            state.master_key, state.is_key_durable = record.body, True
        case RecordKind.FENCE:
            state.is_fenced = state.is_fence_durable = True
        case RecordKind.LIMBO:
            state.is_limbo = state.is_fenced = state.is_fence_durable = True
        case RecordKind.NO_LIMBO:
            state.is_limbo = False
