"""Listing the ledgers of a cluster: the parents of ledgers, and the ledgers below each.

A node that vanishes during a listing had become empty, and counts as empty. A missing root is an error: with a listing
that is empty by mistake, live ledgers would count as deleted.

Source: docs/formats.md#ledger-paths.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from bookie.metadata.cluster import Cluster, NotAClusterError
from bookie.metadata.layout import LayoutKind, inner_names, ledger_ids_under, top_names
from bookie.metadata.port import Children, MetadataStore, NoNodeError, Stat
from bookie.model.ids import LedgerId

_PARENTS_PER_STEP: Final = 64
"""Leaf parents listed at a time by ``ids``: up to 640,000 ids in memory."""


class LedgerTree:
    """The tree of ledgers below one cluster's root."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._root = cluster.root
        self._kind = cluster.kind

    async def leaf_parents(self) -> list[tuple[str, int]]:
        """Paths of the direct parents of ledgers, in tree order, with the number of their children.

        Raises:
            NotAClusterError: the root does not exist.
            StoreUnavailableError: no answer.
        """
        if self._kind is not LayoutKind.FLAT:
            return [(path, stat.children_count) for path, stat in await self.leaf_nodes() if stat.children_count]
        listing = await self._root_listing()
        return [(self._root, len(ledger_ids_under(self._kind, self._root, self._root, listing.names)))]

    async def leaf_nodes(self) -> list[tuple[str, Stat]]:
        """Paths and stats of the possible direct parents of ledgers, in tree order; not for the flat layout.

        Raises:
            NotAClusterError: the root does not exist.
            StoreUnavailableError: no answer.
        """
        listing = await self._root_listing()
        short, long = top_names(self._kind, listing.names)
        parents = await self._descend([f"{self._root}/{name}" for name in short], 1)
        parents += await self._descend([f"{self._root}/{name}" for name in long], 3)
        nodes = await self._store.get_many(parents)
        return [(parent, node.stat) for parent, node in zip(parents, nodes, strict=True) if node is not None]

    async def _root_listing(self) -> Children:
        await self._store.sync(self._root)  # the server may be stale; after this it is current
        try:
            return await self._store.children(self._root)
        except NoNodeError as error:
            raise NotAClusterError(f"no cluster at {self._root}: it does not exist") from error

    async def ids_under_many(self, parents: Sequence[str]) -> list[list[LedgerId]]:
        """Return ids directly under each of the leaf parents, ascending; none for a vanished parent.

        Raises:
            StoreUnavailableError: no answer.
        """
        listings = await self._store.children_many(parents)
        return [
            [] if listing is None else ledger_ids_under(self._kind, self._root, parent, listing.names)
            for parent, listing in zip(parents, listings, strict=True)
        ]

    async def listing(self, parent: str) -> tuple[list[LedgerId], int]:
        """Return ids directly under a leaf parent, ascending, and the number of children ever created under it.

        A vanished leaf parent has no ids.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            children = await self._store.children(parent)
        except NoNodeError:
            return [], 0
        ids = ledger_ids_under(self._kind, self._root, parent, children.names)
        return ids, (children.version + len(children.names)) // 2

    async def ids(self) -> AsyncIterator[LedgerId]:
        """Yield every ledger id in tree order, listed step by step.

        Raises:
            NotAClusterError, StoreUnavailableError: see ``leaf_parents``.
        """
        parents = [parent for parent, _ in await self.leaf_parents()]
        for start in range(0, len(parents), _PARENTS_PER_STEP):
            for ids in await self.ids_under_many(parents[start : start + _PARENTS_PER_STEP]):
                for ledger_id in ids:
                    yield ledger_id

    async def _descend(self, paths: list[str], levels: int) -> list[str]:
        for _ in range(levels):
            listings = await self._store.children_many(paths)
            paths = [
                f"{path}/{name}"
                for path, listing in zip(paths, listings, strict=True)
                if listing is not None
                for name in inner_names(listing.names)
            ]
        return paths
