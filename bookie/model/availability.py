"""The set of a ledger's entries that a bookie holds, as sorted runs, and Apache's byte encoding of it.

Source: docs/formats.md#entry-lists.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.ids import EntryId

_HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct(">ii")
_GROUP: Final = struct.Struct(">qqii")
_GROUP_SIZE_MAX: Final = (1 << 31) - 1
"""A group's size is an i32: longer runs are written as several groups, which readers join again."""
_ENTRY_ID_MAX: Final = (1 << 63) - 2
"""One less than an i64 holds, so that counting every entry of a full list still fits."""
EXPANDED_RUNS_MAX: Final = 1 << 20
"""Most runs that periodic groups may unfold to (about 100 MB of memory). A bookie writes no periodic groups, and 24
bytes that claim 2^62 runs must not crash this process (docs/formats.md#entry-lists)."""


class InvalidAvailabilityError(PermanentError):
    """Bytes that are not a readable entry-availability list."""


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """A set of entry ids as inclusive, ascending, disjoint, non-adjacent runs ``(first, last)``."""

    runs: tuple[tuple[int, int], ...]

    @staticmethod
    def of(entry_ids: Iterable[int]) -> EntryRuns:
        """Return the set of ``entry_ids``, which must ascend (duplicates allowed)."""
        runs: list[tuple[int, int]] = []
        for entry_id in entry_ids:
            assert not runs or entry_id >= runs[-1][0], f"entry {entry_id} after {runs[-1]}"
            if runs and entry_id <= runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], max(entry_id, runs[-1][1]))
            else:
                runs.append((entry_id, entry_id))
        return EntryRuns(tuple(runs))

    def __contains__(self, entry_id: int) -> bool:
        index = bisect_right(self.runs, entry_id, key=lambda run: run[0]) - 1
        return index >= 0 and entry_id <= self.runs[index][1]

    def __iter__(self) -> Iterator[EntryId]:
        for first, last in self.runs:
            yield from map(EntryId, range(first, last + 1))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of the set that lie in ``first..last`` (inclusive), cut at both ends."""
        start = max(0, bisect_right(self.runs, first, key=lambda run: run[0]) - 1)
        for run_first, run_last in itertools.islice(self.runs, start, None):
            if run_first > last:
                return
            if run_last >= first:
                yield max(run_first, first), min(run_last, last)

    def encode(self) -> bytes:
        """Return Apache's encoding, one group per run as Apache's own encoder writes it."""
        groups = [
            _GROUP.pack(start, start, min(last - start + 1, _GROUP_SIZE_MAX), 0)
            for first, last in self.runs
            for start in range(first, last + 1, _GROUP_SIZE_MAX)
        ]
        return _HEADER.pack(0, len(groups)).ljust(_HEADER_SIZE, b"\0") + b"".join(groups)

    @staticmethod
    def decode(data: bytes) -> EntryRuns:
        """Read Apache's encoding, periodic groups included.

        Raises:
            InvalidAvailabilityError: truncated data, an unknown version, an impossible group, groups out of order or
                overlapping, or groups that unfold to more than ``EXPANDED_RUNS_MAX`` runs beyond one each.
        """
        if len(data) < _HEADER_SIZE:
            raise InvalidAvailabilityError(f"availability list of {len(data)} bytes has no header")
        version, count = _HEADER.unpack_from(data)
        if version > 0 or count < 0 or len(data) < _HEADER_SIZE + count * _GROUP.size:
            raise InvalidAvailabilityError(
                f"availability list version {version} with {count} groups, {len(data)} bytes"
            )
        runs: list[tuple[int, int]] = []
        for index in range(count):
            starts, size = _sequences(*_GROUP.unpack_from(data, _HEADER_SIZE + index * _GROUP.size))
            if runs and starts.start <= runs[-1][1]:
                raise InvalidAvailabilityError(f"group {index} starts at {starts.start}, not after entry {runs[-1][1]}")
            if len(runs) + len(starts) > count + EXPANDED_RUNS_MAX:
                raise InvalidAvailabilityError(f"group {index} unfolds to {len(starts)} runs, too many to hold")
            runs.extend((start, start + size - 1) for start in starts)
        return EntryRuns.of_runs(runs)

    @staticmethod
    def of_runs(runs: Iterable[tuple[int, int]]) -> EntryRuns:
        """Return the canonical form of any inclusive runs."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(runs):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return EntryRuns(tuple(merged))


def _sequences(first: int, last: int, size: int, period: int) -> tuple[range, int]:
    """Return the first entries of the group's runs, and the number of entries in each run."""
    span = last - first
    is_possible = first >= 0 and size > 0 and period >= 0 and 0 <= span <= _ENTRY_ID_MAX - first - size + 1
    if not is_possible or (span % period if period else span):
        raise InvalidAvailabilityError(f"impossible group: starts {first}..{last}, size {size}, period {period}")
    if period <= size:  # adjacent runs, or a single one
        return range(first, first + 1), span + size
    return range(first, last + 1, period), size
