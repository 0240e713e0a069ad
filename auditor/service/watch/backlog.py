"""The current backlog: every marked ledger, judged by its metadata and the current bookies.

The findings of the last audit do not show later repairs, so this is counted from the store. Marks and ledgers are read
and judged in parts, and each part is discarded before the next one is read. A count keeps only sums and the ids of
parked and of locked ledgers. So a huge backlog neither fills the memory nor blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from auditor.api.control import Backlog, SeverityBacklog
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore, parse_topology, topology_text
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.port import AccessDeniedError, MetadataStore, StoreUnavailableError
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTasks, ParkReason
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity, bytes_to_copy, health_of
from bookie.model.topology import Topology
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

READ_LEDGERS: Final = 500
"""Ledgers judged without yielding to the event loop: some ten milliseconds."""
PLACES_AT_ONCE: Final = 5_000
"""Leaves of the tree of tasks that are read in one part: some megabytes."""
PARTS_MAX: Final = 50
"""Maximum of bookies, and of racks, that are counted by name: each is a time series in Prometheus."""
NAMED_MAX: Final = 10_000
"""Bookies whose newest mark is kept during a count: more than any cluster has. A bound is needed because marks may name
anything."""
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The rack of a bookie without a place in the topology."""


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """One marked ledger."""

    severity: Severity | None
    """The severity of the worst fragment; None: nothing is missing."""
    bytes_estimate: int
    """Payload to copy, in bytes; 0 if unknown, as for open ledgers."""


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


@dataclass(slots=True)
class _Tally:
    topology: Topology
    by_severity: dict[Severity | None, _Sum] = field(default_factory=dict)
    repairable: dict[Severity, _Sum] = field(default_factory=dict)
    unreadable: int = 0
    by_bookie: Counter[str] = field(default_factory=Counter)
    by_rack: Counter[str] = field(default_factory=Counter)
    named_ms: dict[str, int] = field(default_factory=dict)
    parked: Counter[ParkReason] = field(default_factory=Counter)
    locked: int = 0

    def add(
        self,
        task: Task | UnreadableTask,
        ledger: LedgerMetadata | Unreadable | None,
        bookies: Bookies,
        *,
        is_parked: bool,
    ) -> None:
        if isinstance(task, Task):
            self._name(task)
        if isinstance(task, UnreadableTask) or isinstance(ledger, Unreadable):
            self.unreadable += 1
            return
        if ledger is None:  # the ledger was deleted
            self.by_severity.setdefault(None, _Sum()).add(LedgerVerdict(None, 0), task.ctime_ms)
            return
        judged = judge(ledger, bookies.registered, bookies.draining)
        if judged.severity is None and not task.missing:  # a repair of the placement names no bookie
            judged = LedgerVerdict(Severity.MISPLACED, judged.bytes_estimate)
        away = {
            each for fragment in ledger.fragments for each in fragment.members if is_absent_or_draining(each, bookies)
        }
        self.by_bookie.update(away)
        self.by_rack.update({self.topology.known(each) or UNKNOWN for each in away})
        self.by_severity.setdefault(judged.severity, _Sum()).add(judged, task.ctime_ms)
        severity = judged.severity
        if severity is not None and severity.has_copies and not is_parked:
            self.repairable.setdefault(severity, _Sum()).add(judged, task.ctime_ms)

    def _name(self, task: Task) -> None:
        for each in task.missing:
            if each in self.named_ms or len(self.named_ms) < NAMED_MAX:
                self.named_ms[each] = max(self.named_ms.get(each, 0), task.ctime_ms, 0)


_Live = AbstractSet[BookieId]


def is_absent_or_draining(bookie: BookieId, bookies: Bookies) -> bool:
    """Whether copies on a bookie do not count, because it is not registered or is being drained."""
    return bookie not in bookies.registered or bookie in bookies.draining


