"""Reads from the write caches, the read cache, the index and the entry logs, in this order.

The caches are always checked first and without yielding, because an entry leaves the write caches only after it is in
the index. An entry that is in the index but cannot be verified is CORRUPT or IO_ERROR, never absent (S6).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.availability import EntryRuns, RunsBuilder, joined
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.runtime.waiting import run_cooperatively
from bookie.storage.disks.index_format import (
    Location,
    entry_id_of,
    entry_range,
    pack_entry_key,
    unpack_location,
    unpack_locations,
)
from bookie.storage.entry_logs.entry_log import EntryLogs, is_entry
from bookie.storage.ledger_state import StoredLedgerState
from bookie.storage.port import DirectoryFailedError, DiskError, EntryIndex
from bookie.storage.read_ahead import ReadAhead
from bookie.storage.write_cache import Caches
from bookie.wire.port import READ_BYTES_MAX, EntryResult, Status

_Found = bytes | Location | None
"""An entry's bytes, or its location, or None."""

_log = logging.getLogger(__name__)

_FEW_KEYS: Final = 16
"""The ids of a ledger with fewer entries are read at once, so its last entry needs no second lookup."""
_JOINED_PER_STEP: Final = 20_000
"""The number of ids of cached entries that are joined to runs before the event loop gets a turn: a few milliseconds."""
_IMMEDIATE_READ_ENTRIES_MAX: Final = 8
"""Requests for at most this many entries are answered without a thread if the data is in memory: a switch to a thread
and back takes longer."""
_IMMEDIATE_READ_BYTES_MAX: Final = 64 << 10
"""The most bytes of one request that are copied from the page cache without a thread: some ten microseconds."""
_MOVE_RETRIES_MAX: Final = 3
"""How often one read looks up entries again that compaction moved during the read; only damage can cause more moves."""


