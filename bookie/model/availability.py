"""The set of a ledger's entries on a bookie, and Apache's byte encoding of it.

A bookie of a striped ledger holds a short run of entries out of every few entries of the ledger. So the set is kept as
groups of runs with the same size and the same distance: a striped fragment is one group, whatever its length. In the
worst case, a set of n irregular runs has n groups.

Operations with a step for each group are also available as generators. These pause after ``GROUPS_PER_STEP`` groups, so
that a caller with an event loop can run other tasks (``bookie.runtime.waiting.run_cooperatively``).

Source: docs/formats.md#entry-lists.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from typing_extensions import override

from bookie.model.errors import PermanentError
from bookie.model.ids import EntryId

_HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct(">ii")
_GROUP: Final = struct.Struct(">qqii")
_I32_MAX: Final = (1 << 31) - 1
"""A group's size and period are i32: longer runs are written as several groups, joined again by readers."""
_ENTRY_ID_MAX: Final = (1 << 63) - 2
"""One less than the largest i64, so the number of entries of a full list still fits."""
EXPANDED_RUNS_MAX: Final = 1 << 20
"""Largest number of runs in a list, beyond one for each group. Without this limit, a group of 24 bytes that claims 2^62
runs would keep this process busy (docs/formats.md#entry-lists)."""
GROUPS_PER_STEP: Final = 5000
"""Number of groups processed between two pauses, which takes a few milliseconds."""

T = TypeVar("T")


class InvalidAvailabilityError(PermanentError):
    """Bytes that are not a readable entry-availability list."""


