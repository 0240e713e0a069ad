"""The long-lived auditor: takes part in the election, and does a leader's work exactly while it leads.

The service survives an outage of the store: failed work is retried. The leadership and a leader's work end with the
session, and can begin again with the next one. The listeners exist from the start, so that liveness and status
are answered without the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from auditor.api.control import Backlog, Control, RunBusyError, ServiceStatus
from auditor.operating.client import RefusedError
from auditor.service.events import ServiceEvents
from auditor.service.leader_term import Housekeeping, LeaderTerm
from auditor.service.runs.manager import CheckRunner, RunManager
from auditor.service.runs.schedule import Schedule, Scheduler, SchedulerPort, period_s
from auditor.service.runs.scheduled_runs import ScheduledRuns
from auditor.service.settings import ServiceSettings
from auditor.service.watch.backlog import backlog_counter
from auditor.service.watch.bookie_watch import SETTLE_SESSIONS, BookieWatch, ObservedCluster, WatchPorts
from auditor.service.watch.overview import BacklogSource, Overview, RunHistory
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.returned import ReturnedBookies
from bookie.metadata.bookies.topology import InvalidTopologyError, TopologyStore, parse_topology, topology_text
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import AccessDeniedError, MetadataStore, StoreUnavailableError
from bookie.metadata.pulsar.tree import PulsarTree
from bookie.metadata.runs.election import Election, Leadership
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.reaching import reached_unless_stopped
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.version import installed_version
from spark_jobs.runs.gate import Stop
from spark_jobs.runs.prerequisites import NoPulsarError, require_pulsar, roots_in

_log = logging.getLogger(__name__)

STOP_DEADLINE_S: Final = 17.0
"""Longest wait for runs to end at their gates. With the deadlines after it, and that of Spark, it is below the 30 s
that Kubernetes waits after SIGTERM."""
RELEASE_DELAY_S: Final = 30.0
"""Time between the end of a term and the release of what only a leader needs. So a short outage of the store does not
make the next term start Spark again, and runs of the ended term end at their gates."""
_RECORD_DEADLINE_S: Final = 2.0
_RESIGN_DEADLINE_S: Final = 2.0


def _nothing() -> None:
    pass


def _no_fault() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """A session with the store, and the cluster in it. The owner of the service closes it."""

    store: MetadataStore
    cluster: Cluster


Connect = Callable[[], Awaitable[StoreConnection]]
"""Opens a connection. Raises StoreUnavailableError if there is no answer (retried); other errors are final."""


MakeScheduler = Callable[[Callable[[RunKind], Awaitable[None]]], SchedulerPort]


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """The parts of the service besides the store."""

    runner: CheckRunner
    events: ServiceEvents
    clock: Clock
    rng: random.Random
    name: str
    """Name in the election: the host and port of the HTTP API."""
    process: str
    """Name in run records: host and process id."""
    make_scheduler: MakeScheduler | None = None
    """Makes the scheduler; None: a scheduler on the machine's time."""
    counter: BacklogSource | None = None
    """Counts the backlog; None: it is counted on the service's session and loop, which suits only small backlogs."""
    prepare: Callable[[], Awaitable[object]] | None = None
    """Called when this process begins to lead, to start what takes long."""
    release: Callable[[], Awaitable[object]] | None = None
    """Called ``RELEASE_DELAY_S`` after a term if no new term has begun, to release what only a leader needs."""
    fault: Callable[[], str] = _no_fault
    """Returns the fault of this process that stops the service; empty after an orderly request to stop it."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the service that need the store."""

    connection: StoreConnection
    election: Election
    runs: Runs
    manager: RunManager
    watch: BookieWatch
    overview: Overview
    scheduled: ScheduledRuns
    term: LeaderTerm
    changes: ChangeRecords


