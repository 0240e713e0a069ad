"""Reads the state that a leading auditor would export, and changes nothing.

The parts are those of the service: a follower's watch of the bookies, the overview of runs and backlog, and the counter
of the backlog with its pauses. None of them writes unless its process leads, and this one never leads. So any number of
exporters may run, with or without auditors.

``status`` is None unless the bookies were read within ``FRESH_S``, and the runs once. The watch reads four times in
this period, so figures disappear in an outage of the store, but not after one slow read. The age of the backlog is a
metric of its own, because counting a large one takes minutes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from typing_extensions import override

from auditor.api.control import NotLeaderError, ServiceStatus
from auditor.exporter.settings import ExporterSettings
from auditor.metrics.service_metrics import observe_detection
from auditor.service.events import EventFanout, ServiceEvents
from auditor.service.watch.bookie_watch import CHECK_INTERVAL_S, SETTLE_SESSIONS, BookieWatch, WatchPorts
from auditor.service.watch.loss_observer import LossObserver
from auditor.service.watch.overview import BacklogSource, Overview
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.run import RunCause, RunRecord
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.metrics import MetricSet

FRESH_S: Final = 4 * CHECK_INTERVAL_S


class DetectionEvents(ServiceEvents):
    """Records the detection times of losses that other processes marked."""

    def __init__(self, metrics: MetricSet) -> None:
        self._metrics = metrics

    @override
    def leadership_changed(self, is_leader: bool) -> None:
        pass

    @override
    def run_started(self, record: RunRecord) -> None:
        pass

    @override
    def run_ended(self, record: RunRecord) -> None:
        pass

    @override
    def loss_audited(self, seconds: float) -> None:
        observe_detection(self._metrics, seconds)


class Exporter:
    """The state of one cluster, on one session."""

    def __init__(
        self,
        settings: ExporterSettings,
        version: str,
        store: MetadataStore,
        cluster: Cluster,
        counter: BacklogSource,
        clock: Clock,
        events: ServiceEvents,
    ) -> None:
        self._settings = settings
        self._version = version
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._overview = Overview(
            Runs(store, cluster.root),
            counter,
            clock,
            is_leader=lambda: True,  # so that the backlog is counted
            interval_s=settings.backlog_interval_s,
            are_locks_read=True,
        )
        fanout = EventFanout([events])
        self._watch = BookieWatch(
            WatchPorts(
                store=store,
                cluster=cluster,
                registrations=Registrations(store, cluster),
                tasks=UnderReplication(store, cluster, clock),
                down=FirstSeenDown(store, cluster.root),
                clock=clock,
                is_leader=lambda: False,  # nothing is noted, and no audit is started
                start_audit=_refuse_audit,
                wait_audit_ended=_wait_forever,
                events=fanout,
            ),
            missing_share_max=settings.missing_share_max,
            settle_s=SETTLE_SESSIONS * settings.session_timeout_s,
            rules=settings.marking_rules,
            observer=LossObserver(store, cluster.root, clock, lambda: self._overview.backlog, fanout.loss_audited),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Read until ``stop`` is set. If a task ends before that, this is a defect, and its error is raised."""
        works = [guarded("bookie watch", self._watch.run()), guarded("overview", self._overview.run())]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *works], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()
            for work in works:
                await cancel(work)

    @property
    def problem(self) -> str:
        """Return why the store does not let this process read the cluster; empty: no reason is known."""
        return self._watch.problem

    def status(self) -> ServiceStatus | None:
        """Return the cluster as read within ``FRESH_S``; None: it was not read. May be called from any thread."""
        now_s = self._clock.monotonic_s()
        if not _is_fresh(self._watch.looked_s, now_s) or self._overview.read_s is None:
            return None
        seen, history = self._watch.seen, self._overview.history
        return ServiceStatus(
            version=self._version,
            process="",
            is_leader=False,
            leader="",
            is_store_connected=self._store.session.is_connected,
            metadata_uri=self._settings.metadata_uri,
            instance_id=self._cluster.instance_id,
            is_recovery_enabled=seen.is_recovery_enabled,
            lost_bookie_delay_s=seen.delay_s,
            writable=sorted(seen.writable),
            read_only=sorted(seen.read_only),
            lost=seen.lost,
            held_because=seen.held_because,
            windows=seen.windows,
            backlog=self._overview.backlog,
            running=history.running,
            last=history.last,
            last_complete=history.last_complete,
            results=history.results,
            ended=history.ended,
            last_success_ms=history.last_success_ms,
            paused_kinds=history.paused_kinds,
        )


def _is_fresh(read_s: float | None, now_s: float) -> bool:
    return read_s is not None and now_s - read_s < FRESH_S


async def _refuse_audit(cause: RunCause, owner: str) -> None:
    raise NotLeaderError("")


async def _wait_forever() -> None:
    await asyncio.Event().wait()