def largest(counts: Counter[str], parts_max: int = PARTS_MAX) -> dict[str, int]:
    """Return the ``parts_max`` largest counts, equal ones by name, and the sum of all others as ``OTHER``. Pure."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    made = dict(ordered[:parts_max])
    if rest := sum(count for _, count in ordered[parts_max:]):
        made[OTHER] = made.get(OTHER, 0) + rest
    return made


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
        topology: ReadTopology | None = None,
    ) -> None:
        """Prepare to count.

        Args:
            tasks: marks and locks.
            ledgers: metadata of ledgers.
            registrations: the bookies.
            parked: parked tasks.
            clock: for the time of a count.
            drains: source of the draining bookies; without it, they are unknown.
            topology: reads the racks of bookies; without it, they are unknown.
        """
        self._tasks = tasks
        self._ledgers = ledgers
        self._registrations = registrations
        self._parked = parked
        self._clock = clock
        self._drains = drains
        self._topology = topology

    async def count(self) -> Backlog:
        """Count all current marks.

        Raises:
            StoreUnavailableError: no answer.
            NotAClusterError: the parent of all registrations was deleted.
        """
        counted_ms = self._clock.epoch_ms()
        bookies = await self._registrations.list()
        if self._drains is not None:
            bookies = bookies.with_draining((await self._drains.draining()).bookies)
        parked = await self._parked.ids()
        tally = _Tally(Topology() if self._topology is None else await self._topology())
        locked = await self._tasks.locks.locked()
        after: LedgerId | None = None
        while True:
            page = await self._tasks.page(after, PLACES_AT_ONCE)
            after = page.next_after
            for start in range(0, len(page.tasks), READ_LEDGERS):
                await self._add(tally, page.tasks[start : start + READ_LEDGERS], bookies, parked, locked)
            if after is None:
                break
        return Backlog(
            counted_ms=counted_ms,
            severities={severity: part.total() for severity, part in tally.by_severity.items() if severity is not None},
            healthy=tally.by_severity.get(None, _Sum()).total(),
            unreadable=tally.unreadable,
            parked=dict(tally.parked),
            locked=tally.locked,
            repairable={severity: part.total() for severity, part in tally.repairable.items()},
            by_bookie=largest(tally.by_bookie),
            by_rack=largest(tally.by_rack),
            named_ms=tally.named_ms,
        )

    async def _add(
        self,
        tally: _Tally,
        part: Sequence[Task | UnreadableTask],
        bookies: Bookies,
        parked: AbstractSet[LedgerId],
        locked: AbstractSet[LedgerId],
    ) -> None:
        ids = [task.ledger_id for task in part]
        aside = await self._parked.read_many([each for each in ids if each in parked], {})
        parked_now = {item.ledger_id for item in aside}
        tally.parked.update(item.reason for item in aside)
        tally.locked += sum(each in locked for each in ids)
        ledgers = await self._ledgers.read_many_metadata(ids)
        for task, ledger in zip(part, ledgers, strict=True):
            tally.add(task, ledger, bookies, is_parked=task.ledger_id in parked_now)
        await asyncio.sleep(0)


def judge(ledger: LedgerMetadata, live: _Live, draining: _Live = frozenset()) -> LedgerVerdict:
    """Return the worst fragment's severity, and the bytes that all fragments lack or have to move. Pure."""
    worst: Severity | None = None
    lacking = 0.0
    for severity, share in _fragments(ledger, live, draining):
        worst = severity if worst is None else min(worst, severity)
        lacking += share
    return LedgerVerdict(worst, round(lacking))


def _fragments(ledger: LedgerMetadata, live: _Live, draining: _Live) -> Iterable[tuple[Severity, float]]:
    """Yield the severity and the missing bytes of each incomplete fragment."""
    for index, fragment in enumerate(ledger.fragments):
        if all(member in live and member not in draining for member in fragment.members):
            continue
        health = health_of(ledger, index, live, draining)
        if health.severity is not None:
            yield health.severity, bytes_to_copy(ledger, index, len(health.missing_positions), health.severity)


Open = Callable[[AsyncExitStack], Awaitable[tuple[MetadataStore, Cluster]]]
"""Opens a session; the stack closes it. Raises StoreUnavailableError."""
ReadTopology = Callable[[], Awaitable[Topology]]
"""Returns the racks of bookies. Raises StoreUnavailableError."""


class CountsApart:
    """Counts the backlog on a thread and a session of its own, one count at a time. Callers must ``close`` it."""

    def __init__(self, open_session: Open, clock: Clock, topology_file: Path | None = None) -> None:
        """Store the arguments.

        Args:
            open_session: opens the session of the counter.
            clock: for the time of a count.
            topology_file: has the racks of bookies; None: they are read from the store.
        """
        self._open = open_session
        self._clock = clock
        self._topology_file = topology_file
        self._executor = ThreadPoolExecutor(1, "backlog")
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._counter: BacklogCounter | None = None
        self._counting: asyncio.Task[Backlog] | None = None
        self._is_closed = False

    async def count(self) -> Backlog:
        """Count. A cancelled count continues in its thread, and the next one waits for its end.

        Raises:
            StoreUnavailableError: no answer; the next count opens another session.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._count)

    async def close(self) -> None:
        """End a count under way, the session and the thread. Otherwise the process waits for the thread at its end."""
        self._is_closed = True
        if (counting := self._counting) is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                counting.get_loop().call_soon_threadsafe(counting.cancel)
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
        self._counting = asyncio.current_task()
        try:
            if self._is_closed:
                raise StoreUnavailableError("this process is stopping")
            if self._counter is None:
                self._counter = backlog_counter(*await self._open(self._stack), self._clock, self._topology_file)
            return await self._counter.count()
        finally:
            self._counting = None

    def _forget(self) -> None:
        runner, stack = self._runner, self._stack
        self._runner, self._counter, self._stack = None, None, AsyncExitStack()
        if runner is not None:
            with contextlib.closing(runner):
                runner.run(stack.aclose())


def backlog_counter(
    store: MetadataStore, cluster: Cluster, clock: Clock, topology_file: Path | None = None
) -> BacklogCounter:
    """Return a counter of ``cluster`` on one session; ``topology_file`` replaces the topology in the store."""
    return BacklogCounter(
        UnderReplication(store, cluster, clock),
        LedgerStore(store, cluster, random.SystemRandom()),
        Registrations(store, cluster),
        ParkedTasks(store, cluster.root),
        clock,
        Drains(store, cluster.root),
        _topology_reader(TopologyStore(store, cluster), topology_file),
    )


def _topology_reader(topologies: TopologyStore, file: Path | None) -> ReadTopology:
    """Return a function that reads the topology of a file, else the one in the store.

    The result is empty if there is none, or if it cannot be read, which is logged once for each reason. Racks are a
    detail of the figures: without them, everything else is still counted.
    """
    logged = ""

    async def read() -> Topology:
        nonlocal logged
        try:
            if (text := topology_text(file)) is not None:
                found = parse_topology(text)
            else:
                found = (await topologies.read()).topology
        except (InvalidTopologyError, AccessDeniedError) as error:
            if str(error) != logged:
                _log.warning("racks of bookies are unknown", extra={"reason": str(error)})
            logged = str(error)
            return Topology()
        logged = ""
        return found

    return read
