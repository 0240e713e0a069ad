"""A cluster on the in-memory store with auditors on virtual time, and a check that takes time but needs no Spark."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypedDict

from auditor.service.events import EventFanout
from auditor.service.runs.manager import RunRequest
from auditor.service.runs.schedule import Schedule, SchedulerPort, first_due_ms, period_s
from auditor.service.service import AuditorService, ServicePorts, StoreConnection
from auditor.service.settings import ServiceSettings
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.marking_policy import MarkingPolicies
from bookie.metadata.bookies.rack_outage import Losses
from bookie.metadata.bookies.registration import Registrations, ServiceInfo
from bookie.metadata.cluster import open_cluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import ensure_path
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.runs.gate import RunGate
from spark_jobs.runs.life_cycle import RunOutcome
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.lost_bookies import LostBookies
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from tests.worlds.cluster import ROOT, MemoryCluster
from tests.worlds.virtual_time import run_virtual, when

BOOKIES = tuple(BookieId(f"bk{number}:3181") for number in range(1, 6))
SESSION_TIMEOUT_S = 10.0


class Pace(TypedDict):
    """The intervals of a leader's periodic work."""

    session_timeout_s: float
    backlog_interval_s: float


LONG_TIMES: Pace = {"session_timeout_s": 40.0, "backlog_interval_s": 3600.0}
"""Settings for tests of many hours: a leader confirms its vote and counts the backlog less often."""

P = ParamSpec("P")


@dataclass
class Marked:
    """One audit with a publication."""

    at_s: float
    bookies: frozenset[BookieId]


class ServiceWorld(MemoryCluster):
    """A cluster of bookies, each with its own session, and auditors."""

    def __init__(self) -> None:
        super().__init__()
        self.bookies: dict[BookieId, MemoryStore] = {}
        self.marked: list[Marked] = []
        self.critical_marked: list[Marked] = []
        """The audits that marked only the critical ledgers of these bookies."""
        self.check_s = 1.0
        self.failures: list[Exception] = []
        self.auditors: list[Auditor] = []

    @classmethod
    async def create(cls, bookies: int = 5) -> ServiceWorld:
        world = await cls().found()
        for bookie in BOOKIES[:bookies]:
            await ensure_path(world.store, cookie_path(ROOT, bookie))
            await world.up(bookie)
        return world

    async def up(self, bookie: BookieId) -> None:
        store = self.bookies[bookie] = self.session()
        registrations = Registrations(store, self.cluster)
        await registrations.register(bookie, ServiceInfo(()), is_read_only=False, takeover_deadline_s=10)

    async def down(self, bookie: BookieId) -> None:
        await self.bookies.pop(bookie).close()

    async def set_delay(self, seconds: int) -> None:
        await self.tasks.switches.set_lost_bookie_delay_s(seconds)

    async def auditor(self, name: str = "a", **settings: object) -> Auditor:
        auditor = Auditor(self, name, settings)
        self.auditors.append(auditor)
        return auditor

    async def leader(self, name: str = "a", **settings: object) -> Auditor:
        """Return an auditor after it becomes the leader."""
        auditor = await self.auditor(name, **settings)
        await when(lambda: auditor.leads)
        return auditor

    async def close(self) -> None:
        for auditor in self.auditors:
            await auditor.stop()
        await super().close()

    @property
    def marked_bookies(self) -> list[frozenset[BookieId]]:
        return [marked.bookies for marked in self.marked]