@dataclass(slots=True)
class EntryReader:
    """The reads of one store.

    Attributes:
        list_page_keys: index keys fetched at a time.
        ahead: the read-ahead; None without a read cache.
    """

    caches: Caches
    index: EntryIndex
    logs: EntryLogs
    list_page_keys: int
    ahead: ReadAhead | None = None

    async def entries(self, state: StoredLedgerState, entry_ids: Sequence[EntryId]) -> list[EntryResult]:
        """Return results for a prefix of ``entry_ids``: at least one, then as many as fit into ``READ_BYTES_MAX``.

        Raises:
            DiskError: the index cannot be read.
        """
        ledger_id, absent_before = state.ledger_id, state.absent_status
        found: list[_Found] = [None] * len(entry_ids)
        missing, hits = self._look_in_memory(ledger_id, entry_ids, found, range(len(entry_ids)))
        missed = missing
        if missing and self.ahead is not None:
            missing = await self._read_ahead(self.ahead, ledger_id, entry_ids, found, missing)
        if missing:
            found = found[: _prefix_within_bounds(found)]  # the entries in memory may fill the answer
            await self._look_in_index(ledger_id, entry_ids, found, missing[: bisect_left(missing, len(found))])
        found = found[: _prefix_within_bounds(found)]
        stored = iter(await self._stored(ledger_id, entry_ids, found))
        results, ok, absent = [], Status.OK, absent_since(absent_before, state)
        for entry_id, entry in zip(entry_ids, found, strict=False):
            if isinstance(entry, bytes):
                results.append(EntryResult(entry_id, ok, entry))
            elif entry is None:
                results.append(EntryResult(entry_id, absent))
            else:
                results.append(_verified(ledger_id, entry_id, entry, next(stored)))
        if self.ahead is not None:
            misses = bisect_left(missed, len(found))
            self.ahead.cache.misses += misses
            self.ahead.cache.hits += min(hits, len(found) - misses)
            is_beyond_write_cache = bool(hits or missed)
            _follow_reader(self.ahead, ledger_id, entry_ids[: len(found)], found, is_beyond_write_cache)
        return results

    def _look_in_memory(
        self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], found: list[_Found], places: Sequence[int]
    ) -> tuple[list[int], int]:
        """Look up the entries at ``places`` in the caches, and update ``found``.

        Returns:
            The places that are still missing, and the number of entries found in the read cache.
        """
        missing: list[int] = []
        newest = self.caches.get if self.caches.has(ledger_id) else None
        ahead = {} if self.ahead is None else self.ahead.cache.entries(ledger_id)
        hits = 0
        for place in places:  # this loop does not yield
            entry_id = entry_ids[place]
            if newest is not None and (entry := newest(ledger_id, entry_id)) is not None:
                found[place] = entry.data
            elif (data := ahead.get(entry_id)) is not None:
                found[place] = data
                hits += 1
            else:
                missing.append(place)
        return missing, hits

    async def _read_ahead(
        self,
        ahead: ReadAhead,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        found: list[_Found],
        missing: list[int],
    ) -> list[int]:
        """If the request is sequential, read missing entries with those after them. Return the places still missing."""
        is_wanted, loaded_bytes = ahead.is_wanted(ledger_id, entry_ids), 0
        while missing and loaded_bytes < READ_BYTES_MAX:
            first, before = entry_ids[missing[0]], missing[0]
            if (load := ahead.cache.loading(ledger_id)) is not None:
                if first < load.first:
                    break
                await load.done.wait()
            elif is_wanted:
                loaded_bytes += await ahead.load(ledger_id, first)
            else:
                break
            missing, _ = self._look_in_memory(ledger_id, entry_ids, found, missing)
            if missing and missing[0] == before:
                break
        return missing

    async def _look_in_index(
        self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], found: list[_Found], places: Sequence[int]
    ) -> None:
        """Put the locations of the entries at ``places`` into ``found``; None for entries that are not stored."""
        keys = [pack_entry_key(ledger_id, entry_ids[place]) for place in places]
        values: Sequence[bytes | None] | None = (
            self.index.get_cached(keys) if len(keys) <= _IMMEDIATE_READ_ENTRIES_MAX else None
        )
        if values is None:
            values = await self.index.get_many(keys)
        for place, value in zip(places, values, strict=True):
            found[place] = None if value is None else unpack_location(value)

    async def _stored(
        self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], found: list[_Found]
    ) -> list[bytes | DiskError | None]:
        """Return the bytes at each location in ``found``, and update ``found`` for moved entries.

        A missing log was either compacted or lost. If it was compacted, the index already has the new locations. Their
        log can be missing only if it was compacted as well.
        """
        for attempt in range(_MOVE_RETRIES_MAX + 1):
            places = [place for place, entry in enumerate(found) if isinstance(entry, Location)]
            locations = [entry for entry in found if isinstance(entry, Location)]
            if _is_small_read(locations) and (at_once := self.logs.read_cached(locations)) is not None:
                return at_once
            stored = await self.logs.read(locations)
            missing = [place for place, data in zip(places, stored, strict=True) if data is None]
            if not missing or attempt == _MOVE_RETRIES_MAX:
                break
            if not await self._look_up_again(ledger_id, entry_ids, found, missing):
                break
        return stored

    async def _look_up_again(
        self,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        found: list[_Found],
        places: Sequence[int],
    ) -> bool:
        """Look up the entries at ``places`` again, update ``found``, and return whether it changed."""
        before = [found[place] for place in places]
        cached = [self.caches.get(ledger_id, entry_ids[place]) for place in places]
        values = await self.index.get_many([pack_entry_key(ledger_id, entry_ids[place]) for place in places])
        for place, entry, value in zip(places, cached, values, strict=True):
            found[place] = entry.data if entry else (None if value is None else unpack_location(value))
        return before != [found[place] for place in places]

    async def last(self, state: StoredLedgerState) -> EntryResult:
        """Return the entry with the greatest id, or a negative result with id -1 if there is none.

        In limbo the status is always LIMBO, because there may have been a greater entry.

        Raises:
            DiskError: the index cannot be read.
        """
        cached, absent_before = self.caches.last(state.ledger_id), state.absent_status
        indexed = await self.index.last(*entry_range(state.ledger_id))
        last = max(NO_ENTRY if cached is None else cached, NO_ENTRY if indexed is None else entry_id_of(indexed[0]))
        absent = absent_since(absent_before, state)
        if absent is Status.LIMBO or last == NO_ENTRY:
            return EntryResult(EntryId(last), absent)
        return (await self.entries(state, [EntryId(last)]))[0]

    async def ends(self, ledger_id: LedgerId) -> tuple[EntryId, EntryId] | None:
        """Return the least and the greatest id of a ledger's entries, or None if there are none.

        Raises:
            DiskError: the index cannot be read.
        """
        found = self.caches.entry_ids(ledger_id)  # before the index: a flush moves entries there
        first, end = entry_range(ledger_id)
        keys = await self.index.keys(first, end, _FEW_KEYS)
        found += [EntryId(entry_id_of(key)) for key in keys]
        if len(keys) == _FEW_KEYS and (last := await self.index.last(first, end)) is not None:
            found.append(EntryId(entry_id_of(last[0])))
        return (min(found), max(found)) if found else None

    async def runs(self, ledger_id: LedgerId) -> EntryRuns:
        """Return the ids of all entries of a ledger. Yields to other tasks between parts of the work.

        Raises:
            DiskError: the index cannot be read.
        """
        cached = self.caches.entry_ids(ledger_id)  # before the index: a flush moves entries there
        stored = RunsBuilder()
        first, end = entry_range(ledger_id)
        while keys := await self.index.keys(first, end, self.list_page_keys):
            _add_page(stored, keys)
            first = keys[-1] + b"\0"
        return await run_cooperatively(
            EntryRuns.union_with_pauses(stored.built(), await run_cooperatively(_runs_of_ids(cached)))
        )

    async def unreachable(self, ledger_id: LedgerId) -> EntryRuns:
        """Return the ids of the stored entries of a ledger whose logs may be in a directory that is out of use (R114).

        Yields to other tasks between parts of the work.

        Raises:
            DiskError: the index cannot be read.
        """
        found = RunsBuilder()
        if not self.logs.is_incomplete:
            return found.built()
        cached = set(self.caches.entry_ids(ledger_id))  # before the index: a flush moves entries there
        first, end = entry_range(ledger_id)
        while pairs := await self.index.range(first, end, self.list_page_keys):
            for (log_id, *_), (key, _) in zip(unpack_locations([value for _, value in pairs]), pairs, strict=True):
                if self.logs.is_out_of_use(log_id) and (entry_id := entry_id_of(key)) not in cached:
                    found.add(entry_id, entry_id)
            first = pairs[-1][0] + b"\0"
        return found.built()

    async def close(self) -> None:
        """Stop the reads ahead that are under way."""
        if self.ahead is not None:
            await self.ahead.close()


