"""Wiring of ``bkheal auditor``: the service on ZooKeeper and Spark, its APIs, signals and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from auditor.metrics.service_metrics import AuditorMetrics
from auditor.service.addresses import report_base_url, trusted_proxies
from auditor.service.events import EventFanout, ServiceEvents
from auditor.service.fetched_reports import FetchedReports
from auditor.service.leader_ports import leader_ports
from auditor.service.listeners import Listener, ServiceMetricsEvents, api_listeners, listening, set_rates
from auditor.service.peer_reports import ElectionPeerReports
from auditor.service.report_directory import warn_if_unusable
from auditor.service.runs.spark_holder import Spark, SparkHolder
from auditor.service.runs.spark_runner import SparkRunner, session_settings
from auditor.service.service import AuditorService, Connect, ServicePorts, StoreConnection
from auditor.service.settings import ServiceSettings
from auditor.service.spark_tab import SparkTab
from auditor.service.upkeep import OpenClient, ThreadedUpkeep
from auditor.service.watch.backlog import CountsApart, Open
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.metadata.access import ZooKeeperAccessError
from bookie.metadata.cluster import Cluster, NotAClusterError, open_cluster
from bookie.metadata.migration import MigratedError
from bookie.metadata.own_state import StateRootError, claim_state_root
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.runs.election import candidates
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunRecord, RunState
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.configuration.file_watch import following
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.open_files import raise_open_files_limit
from bookie.runtime.stop_signals import set_on_stop_signals
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.version import installed_version
from spark_jobs.ui.settings import TabSettings

_log = logging.getLogger(__name__)

_SPARK_STOP_DEADLINE_S: Final = 8.0
"""Deadline for stopping Spark. With the deadline for runs, it is below the 30 s that Kubernetes waits after SIGTERM.
The JVM ends with this process in any case."""
SPARK_CHECK_INTERVAL_S: Final = 10.0
"""Time between two checks of Spark. A leader whose Spark has ended keeps its leadership for at most about this long."""


async def run_auditor(settings: ServiceSettings, config: ConfigSource | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. The store may be unavailable at any time, also at first.

    The rate of requests follows ``config``, the file given at the start of the process.

    Raises:
        ConfigurationError: the settings would admit every client, or cannot work.
        AddressInUseError, TlsFilesError: HTTP or gRPC cannot listen.
    """
    raise_open_files_limit()
    stop, clock = asyncio.Event(), SystemClock()
    late = _DeferredTab()
    holder = SparkHolder(session_settings(settings), late if settings.ui_enabled else None)
    spark_watch = SparkWatch(holder, stop)
    metrics = AuditorMetrics(installed_version(), clock, has_apache_names=settings.compat_metrics)
    host = socket.gethostname()
    counter = CountsApart(_session_of(settings), clock, settings.topology_file)
    ports = ServicePorts(
        runner=SparkRunner(holder, settings),
        events=EventFanout((ServiceMetricsEvents(metrics), spark_watch)),
        clock=clock,
        rng=random.SystemRandom(),
        name=f"{settings.advertised_host or host}:{settings.http_port or os.getpid()}",
        process=f"{host}:{os.getpid()}",
        counter=counter,
        prepare=holder.get,
        release=holder.stop,
        fault=spark_watch.fault,
    )
    service = AuditorService(settings, ports)
    late.tab = SparkTab(service, _tab_settings(settings), clock, report_base_url(settings))
    upkeep = ThreadedUpkeep(_client_of(settings), clock)
    listeners = api_listeners(service, settings, metrics, clock, upkeep, _peers(service, settings, ports.name))

    fetched = FetchedReports(settings.report_store, settings.report_dir, settings.kept, clock)
    shared = (fetched,) if settings.report_store else ()

    def leader() -> str:
        return service.status().leader

    watching = guarded("spark watch", spark_watch.run(clock))
    checking = guarded("report directory", warn_if_unusable(settings.report_dir))
    try:
        live = {"requests_per_second": lambda rate: set_rates(listeners, rate)}
        async with (
            listening((*listeners, *leader_ports(settings, leader, clock), *shared)),
            following(config, live, clock, stop.set),
        ):
            code = await _serve(service, settings, stop, lambda: _print_ready(settings, listeners))
    finally:
        await cancel(watching)
        await cancel(checking)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SPARK_STOP_DEADLINE_S):
                await asyncio.gather(holder.stop(), counter.close(), upkeep.close())
    return ExitCode.INTERNAL if spark_watch.is_gone else code


def _peers(service: AuditorService, settings: ServiceSettings, own_name: str) -> ElectionPeerReports | None:
    """Return the other auditors, for their reports; None: the port is unknown, or they require client certificates."""
    if not settings.http_port or settings.tls_client_ca is not None:
        return None

    async def names() -> Sequence[str]:
        connection = service.connection
        return await candidates(connection.store, connection.cluster.root)

    return ElectionPeerReports(names, own_name, settings.http_port, settings.tls_cert)