class RunGroup(NamedTuple):
    """Runs of ``size`` entries, beginning at ``first``, ``first + period``, and so on to ``last_start``.

    Runs of a group do not touch: ``period > size``. A single run has the period 0.
    """

    first: int
    last_start: int
    size: int
    period: int

    @property
    def run_count(self) -> int:
        """The number of runs."""
        return (self.last_start - self.first) // self.period + 1 if self.period else 1

    @property
    def last(self) -> int:
        """The last entry."""
        return self.last_start + self.size - 1

    def within(self, first: int, last: int) -> Iterator[RunGroup]:
        """Yield the part in ``first..last`` (inclusive), as at most three groups."""
        if not self.period:
            start, end = max(self.first, first), min(self.last, last)
            if start <= end:
                yield RunGroup(start, start, end - start + 1, 0)
            return
        number = max(0, -((self.first + self.size - 1 - first) // self.period))  # the first run that reaches it
        end = min(self.run_count, (last - self.first) // self.period + 1)
        if number < end and self._run(number).first < first:
            yield from self._run(number).within(first, last)
            number += 1
        is_cut = number < end and self._run(end - 1).last > last
        if number < end - is_cut:
            yield self.part(number, end - is_cut)
        if is_cut:
            yield from self._run(end - 1).within(first, last)

    def _run(self, number: int) -> RunGroup:
        start = self.first + number * self.period
        return RunGroup(start, start, self.size, 0)

    def part(self, number: int, end: int) -> RunGroup:
        """Return the runs from ``number`` to before ``end``, counted from 0."""
        first, last_start = self.first + number * self.period, self.first + (end - 1) * self.period
        return RunGroup(first, last_start, self.size, self.period if last_start > first else 0)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs (first, last)."""
        for start in range(self.first, self.last_start + 1, self.period or 1):
            yield start, start + self.size - 1


class RunsBuilder:
    """Collects a set in ascending order. Additions may touch or overlap the last run so far."""

    def __init__(self) -> None:
        self._groups: list[RunGroup] = []
        self._first = self._last_start = 0
        self._size = self._period = 0
        """Properties of the last group, which may still grow. Size 0 means no group."""

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._groups) + (self._size > 0)

    def add(self, first: int, last: int) -> None:
        """Add a run, inclusive."""
        size = last - first + 1
        if self._size:
            end = self._last_start + self._size
            assert first >= self._last_start, f"entry {first} after {(self._last_start, end - 1)}"
            if first <= end:
                if last >= end:
                    self._extend_last_run(last)
                return
            distance = first - self._last_start
            if size == self._size and self._period in (0, distance):
                self._last_start, self._period = first, distance
                return
            self._groups.append(RunGroup(self._first, self._last_start, self._size, self._period))
        self._first = self._last_start = first
        self._size, self._period = size, 0

    def add_group(self, group: RunGroup) -> None:
        """Add all runs of a group, in a few steps."""
        if not group.period:
            self.add(group.first, group.last)
            return
        covered = (self._last_start + self._size - group.size - group.first) // group.period + 1 if self._size else 0
        if covered >= group.run_count:
            return
        group = group.part(max(covered, 0), group.run_count)
        if not group.period:
            self.add(group.first, group.last)
            return
        for start in range(group.first, group.last_start + 1, group.period):
            self.add(start, start + group.size - 1)
            if (self._last_start, self._size, self._period) == (start, group.size, group.period):
                self._last_start = group.last_start
                return

    def _extend_last_run(self, last: int) -> None:
        """Extend the last run to ``last``."""
        start = self._last_start
        if not self._period:
            self._size = last - start + 1
            return
        self._last_start -= self._period
        if self._last_start == self._first:
            self._period = 0
        self.add(start, last)

    def built(self) -> EntryRuns:
        """Return the set."""
        if not self._size:
            return EntryRuns()
        return _runs_from_groups((*self._groups, RunGroup(self._first, self._last_start, self._size, self._period)))


class EntryRuns:
    """A set of entry ids. Immutable; sets with the same entries are equal."""

    __slots__ = ("groups",)

    groups: tuple[RunGroup, ...]
    """Ascending and disjoint; no run touches another one."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """Make the set from ascending, disjoint runs (first, last)."""
        builder = RunsBuilder()
        for run in runs:
            builder.add(*run)
        self.groups = builder.built().groups if builder else ()

    @staticmethod
    def of(entry_ids: Iterable[int]) -> EntryRuns:
        """Return the set of ``entry_ids``, which must ascend (duplicates allowed)."""
        return EntryRuns(joined(entry_ids))

    @staticmethod
    def of_runs(runs: Iterable[tuple[int, int]]) -> EntryRuns:
        """Return the union of inclusive runs (first, last), in any order."""
        return EntryRuns(sorted(runs))

    @staticmethod
    def of_parts(parts: Iterable[EntryRuns]) -> EntryRuns:
        """Return the union of sets in any order, each of which lies before or after each other one."""
        builder = RunsBuilder()
        for part in sorted(filter(None, parts), key=lambda part: part.groups[0].first):
            for group in part.groups:
                builder.add_group(group)
        return builder.built()

    @property
    def runs(self) -> Iterator[tuple[int, int]]:
        """The runs (first, last), ascending, disjoint, not adjacent. In a striped ledger, a run has few entries."""
        return itertools.chain.from_iterable(group.runs() for group in self.groups)

    def __contains__(self, entry_id: int) -> bool:
        index = self._group_at(entry_id)
        return index >= 0 and any(True for _ in self.groups[index].within(entry_id, entry_id))

    def __iter__(self) -> Iterator[EntryId]:
        for first, last in self.runs:
            yield from map(EntryId, range(first, last + 1))

    def __len__(self) -> int:
        return sum(group.size * group.run_count for group in self.groups)

    def __bool__(self) -> bool:
        return bool(self.groups)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntryRuns):
            return NotImplemented
        if self.groups == other.groups:
            return True
        return all(one == another for one, another in itertools.zip_longest(self.runs, other.runs))

    @override
    def __hash__(self) -> int:
        return hash((self.groups[0].first, self.groups[-1].last)) if self.groups else 0

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{first}-{last}" for first, last in itertools.islice(self.runs, 10))
        return f"EntryRuns({len(self.groups)} groups: {shown})"

    def groups_within(self, first: int, last: int) -> Iterator[RunGroup]:
        """Yield the groups of the set in ``first..last`` (inclusive), cut at both ends."""
        for index in range(max(0, self._group_at(first)), len(self.groups)):
            group = self.groups[index]
            if group.first > last:
                return
            if group.first >= first and group.last <= last:
                yield group
            else:
                yield from group.within(first, last)

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of the set in ``first..last`` (inclusive), cut at both ends."""
        return itertools.chain.from_iterable(group.runs() for group in self.groups_within(first, last))

    def between(self, first: int, last: int) -> EntryRuns:
        """Return the part of the set in ``first..last`` (inclusive)."""
        return _runs_from_groups(tuple(self.groups_within(first, last)))

    def without(self, removed: EntryRuns) -> EntryRuns:
        """Return the set without the entries of ``removed``, which should have few runs."""
        groups: list[RunGroup] = []
        start = 0
        for first, last in removed.runs:
            groups.extend(self.groups_within(start, first - 1))
            start = last + 1
        groups.extend(self.groups_within(start, _ENTRY_ID_MAX))
        return _runs_from_groups(tuple(groups))

    def encode(self) -> bytes:
        """Return Apache's encoding, with a periodic group for each group of runs."""
        return b"".join(self.encoded())

    def encoded(self) -> Iterator[bytes]:
        """Yield Apache's encoding in pieces, of ``GROUPS_PER_STEP`` groups each.

        A set of more than ``EXPANDED_RUNS_MAX`` runs has a group for each run, because readers refuse so many runs in
        periodic groups.
        """
        runs = sum([(last - first) // period + 1 if period else 1 for first, last, _, period in self.groups])
        is_periodic = runs <= EXPANDED_RUNS_MAX
        if self.groups and self.groups[-1].last > _I32_MAX:
            count = sum(1 if is_periodic and _fits(group) else _split_count(group) for group in self.groups)
        else:
            count = len(self.groups) if is_periodic else runs
        yield _HEADER.pack(0, count).ljust(_HEADER_SIZE, b"\0")
        parts = itertools.chain.from_iterable(
            (group,) if is_periodic and _fits(group) else _split(group) for group in self.groups
        )
        while piece := b"".join(_GROUP.pack(*part) for part in itertools.islice(parts, GROUPS_PER_STEP)):
            yield piece

    @staticmethod
    def decode(data: bytes) -> EntryRuns:
        """Read Apache's encoding in one step; see ``decoding``."""
        return finished(EntryRuns.decoding(data))

    @staticmethod
    def decoding(data: bytes) -> Generator[None, None, EntryRuns]:
        """Read Apache's encoding, periodic groups included, with pauses.

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
        builder = RunsBuilder()
        last, unfolded = -1, 0
        groups = memoryview(data)[_HEADER_SIZE : _HEADER_SIZE + count * _GROUP.size]
        for index, (first, last_start, size, period) in enumerate(_GROUP.iter_unpack(groups)):
            group = _checked(first, last_start, size, period)
            if first <= last:
                raise InvalidAvailabilityError(f"group {index} starts at {first}, not after entry {last}")
            unfolded += group.run_count
            if unfolded > count + EXPANDED_RUNS_MAX:
                raise InvalidAvailabilityError(f"group {index} unfolds to {group.run_count} runs, too many to hold")
            builder.add_group(group)
            last = group.last
            if index % GROUPS_PER_STEP == GROUPS_PER_STEP - 1:
                yield
        return builder.built()

    @staticmethod
    def union_with_pauses(one: EntryRuns, other: EntryRuns) -> Generator[None, None, EntryRuns]:
        """Return the union of two sets, with pauses."""
        if not one or not other:
            return one or other
        builder = RunsBuilder()
        for index, group in enumerate(_merged(one.groups, other.groups)):
            builder.add_group(group)
            if index % GROUPS_PER_STEP == GROUPS_PER_STEP - 1:
                yield
        return builder.built()

    def _group_at(self, entry_id: int) -> int:
        """Return the index of the last group that starts at or before ``entry_id``; -1 if there is none."""
        return bisect_right(self.groups, entry_id, key=lambda group: group.first) - 1


def finished(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end without pauses, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _runs_from_groups(groups: tuple[RunGroup, ...]) -> EntryRuns:
    made = EntryRuns()
    made.groups = groups
    return made


def joined(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of ascending ids."""
    first = last = None
    for entry_id in entry_ids:
        assert last is None or entry_id >= last, f"entry {entry_id} after {(first, last)}"
        if last is None or entry_id > last + 1:
            if first is not None and last is not None:
                yield first, last
            first = entry_id
        last = entry_id
    if first is not None and last is not None:
        yield first, last


def _merged(one: tuple[RunGroup, ...], other: tuple[RunGroup, ...]) -> Iterator[RunGroup]:
    """Yield the groups of two sets, ordered by first entry and cut so that no group begins within another one."""
    nearest, other_left = list(reversed(one)), list(reversed(other))
    while nearest and other_left:
        if other_left[-1].first < nearest[-1].first:
            nearest, other_left = other_left, nearest
        group, limit = nearest.pop(), other_left[-1].first
        if not group.period or group.last < limit:
            yield group
            continue
        # The whole runs that start before the limit are yielded first: at least one.
        following = (limit - group.first - 1) // group.period + 1 if limit > group.first else 1
        yield group.part(0, min(following, group.run_count))
        if following < group.run_count:
            nearest.append(group.part(following, group.run_count))
    yield from reversed(nearest)
    yield from reversed(other_left)


def _fits(group: RunGroup) -> bool:
    return group.size <= _I32_MAX and group.period <= _I32_MAX


def _split_count(group: RunGroup) -> int:
    """Return the number of groups that ``_split`` yields."""
    return group.run_count * -(-group.size // _I32_MAX)


def _split(group: RunGroup) -> Iterator[RunGroup]:
    """Yield the group as groups of one run each, none longer than an i32 allows."""
    for first, last in group.runs():
        for start in range(first, last + 1, _I32_MAX):
            yield RunGroup(start, start, min(last - start + 1, _I32_MAX), 0)


def _checked(first: int, last: int, size: int, period: int) -> RunGroup:
    """Return the group encoded by these numbers. Adjacent runs become a single run."""
    span = last - first
    is_possible = first >= 0 and size > 0 and period >= 0 and 0 <= span <= _ENTRY_ID_MAX - first - size + 1
    if not is_possible or (span % period if period else span):
        raise InvalidAvailabilityError(f"impossible group: starts {first}..{last}, size {size}, period {period}")
    if period <= size or not span:  # adjacent runs, or a single one
        return RunGroup(first, first, span + size, 0)
    return RunGroup(first, last, size, period)