def absent_since(before: Status, state: StoredLedgerState) -> Status:
    """Return the status of entries that a search did not find.

    ``before`` is the ledger's ``absent_status`` at the start of the search. If the ledger was in limbo then, entries
    that were restored during the search, before the end of the limbo, may have been overlooked.
    """
    return before if before is Status.LIMBO else state.absent_status


def _follow_reader(
    ahead: ReadAhead,
    ledger_id: LedgerId,
    entry_ids: Sequence[EntryId],
    found: Sequence[_Found],
    is_beyond_write_cache: bool,
) -> None:
    """Record the position of a reader, and read ahead if it reads stored entries in sequence."""
    is_sequential = is_beyond_write_cache and ahead.is_wanted(ledger_id, entry_ids)
    if not found or found[-1] is None:
        return
    ahead.note(ledger_id, entry_ids)
    if is_sequential:
        ahead.load_next(ledger_id, entry_ids)


def _prefix_within_bounds(found: Sequence[_Found]) -> int:
    """Return how many of the entries fit into ``READ_BYTES_MAX``, at least one."""
    size = 0
    for count, entry in enumerate(found):
        if entry is not None:
            size += len(entry) if isinstance(entry, bytes) else entry.size
            if size > READ_BYTES_MAX and count:
                return count
    return len(found)


def _is_small_read(locations: Sequence[Location]) -> bool:
    return (
        len(locations) <= _IMMEDIATE_READ_ENTRIES_MAX
        and sum(location.size for location in locations) <= _IMMEDIATE_READ_BYTES_MAX
    )


def _verified(
    ledger_id: LedgerId, entry_id: EntryId, location: Location, data: bytes | DiskError | None
) -> EntryResult:
    if isinstance(data, bytes) and is_entry(location, data, ledger_id, entry_id):
        return EntryResult(entry_id, Status.OK, data)
    status = Status.IO_ERROR if isinstance(data, DiskError) else Status.CORRUPT
    if not isinstance(data, DirectoryFailedError):  # the failure is logged once for the directory
        _log.error(
            "stored entry does not verify",
            extra={
                "ledger_id": ledger_id,
                "entry_id": entry_id,
                "log_id": location.log_id,
                "offset": location.offset,
                "status": status.name,
                **({"error": str(data)} if isinstance(data, DiskError) else {}),
            },
        )
    return EntryResult(entry_id, status)


def _add_page(runs: RunsBuilder, keys: Sequence[bytes]) -> None:
    first, last = entry_id_of(keys[0]), entry_id_of(keys[-1])
    if last - first == len(keys) - 1:  # the keys are ascending and distinct, so there is no gap
        runs.add(first, last)
        return
    for run in joined(map(entry_id_of, keys)):
        runs.add(*run)


def _runs_of_ids(entry_ids: list[EntryId]) -> Generator[None, None, EntryRuns]:
    """Return the set of ids, with pauses. Sorting is fast, because most ids are ascending."""
    entry_ids.sort()
    runs = RunsBuilder()
    for start in range(0, len(entry_ids), _JOINED_PER_STEP):
        if start:
            yield
        for run in joined(entry_ids[start : start + _JOINED_PER_STEP]):
            runs.add(*run)
    return runs.built()
