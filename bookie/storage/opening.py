"""The opening of a store from the files on its disks.

The journal is replayed into the write cache and then written again by a checkpoint, before any request is served: data
that a killed process left in the page cache can be read back although it may never reach the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import packet_ids
from bookie.runtime.clock import Clock
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import MARK_KEY, CheckpointMark
from bookie.storage.entry_logs import entry_log
from bookie.storage.entry_logs.entry_log import EntryLogs
from bookie.storage.entry_logs.leftovers import remove_leftovers
from bookie.storage.entry_logs.log_ends import last_recorded
from bookie.storage.journal import replay as journal_replay
from bookie.storage.journal.format import Record, RecordKind
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.replay import JournalReplay
from bookie.storage.ledger_state import LedgerState, LedgerStates
from bookie.storage.port import Disk, DiskFullError, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import CachedEntry, Caches

_log = logging.getLogger(__name__)


_REPLAYED_CACHES_MAX: Final = 8
"""Caches of replayed entries held in memory while the ledger disk is full."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a store. ``is_full``: the first checkpoint failed because a disk is full, and must be repeated."""

    disk: Disk
    caches: Caches
    states: LedgerStates
    logs: EntryLogs
    checkpointer: Checkpointer
    journal: Journal
    is_full: bool


async def open_parts(
    journal_disk: Disk, ledger_disk: Disk, index: EntryIndex, settings: StorageSettings, clock: Clock
) -> Parts:
    """Check that the disks belong together, replay the journal, make a checkpoint, and begin a new journal epoch.

    Raises:
        DamagedJournalError: acknowledged records cannot be read back; nothing was removed.
        LostIndexError: the index does not belong to the other files; nothing was removed.
        UnsupportedFormatError: a file was written by a newer version or another program; nothing was removed.
        DiskError: a disk failed, or is full and the journal holds more than memory may.
    """
    await journal_disk.make_directory(journal_replay.DIRECTORY)
    await ledger_disk.make_directory(entry_log.DIRECTORY)
    slots = MarkSlots(journal_disk, journal_replay.DIRECTORY)
    await slots.load()
    mark = await _checkpoint_mark(journal_disk, ledger_disk, index, slots)
    caches = Caches()
    states = LedgerStates(index, mark.ledger_count, settings.ledgers_in_memory)
    log_ids = await entry_log.log_ids(ledger_disk)
    last_id = max([*log_ids, await last_recorded(index)], default=0)
    logs = EntryLogs(ledger_disk, max(mark.next_log_id, last_id + 1), settings.open_logs)
    checkpointer = Checkpointer(caches, states, logs, index, settings, mark)
    replay = JournalReplay(journal_disk, mark.sequence)
    may_hold_bytes = settings.cache_bytes_max
    async for batch in replay.batches(slots.mark):
        await apply_records(batch, caches, states)
        if caches.active.size >= may_hold_bytes:
            has_room = await _checkpoint(checkpointer, lambda: replay.reached)
            may_hold_bytes = settings.cache_bytes_max if has_room else _grown(caches.active.size, settings)
    epoch = max(replay.epoch + 1, clock.epoch_ms())
    journal = Journal(journal_disk, settings, slots, clock, epoch=epoch, sequence=replay.reached, files=replay.files)
    is_full = not await _first_checkpoint(checkpointer, journal)
    if not is_full:
        leftovers = [log_id for log_id in log_ids if log_id >= mark.next_log_id]
        await remove_leftovers(ledger_disk, index, leftovers)
    journal.start()
    _log.info("storage opened", extra={"records_replayed": replay.record_count, "sequence": replay.reached})
    return Parts(ledger_disk, caches, states, logs, checkpointer, journal, is_full)


async def _checkpoint_mark(
    journal_disk: Disk, ledger_disk: Disk, index: EntryIndex, slots: MarkSlots
) -> CheckpointMark:
    """Return the checkpoint mark in the index. A new store gets both marks here, the journal's first."""
    [value] = await index.get_many([MARK_KEY])
    journal_replay.check_same_store(
        has_checkpoint=value is not None,
        has_entry_logs=bool(await entry_log.log_ids(ledger_disk)),
        mark=slots.mark,
        file_count=len(await journal_replay.file_numbers(journal_disk)),
    )
    if value is not None:
        return CheckpointMark.decode(value)
    mark = CheckpointMark()
    await slots.write(JournalMark(mark.sequence, 0))
    await index.write([(MARK_KEY, mark.encode())])
    return mark


async def _first_checkpoint(checkpointer: Checkpointer, journal: Journal) -> bool:
    if not await _checkpoint(checkpointer, lambda: journal.durable_sequence):
        return False
    await journal.trim(checkpointer.mark.sequence)
    return True


async def _checkpoint(checkpointer: Checkpointer, sequence: Callable[[], int]) -> bool:
    """Make a checkpoint; False if the disk is too full for it."""
    try:
        await checkpointer.run(sequence)
    except DiskFullError as error:
        _log.error("disk full, replayed entries stay in memory and in the journal", extra={"error": str(error)})
        return False
    return True


def _grown(size_bytes: int, settings: StorageSettings) -> int:
    """The size of the active cache at which the next checkpoint is tried, on a disk that is full.

    A bookie takes no more adds once its disk is full, so its journal holds two caches and what was on the way.

    Raises:
        DiskFullError: this journal holds more, which memory may not.
    """
    if size_bytes >= _REPLAYED_CACHES_MAX * settings.cache_bytes_max:
        raise DiskFullError(f"the journal holds more than {size_bytes} bytes of entries, which need room on the disk")
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
                    caches.active.count_other()
                if not is_entry or not state.is_known or state.is_collected:
                    state.is_collected = state.is_collected and not is_entry
                    states.changed(state)


def _apply_record(record: Record, state: LedgerState, caches: Caches) -> None:
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
