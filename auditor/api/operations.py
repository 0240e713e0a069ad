"""``Operations`` over the cluster's metadata store and its bookies."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from typing_extensions import override

from auditor.api.operations_port import BookieState, BookieView, Operations, TaskPage, TaskState, TaskView
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable, Versioned
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks
from bookie.metadata.tasks.switches import AlreadyDisabledError, AlreadyEnabledError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import FragmentHealth, fragment_health
from bookie.runtime.clock import Clock
from bookie.wire.port import Status, Transport
from bookie.wire.requests import Info

T = TypeVar("T")


class Snapshot(Generic[T]):
    """The last answer of ``ask``."""

    def __init__(self, ask: Callable[[], Awaitable[T]], kept_s: float, clock: Clock) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return an answer no older than ``kept_s``. Raises what ``ask`` raises; an error is not kept."""
        async with self._asking:
            if self._answer is None or self._clock.monotonic_s() - self._answer[0] >= self._kept_s:
                self._answer = None  # two large answers at once would be twice the memory
                asked_s = self._clock.monotonic_s()
                self._answer = (asked_s, await self._ask())
            return self._answer[1]


_MARKS_KEPT_S: Final = 5.0
"""Listing every mark costs a walk over their tree; a page that refreshes must not walk it each time."""
_FIGURES_KEPT_S: Final = 15.0
_INFO_TIMEOUT_S: Final = 2.0
_INFO_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _Marks:
    tasks: Sequence[Task]
    locked: frozenset[LedgerId]
    parked: Mapping[LedgerId, ParkedTask]


class StoreOperations(Operations):
    """Reads the cluster for the API."""

    def __init__(self, store: MetadataStore, cluster: Cluster, transport: Transport | None, clock: Clock) -> None:
        """Only stores.

        Args:
            store: a session with the cluster's store.
            cluster: which cluster.
            transport: asks bookies for their figures; None: there are none.
            clock: for the age of answers.
        """
        self._under_replication = UnderReplication(store, cluster, clock)
        self._registrations = Registrations(store, cluster)
        self._ledgers = LedgerStore(store, cluster, random.SystemRandom())
        self._parked = ParkedTasks(store, cluster.root)
        self._drains = Drains(store, cluster.root)
        self._transport = transport
        self._marks = Snapshot(self._read_marks, _MARKS_KEPT_S, clock)
        self._bookies = Snapshot(self._read_bookies, _FIGURES_KEPT_S, clock)

    @override
    async def list_tasks(self, limit: int, after: LedgerId | None = None, *, missing: str = "") -> TaskPage:
        marks = await self._marks.get()
        chosen = [task for task in marks.tasks if not missing or missing in task.missing]
        first = 0 if after is None else bisect_right(chosen, after, key=lambda task: task.ledger_id)
        page = chosen[first : first + limit]
        has_more = first + limit < len(chosen)
        draining = (await self._drains.draining()).bookies
        bookies = (await self._registrations.list()).with_draining(draining)
        found = await self._ledgers.read_many([task.ledger_id for task in page])
        views = [_view(task, ledger, marks, bookies) for task, ledger in zip(page, found, strict=True)]
        return TaskPage(views, page[-1].ledger_id if has_more else None, len(chosen))

    @override
    async def marked(self) -> Sequence[Task]:
        return (await self._marks.get()).tasks

    @override
    async def bookies(self) -> Sequence[BookieView]:
        return await self._bookies.get()

    @override
    async def is_recovery_enabled(self) -> bool:
        return not await self._under_replication.switches.is_disabled()

    @override
    async def set_recovery(self, *, is_on: bool) -> None:
        await self._under_replication.initialize()
        try:
            await (self._under_replication.switches.enable() if is_on else self._under_replication.switches.disable())
        except (AlreadyEnabledError, AlreadyDisabledError):
            return

    @override
    async def lost_bookie_delay_s(self) -> int:
        return await self._under_replication.switches.lost_bookie_delay_s()

    @override
    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        await self._under_replication.switches.set_lost_bookie_delay_s(seconds)

    async def _read_marks(self) -> _Marks:
        parked = await self._parked.list()
        return _Marks(
            await self._under_replication.list(),
            await self._under_replication.locks.locked(),
            {park.ledger_id: park for park in parked},
        )

    async def _read_bookies(self) -> Sequence[BookieView]:
        registered, known = await self._registrations.list(), await self._registrations.known()
        slots = asyncio.Semaphore(_INFO_AT_ONCE)

        async def look(bookie: BookieId) -> BookieView:
            async with slots:
                return await self._look(bookie, registered)

        return await asyncio.gather(*(look(bookie) for bookie in sorted(known | registered.registered)))

    async def _look(self, bookie: BookieId, registered: Bookies) -> BookieView:
        info = await self._registrations.service_info(bookie) if bookie in registered.registered else None
        if info is None:
            return BookieView(bookie, BookieState.LOST)
        state = BookieState.READ_ONLY if bookie in registered.read_only else BookieState.WRITABLE
        if not info.endpoints:
            return BookieView(bookie, state)
        endpoint = info.endpoints[0]
        address = (bookie, state, endpoint.host, endpoint.port, endpoint.protocol)
        if self._transport is None:
            return BookieView(*address)
        reply = await self._transport.ask(bookie, Info(), _INFO_TIMEOUT_S)
        if reply.status is not Status.OK or reply.info is None:
            return BookieView(*address)
        figures = (reply.info.disk_total_bytes, max(0, reply.info.disk_free_bytes), reply.info.ledger_count)
        return BookieView(*address, *figures)


def worst_fragment(metadata: LedgerMetadata, bookies: Bookies) -> FragmentHealth | None:
    """Verdict on the fragment closest to loss; None if every member of each is registered and stays."""
    worst: FragmentHealth | None = None
    for index, fragment in enumerate(metadata.fragments):
        health = fragment_health(
            [member in bookies.registered for member in fragment.members],
            metadata.write_quorum,
            metadata.ack_quorum,
            fragment.first_entry_id,
            metadata.fragment_last_entry_id(index),
            [member in bookies.draining for member in fragment.members],
        )
        if health.severity is None:
            continue
        if worst is None or worst.severity is None or health.severity < worst.severity:
            worst = health
    return worst


def _view(task: Task, ledger: Versioned | Unreadable | None, marks: _Marks, bookies: Bookies) -> TaskView:
    park = marks.parked.get(task.ledger_id)
    is_locked = task.ledger_id in marks.locked
    state = TaskState.IN_PROGRESS if is_locked else TaskState.PARKED if park else TaskState.WAITING
    condition, copies_min, detail = "gone", None, park.detail if park else ""
    ledger_bytes = None
    if isinstance(ledger, Unreadable):
        condition, detail = "unreadable", ledger.reason
    elif ledger is not None:
        worst = worst_fragment(ledger.metadata, bookies)
        severity = worst.severity if worst else None
        condition = severity.name.lower() if severity is not None else "healthy"
        copies_min = worst.copies_min if worst else None
        ledger_bytes = ledger.metadata.length
    return TaskView(
        ledger_id=task.ledger_id,
        missing=task.missing,
        marked_ms=max(0, task.ctime_ms),
        state=state,
        condition=condition,
        copies_min=copies_min,
        ledger_bytes=ledger_bytes,
        park_reason=park.reason if park else None,
        detail=detail,
    )