class AuditorService(Control):
    """The auditor service. Implements ``Control``."""

    def __init__(self, settings: ServiceSettings, ports: ServicePorts) -> None:
        self._settings = settings
        self._ports = ports
        self._version = installed_version()
        self._parts: _Parts | None = None
        self._scheduler = (ports.make_scheduler or self._make_scheduler)(self._fire)
        self._schedules: Mapping[RunKind, Schedule] = settings.schedules
        self._schedule_texts = settings.schedule_texts
        now_ms = ports.clock.epoch_ms()
        self._period_s = {
            kind: period_s(schedule, now_ms) for kind, schedule in self._schedules.items() if schedule is not None
        }
        for kind, period in tuple(self._period_s.items()):
            for contained in kind.contained:  # a check without a schedule of its own runs as a part of this one
                self._period_s.setdefault(contained, period)

    async def serve(self, connect: Connect, stop: asyncio.Event, on_ready: Callable[[], None] = _nothing) -> None:
        """Serve until ``stop``. Runs end at their next gate, the vote is withdrawn, and the session is closed.

        Args:
            connect: opens the session; tried until it succeeds.
            stop: set to stop the service.
            on_ready: called once the store is reached.

        Raises:
            NotAClusterError: there is no cluster at the metadata URI.
            ZooKeeperAccessError, AccessDeniedError: ZooKeeper accepts neither the certificates nor the login.
        """
        connection = await self._connected(connect, stop)
        if connection is None:
            return
        try:
            parts = self._parts = self._make_parts(connection)
            on_ready()
            tasks = [
                guarded("election", parts.election.run()),
                guarded("bookie watch", parts.watch.run()),
                guarded("overview", parts.overview.run()),
                guarded("leadership", self._follow(parts)),
            ]
            fault = "the auditor could not continue"
            try:
                await _first_of(stop, tasks)
                fault = self._ports.fault()
            finally:
                await self._stop_parts(parts, tasks, fault)
        finally:
            await connection.store.close()

    @property
    def connection(self) -> StoreConnection:
        """The session and the cluster. They may be used until the service ends; only the service closes them.

        Raises:
            StoreUnavailableError: the store has not been reached yet.
        """
        return self._require_parts().connection

    @override
    def status(self) -> ServiceStatus:
        parts = self._parts
        settings, ports = self._settings, self._ports
        leadership = Leadership() if parts is None else parts.election.state
        seen = ObservedCluster() if parts is None else parts.watch.seen
        history = RunHistory() if parts is None else parts.overview.history
        own = () if parts is None else parts.manager.running
        own_ids = {record.run_id for record in own}
        return ServiceStatus(
            version=self._version,
            process=ports.process,
            is_leader=parts is not None and parts.election.is_leader(),
            leader=leadership.leader,
            is_store_connected=parts is not None and parts.connection.store.session.is_connected,
            metadata_uri=settings.metadata_uri,
            instance_id="" if parts is None else parts.connection.cluster.instance_id,
            is_recovery_enabled=seen.is_recovery_enabled,
            lost_bookie_delay_s=seen.delay_s,
            writable=sorted(seen.writable),
            read_only=sorted(seen.read_only),
            lost=seen.lost,
            held_because=seen.held_because,
            windows=seen.windows,
            problems=() if parts is None else tuple(filter(None, (parts.election.problem, parts.watch.problem))),
            backlog=Backlog() if parts is None else parts.overview.backlog,
            running=(*own, *(record for record in history.running if record.run_id not in own_ids)),
            last=history.last,
            last_complete=history.last_complete,
            results=history.results,
            ended=history.ended,
            last_success_ms=history.last_success_ms,
            period_s=self._period_s,
            schedules=self._schedule_texts,
            next_run_ms=self._scheduler.next_run_ms(),
            paused_kinds=history.paused_kinds,
        )

    @override
    async def runs(self, limit: int = 50) -> Sequence[RunRecord]:
        return await self._require_parts().manager.list(limit)

    @override
    async def refusal_reason(self, kind: RunKind) -> str:
        try:
            if kind is RunKind.PLACEMENT and not await self._has_topology():
                return (
                    "placement cannot be judged without a topology: write one to ZooKeeper, or start the auditor "
                    "with --topology-file"
                )
            if kind is RunKind.REFERENCES:
                connection = self._require_parts().connection
                roots = roots_in(self._settings.pulsar_roots, connection.cluster.root)
                require_pulsar([root for root in roots if not await PulsarTree(connection.store, root).exists()])
        except NoPulsarError as error:
            return str(error)
        except (InvalidTopologyError, AccessDeniedError):
            return ""
        return ""

    async def _has_topology(self) -> bool:
        connection = self._require_parts().connection
        if (text := topology_text(self._settings.topology_file)) is not None:
            return bool(parse_topology(text).locations)
        return bool((await TopologyStore(connection.store, connection.cluster).read()).topology.locations)

    @override
    async def run(self, run_id: str) -> RunRecord:
        return await self._require_parts().manager.get(run_id)

    @override
    async def start_run(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any] = {}
    ) -> RunRecord:
        parts = self._require_parts()
        # A scheduled run fails instead, so that its record shows the problem.
        if cause is not RunCause.SCHEDULE and parts.election.is_leader():
            refusal_reason = await self.refusal_reason(kind)
            if refusal_reason:
                raise RefusedError(refusal_reason)
        record = await parts.manager.start(kind, cause=cause, owner=owner, is_dry_run=is_dry_run, options=options)
        self._ports.events.run_started(record)
        return record

    @override
    async def cancel_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._require_parts().manager.cancel(run_id, owner, via)

    @override
    async def pause_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._require_parts().manager.pause(run_id, owner, via)

    @override
    async def resume_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._require_parts().manager.resume(run_id, owner, via)

    @override
    async def pause_kind(self, kind: RunKind, *, owner: str, via: str) -> KindPause:
        parts = self._require_parts()
        pause = KindPause(owner, self._ports.clock.epoch_ms() + int(self._settings.pause_s * 1000))
        await parts.changes.record(owner, via, "schedule pause", f"{kind.value} for {self._settings.pause_s:g} s")
        await parts.runs.pause_kind(kind, owner, pause.until_ms)
        fields = {"kind": kind.value, "owner": owner, "until": rfc3339(pause.until_ms)}
        _log.info("schedule paused", extra=fields)
        parts.overview.request_observation()
        return pause

    @override
    async def resume_kind(self, kind: RunKind, *, owner: str, via: str) -> None:
        parts = self._require_parts()
        await parts.connection.store.sync(parts.connection.cluster.root)  # so that a pause made just before is found
        if kind not in await parts.runs.paused_kinds(self._ports.clock.epoch_ms()):
            return
        await parts.changes.record(owner, via, "schedule resume", kind.value)
        await parts.runs.resume_kind(kind)
        _log.info("schedule resumed", extra={"kind": kind.value, "owner": owner})
        parts.overview.request_observation()

    @override
    async def wait_changed(self, run_id: str, seen: RunRecord) -> RunRecord:
        return await self._require_parts().manager.wait_changed(run_id, seen)

    def _require_parts(self) -> _Parts:
        if self._parts is None:
            raise StoreUnavailableError(
                f"this auditor has not reached {self._settings.metadata_uri} yet; it keeps trying"
            )
        return self._parts

    async def _connected(self, connect: Connect, stop: asyncio.Event) -> StoreConnection | None:
        """Connect, however long it takes; None if the service is stopped before that."""
        return await reached_unless_stopped(connect, self._ports.clock, stop)

    async def _follow(self, parts: _Parts) -> None:
        """Do a leader's work during each term."""
        term: asyncio.Task[Any] | None = None
        releasing: asyncio.Task[Any] | None = None
        state = Leadership()
        try:
            while True:
                new = await parts.election.wait_changed(state)
                if (new.is_leader, new.term) != (state.is_leader, state.term):
                    if state.is_leader:
                        self._end_term(parts)
                        await cancel(term)
                        await cancel(releasing)
                        releasing = guarded("release", self._release(parts))
                    if new.is_leader:
                        await cancel(releasing)
                        term = guarded(f"term {new.term}", parts.term.run())
                    if new.is_leader != state.is_leader:
                        self._ports.events.leadership_changed(new.is_leader)
                    parts.watch.request_observation()
                    parts.overview.request_observation()
                state = new
        finally:
            self._end_term(parts)
            await cancel(term)
            await cancel(releasing)

    async def _release(self, parts: _Parts) -> None:
        """Release what only a leader needs, ``RELEASE_DELAY_S`` after a term. The next term cancels this."""
        if self._ports.release is None:
            return
        await self._ports.clock.sleep(RELEASE_DELAY_S)
        await parts.manager.wait_all_ended(STOP_DEADLINE_S)
        _log.info("this auditor is not the leader, the resources of a leader are released")
        await self._ports.release()

    def _end_term(self, parts: _Parts) -> None:
        self._scheduler.stop()
        parts.scheduled.cancel_all()
        parts.manager.stop_all(
            Stop("this auditor is no longer the leader", RunState.ABANDONED, ExitCode.STORE_UNREACHABLE)
        )

    async def _fire(self, kind: RunKind) -> None:
        self._require_parts().scheduled.begin(kind)

    async def _start_scheduled(self, kind: RunKind) -> RunRecord:
        return await self.start_run(kind, cause=RunCause.SCHEDULE, owner=self._ports.process)

    async def _start_audit(self, cause: RunCause, owner: str) -> None:
        """Start a bookies run. If one is under way, and a bookie was lost, cancel it; the caller tries again.

        Raises:
            RunBusyError: a run is under way.
        """
        try:
            await self.start_run(RunKind.BOOKIES, cause=cause, owner=owner)
        except RunBusyError as busy:
            if cause is RunCause.BOOKIE_LOSS:
                await self._require_parts().manager.end_delaying_run(
                    RunKind.BOOKIES, busy.run_id, "the loss of a bookie"
                )
            raise

    async def _stop_parts(self, parts: _Parts, tasks: Sequence[asyncio.Task[Any]], fault: str) -> None:
        self._scheduler.stop()
        parts.manager.refuse_new_runs()
        code = ExitCode.INTERNAL if fault else ExitCode.CANCELLED
        parts.manager.stop_all(Stop(fault or "the auditor is stopping", RunState.ABANDONED, code))
        if not await parts.manager.wait_all_ended(STOP_DEADLINE_S):
            _log.warning("runs did not end in time", extra={"deadline_s": STOP_DEADLINE_S})
            await parts.manager.end_all_records(_RECORD_DEADLINE_S)
        for task in tasks:
            await cancel(task)
        with contextlib.suppress(TransientError, OutcomeUnknownError, TimeoutError):
            async with asyncio.timeout(_RESIGN_DEADLINE_S):  # otherwise the end of the session removes the vote
                await parts.election.resign()

    def _make_parts(self, connection: StoreConnection) -> _Parts:
        settings, ports = self._settings, self._ports
        store, cluster = connection.store, connection.cluster
        election = Election(store, cluster.root, ports.name, ports.clock, session_timeout_s=settings.session_timeout_s)
        runs, changes = Runs(store, cluster.root), ChangeRecords(store, cluster.root, ports.clock)
        manager = RunManager(
            runs,
            election,
            ports.runner,
            process=ports.process,
            clock=ports.clock,
            rng=ports.rng,
            pause_s=settings.pause_s,
            note=changes.record,
        )
        registrations, tasks = Registrations(store, cluster), UnderReplication(store, cluster, ports.clock)
        counter = ports.counter or backlog_counter(store, cluster, ports.clock)
        overview = Overview(
            runs, counter, ports.clock, is_leader=election.is_leader, interval_s=settings.backlog_interval_s
        )
        watch = BookieWatch(
            WatchPorts(
                store=store,
                cluster=cluster,
                registrations=registrations,
                tasks=tasks,
                down=FirstSeenDown(store, cluster.root),
                clock=ports.clock,
                is_leader=election.is_leader,
                start_audit=self._start_audit,
                wait_audit_ended=lambda: manager.wait_ended(RunKind.BOOKIES),
                events=ports.events,
            ),
            missing_share_max=settings.missing_share_max,
            settle_s=SETTLE_SESSIONS * settings.session_timeout_s,
            rules=settings.marking_rules,
        )

        def ended(record: RunRecord) -> None:
            ports.events.run_ended(record)
            watch.request_observation()
            overview.request_observation()

        manager.on_ended(ended)
        housekeeping = Housekeeping(
            runs=runs,
            tasks=tasks,
            windows=MaintenanceWindows(store, cluster.root),
            returned=ReturnedBookies(store, cluster.root),
            clock=ports.clock,
            on_pause_ended=overview.request_observation,
            runs_kept=settings.runs_kept,
            pause_s=settings.pause_s,
        )
        return _Parts(
            connection=connection,
            election=election,
            runs=runs,
            manager=manager,
            watch=watch,
            overview=overview,
            scheduled=ScheduledRuns(self._start_scheduled, manager, runs, ports.clock, settings.misfire_grace_s),
            term=LeaderTerm(self._scheduler, housekeeping, runs, ports.clock, ports.prepare),
            changes=changes,
        )

    def _make_scheduler(self, fire: Callable[[RunKind], Awaitable[None]]) -> SchedulerPort:
        settings = self._settings
        return Scheduler(
            settings.schedules,
            fire,
            jitter_s=settings.schedule_jitter_s,
            misfire_grace_s=settings.misfire_grace_s,
            rng=self._ports.rng,
        )


async def _first_of(stop: asyncio.Event, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Run until a stop is requested. A task that ends by itself is a defect, and stops the service with its error."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stopping.cancel()
