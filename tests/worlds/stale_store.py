"""A session with a ZooKeeper server that is behind the others."""

from __future__ import annotations

import copy

from typing_extensions import override

from bookie.metadata.store.memory import MemoryStore, ReadableTree
from bookie.metadata.store.memory_cell import MemoryCell


class StaleStore(MemoryStore):
    """A store whose reads show the state at the last ``fall_behind`` until the next ``sync``."""

    _past: MemoryCell | None = None

    def fall_behind(self) -> None:
        """From now on, read the present state."""
        self._past = MemoryCell()
        self._past._nodes = copy.deepcopy(self.cell._nodes)

    @override
    def view(self) -> ReadableTree:
        return super().view() if self._past is None else self._past

    @override
    async def sync(self, path: str) -> None:
        await super().sync(path)
        self._past = None
