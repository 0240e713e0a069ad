"""Rebuilding a lost entry index from the entry logs.

The index holds two kinds of records. The places of entries can be recovered from the entry logs. The states of ledgers
(keys, fences, limbo, and which ledgers were collected) cannot. Every ledger that is found is therefore fenced and put
in limbo: the status of an entry that is not found is "unknown", never "absent" (S6). The caller must do the same for
ledgers of which no entry was found, before anything is served (``bookie.server.joining.rebuilt``).

Entries of collected ledgers reappear if their logs still exist. The collector deletes them again.

If an entry is found more than once, the copy in the log with the greatest id is used, as after a crash. A log is read
to its end: an unreadable part is a finding, and is skipped up to the next intact record. Nothing in the logs is
changed. Each log is synced before the index refers to its entries. After a kill it may be only in the page cache, and
the disk may have an older copy, which counts as dead from then on.

The journal may be damaged or lost as well. The store with the new index then refuses to open until the journal is
salvaged (``bookie.storage.salvaging``).

The mark of the checkpoint is written last. It makes the next start replay every existing journal file, because some
entries may be only in the journal. Without the mark a store refuses to open, so an unfinished index is never used.

Source: docs/failure-model.md#lost-index; S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.model.ids import LedgerId
from bookie.model.packet import HEADER_SIZE as ENTRY_HEADER_SIZE
from bookie.model.packet import PACKET_BYTES_MAX, packet_ids
from bookie.runtime.human import agreeing, counted
from bookie.storage.disks.index_format import (
    MARK_KEY,
    CheckpointMark,
    Location,
    dead_key,
    pack_dead,
    pack_entry_key,
    pack_location,
    state_key,
    unpack_location,
)
from bookie.storage.entry_logs.dead_bytes import increased
from bookie.storage.entry_logs.entry_log import (
    DIRECTORY,
    HEADER_SIZE,
    RECORD_HEADER_SIZE,
    all_log_ids,
    check_all_in_use,
    decode_header,
    decode_records,
    log_path,
)
from bookie.storage.entry_logs.log_ends import log_end_put
from bookie.storage.errors import DamagedJournalError
from bookie.storage.findings import Findings, read_with_gaps
from bookie.storage.journal import replay
from bookie.storage.journal.mark import MarkSlots
from bookie.storage.journal.place import PlaceFile, place_files
from bookie.storage.ledger_state import StoredLedgerState
from bookie.storage.port import Disk, DiskFile, EntryIndex

_log = logging.getLogger(__name__)

WINDOW_BYTES: Final = 8 << 20
"""Bytes read at a time; more than the largest record."""
_TRIED_BYTES_MAX: Final = 1 << 30
"""The most bytes over which checksums are computed in one window to find the next record."""
_HEAD: Final = struct.Struct(">IIqq")
"""The beginning of every record: size, CRC32C, ledger id, entry id."""


@dataclass(slots=True)
class RebuiltIndex(Findings):
    """The result of reading the entry logs.

    Attributes:
        logs: the number of entry logs read.
        entries: the number of entries added to the index.
        ledgers: the number of new ledgers in the index.
        superseded: the number of older copies of entries that were stored again.
    """

    logs: int = 0
    entries: int = 0
    ledgers: int = 0
    superseded: int = 0


async def rebuild(journals: Sequence[Disk], ledgers: Disk, index: EntryIndex) -> RebuiltIndex:
    """Fill an empty index from the entry logs, with a mark from which each journal is replayed completely.

    Args:
        journals: the disk of each journal; only read.
        ledgers: the disk of the entry logs, which are read and synced.
        index: an empty index. Unless this call succeeds, no store opens with it.

    Raises:
        WrongJournalError: a disk belongs to another journal, or one is missing.
        DiskError: a directory cannot be read or is out of use, or the index cannot be written.
    """
    places = place_files(journals)
    sequences = [await _first_sequence(disk, place) for disk, place in zip(journals, places, strict=True)]
    rebuilding = _IndexRebuild(ledgers, index)
    await ledgers.make_directory(DIRECTORY)  # a ledger directory that was just added does not have it yet
    ids = await all_log_ids(ledgers)
    await rebuilding.read_logs(ids)
    check_all_in_use(ledgers)  # a directory may have failed since the first check
    await rebuilding.finish(CheckpointMark(tuple(sequences), max(ids, default=0) + 1, rebuilding.result.ledgers))
    return rebuilding.result


async def adopt(ledgers: Disk, index: EntryIndex, ids: Sequence[int]) -> RebuiltIndex:
    """Add the entries of entry logs to an index in use, and put new ledgers in limbo. Idempotent.

    If the index locates an entry in a log with a smaller id, its place is replaced: compaction or a repair has stored
    the entry again, and the index lost that write. The older log may have been removed since, or its copy may be
    damaged. A place in a log with a greater id is kept.

    Args:
        ledgers: the disk of the entry logs, which are read and synced.
        index: an index in use.
        ids: the logs that were begun after, or just before, the last write of the index. Their dead bytes are not
            counted.

    Raises:
        DiskError: a log cannot be opened, or the index cannot be read or written.
    """
    rebuilding = _IndexRebuild(ledgers, index, adopted=frozenset(ids))
    await rebuilding.read_logs(ids)
    return rebuilding.result


async def _first_sequence(journal: Disk, place: PlaceFile) -> int:
    """Return a sequence from which a replay reads every existing journal file; 0 if the journal is lost.

    A journal with lost marks is not replayed but salvaged, from the same sequence, so it must not be too great.
    """
    slots = MarkSlots(journal, replay.DIRECTORY)
    try:
        await slots.load()
        await place.check(is_in_use=slots.mark is not None)
        return 0 if slots.mark is None else await replay.first_sequence(journal, slots.mark)
    except DamagedJournalError as error:
        _log.warning("journal damaged as well", extra={"error": str(error)})
        return 0


@dataclass(slots=True)
class _IndexRebuild:
    disk: Disk
    index: EntryIndex
    adopted: frozenset[int] | None = None
    """The logs that are added to an index in use; its places in logs with greater ids are kept. None: the index is
    new."""
    result: RebuiltIndex = field(default_factory=RebuiltIndex)
    _dead: dict[int, int] = field(default_factory=dict)
    """Dead bytes by log id."""

    async def read_logs(self, ids: Sequence[int]) -> None:
        """Write the places of the entries of logs to the index."""
        if ids:
            await self.disk.sync_directory(DIRECTORY)
        for log_id in ids:
            await self._read_log(log_id)

    async def _read_log(self, log_id: int) -> None:
        self.result.logs += 1
        file = await self.disk.open(log_path(log_id))
        try:
            await file.sync()
            size, end, is_end_recorded = await file.size(), HEADER_SIZE, False
            header = decode_header(await self._read(file, log_id, 0, min(HEADER_SIZE, size)))
            if header is None:
                self.result.report(log_path(log_id), 0, "its header is damaged")
            elif header.log_id != log_id:
                self.result.report(log_path(log_id), 0, f"it is entry log {header.log_id} by its header: not used")
                return
            else:
                is_end_recorded = header.is_end_recorded
            async with aclosing(self._records(file, log_id, size)) as windows:
                async for offset, records in windows:
                    await self._name(log_id, offset, records)
                    end = offset + records[-1][0].offset + records[-1][0].size
        finally:
            await file.close()
        if end < size:
            self._add_dead(log_id, size - end)
            # This allows compaction to remove the log after it has moved its entries.
            if is_end_recorded and self.adopted is None:
                await self.index.write([log_end_put(log_id, end, is_counted=True)])

    async def finish(self, mark: CheckpointMark) -> None:
        """Write the numbers of dead bytes, then the mark, which makes the index usable."""
        await self.index.write([(dead_key(log_id), pack_dead(size)) for log_id, size in sorted(self._dead.items())])
        await self.index.write([(MARK_KEY, mark.encode())])

    async def _records(
        self, file: DiskFile, log_id: int, size: int
    ) -> AsyncGenerator[tuple[int, list[tuple[Location, bytes]]], None]:
        """Yield the intact records, with the offset to which their places are relative. Report all other bytes."""
        offset, damage_begin = HEADER_SIZE, None
        while offset < size:
            window = await self._read(file, log_id, offset, min(WINDOW_BYTES, size - offset))
            if not window:
                break
            if records := decode_records(window):
                if damage_begin is not None:
                    self._report_damage(log_id, damage_begin, offset)
                    self._add_dead(log_id, offset - damage_begin)
                    damage_begin = None
                yield offset, records
                offset += records[-1][0].offset + records[-1][0].size
                continue
            damage_begin = offset if damage_begin is None else damage_begin
            offset += next_record(window)
        if damage_begin is not None:
            self._report_damage(log_id, damage_begin, size)

    async def _name(self, log_id: int, base: int, records: Sequence[tuple[Location, bytes]]) -> None:
        """Write the places of records, and the states of new ledgers."""
        places: dict[bytes, Location] = {}
        found: set[LedgerId] = set()
        named = []
        replaced: dict[int, int] = {}
        for location, body in records:
            ledger_id, entry_id = packet_ids(body)
            place = Location(log_id, base + location.offset, location.size, location.crc)
            if ledger_id < 0 or entry_id < 0:
                self.result.report(log_path(log_id), place.offset, f"a record with the ids {ledger_id}, {entry_id}")
                self._add_dead(log_id, place.size + RECORD_HEADER_SIZE)
                continue
            found.add(ledger_id)
            named.append((pack_entry_key(ledger_id, entry_id), place, ledger_id, entry_id))
        keys = list(dict.fromkeys(key for key, *_ in named))
        for key, value in zip(keys, await self.index.get_many(keys), strict=True):
            if value is not None:
                places[key] = unpack_location(value)
        for key, place, ledger_id, entry_id in named:
            if (before := places.get(key)) is None:
                self.result.entries += 1
            elif before == place or (self.adopted is not None and before.log_id >= log_id):
                continue
            else:
                self.result.superseded += 1
                if self.adopted is None or before.log_id not in self.adopted:
                    replaced[before.log_id] = replaced.get(before.log_id, 0) + before.size + RECORD_HEADER_SIZE
                self._add_dead(before.log_id, before.size + RECORD_HEADER_SIZE)
                if (before.size, before.crc) != (place.size, place.crc):
                    self.result.report(
                        log_path(log_id),
                        place.offset,
                        f"entry {entry_id} of ledger {ledger_id} differs from its copy in {log_path(before.log_id)}, "
                        f"offset {before.offset}: the later copy is used",
                    )
            places[key] = place
        puts = [(key, pack_location(each.log_id, each.offset, each.size, each.crc)) for key, each in places.items()]
        more = [] if self.adopted is None else await increased(self.index, replaced)
        await self.index.write([*puts, *more, *await self._new_states(sorted(found))])

    async def _new_states(self, ledger_ids: Sequence[LedgerId]) -> list[tuple[bytes, bytes]]:
        """Return the index pairs of the states of ledgers that are new or were collected."""
        known = await self.index.get_many([state_key(ledger_id) for ledger_id in ledger_ids])
        puts = []
        for ledger_id, value in zip(ledger_ids, known, strict=True):
            state = StoredLedgerState(ledger_id, is_fenced=True, is_limbo=True)
            if value is None:
                self.result.ledgers += 1
            else:
                state.restore(value)
                if not state.is_collected:
                    continue
                state.is_collected, state.is_limbo = False, True  # otherwise its entries would never be collected again
            puts.append((state_key(ledger_id), state.encode()))
        return puts

    async def _read(self, file: DiskFile, log_id: int, offset: int, size: int) -> bytes:
        return await read_with_gaps(file, log_path(log_id), offset, size, self.result)

    def _report_damage(self, log_id: int, begin: int, end: int) -> None:
        what = agreeing(end - begin, "is not an intact record", "are not intact records")
        self.result.report(log_path(log_id), begin, f"{counted(end - begin, 'byte')} {what}")

    def _add_dead(self, log_id: int, size: int) -> None:
        self._dead[log_id] = self._dead.get(log_id, 0) + size


def next_record(window: bytes) -> int:
    """Return how many bytes to skip in a window that does not begin with an intact record.

    This is the distance to the next intact record. If there is none, everything is skipped except the possible
    beginning of a record that continues after the window.
    """
    tried, last = 0, len(window) - RECORD_HEADER_SIZE - ENTRY_HEADER_SIZE
    for start in range(1, last + 1):
        size, crc, ledger_id, entry_id = _HEAD.unpack_from(window, start)
        if not ENTRY_HEADER_SIZE <= size <= PACKET_BYTES_MAX or ledger_id < 0 or entry_id < 0:
            continue
        begin = start + RECORD_HEADER_SIZE
        if begin + size > len(window):
            continue
        tried += size
        if tried > _TRIED_BYTES_MAX:
            break
        if crc32c(window[begin : begin + size]) == crc:
            return start
    return max(len(window) - PACKET_BYTES_MAX - RECORD_HEADER_SIZE, 1) if len(window) >= WINDOW_BYTES else len(window)
