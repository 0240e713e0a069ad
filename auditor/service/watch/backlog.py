"""The backlog as it is: every ledger that is marked for repair, judged by its metadata and the bookies of this moment.

The findings of the last audit do not show later repairs, so this is counted from the store. Ledgers are read and judged
in parts, so that a huge backlog neither fills the memory nor keeps the loop from other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from auditor.api.control import Backlog, SeverityBacklog
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity, fragment_health
from bookie.runtime.clock import Clock

READ_LEDGERS: Final = 500
"""Judged between two turns of the loop: some ten milliseconds."""


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """One marked ledger."""

    severity: Severity | None
    """None: nothing is missing."""
    bytes_estimate: int
    """Payload to copy; 0 if unknown, as with open ledgers."""


@dataclass(slots=True)
class _Sum:
    ledgers: int = 0
    bytes_estimate: int = 0
    oldest_ms: int = 0

    def add(self, judged: LedgerVerdict, ctime_ms: int) -> None:
        self.ledgers += 1
        self.bytes_estimate += judged.bytes_estimate
        if ctime_ms > 0:
            self.oldest_ms = min(self.oldest_ms or ctime_ms, ctime_ms)

    def total(self) -> SeverityBacklog:
        return SeverityBacklog(self.ledgers, self.bytes_estimate, self.oldest_ms)


_WITHOUT_COPY: Final = frozenset({Severity.LOST, Severity.NO_LIVE_COPY})
"""There is nothing to copy from until a bookie returns."""


@dataclass(slots=True)
class _Tally:
    parked: AbstractSet[int]
    by_severity: dict[Severity | None, _Sum] = field(default_factory=dict)
    repairable: dict[Severity, _Sum] = field(default_factory=dict)
    unreadable: int = 0
    marked: set[int] = field(default_factory=set)

    def add(self, task: Task | UnreadableTask, ledger: LedgerMetadata | Unreadable | None, bookies: Bookies) -> None:
        self.marked.add(task.ledger_id)
        if isinstance(task, UnreadableTask) or not isinstance(ledger, LedgerMetadata):
            self.unreadable += 1
            return
        judged = judge(ledger, bookies.registered, bookies.draining)
        if judged.severity is None and not task.missing:  # a repair of the placement names no bookie
            judged = LedgerVerdict(Severity.MISPLACED, judged.bytes_estimate)
        self.by_severity.setdefault(judged.severity, _Sum()).add(judged, task.ctime_ms)
        severity = judged.severity
        if severity is not None and severity not in _WITHOUT_COPY and task.ledger_id not in self.parked:
            self.repairable.setdefault(severity, _Sum()).add(judged, task.ctime_ms)


_Live = AbstractSet[BookieId]


class BacklogCounter:
    """Counts the backlog of one cluster."""

    def __init__(
        self,
        tasks: UnderReplication,
        ledgers: LedgerStore,
        registrations: Registrations,
        parked: ParkedTasks,
        clock: Clock,
        drains: Drains | None = None,
    ) -> None:
        """Prepare to count; without ``drains`` nothing is known of bookies that are being drained."""
        self._tasks = tasks
        self._ledgers = ledgers
        self._registrations = registrations
        self._parked = parked
        self._clock = clock
        self._drains = drains

    async def count(self) -> Backlog:
        """Count everything that is marked now.

        Raises:
            StoreUnavailableError: no answer.
            NotAClusterError: the parent of all registrations was deleted.
        """
        counted_ms = self._clock.epoch_ms()
        bookies = await self._registrations.list()
        if self._drains is not None:
            bookies = bookies.with_draining((await self._drains.draining()).bookies)
        parked = await self._parked.list()
        tally = _Tally(frozenset(item.ledger_id for item in parked))
        tasks = await self._tasks.list_all()
        for start in range(0, len(tasks), READ_LEDGERS):
            part = tasks[start : start + READ_LEDGERS]
            ledgers = await self._ledgers.read_many_metadata([task.ledger_id for task in part])
            for task, ledger in zip(part, ledgers, strict=True):
                tally.add(task, ledger, bookies)
            await asyncio.sleep(0)
        locked = await self._tasks.locks.locked()
        return Backlog(
            counted_ms=counted_ms,
            severities={severity: part.total() for severity, part in tally.by_severity.items() if severity is not None},
            healthy=tally.by_severity.get(None, _Sum()).total(),
            unreadable=tally.unreadable,
            parked=dict(Counter(item.reason for item in parked if item.ledger_id in tally.marked)),
            locked=len(locked & tally.marked),
            repairable={severity: part.total() for severity, part in tally.repairable.items()},
        )


def judge(ledger: LedgerMetadata, live: _Live, draining: _Live = frozenset()) -> LedgerVerdict:
    """The worst fragment's severity, and what all of them lack, or have to move. Pure."""
    worst: Severity | None = None
    lacking = 0.0
    for severity, share in _fragments(ledger, live, draining):
        worst = severity if worst is None else min(worst, severity)
        lacking += share
    return LedgerVerdict(worst, round(lacking))


def _fragments(ledger: LedgerMetadata, live: _Live, draining: _Live) -> Iterable[tuple[Severity, float]]:
    """Severity and missing bytes of each fragment that lacks something; each position stores Qw/E of the entries."""
    for index, fragment in enumerate(ledger.fragments):
        is_live = [member in live for member in fragment.members]
        is_draining = [member in draining for member in fragment.members]
        if all(is_live) and not any(is_draining):
            continue
        last = ledger.fragment_last_entry_id(index)
        write, ack = ledger.write_quorum, ledger.ack_quorum
        health = fragment_health(is_live, write, ack, fragment.first_entry_id, last, is_draining)
        lacking = 0.0
        if ledger.length and ledger.last_entry_id is not None and ledger.last_entry_id >= 0 and last is not None:
            entries = max(0, last - fragment.first_entry_id + 1)
            per_position = ledger.length / (ledger.last_entry_id + 1) * entries * ledger.write_quorum
            lacking = per_position * len(health.missing_positions) / ledger.ensemble_size
        if health.severity is not None:
            yield health.severity, lacking


Open = Callable[[AsyncExitStack], Awaitable[tuple[MetadataStore, Cluster]]]
"""Opens a session; the stack closes it. Raises StoreUnavailableError."""


class CountsApart:
    """Counts the backlog. ``close`` it; one count at a time."""

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
