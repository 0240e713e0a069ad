"""Inspection of the storage of a stopped bookie. It writes nothing to its files.

The journals are replayed into memory only, so the result contains the same entries as the bookie after its next start.
When the index is opened, RocksDB writes the records of its own log to tables, as at each start; no record changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.index_format import EPOCHS_KEY, MARK_KEY, dead_range, log_id_of_dead, unpack_dead
from bookie.storage.entry_logs import entry_log
from bookie.storage.entry_logs.entry_log import EntryLogs, log_path
from bookie.storage.errors import LostIndexError
from bookie.storage.journal.replay import JournalReplay
from bookie.storage.ledger_state import LedgerStates
from bookie.storage.opening import apply_records, check_stores_journals, loaded_slots
from bookie.storage.port import Disk, DiskError, EntryIndex
from bookie.storage.reading import EntryReader
from bookie.storage.scrubbing import ScrubStep, scrub
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import Caches
from bookie.wire.port import EntryResult

_REPLAYED_BYTES_MAX: Final = 1 << 30
"""The most bytes of journal entries held in memory: the journal of a bookie with a full ledger disk has up to eight
caches of entries."""
_PAGE_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """The content of the storage of a stopped bookie. Sizes are in bytes."""

    journal_sequence: int
    """The sequence of the last batch in the journal; the greatest one if there are several journals."""
    journal_records: int
    """Records that are in the journal and not yet in the entry logs."""
    ledgers: int
    """Recorded ledgers, including those of which only the fence is left."""
    entry_logs: int
    entry_log_bytes: int
    dead_bytes: int


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The recorded state of a ledger."""

    ledger_id: LedgerId
    is_known: bool
    is_fenced: bool
    is_limbo: bool
    is_collected: bool
    entries: EntryRuns


@dataclass(frozen=True, slots=True)
class LedgerEnds:
    """The first and the last entry of a ledger; None if there are none. There may be gaps between them."""

    ledger_id: LedgerId
    is_known: bool
    is_fenced: bool
    is_limbo: bool
    is_collected: bool
    entries: tuple[EntryId, EntryId] | None


@dataclass(frozen=True, slots=True)
class StoppedStorage:
    """The storage of one stopped bookie. Open it with ``inspect``."""

    disk: Disk
    index: EntryIndex
    states: LedgerStates
    logs: EntryLogs
    reader: EntryReader
    replays: Sequence[JournalReplay]

    async def status(self) -> StorageStatus:
        """Return the counts and sizes of the content.

        Raises:
            DiskError: a directory or the index cannot be read.
        """
        ids = await entry_log.log_ids(self.disk)
        size = sum([await self._size(log_id) for log_id in ids])
        dead, present = 0, set(ids)
        first, end = dead_range()
        while page := await self.index.range(first, end, _PAGE_KEYS):
            dead += sum(unpack_dead(value) for key, value in page if log_id_of_dead(key) in present)
            first = page[-1][0] + b"\0"
        return StorageStatus(
            max(replay.reached for replay in self.replays),
            sum(replay.record_count for replay in self.replays),
            self.states.count,
            len(ids),
            size,
            min(dead, size),
        )

    async def ledger_ids(self, after: int, limit: int, *, only_limbo: bool = False) -> list[LedgerId]:
        """Return ids as ``LedgerStorage.ledger_ids`` does, at most ``limit``.

        Raises:
            DiskError: the index cannot be read.
        """
        found: list[LedgerId] = []
        while len(found) < limit and (page := await self.states.page(after, limit, only_limbo=only_limbo)):
            found += page
            after = page[-1]
        return found[:limit]

    async def ledger(self, ledger_id: LedgerId) -> LedgerStatus:
        """Return the state of a ledger and the list of its entries.

        Raises:
            DiskError: the index cannot be read.
        """
        async with self.states.using(ledger_id) as state:
            runs = await self.reader.runs(ledger_id)
            flags = state.is_known, state.is_fenced, state.is_limbo, state.is_collected
            return LedgerStatus(ledger_id, *flags, runs)

    async def read(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> list[EntryResult]:
        """Read entries, as ``LedgerStorage.read`` does.

        Raises:
            DiskError: the index cannot be read.
        """
        async with self.states.using(ledger_id) as state:
            return await self.reader.entries(state, entry_ids)

    def scrub(self, after: tuple[LedgerId, EntryId] | None = None) -> AsyncGenerator[ScrubStep, None]:
        """Verify the entries in the entry logs; see ``scrub``."""
        return scrub(self.index, self.logs, after)

    async def close(self) -> None:
        """Close the open entry logs."""
        await self.logs.close()

    async def _size(self, log_id: int) -> int:
        with suppress(FileNotFoundError):
            file = await self.disk.open(log_path(log_id))
            try:
                return await file.size()
            finally:
                await file.close()
        return 0


async def inspect(
    journals: Sequence[Disk], ledgers: Disk, index: EntryIndex, settings: StorageSettings
) -> StoppedStorage:
    """Open the storage of a stopped bookie for inspection.

    Raises:
        DamagedJournalError: acknowledged records cannot be read back.
        WrongJournalError: a disk belongs to another journal, or one is missing.
        LostIndexError: the index is lost, or the bookie has never run.
        UnsupportedFormatError: a file was written by a newer version.
        DiskError: a disk failed, or the journal holds more than ``_REPLAYED_BYTES_MAX``.
    """
    slots = await loaded_slots(journals)
    value, epochs = await index.get_many([MARK_KEY, EPOCHS_KEY])
    mark = await check_stores_journals(value, epochs, slots, ledgers)
    if mark is None:
        raise LostIndexError("there is no storage in these directories yet: the bookie has never run")
    caches, states = Caches(), LedgerStates(index, mark.ledger_count, settings.ledgers_in_memory)
    replays = [JournalReplay(each.disk, sequence) for each, sequence in zip(slots, mark.sequences, strict=True)]
    for replay, each in zip(replays, slots, strict=True):
        async for batch in replay.batches(each.mark):
            await apply_records(batch, caches, states)
            if caches.active.size > _REPLAYED_BYTES_MAX:
                raise DiskError(
                    "the journal has too many entries to keep in memory: start the bookie, which writes them to "
                    "the entry logs"
                )
    logs = EntryLogs(ledgers, mark.next_log_id, settings.open_logs)
    return StoppedStorage(
        ledgers, index, states, logs, EntryReader(caches, index, logs, settings.list_page_keys), replays
    )
