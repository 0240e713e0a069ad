"""State of bkheal that is older than the cluster: records of a deleted cluster at the same root.

If a cluster is created again, the parents of records remain, and so do some records that are never deleted but only
overwritten, such as lists of logs. So each record is judged by its last write, and a parent by its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import child_names, in_steps
from bookie.metadata.own_state import KINDS, own_path
from bookie.metadata.port import MetadataStore

_KEPT_KINDS: Final = frozenset({"copy-limits", "doctor", "parked-bookies", "topology"})
"""Kinds of state without data about ledgers or about events of bookies. The lists in ``parked-bookies`` are named by
their hash, so records of this cluster can refer to an older list."""
_NESTED_KIND: Final = "runs"
"""The kind whose records are one level deeper."""
_READ_MAX: Final = 20_000
"""Largest number of children that are read of one parent."""
_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class OldState:
    """Nodes that were last written before the cluster was created."""

    paths: tuple[str, ...]
    """Old records. If all records of a parent are old, the parent is listed instead of them."""
    rewritten: int
    """Number of older records that were overwritten since: they may be of this cluster, and are not in ``paths``."""
    unread: tuple[str, ...]
    """Parents of which not every child was read."""


async def old_state(store: MetadataStore, ledgers_root: str, cluster_czxid: int) -> OldState:
    """Find the state about the cluster at ``ledgers_root`` that is older than the transaction that created it.

    Raises:
        StoreUnavailableError: no answer.
        AccessDeniedError: this process may not read the nodes.
    """
    paths: list[str] = []
    rewritten, unread = 0, []
    async for parent in _old_parents(store, ledgers_root, cluster_czxid):
        names = sorted(await child_names(store, parent))
        old: list[str] = []
        async for part in in_steps(names[:_READ_MAX], _AT_ONCE):
            children = [f"{parent}/{name}" for name in part]
            for path, stat in zip(children, await asyncio.gather(*map(store.stat, children)), strict=True):
                if stat is None or stat.ephemeral_owner or stat.czxid > cluster_czxid:
                    continue
                if stat.mzxid > cluster_czxid or stat.children_count:
                    rewritten += 1
                else:
                    old.append(path)
        if len(names) > _READ_MAX:
            unread.append(parent)
        paths += [parent] if old and len(old) == len(names) else old
    return OldState(tuple(paths), rewritten, tuple(unread))


async def _old_parents(store: MetadataStore, ledgers_root: str, cluster_czxid: int) -> AsyncIterator[str]:
    """Yield the parents of records that are older than the cluster: only they can have older children."""
    parents = [own_path(kind, ledgers_root) for kind in KINDS if kind not in _KEPT_KINDS | {_NESTED_KIND}]
    nested = own_path(_NESTED_KIND, ledgers_root)
    parents += [f"{nested}/{name}" for name in sorted(await child_names(store, nested))[:_READ_MAX]]
    async for part in in_steps(parents, _AT_ONCE):
        for parent, stat in zip(part, await asyncio.gather(*map(store.stat, part)), strict=True):
            if stat is not None and stat.czxid < cluster_czxid:
                yield parent
