"""Round-robin placement of entries: the positions of an entry, and the entries of a position.

Entry ``n`` goes to ensemble positions ``(n + i) mod E`` for ``i < Qw``, with absolute entry ids
(docs/formats.md#schedule). Ranges are inclusive. All methods compute with groups of runs and never loop over entries,
except ``Stripe.entries``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

from bookie.model.availability import EntryRuns, RunGroup, RunsBuilder, joined
from bookie.model.ids import EntryId

_PERIOD_MAX: Final = 1 << 20
"""The longest period of several sets that is searched entry by entry."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """The distribution of a fragment's entries over the positions of its ensemble."""

    ensemble_size: int
    write_quorum: int

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the ensemble positions of ``entry_id``, in the order in which a reader asks them."""
        return tuple((entry_id + i) % self.ensemble_size for i in range(self.write_quorum))

    def write_sets(self) -> list[tuple[int, ...]]:
        """Return the distinct write sets: one if the quorum equals the ensemble, else ``E``."""
        if self.write_quorum >= self.ensemble_size:
            return [tuple(range(self.ensemble_size))] if self.ensemble_size else []
        return [self.write_set(start) for start in range(self.ensemble_size)]

    def starts(self, first: int, last: int | None) -> frozenset[int]:
        """Return the first positions of the write sets in ``first..last``; all if ``last`` is None.

        A write set is named by its first position, ``entry_id mod E``. An empty range has no write sets.
        """
        if last is None or last - first + 1 >= self.ensemble_size:
            return frozenset(range(self.ensemble_size))
        return frozenset(entry_id % self.ensemble_size for entry_id in range(first, last + 1))

    def stores(self, position: int, entry_id: int) -> bool:
        """Return whether the bookie at ``position`` is in the write set of ``entry_id``."""
        return (position - entry_id) % self.ensemble_size < self.write_quorum

    def count(self, position: int, first: int, last: int) -> int:
        """Return the number of entries of ``position`` in ``first..last``."""
        if last < first:
            return 0
        whole, rest = divmod(last - first + 1, self.ensemble_size)
        tail = sum(self.stores(position, first + offset) for offset in range(rest))
        return whole * self.write_quorum + tail

    def held_count(self, position: int, held: EntryRuns, first: int, last: int) -> int:
        """Return the number of entries of ``position`` in ``first..last`` that are in ``held``."""
        return sum(self._count_in_group(position, group) for group in held.groups_within(first, last))

    def _count_in_group(self, position: int, group: RunGroup) -> int:
        """Return the number of entries of ``position`` in the group.

        The counts of its runs repeat: runs have the same count if their starts have the same remainder modulo ``E``.
        """
        if not group.period:
            return self.count(position, group.first, group.last)
        cycle = self.ensemble_size // math.gcd(self.ensemble_size, group.period)
        starts = range(group.first, group.first + min(cycle, group.run_count) * group.period, group.period)
        counts = [self.count(position, start, start + group.size - 1) for start in starts]
        whole, rest = divmod(group.run_count, len(counts))
        return whole * sum(counts) + sum(counts[:rest])

    def runs(self, position: int, first: int, last: int) -> EntryRuns:
        """Return the entries of ``position`` in ``first..last``."""
        if last < first:
            return EntryRuns()
        if self.write_quorum == self.ensemble_size:
            return EntryRuns(((first, last),))
        start = first - (first - position + self.write_quorum - 1) % self.ensemble_size  # a run begins here
        last_start = last - (last - start) % self.ensemble_size
        period = self.ensemble_size if last_start > start else 0
        builder = RunsBuilder()
        for group in RunGroup(start, last_start, self.write_quorum, period).within(first, last):
            builder.add_group(group)
        return builder.built()

    def first_entry(self, position: int, first: int, last: int) -> EntryId | None:
        """Return the first entry of ``position`` in ``first..last``, or None."""
        candidates = range(first, min(last, first + self.ensemble_size - 1) + 1)
        return next((EntryId(entry_id) for entry_id in candidates if self.stores(position, entry_id)), None)

    def last_entry(self, position: int, first: int, last: int) -> EntryId | None:
        """Return the last entry of ``position`` in ``first..last``, or None."""
        candidates = range(last, max(first, last - self.ensemble_size + 1) - 1, -1)
        return next((EntryId(entry_id) for entry_id in candidates if self.stores(position, entry_id)), None)

    def entries(self, position: int, first: int, last: int) -> Iterator[EntryId]:
        """Yield the entries of ``position`` in ``first..last``, ascending."""
        if self.write_quorum == self.ensemble_size:
            yield from cast(Iterable[EntryId], range(first, last + 1))
            return
        for entry_id in range(first, last + 1):
            if self.stores(position, entry_id):
                yield EntryId(entry_id)

    def uniform_ranges(self, lists: Iterable[EntryRuns], first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield ranges in which no list changes. Together they contain each kind of entry of ``first..last``.

        Entries are of the same kind if they have the same write set and are in the same lists. Between the ends of
        groups, all lists are periodic, so the first period contains each kind, and the rest is omitted. The number of
        ranges depends on the number of groups, not on the number of runs.
        """
        if last < first:
            return
        parts = [list(entries.groups_within(first, last)) for entries in lists]
        ends = ((group.first, group.last) for groups in parts for group in groups)
        for begin, end in _cut(first, last, ends):
            groups = [group for groups in parts for group in _at(groups, begin)]
            period = math.lcm(self.ensemble_size, *(group.period or 1 for group in groups))
            end = min(end, begin + period - 1)
            runs = (run for group in groups for part in group.within(begin, end) for run in part.runs())
            yield from _cut(begin, end, runs)

    def entries_without_copy(
        self, held: Sequence[EntryRuns], first: int, last: int, groups_max: int
    ) -> EntryRuns | None:
        """Return the entries of ``first..last`` that no bookie of their write set holds.

        Return None if they have more than ``groups_max`` groups, or if the sets have no common period of a useful size.
        The time depends on the groups of ``held``, on their common periods, and on ``groups_max``.

        Args:
            held: for each position, the entries that its bookie holds; other entries than its own do not count.
            first: the first entry.
            last: the last entry.
            groups_max: a bound on the result.
        """
        builder = RunsBuilder()
        parts = [list(entries.groups_within(first, last)) for entries in held]
        ends = ((group.first, group.last) for groups in parts for group in groups)
        for begin, end in _cut(first, last, ends) if first <= last else ():
            at = [_at(groups, begin) for groups in parts]
            period = math.lcm(self.ensemble_size, *(group.period or 1 for groups in at for group in groups))
            stop = min(end, begin + period - 1)
            if stop - begin >= _PERIOD_MAX:
                return None
            lost = joined(entry_id for entry_id in range(begin, stop + 1) if not self._has_copy(at, entry_id))
            for group in _repeated(list(lost), period, begin, end):
                builder.add_group(group)
                if len(builder) > groups_max:
                    return None
        return builder.built()

    def _has_copy(self, groups: Sequence[Sequence[RunGroup]], entry_id: int) -> bool:
        return any(
            next(group.within(entry_id, entry_id), None) is not None
            for position in self.write_set(entry_id)
            for group in groups[position]
        )


