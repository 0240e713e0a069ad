"""``Operations`` over the cluster's metadata store and its bookies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from typing_extensions import override

from auditor.api.operations_port import (
    ALL_MARKS,
    MARKS_EXAMINED_MAX,
    BookieView,
    MarkFilter,
    MarkPage,
    Operations,
    TaskPage,
    TaskState,
    TaskView,
)
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown, unaudited
from bookie.metadata.bookies.registration import Bookies, BookieState, Registrations, state_of
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable, Versioned
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks
from bookie.metadata.tasks.switches import AlreadyDisabledError, AlreadyEnabledError
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import NO_OWNER, owner_names, owner_of
from bookie.model.severity import FragmentHealth, health_of
from bookie.runtime.clock import Clock
from bookie.wire.port import Status, Transport
from bookie.wire.requests import Info

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """The last answer of ``ask``."""

    def __init__(self, ask: Callable[[], Awaitable[T]], kept_s: float, clock: Clock) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return an answer that is at most ``kept_s`` old. Raises the errors of ``ask``; an error is not kept."""
        async with self._asking:
            if self._answer is None or self._clock.monotonic_s() - self._answer[0] >= self._kept_s:
                self._answer = None  # so that memory never holds two large answers
                asked_s = self._clock.monotonic_s()
                self._answer = (asked_s, await self._ask())
            return self._answer[1]


_PLACES_AT_ONCE: Final = 5_000
"""Places of the tree that one walk examines; other tasks run after each part."""
_BOOKIE_FIGURES_TTL_S: Final = 15.0
_INFO_TIMEOUT_S: Final = 2.0
_INFO_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """The cluster state by which the marks of a page are judged."""

    bookies: Bookies
    locked: frozenset[LedgerId]
    parked: Mapping[LedgerId, ParkedTask]


class StoreOperations(Operations):
    """Reads the cluster for the API."""

    def __init__(self, store: MetadataStore, cluster: Cluster, transport: Transport | None, clock: Clock) -> None:
        """Store the arguments.

        Args:
            store: a session with the cluster's store.
            cluster: which cluster.
            transport: requests figures from bookies; None: there are no figures.
            clock: for the age of answers.
        """
        self._under_replication = UnderReplication(store, cluster, clock)
        self._registrations = Registrations(store, cluster)
        self._ledgers = LedgerStore(store, cluster, random.SystemRandom())
        self._parked = ParkedTasks(store, cluster.root)
        self._drains = Drains(store, cluster.root)
        self._down = FirstSeenDown(store, cluster.root)
        self._transport = transport
        self._bookies = CachedAnswer(self._read_bookies, _BOOKIE_FIGURES_TTL_S, clock)

    @override
    async def list_tasks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> TaskPage:
        page = await self.list_marks(limit, after, wanted)
        ids = [task.ledger_id for task in page.tasks]
        draining = (await self._drains.draining()).bookies
        bookies = (await self._registrations.list()).with_draining(draining)
        found = await self._ledgers.read_many_permitted(ids)
        parked = {park.ledger_id: park for park in await self._parked.read_many(ids, {})}
        cluster_state = _ClusterState(bookies, await self._under_replication.locks.locked_among(ids), parked)
        views = [_view(task, ledger, cluster_state) for task, ledger in zip(page.tasks, found, strict=True)]
        return TaskPage(views, page.next_after)

    @override
    async def list_marks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> MarkPage:
        found: list[Task | UnreadableTask] = []
        examined = 0
        while len(found) < limit and examined < MARKS_EXAMINED_MAX:
            places = min(_PLACES_AT_ONCE, limit - len(found) if wanted == ALL_MARKS else _PLACES_AT_ONCE)
            part = await self._under_replication.page(after, places)
            found += [task for task in part.tasks if wanted.matches(task)]
            after = part.next_after
            if after is None:
                break
            examined += places
        if len(found) > limit:
            return MarkPage(found[:limit], found[limit - 1].ledger_id)
        return MarkPage(found, after)

    @override
    async def is_any_marked(self) -> bool:
        after, examined, places = None, 0, 1
        while examined < MARKS_EXAMINED_MAX:
            part = await self._under_replication.page(after, places)
            if part.tasks or part.next_after is None:
                return bool(part.tasks)
            after, examined, places = part.next_after, examined + places, _PLACES_AT_ONCE
        return True  # such a large empty tree is left by a backlog that is being repaired

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

    async def _read_bookies(self) -> Sequence[BookieView]:
        registered, known = await self._registrations.list(), await self._registrations.known()
        lost = unaudited(await self._down.read())
        slots = asyncio.Semaphore(_INFO_AT_ONCE)

        async def bounded_view(bookie: BookieId) -> BookieView:
            async with slots:
                return await self._bookie_view(bookie, registered)

        return await asyncio.gather(*(bounded_view(bookie) for bookie in sorted(known | registered.registered | lost)))

    async def _bookie_view(self, bookie: BookieId, registered: Bookies) -> BookieView:
        info = await self._registrations.service_info(bookie) if bookie in registered.registered else None
        if info is None:
            return BookieView(bookie, BookieState.UNREGISTERED)
        state = state_of(bookie, registered)
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
    """Return the verdict on the fragment closest to loss; None if all members are registered and not being drained."""
    worst: FragmentHealth | None = None
    for index in range(len(metadata.fragments)):
        health = health_of(metadata, index, bookies.registered, bookies.draining)
        if health.severity is None:
            continue
        if worst is None or worst.severity is None or health.severity < worst.severity:
            worst = health
    return worst


def _view(task: Task | UnreadableTask, ledger: Versioned | Unreadable | None, cluster_state: _ClusterState) -> TaskView:
    park = cluster_state.parked.get(task.ledger_id)
    is_locked = task.ledger_id in cluster_state.locked
    state = TaskState.IN_PROGRESS if is_locked else TaskState.PARKED if park else TaskState.WAITING
    condition, copies_min, detail = "gone", None, park.detail if park else ""
    ledger_bytes, owner = None, NO_OWNER
    if isinstance(ledger, Unreadable):
        condition, detail = "unreadable", ledger.reason
    elif ledger is not None:
        worst = worst_fragment(ledger.metadata, cluster_state.bookies)
        severity = worst.severity if worst else None
        condition = severity.label if severity is not None else "healthy"
        copies_min = worst.copies_min if worst else None
        ledger_bytes = ledger.metadata.length
        owner = owner_names(owner_of(ledger.metadata.custom))
    missing, marked_ms = ((), 0) if isinstance(task, UnreadableTask) else (task.missing, max(0, task.ctime_ms))
    if isinstance(task, UnreadableTask):
        condition, detail = "unreadable", task.reason
    return TaskView(
        ledger_id=task.ledger_id,
        missing=missing,
        marked_ms=marked_ms,
        state=state,
        condition=condition,
        copies_min=copies_min,
        ledger_bytes=ledger_bytes,
        park_reason=park.reason if park else None,
        detail=detail,
        owner=owner,
    )
