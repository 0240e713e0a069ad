"""Divide the ledgers of an incremental run into those to read and those to take from the image. Pure.

For each leaf (``spark_jobs.image.leaves``) ZooKeeper reports how many children were created and deleted, and the time
of the last change. So a run sees all new and deleted ledgers without reading the others. It does not see changes to the
metadata of a ledger, because these change only the stat of the ledger's own node. The metadata of a closed ledger
changes if a copy is moved. The run therefore reads three kinds of ledgers again: unclosed ledgers, ledgers that were or
are on a bookie that is not live, and a part of all others. So each ledger is read within a set period (R108).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_jobs.datasource.incremental import LeafWork
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.image.leaves import LeafRecord

_SKEW_MS: Final = 60_000
"""Largest tolerated difference between the clocks of auditors."""
_GOLDEN, _TURNS = 0x9E3779B97F4A7C15, 1 << 64
"""Multiples of the golden ratio are spread evenly, however many there are."""
_READ_COST: Final = 20
"""Approximate number of ledgers that can be carried over from an image in the time of reading one ledger."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the current and the last reading, epoch milliseconds."""

    now: int
    last: int
    """Time at which the reading of the image began."""
    reread_within: int
    """Period in which every ledger is read again, milliseconds."""

    @property
    def next(self) -> int:
        """Time at which the next run begins, if the interval between runs stays the same."""
        return self.now + max(0, self.now - self.last)


def plan_incremental(
    nodes: Sequence[LeafParent], leaves: Sequence[int | None], records: Mapping[int, LeafRecord], times: Times
) -> list[LeafWork]:
    """Decide for each leaf whether it is read as a whole.

    Args:
        nodes: the leaves with children, and their current stat.
        leaves: their numbers, in the same order; None: the node is not a leaf of the layout.
        records: the records of the image, by number of the leaf.
        times: the times of this and the last reading.
    """
    known = [None if leaf is None else records.get(leaf) for leaf in leaves]
    return [
        LeafWork(node, record if record is not None and _is_usable(node, record, times) else None)
        for node, record in zip(nodes, known, strict=True)
    ]


def groups_of_work(works: Sequence[LeafWork], count: int) -> list[list[LeafWork]]:
    """Divide leaves into at most ``count`` groups of about equal cost; the rows of a group are close together."""
    ordered = sorted(works, key=_place)
    costs = [_cost(work) for work in ordered]
    total, seen = max(1, sum(costs)), 0
    groups: list[list[LeafWork]] = [[] for _ in range(count)]
    for work, cost in zip(ordered, costs, strict=True):
        groups[min(count - 1, seen * count // total)].append(work)
        seen += cost
    return [group for group in groups if group]


def cost_of(works: Sequence[LeafWork]) -> int:
    """Return the cost of leaves, as a number of ledgers to read."""
    return sum(map(_cost, works)) // _READ_COST


def _is_usable(node: LeafParent, record: LeafRecord, times: Times) -> bool:
    return (
        node.stat is not None
        and record.may_serve(node.stat)
        and record.read_from_ms <= times.now + _SKEW_MS
        and not _is_due(record, times)
    )


def _is_due(record: LeafRecord, times: Times) -> bool:
    """Return whether a leaf must be read as a whole by this run.

    Each leaf has a turn once in three quarters of the period. It is due if its turn has come since it was read, or if
    it would be unread for longer than the period at the next run. The turns are spread evenly, so each run reads a
    share.
    """
    cycle = max(1, times.reread_within * 3 // 4)
    turn = record.leaf * _GOLDEN % _TURNS * cycle // _TURNS
    return (
        times.next - record.read_from_ms > times.reread_within
        or (times.now - turn) // cycle > (record.read_from_ms - turn) // cycle
    )


def _cost(work: LeafWork) -> int:
    return work.parent.planned + _READ_COST if work.record is not None else (work.parent.planned + 1) * _READ_COST


def _place(work: LeafWork) -> tuple[str, int]:
    slices = () if work.record is None else work.record.slices
    return (slices[0].file, slices[0].first) if slices else ("", 0)
