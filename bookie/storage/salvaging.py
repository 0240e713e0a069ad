"""Salvaging a damaged or lost journal: the readable part is kept, and the rest counts as unknown (rule R107).

Records after the last checkpoint are only in the journal. The lost ones may be entries, keys or fences of any ledger,
even of one that was last used long ago. So the salvage treats all ledgers alike:

- each ledger in the index or in a readable record of the journal is fenced and put in limbo. The status of an entry
  that is not stored here is then "unknown", never "absent" (S6). No old writer gets an acknowledgement, because a fence
  may be among the lost records (S17);
- a collected ledger is only fenced. If the metadata names the bookie for it again, the caller puts it in limbo, with
  all other ledgers for which the metadata names the bookie (``bookie.server.joining.salvaged``).

Entry logs to which the index does not refer are kept, and their entries are added to the index: the index may have lost
its last writes after the journal was trimmed. This includes entries that compaction moved: the logs to which such an
index refers were removed.

The readable entries are moved to the entry logs, so the last copy of an entry survives. The mark of the checkpoint and
the journal are not changed. So the store does not open until the caller removes the journal, and the salvage can be
repeated.

Source: docs/failure-model.md#damaged-journal; S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.model.ids import LedgerId
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import EPOCHS_KEY, MARK_KEY, CheckpointMark, ledger_id_of_state, states_after
from bookie.storage.entry_logs import entry_log
from bookie.storage.entry_logs.entry_log import EntryLogs
from bookie.storage.entry_logs.leftovers import remove_leftovers
from bookie.storage.entry_logs.log_ends import last_recorded_log_id, uncounted
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.findings import Findings
from bookie.storage.journal import replay
from bookie.storage.journal.mark import JournalMark, MarkSlots
from bookie.storage.journal.place import place_files
from bookie.storage.journal.replay import JournalReplay
from bookie.storage.journal.salvage import JournalSalvage
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.opening import apply_records, check_journal_count, check_journal_epochs, loaded_slots
from bookie.storage.port import Disk, EntryIndex
from bookie.storage.rebuilding import adopt
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import Caches

_PAGE_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SalvagedJournal:
    """The records read from a damaged journal.

    Attributes:
        records: the number of journal records that were not in the entry logs and the index yet.
        ledgers: the number of ledgers in limbo. The caller adds those that only the metadata names.
        epoch: the greatest epoch found in the journal.
        findings: the unreadable parts.
    """

    records: int
    ledgers: int
    epoch: int
    findings: Findings = field(repr=False)


async def damage_of(journals: Sequence[Disk], index: EntryIndex) -> DamagedJournalError | None:
    """Return the reason why a store with these journals does not open; None if each of them can be replayed.

    Raises:
        WrongJournalError: a disk belongs to another journal, or one is missing.
        LostIndexError: the index is lost as well.
        UnsupportedFormatError: a file was written by a newer version.
        DiskError: the directory or the index cannot be read.
    """
    mark = await _checkpoint_mark(index)
    check_journal_count(mark, len(journals))
    try:
        slots = await loaded_slots(journals)
        [epochs] = await index.get_many([EPOCHS_KEY])
        check_journal_epochs(epochs, slots)
        for each, sequence in zip(slots, mark.sequences, strict=True):
            replay.check_same_store(has_checkpoint=True, has_entry_logs=True, mark=each.mark, file_count=0)
            async for _ in JournalReplay(each.disk, sequence).batches(each.mark):
                pass
    except DamagedJournalError as error:
        return error
    return None


async def salvage(
    journals: Sequence[Disk], ledgers: Disk, index: EntryIndex, settings: StorageSettings
) -> SalvagedJournal:
    """Move the readable records of the journals to the entry logs and the index, and fence every ledger of the index.

    Args:
        journals: the disk of each journal; only read.
        ledgers: the disk of the entry logs.
        index: the index of the bookie.
        settings: the limits of the store.

    Raises:
        LostIndexError: the index is lost as well.
        UnsupportedFormatError: a file was written by a newer version.
        DiskError: a disk failed or is full, or a ledger directory is out of use. Repeat the call after the cause is
            removed.
    """
    mark = await _checkpoint_mark(index)
    await ledgers.make_directory(entry_log.DIRECTORY)
    log_ids = await entry_log.all_log_ids(ledgers)
    last_id = max([*log_ids, await last_recorded_log_id(index)], default=0)
    leftovers = [log_id for log_id in log_ids if log_id >= mark.next_log_id]
    unfinished = set(log_ids) & set(await uncounted(index))
    adopted = await adopt(ledgers, index, sorted(unfinished.union(leftovers)))
    entry_log.check_all_in_use(ledgers)  # a directory may have failed since the first check
    mark = replace(mark, ledger_count=mark.ledger_count + adopted.ledgers)
    await index.write([(MARK_KEY, mark.encode())])
    caches, states = Caches(), LedgerStates(index, mark.ledger_count, settings.ledgers_in_memory)
    logs = EntryLogs(ledgers, max(mark.next_log_id, last_id + 1), settings.open_logs)
    checkpointer = Checkpointer(caches, states, logs, index, settings, mark)
    readings = [JournalSalvage(disk, sequence) for disk, sequence in zip(journals, mark.sequences, strict=True)]
    try:
        for reading in readings:
            async for batch in reading.batches():
                await apply_records(batch, caches, states)
                for ledger_id in {LedgerId(record.ledger_id) for record in batch}:
                    async with states.using(ledger_id) as state:
                        _mark_suspect(state, is_collected=False)
                        states.changed(state)
                if caches.active.size >= settings.cache_bytes_max:
                    await checkpointer.run(lambda: mark.sequences)
        await checkpointer.run(lambda: mark.sequences)
    finally:
        await logs.close()
    await remove_leftovers(ledgers, index, leftovers)
    findings = Findings()
    for number, reading in enumerate(readings):
        findings.extend(reading.findings, "" if len(readings) == 1 else f"journal {number + 1}: ")
    records, epoch = sum(each.record_count for each in readings), max(each.epoch for each in readings)
    return SalvagedJournal(records, await _enter_limbo(index), epoch, findings)


async def begin_journals(journals: Sequence[Disk], index: EntryIndex, epoch: int) -> None:
    """Begin a new journal in each directory. The store can open after the last one was begun.

    Args:
        journals: the disk of each journal, without a ``journal`` directory.
        index: after ``salvage``.
        epoch: greater than any epoch of the earlier journals.

    Raises:
        DiskError: a journal could not be made durable.
    """
    mark = await _checkpoint_mark(index)
    await index.write((), [EPOCHS_KEY])  # they were those of the earlier journals
    for disk, place, sequence in zip(journals, place_files(journals), mark.sequences, strict=True):
        await disk.make_directory(replay.DIRECTORY)
        await place.write()
        await MarkSlots(disk, replay.DIRECTORY).write(JournalMark(sequence, epoch))


async def _checkpoint_mark(index: EntryIndex) -> CheckpointMark:
    [value] = await index.get_many([MARK_KEY])
    if value is None:
        raise LostIndexError(
            "the entry index is lost as well as the journal: first rebuild it with `bkheal bookie rebuild-index`"
        )
    return CheckpointMark.decode(value)


async def _enter_limbo(index: EntryIndex) -> int:
    """Fence every ledger, and put those that were not collected in limbo; return the number of these."""
    count, after = 0, -1
    while pairs := await index.range(*states_after(after), _PAGE_KEYS):
        puts = []
        for key, value in pairs:
            state = StoredLedgerState(LedgerId(ledger_id_of_state(key)))
            state.restore(value)
            _mark_suspect(state, is_collected=state.is_collected)
            count += state.is_limbo
            puts.append((key, state.encode()))
        await index.write(puts)
        after = ledger_id_of_state(pairs[-1][0])
    return count


def _mark_suspect(state: StoredLedgerState, *, is_collected: bool) -> None:
    """Set the state of a ledger of which the journal may have lost a fence and, unless it was collected, entries."""
    state.is_fenced = state.is_fence_durable = True
    state.is_limbo = state.is_limbo or not is_collected
