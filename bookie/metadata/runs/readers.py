"""Runs that are reading ledger metadata now, of all clusters in one ZooKeeper. They share the limits on reading.

``/bkheal/readers/<run>`` is an empty, ephemeral node of a run; its driver creates it. It ends with the driver's
session. A dead driver counts until then, and the other runs read more slowly in that time. If the node of its run is
missing, a task creates it again.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

from bookie.metadata.access import current_access
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import AccessDeniedError, MetadataStore, NodeExistsError, NoNodeError, Stat

READERS: Final = "readers"


def readers_path() -> str:
    """Path of the parent of all runs' nodes, below the state root of this process."""
    return f"{current_access().state_root}/{READERS}"


class Readers:
    """All readers, as one run sees them."""

    def __init__(self, store: MetadataStore, run_id: str) -> None:
        """Store the arguments.

        Args:
            store: the store in any session of the run.
            run_id: the name of the run's node.
        """
        self._store = store
        self._run_id = run_id
        self.path = readers_path()

    async def join(self) -> None:
        """Count as a reader until the session of the store ends. Idempotent, even with other sessions of the run.

        Raises:
            AccessDeniedError: this process may not create the node.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; joining again is safe.
        """
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._store, f"{self.path}/{self._run_id}", b"", "/", is_ephemeral=True)

    async def stat(self) -> Stat | None:
        """Return the stat of the parent of all readers; it changes with each reader.

        None if there is no such node, or this process may not read it.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            return await self._store.stat(self.path)
        except AccessDeniedError:
            return None

    async def runs(self) -> Collection[str] | None:
        """Return the ids of the reading runs; None if their parent node does not exist.

        Raises:
            AccessDeniedError: this process may not list them.
            StoreUnavailableError: no answer.
        """
        try:
            return (await self._store.children(self.path)).names
        except NoNodeError:
            return None
