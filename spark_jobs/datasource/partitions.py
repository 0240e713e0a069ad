"""Divide a scan into partitions of about equal size. A partition consists of whole nodes.

Pure arithmetic. A node is never divided, because one request lists all of its children anyway.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from spark_jobs.image.leaves import LeafStat

LEDGERS_PER_PARTITION_MAX: Final = 250_000
"""After a lost connection, a whole partition is read again, so it must take seconds and not minutes."""
PARTITIONS_PER_CORE: Final = 1


@dataclass(frozen=True, slots=True)
class LeafParent:
    """A metadata node that directly holds ledgers."""

    path: str
    planned: int
    """Number of its children when the scan was planned."""
    stat: LeafStat | None = None
    """Its stat when the scan was planned; None: unknown, as in the flat layout."""


def parents_text(parents: Sequence[LeafParent]) -> str:
    """Return a group of nodes as text."""
    return json.dumps(
        [(each.path, each.planned, None if each.stat is None else astuple(each.stat)) for each in parents]
    )


def parents_of(text: str) -> tuple[LeafParent, ...]:
    """Return the group of nodes in a text from ``parents_text``."""
    return tuple(
        LeafParent(path, planned, None if stat is None else LeafStat(*stat)) for path, planned, stat in json.loads(text)
    )


def partition_count(parents: Sequence[LeafParent], cores: int) -> int:
    """Return a suitable number of partitions for ``cores`` parallel readers, at least one."""
    total = sum(parent.planned for parent in parents)
    wanted = max(cores * PARTITIONS_PER_CORE, -(-total // LEDGERS_PER_PARTITION_MAX))
    return max(1, min(wanted, len(parents)))


def balance(parents: Sequence[LeafParent], count: int) -> list[tuple[LeafParent, ...]]:
    """Split ``parents`` into at most ``count`` groups with about equally many ledgers.

    Every parent is in exactly one group. So are empty parents, because a count of zero may be stale. The largest group
    exceeds the smallest by no more than the largest parent. Within a group the order of ``parents`` is kept. The result
    depends only on the arguments.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"cannot split into {count} groups, need at least 1")
    order = sorted(range(len(parents)), key=lambda index: (-parents[index].planned, index))
    groups: list[list[int]] = [[] for _ in range(min(count, len(parents)))]
    # The largest parent goes first, into the group with the fewest ledgers. Among equal groups, the one with the fewest
    # parents is chosen, which spreads empty parents as well.
    heap = [(0, 0, number) for number in range(len(groups))]
    for index in order:
        ledgers, size, number = heapq.heappop(heap)
        groups[number].append(index)
        heapq.heappush(heap, (ledgers + parents[index].planned, size + 1, number))
    return [tuple(parents[index] for index in sorted(group)) for group in groups]