def in_service_world(
    test: Callable[Concatenate[ServiceWorld, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Run a coroutine test in virtual time; its first argument is a world with five bookies."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            world = await ServiceWorld.create()
            await test(world, *args, **kwargs)
            await world.close()

        run_virtual(main())

    # pytest must not see the world as a fixture
    signature = inspect.signature(test)
    shown: Any = run
    shown.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return run


@dataclass
class Counted:
    """Counters of events."""

    leaderships: list[bool] = field(default_factory=list)
    ended: list[RunRecord] = field(default_factory=list)
    losses_s: list[float] = field(default_factory=list)

    def leadership_changed(self, is_leader: bool) -> None:
        self.leaderships.append(is_leader)

    def run_started(self, record: RunRecord) -> None:
        pass

    def run_ended(self, record: RunRecord) -> None:
        self.ended.append(record)

    def loss_audited(self, seconds: float) -> None:
        self.losses_s.append(seconds)


class Auditor:
    """One auditor process."""

    def __init__(self, world: ServiceWorld, name: str, settings: dict[str, object]) -> None:
        self.world = world
        self.store = world.session()
        self.runner = FakeCheck(self)
        self.counted = Counted()
        self.spark: list[str] = []
        """What happened to the session: started, stopped."""
        self.fault = ""
        """The fault that makes it stop."""
        self.settings = ServiceSettings(
            **{  # type: ignore[arg-type]
                "metadata_uri": "zk://h:1/ledgers",
                "bookies_schedule": "off",
                "session_timeout_s": SESSION_TIMEOUT_S,
                **settings,
            }
        )
        ports = ServicePorts(
            runner=self.runner,
            events=EventFanout([self.counted]),
            clock=world.clock,
            rng=random.Random(name),
            name=f"{name}:8080",
            process=f"{name}:1",
            prepare=lambda: self._spark("started"),
            release=lambda: self._spark("stopped"),
            fault=lambda: self.fault,
            make_scheduler=lambda fire: VirtualScheduler(self.settings.schedules, fire, world.clock),
        )
        self.service = AuditorService(self.settings, ports)
        self.stopping = asyncio.Event()
        self.connect_failures: list[Exception] = []
        self.task = guarded(f"auditor {name}", self.service.serve(self._connect, self.stopping))

    async def _connect(self) -> StoreConnection:
        if self.connect_failures:
            raise self.connect_failures.pop()
        return StoreConnection(self.store, await open_cluster(self.store, ROOT))

    async def _spark(self, what: str) -> None:
        self.spark.append(what)

    @property
    def leads(self) -> bool:
        return self.service.status().is_leader

    async def stop(self) -> None:
        """End the auditor as SIGTERM does."""
        self.stopping.set()
        await asyncio.wait([self.task])

    async def kill(self) -> None:
        """End the auditor as SIGKILL does, and return after the end of its session."""
        await asyncio.sleep(SESSION_TIMEOUT_S)
        self.store.expire()
        self.store.suspend()
        await cancel(self.task)


class FakeCheck:
    """A check of ``world.check_s`` seconds. It marks as the real bookies check does: lost bookies after their delay."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self.requests: list[RunRequest] = []

    async def run(self, request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        world = self._auditor.world
        self.requests.append(request)
        if world.failures:
            raise world.failures.pop(0)
        step_s = 0.1 if world.check_s <= 100 else 1.0
        steps = max(1, round(world.check_s / step_s))
        for step in range(steps):
            gate.check()
            while gate.is_paused:
                await world.clock.sleep(1)
                gate.check()
            progress(ProgressEvent(Phase.SCAN, step, steps))
            await world.clock.sleep(step_s)
        gate.check()
        return (
            await self._publish(request, gate)
            if request.kind is RunKind.BOOKIES
            else RunOutcome(RunState.DONE, 0, "", "clean", is_success=True, also_done=request.kind.contained)
        )

    async def _publish(self, request: RunRequest, gate: RunGate) -> RunOutcome:
        world, store = self._auditor.world, self._auditor.store
        cluster = await open_cluster(store, ROOT)
        registrations, down = Registrations(store, cluster), FirstSeenDown(store, ROOT)
        registered, known = (await registrations.list()).registered, await registrations.known()
        held = held_because(known, registered, 0, None, self._auditor.settings.missing_share_max)
        if held:
            return RunOutcome(RunState.DONE, 6, held, "held")
        now_ms = world.clock.epoch_ms()
        tasks = UnderReplication(store, cluster, world.clock)
        noted = await down.reconcile(known - registered, now_ms, registered=registered)
        policies = MarkingPolicies(store, cluster, tasks, self._auditor.settings.marking_rules)
        policy = await policies.read(now_ms, Losses(known, registered, noted))
        lost = LostBookies(noted, policy, now_ms)
        due, critical = lost.due, lost.critical_due
        reason = gate.stop_reason()
        if reason is not None:
            raise RunStoppedError(reason)
        if due:
            world.marked.append(Marked(world.clock.monotonic_s(), frozenset(due)))
        if critical:
            world.critical_marked.append(Marked(world.clock.monotonic_s(), frozenset(critical)))
        for bookie, loss in due.items():
            await down.note_audited(bookie, loss.since_ms, now_ms)
        for bookie, loss in critical.items():
            await down.note_critical_audited(bookie, loss.since_ms, now_ms)
        return RunOutcome(RunState.DONE, 0, "", "clean", is_success=True, ledgers=10)


class VirtualScheduler(SchedulerPort):
    """A scheduler like ``schedule.Scheduler``, on virtual time and without jitter."""

    def __init__(
        self, schedules: Mapping[RunKind, Schedule], fire: Callable[[RunKind], Awaitable[None]], clock: Clock
    ) -> None:
        self._schedules = schedules
        self._fire = fire
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, last_success_ms: Mapping[RunKind, int], now_ms: int) -> None:
        self.stop()
        for kind, schedule in self._schedules.items():
            if schedule is not None:
                due_ms = first_due_ms(schedule, last_success_ms.get(kind, 0), now_ms, 3600, 0)
                assert due_ms is not None
                self._tasks.append(guarded("schedule", self._run(kind, due_ms - now_ms, period_s(schedule, now_ms))))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def next_run_ms(self) -> Mapping[RunKind, int]:
        return {}

    async def _run(self, kind: RunKind, wait_ms: int, every_s: float) -> None:
        await self._clock.sleep(wait_ms / 1000)
        while True:
            await self._fire(kind)
            await self._clock.sleep(every_s)