async def _serve(
    service: AuditorService, settings: ServiceSettings, stop: asyncio.Event, on_ready: Callable[[], None]
) -> ExitCode:
    try:
        with set_on_stop_signals(stop):
            await service.serve(_connect_to(settings), stop, on_ready)
    except (NotAClusterError, MigratedError, StateRootError, ZooKeeperAccessError, AccessDeniedError) as error:
        _log.error("auditor cannot continue", extra={"error": str(error)})
        return ExitCode.CONFIGURATION
    except Exception:  # noqa: BLE001  # the boundary of the process: a defect, which belongs in the log
        _log.exception("auditor failed")
        return ExitCode.INTERNAL
    return ExitCode.OK


class _DeferredTab:
    """A tab that is set later, because the tab needs the service, which needs the session, which shows the tab."""

    def __init__(self) -> None:
        self.tab: SparkTab | None = None

    def attach(self, spark: Spark) -> None:
        if self.tab is not None:
            self.tab.attach(spark)

    def detach(self) -> None:
        if self.tab is not None:
            self.tab.detach()


class SparkWatch(ServiceEvents):
    """Stops the service if Spark's process is dead or hangs: only a new auditor can start a working Spark reliably.

    It checks Spark regularly and after each failed run. A failed start of Spark is retried a few times. To stop the
    service, it kills the Java process, which ends the runs that wait for it. The service then withdraws its vote, and
    another auditor leads.
    """

    def __init__(self, holder: SparkHolder, stop: asyncio.Event) -> None:
        self._holder = holder
        self._stop = stop
        self.is_gone = False

    def fault(self) -> str:
        """Return why this process must end; empty while Spark works, as far as is known."""
        return "Spark has ended or hangs" if self.is_gone else ""

    async def run(self, clock: Clock) -> None:
        """Check Spark until cancelled. A failed check is logged and repeated."""
        while not self.is_gone:
            await clock.sleep(SPARK_CHECK_INTERVAL_S)
            try:
                await self._holder.start_again()
                await self._check_spark()
            except Exception:  # noqa: BLE001  # the boundary of a task: no error may end it, such as too few threads
                _log.exception("the check of Spark failed, trying again")

    @override
    def leadership_changed(self, is_leader: bool) -> None:
        pass

    @override
    def run_started(self, record: RunRecord) -> None:
        pass

    @override
    def run_ended(self, record: RunRecord) -> None:
        if record.state is RunState.FAILED:
            guarded("Spark check", self._check_spark())

    @override
    def loss_audited(self, seconds: float) -> None:
        pass

    async def _check_spark(self) -> None:
        if not await self._holder.is_alive() and not self._stop.is_set():
            _log.error("Spark has ended or hangs: this auditor ends, and another one takes over")
            self.is_gone = True
            self._stop.set()
            self._holder.kill()


def _connect_to(settings: ServiceSettings) -> Connect:
    uri = parse_uri(settings.metadata_uri)

    async def connect() -> StoreConnection:
        store = await ZooKeeperStore.connect(uri.hosts, session_timeout_s=settings.session_timeout_s)
        try:
            cluster = await open_cluster(store, uri)
            await claim_state_root(store, cluster.root)
            return StoreConnection(store, cluster)
        except BaseException:
            await store.close()
            raise

    return connect


def _session_of(settings: ServiceSettings) -> Open:
    """Return a function that opens a session for the counter of the backlog."""
    uri = parse_uri(settings.metadata_uri)

    async def open_session(stack: contextlib.AsyncExitStack) -> tuple[ZooKeeperStore, Cluster]:
        store = await ZooKeeperStore.connect(uri.hosts)
        stack.push_async_callback(store.close)
        return store, await open_cluster(store, uri)

    return open_session


def _client_of(settings: ServiceSettings) -> OpenClient:
    """Return a function that opens a session for the work of operators."""

    async def open_client(stack: contextlib.AsyncExitStack) -> ConnectedBookKeeper:
        client = await connect(
            settings.metadata_uri,
            security=settings.bookie_security.load(),
            topology_file=settings.topology_file,
            placement_policy=settings.placement,
        )
        return await stack.enter_async_context(client)

    return open_client


def _tab_settings(settings: ServiceSettings) -> TabSettings:
    return TabSettings(
        is_trigger_enabled=settings.ui_trigger_enabled,
        is_anonymous_allowed=settings.ui_allow_anonymous,
        proxy_base=settings.ui_proxy_base,
        user_header=settings.ui_user_header,
        trusted_proxies=trusted_proxies(settings.ui_trusted_proxies),
    )


def _print_ready(settings: ServiceSettings, listeners: Sequence[Listener]) -> None:
    """Print the line that the supervisor of this process waits for."""
    http, grpc = (getattr(listener, "port", 0) for listener in listeners)
    scheme = "https" if settings.tls_cert else "http"
    line = f"auditor ready on {scheme}://{settings.http_host}:{http} and grpc {settings.grpc_host}:{grpc}\n"
    sys.stdout.write(line)
    sys.stdout.flush()
