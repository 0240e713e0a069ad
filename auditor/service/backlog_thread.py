"""The backlog, counted in a thread with a loop and a session of its own.

Listing a hundred thousand tasks keeps a loop busy for seconds, and the one that confirms the leadership must not be
kept for as long as that: the leader would stop leading because it counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from auditor.api.control import Backlog
from auditor.service.watch.backlog import BacklogCounter
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.runtime.clock import Clock

Open = Callable[[AsyncExitStack], Awaitable[tuple[MetadataStore, Cluster]]]
"""Opens a session; the stack closes it. Raises StoreUnavailableError."""


class CountsApart:
    """See the module docstring. ``close`` it; one count at a time."""

    def __init__(self, open_session: Open, clock: Clock) -> None:
        self._open = open_session
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, "backlog")
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._counter: BacklogCounter | None = None

    async def count(self) -> Backlog:
        """Count; a count that is cancelled goes on in its thread, and the next one waits for its end.

        Raises:
            StoreUnavailableError: no answer; the next count opens another session.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._count)

    async def close(self) -> None:
        """End the session and the thread, once a count under way has ended."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._forget)
        self._executor.shutdown(wait=False)

    def _count(self) -> Backlog:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._counted())
        except BaseException:
            self._forget()
            raise

    async def _counted(self) -> Backlog:
        if self._counter is None:
            self._counter = backlog_counter(*await self._open(self._stack), self._clock)
        return await self._counter.count()

    def _forget(self) -> None:
        runner, stack = self._runner, self._stack
        self._runner, self._counter, self._stack = None, None, AsyncExitStack()
        if runner is not None:
            with contextlib.closing(runner):
                runner.run(stack.aclose())


def backlog_counter(store: MetadataStore, cluster: Cluster, clock: Clock) -> BacklogCounter:
    """A counter of ``cluster`` on one session."""
    return BacklogCounter(
        UnderReplication(store, cluster, clock),
        LedgerStore(store, cluster, random.SystemRandom()),
        Registrations(store, cluster),
        ParkedTasks(store, cluster.root),
        clock,
        Drains(store, cluster.root),
    )