def _repeated(runs: Sequence[tuple[int, int]], period: int, begin: int, end: int) -> Iterator[RunGroup]:
    """Yield the groups of ``runs``, which lie in the first period from ``begin`` on, repeated up to ``end``."""
    if not runs:
        return
    run_first, run_last = runs[-1]
    is_joined = len(runs) == 2 and runs[0][0] == begin and run_last == begin + period - 1
    if is_joined:  # the second run and the first one of the next period are one
        run_first, run_last = run_first - period, runs[0][1]
    if len(runs) == 1 or is_joined:
        size = run_last - run_first + 1
        if size >= period:
            yield RunGroup(begin, begin, end - begin + 1, 0)
            return
        last_start = run_first + (end - run_first) // period * period
        group = RunGroup(run_first, last_start, size, period if last_start > run_first else 0)
        yield from group.within(begin, end)
        return
    for start in range(begin, end + 1, period):
        for run_first, run_last in runs:
            one = RunGroup(run_first, run_first, run_last - run_first + 1, 0)
            moved = one._replace(first=run_first + start - begin, last_start=run_first + start - begin)
            yield from moved.within(begin, end)


def _cut(first: int, last: int, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ``first..last``, cut at the start and at the end of each run."""
    cuts = {first, last + 1}
    for begin, end in runs:
        cuts.update(cut for cut in (begin, end + 1) if first < cut <= last)
    for begin, following in pairwise(sorted(cuts)):
        yield begin, following - 1


def _at(groups: Sequence[RunGroup], entry_id: int) -> Sequence[RunGroup]:
    """Return the group whose first and last entries enclose ``entry_id``; empty if there is none."""
    index = bisect_right(groups, entry_id, key=lambda group: group.first) - 1
    return groups[index : index + 1] if index >= 0 and entry_id <= groups[index].last else ()
