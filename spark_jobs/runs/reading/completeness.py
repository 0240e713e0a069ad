"""Decide whether a scan saw every ledger it should have seen (S20, R20). Pure.

A scan is planned from the number of children of each metadata node. Every planned ledger must be in the listing of its
node, or must be deleted. Deleted ledgers are normal (S15); a short listing without deletions is not. Ledgers created
after the plan belong to a later scan, so they neither complete a short listing nor make it incomplete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.runtime.human import agreeing, counted
from spark_jobs.datasource.partitions import LeafParent

_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class ScanTotals:
    """Counts of all partitions of one scan together; see ``ScanCounts``."""

    ledgers: int
    fragments: int
    unreadable: int
    vanished: int
    skipped: int
    returned: int
    open: int
    in_recovery: int
    closed: int
    listed: Mapping[str, tuple[int, ...]]
    """For each node read, the numbers of ledgers that it listed, one for each reading. There should be only one
    reading."""
    ledgers_by_bookie: Mapping[str, int]
    fragments_by_bookie: Mapping[str, int]
    carried: int = 0
    """Those of ``ledgers`` that were carried over from an image instead of read."""

    def plus(self, other: ScanTotals) -> ScanTotals:
        """Return the sum of two counts of different ledgers."""
        listed = dict(self.listed)
        for path, counts in other.listed.items():
            listed[path] = (*listed.get(path, ()), *counts)
        return ScanTotals(
            ledgers=self.ledgers + other.ledgers,
            fragments=self.fragments + other.fragments,
            unreadable=self.unreadable + other.unreadable,
            vanished=self.vanished + other.vanished,
            skipped=self.skipped + other.skipped,
            returned=self.returned + other.returned,
            open=self.open + other.open,
            in_recovery=self.in_recovery + other.in_recovery,
            closed=self.closed + other.closed,
            listed=listed,
            ledgers_by_bookie=Counter(self.ledgers_by_bookie) + Counter(other.ledgers_by_bookie),
            fragments_by_bookie=Counter(self.fragments_by_bookie) + Counter(other.fragments_by_bookie),
            carried=self.carried + other.carried,
        )


NO_TOTALS: Final = ScanTotals(
    ledgers=0,
    fragments=0,
    unreadable=0,
    vanished=0,
    skipped=0,
    returned=0,
    open=0,
    in_recovery=0,
    closed=0,
    listed={},
    ledgers_by_bookie={},
    fragments_by_bookie={},
)


def incomplete_parents(plan: Sequence[LeafParent], totals: ScanTotals) -> list[LeafParent]:
    """Return the nodes that listed fewer ledgers than planned.

    Counting their planned ledgers again shows whether ledgers were deleted or missed.
    """
    return [parent for parent in plan if sum(totals.listed.get(parent.path, ())) < parent.planned]


def planned_remaining(parent: LeafParent, children: int, czxid: int, creates: int) -> int:
    """Return how many ledgers under a node existed when the scan was planned, and certainly still exist.

    Args:
        parent: the node, with its stat when the scan was planned; without it, no ledger counts as created since then.
        children: the current number of its children.
        czxid: the transaction that created the node. If it is another one, the node was deleted with all of its
            planned ledgers.
        creates: number of children ever created under it.
    """
    if parent.stat is None:
        return children
    return max(0, children - (creates - parent.stat.creates)) if czxid == parent.stat.czxid else 0


def problems(plan: Sequence[LeafParent], totals: ScanTotals, recount: Mapping[str, int]) -> tuple[str, ...]:
    """Report the missing parts of a scan, one sentence each; nothing for a complete one.

    Args:
        plan: the nodes to be read.
        totals: the counts of the scan.
        recount: number of planned ledgers that still exist under each of ``incomplete_parents``, counted after the
            scan.
    """
    found = []
    unread = [parent.path for parent in plan if parent.path not in totals.listed]
    if unread:
        were = agreeing(len(unread), "was", "were")
        found.append(f"{counted(len(unread), 'metadata node')} {were} not read: {_some(unread)}")
    twice = [path for path, counts in totals.listed.items() if len(counts) > 1]
    if twice:
        were = agreeing(len(twice), "was", "were")
        found.append(f"{counted(len(twice), 'metadata node')} {were} read more than once: {_some(twice)}")
    short = {
        parent.path: min(parent.planned, recount.get(parent.path, 0)) - sum(totals.listed.get(parent.path, ()))
        for parent in incomplete_parents(plan, totals)
        if parent.path in totals.listed
    }
    unseen = {path: count for path, count in short.items() if count > 0}
    if unseen:
        exist = agreeing(sum(unseen.values()), "exists and was", "exist and were")
        found.append(f"{counted(sum(unseen.values()), 'ledger')} {exist} not listed, under {_some(list(unseen))}")
    seen = totals.ledgers + totals.unreadable + totals.vanished + totals.skipped
    listed = sum(sum(counts) for counts in totals.listed.values())
    if seen != listed:
        were = agreeing(listed, "was", "were")
        found.append(f"{counted(listed, 'ledger')} {were} listed, and {seen} accounted for")
    return tuple(found)


def _some(paths: Sequence[str]) -> str:
    named = ", ".join(paths[:_NAMED_MAX])
    return named if len(paths) <= _NAMED_MAX else f"{named} and {len(paths) - _NAMED_MAX} more"
