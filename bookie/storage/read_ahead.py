"""Read-ahead: the entries after those requested by a sequential reader, in one large read of an entry log.

A request is sequential if it continues a recent one of the same ledger, or if it is long. A load takes the ledger's
next entries from the index as far as they are consecutive in one entry log, reads them with one request, and verifies
each of them. An entry that cannot be read or verified is omitted. The request then reads it separately, and its answer
contains the error.

A request waits only for a load of its own entries. The entries that the next request of the same reader is expected to
need are loaded in the background, so the disk works while the answer is being sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel, guarded
from bookie.storage.disks.index_format import (
    entry_id_of,
    entry_range,
    pack_entry_key,
    unpack_entry_keys,
    unpack_locations,
)
from bookie.storage.entry_logs.entry_log import GAP_BYTES_MAX, EntryLogs
from bookie.storage.port import DiskError, EntryIndex
from bookie.storage.read_cache import Load, ReadCache
from bookie.storage.settings import StorageSettings

_log = logging.getLogger(__name__)

_LEDGERS_MAX: Final = 1024
"""The number of ledgers whose readers are remembered."""
_READERS_MAX: Final = 4
"""The number of readers remembered per ledger."""
_STEP_MAX: Final = 16
"""A sequential reader may skip to an entry at most this far ahead: other bookies of the ensemble store those in
between."""
_LONG_REQUEST_ENTRIES: Final = 16
"""A request for at least this many entries counts as sequential by itself."""
_BACKGROUND_MAX: Final = 4
"""The most concurrent loads in the background. Each holds one window in memory, in addition to the cache."""
_FIRST_ENTRIES: Final = 64
"""The number of entries in the first load of a ledger, when their size is not known yet."""


@dataclass(slots=True)
class _Recent:
    """The recent readers of one ledger.

    Attributes:
        positions: the last entry that each of them read.
        entries: how many entries the next load reads.
        end: the last entry covered by the latest load, verified or not.
    """

    positions: list[EntryId] = field(default_factory=list)
    entries: int = _FIRST_ENTRIES
    end: EntryId = NO_ENTRY


class ReadAhead:
    """The read-ahead of one store."""

    def __init__(self, cache: ReadCache, index: EntryIndex, logs: EntryLogs, settings: StorageSettings) -> None:
        self.cache = cache
        self._index = index
        self._logs = logs
        self._settings = settings
        self._recent: OrderedDict[LedgerId, _Recent] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def note(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Record that these entries were read."""
        if (recent := self._recent.get(ledger_id)) is None:
            recent = self._recent[ledger_id] = _Recent()
            if len(self._recent) > _LEDGERS_MAX:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(ledger_id)
        positions = recent.positions
        if (before := _preceding_position(positions, entry_ids[0])) is not None:
            positions.remove(before)
        elif len(positions) == _READERS_MAX:
            del positions[0]
        positions.append(entry_ids[-1])

    def is_wanted(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> bool:
        """Return whether a request is sequential, so that more than its entries should be read."""
        if fault_point("storage.read_ahead"):
            return True
        if len(entry_ids) >= _LONG_REQUEST_ENTRIES:
            return 0 <= entry_ids[-1] - entry_ids[0] <= _STEP_MAX * len(entry_ids)
        recent = self._recent.get(ledger_id)
        return recent is not None and _preceding_position(recent.positions, entry_ids[0]) is not None

    async def load(self, ledger_id: LedgerId, first: EntryId) -> int:
        """Load entries from ``first`` on into the cache, and return the number of their bytes; 0 if none were loaded.

        The caller must have checked, without a yield since, that no load of this ledger is running.
        """
        return await self._run(self.cache.begin(ledger_id, first))

    def load_next(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Start loading what the reader of ``entry_ids`` will request next, unless it is loaded or being loaded."""
        recent, last = self._recent.get(ledger_id), entry_ids[-1]
        if recent is None or self._is_closed or len(self._background) >= _BACKGROUND_MAX:
            return
        next_last = last + max(last - entry_ids[0], 0) + 1  # the end of the next request, if it is as long
        first = max(recent.end, last) + 1
        if recent.end >= next_last or first > LEDGER_ID_MAX or self.cache.loading(ledger_id) is not None:
            return
        load = self.cache.begin(ledger_id, EntryId(first))
        task = guarded("read ahead", self._run_in_background(load))
        self._background.add(task)
        task.add_done_callback(lambda done: self._finished(done, load))

    async def close(self) -> None:
        """Stop the loads in the background, and start no more."""
        self._is_closed = True
        for task in list(self._background):
            await cancel(task)

    async def _run_in_background(self, load: Load) -> None:
        await self._run(load)

    def _finished(self, task: asyncio.Task[None], load: Load) -> None:
        self._background.discard(task)
        if not load.done.is_set():  # cancelled before it started
            self.cache.end(load, {})

    async def _run(self, load: Load) -> int:
        entries: dict[EntryId, bytes] = {}
        try:
            entries = await self._window(load.ledger_id, load.first)
        except DiskError as error:
            extra = {"ledger_id": load.ledger_id, "entry_id": load.first, "error": str(error)}
            _log.debug("nothing read ahead", extra=extra)
        finally:
            self.cache.end(load, entries)
        return sum(map(len, entries.values()))

    async def _window(self, ledger_id: LedgerId, first: EntryId) -> dict[EntryId, bytes]:
        """Read and verify the entries from ``first`` on that are stored consecutively."""
        recent = self._recent.get(ledger_id) or _Recent()
        pairs = await self._index.range(pack_entry_key(ledger_id, first), entry_range(ledger_id)[1], recent.entries)
        if not pairs:
            return {}
        places = unpack_locations([value for _, value in pairs])
        count, start, size = _contiguous_prefix(places, self._settings.read_ahead_bytes)
        recent.entries = self._next_entries(count, size)
        keys = [key for key, _ in pairs[:count]]
        recent.end = EntryId(entry_id_of(keys[-1]))
        data = await self._logs.read_range(places[0][0], start, size)
        entries: dict[EntryId, bytes] = {}
        for key, (_, entry_id), (_, offset, length, crc) in zip(keys, unpack_entry_keys(keys), places, strict=False):
            begin = offset - start
            body = data[begin : begin + length]
            if len(body) == length and crc32c(body) == crc and body.startswith(key):  # key: the ids in the entry
                entries[EntryId(entry_id)] = body
        return entries

    def _next_entries(self, count: int, size: int) -> int:
        """Return how many entries of the last ones' average size fit into a window."""
        fitting = self._settings.read_ahead_bytes * count // size
        return max(min(fitting, self._settings.read_ahead_entries), 1)


def _preceding_position(positions: Sequence[EntryId], entry_id: EntryId) -> EntryId | None:
    return next((position for position in positions if 0 < entry_id - position <= _STEP_MAX), None)


def _contiguous_prefix(places: Sequence[tuple[int, int, int, int]], bytes_max: int) -> tuple[int, int, int]:
    """Return the number of places, from the first on, that form one range of one log, its offset, and its size.

    The range is longer than ``bytes_max`` only if the first entry is.
    """
    log_id, start, size, _ = places[0]
    end, count = start + size, 1
    for each_log, offset, length, _ in places[1:]:
        is_next = each_log == log_id and end <= offset <= end + GAP_BYTES_MAX
        if not is_next or offset + length - start > bytes_max:
            break
        end, count = offset + length, count + 1
    return count, start, end - start
