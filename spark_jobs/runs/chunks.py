"""Divide a long check into chunks of ledgers. Between two chunks it can pause, stop and publish its findings. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_id_of
from spark_jobs.datasource.partitions import LeafParent

_LEDGERS_PER_LEAF: Final = 10_000
"""Largest number of ledgers under one node in the hierarchical layouts: four digits (docs/formats.md#ledger-paths)."""
_HASH_BYTES: Final = 8


def chunks(plan: Sequence[LeafParent], ledgers_max: int) -> Iterator[tuple[LeafParent, ...]]:
    """Yield ``plan`` in its order, in groups of at most about ``ledgers_max`` ledgers; at least one group.

    Every node is in exactly one group. A node with more ledgers is a group of its own, because a listing is never
    divided.
    """
    group: list[LeafParent] = []
    ledgers = 0
    for parent in plan:
        if group and ledgers + parent.planned > ledgers_max:
            yield tuple(group)
            group, ledgers = [], 0
        group.append(parent)
        ledgers += parent.planned
    yield tuple(group)


def nodes_in_range(plan: Sequence[LeafParent], cluster: Cluster, first: int, last: int) -> tuple[LeafParent, ...]:
    """Return the nodes of ``plan`` whose ids can be in the range from ``first`` to ``last``, both inclusive."""
    return tuple(parent for parent in plan if _may_hold(parent, cluster, first, last))


def is_sampled(ledger_id: int, seed: int, share: float) -> bool:
    """Return whether a ledger is in the sample: about ``share`` of all ids. The result is the same in every process."""
    if share >= 1:
        return True
    digest = hashlib.blake2b(f"{seed}:{ledger_id}".encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big") < share * (1 << 8 * _HASH_BYTES)


def _may_hold(parent: LeafParent, cluster: Cluster, first: int, last: int) -> bool:
    start = ledger_id_of(cluster.kind, cluster.root, f"{parent.path}/L0000")
    if start is None:  # the root of the flat layout holds every id
        return True
    return start <= last and first < start + _LEDGERS_PER_LEAF
