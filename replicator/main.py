"""Wiring: a worker on a real cluster, over kazoo and gRPC, with signals and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TextIO

from bookie.client.placement.feed import load_placement, make_placement_feed
from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.topology import topology_text
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.migration import MigratedError, wait_migrating
from bookie.metadata.own_state import claim_state_root
from bookie.metadata.port import MetadataStore
from bookie.metadata.store.combining import CombiningStore
from bookie.metadata.store.reaching import reached_unless_stopped
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTasks
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.standby import StandbyWorkers
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.metadata.uri import MetadataUri, parse_uri
from bookie.model.errors import BkhealError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.clock import SystemClock
from bookie.runtime.configuration.file_watch import following
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.large_messages import prepare_for_large_messages
from bookie.runtime.open_files import raise_open_files_limit
from bookie.runtime.stop_signals import set_on_stop_signals
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.metrics import SESSION
from bookie.runtime.telemetry.status_pages import Check
from bookie.runtime.telemetry.telemetry import observable
from bookie.runtime.version import installed_version
from bookie.wire.circuits import Circuits, CircuitTransport
from bookie.wire.routing import open_transport
from replicator.ports import RepairPorts
from replicator.settings import ReplicatorSettings
from replicator.telemetry.apache_metrics import ApacheEvents
from replicator.telemetry.events import EventSink, Fanout
from replicator.telemetry.metrics import ReplicatorMetricsEvents, replicator_metrics
from replicator.telemetry.status import JsonEvents, LogEvents, ProgressCounts, ReplicatorProgress
from replicator.worker import RunEnd, Worker

_log = logging.getLogger(__name__)


async def run_replicator(settings: ReplicatorSettings, config: ConfigSource | None = None) -> int:
    """Repair until SIGTERM or SIGINT (with ``once``, until nothing is left to repair) and return the exit code.

    The store may be unavailable at any time, at the start too; only with ``once`` does this end the process. The copy
    rate follows ``config``, the configuration file given at the start.
    """
    prepare_for_large_messages()
    raise_open_files_limit()
    try:
        uri = parse_uri(settings.metadata_uri)
        telemetry = _Telemetry(has_apache_names=settings.has_apache_metrics)
        async with observable(
            settings.http,
            telemetry.metrics,
            telemetry.ready(),
            SystemClock(),
            telemetry.sample,
            is_optional=settings.once,  # it may have the configuration file of a replicator that runs beside it
        ) as http:
            if http is not None:
                _say({"event": "http", "url": http.url}, f"replicator metrics on {http.url}", settings, sys.stdout)
            stop, rate = asyncio.Event(), _Rate()
            async with contextlib.AsyncExitStack() as stack:
                with set_on_stop_signals(stop):
                    live = {"bytes_per_second": rate.set}
                    async with following(config, live, SystemClock(), stop.set):
                        return await _run(uri, settings, telemetry, rate, stop, stack)
    except PermanentError as error:
        _log.error("replicator cannot start", extra={"error": str(error)})
        return ExitCode.CONFIGURATION
    except (TransientError, OutcomeUnknownError) as error:
        _log.error("metadata store is not available", extra={"error": str(error)})
        return ExitCode.STORE_UNREACHABLE
    except BkhealError:
        _log.exception("replicator stopped")
        return ExitCode.INTERNAL


class _Telemetry:
    """The metrics of this process. The store and the worker are registered as sources once they exist."""

    def __init__(self, *, has_apache_names: bool) -> None:
        self.metrics = replicator_metrics(installed_version())
        self.sinks: list[ReplicatorMetricsEvents | ApacheEvents] = [
            ReplicatorMetricsEvents(self.metrics, SystemClock())
        ]
        if has_apache_names:
            apache = ApacheEvents()
            self.metrics.registry.register(apache)
            self.sinks.append(apache)
        self._store: MetadataStore | None = None
        self._worker: Worker | None = None

    def watch_store(self, store: MetadataStore) -> None:
        self._store = store
        self.metrics.watch(SESSION, lambda: store.session.is_connected)

    def watch_worker(self, worker: Worker) -> None:
        self._worker = worker

    def sample(self) -> None:
        if self._worker is not None:
            load = self._worker.load()
            for sink in self.sinks:
                sink.sample(load)

    def ready(self) -> Mapping[str, Check]:
        """Return the readiness checks of this process, named as in the auditor."""
        return {"store": self._store_problem, "permissions": self._permission_problem}

    def _store_problem(self) -> str:
        is_connected = self._store is not None and self._store.session.is_connected
        return "" if is_connected else "no connected session with ZooKeeper"

    def _permission_problem(self) -> str:
        return "" if self._worker is None else self._worker.problem


class _Rate:
    """The copy rate of a worker that may not exist yet."""

    def __init__(self) -> None:
        self._rate: int | None = None
        self._worker: Worker | None = None

    def set(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        if self._worker is not None:
            self._worker.set_rate(bytes_per_second)

    def follow(self, worker: Worker) -> None:
        """Set the rate of this worker from now on."""
        self._worker = worker
        if self._rate is not None:
            worker.set_rate(self._rate)


async def _run(
    uri: MetadataUri,
    settings: ReplicatorSettings,
    telemetry: _Telemetry,
    rate: _Rate,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> ExitCode:
    """Reach the cluster, and work on it until ``stop``; ``stack`` closes what is open after that."""
    open_ports = partial(_open_ports, uri, settings, telemetry)
    ports = await reached_unless_stopped(open_ports, SystemClock(), stop, is_patient=not settings.once)
    if ports is None:
        return ExitCode.OK
    stack.push_async_callback(ports.store.close)
    progress = ReplicatorProgress()
    store = ports.store
    is_from_file = settings.topology_file is not None
    feed = make_placement_feed(
        ports.placement, store, ports.cluster, ports.transport, ports.clock, is_from_file=is_from_file
    )
    stack.callback(lambda: _log.info("replicator ended", extra=_totals(progress.snapshot())))
    stack.push_async_callback(ports.transport.close)
    stack.push_async_callback(cancel, guarded("placement feed", feed.run()))
    events = _sinks(settings, (progress, *telemetry.sinks), sys.stdout)
    worker = Worker(ports, settings, events, owner=socket.gethostname())
    telemetry.watch_worker(worker)
    rate.follow(worker)
    stack.push_async_callback(cancel, guarded("stop request", _stop_when(stop, worker)))
    guarding = guarded("migration guard", _stop_if_migrated(store, ports.cluster.root, worker))
    stack.push_async_callback(cancel, guarding)
    _say({"event": "ready"}, "replicator ready", settings, sys.stdout)
    end = await worker.run()
    if guarding.done():  # no request to ZooKeeper here: it may be unavailable when the worker stops
        raise MigratedError(guarding.result())
    return ExitCode.BUSY if end is RunEnd.UNSETTLED else ExitCode.OK


async def _stop_when(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.stop()


async def _stop_if_migrated(store: MetadataStore, root: str, worker: Worker) -> str:
    """Stop the worker if the metadata begins to migrate away from ZooKeeper (R88), or if reading that is refused.

    Returns the reason.

    Raises:
        PermanentError: the store refused to read the state of the migration.
    """
    while True:
        session = store.session
        try:
            why = await wait_migrating(store, root)
        except TransientError:
            await store.wait_session_changed(session)
            continue
        except PermanentError:
            worker.stop()
            raise
        _log.error("replicator stops", extra={"reason": why})
        worker.stop()
        return why


async def _open_ports(uri: MetadataUri, settings: ReplicatorSettings, telemetry: _Telemetry) -> RepairPorts:
    """Open a session with the store, and read what a worker needs. The caller closes the store and the transport.

    Raises:
        StoreUnavailableError: no answer; nothing remains open.
        PermanentError: a person must correct something.
    """
    store = CombiningStore(await ZooKeeperStore.connect(uri.hosts))
    try:
        ports = await _ports(store, uri, settings)
    except BaseException:
        await store.close()
        raise
    telemetry.watch_store(store)
    return ports


async def _ports(store: MetadataStore, uri: MetadataUri, settings: ReplicatorSettings) -> RepairPorts:
    clock, rng = SystemClock(), random.SystemRandom()
    cluster = await open_cluster(store, uri)
    await claim_state_root(store, cluster.root)
    registrations = Registrations(store, cluster)
    tasks = UnderReplication(store, cluster, clock)
    await tasks.initialize()
    await _check_readable(registrations, tasks)
    placement = await load_placement(store, cluster, topology_text(settings.topology_file), settings.placement)
    circuits = Circuits()
    transport = open_transport(RegistrationResolver(registrations, clock), settings.security.load())
    return RepairPorts(
        store=store,
        cluster=cluster,
        ledgers=LedgerStore(store, cluster, rng),
        registrations=registrations,
        tasks=tasks,
        parked=ParkedTasks(store, cluster.root),
        doubts=DoubtedMembers(store, cluster.root),
        reservations=Reservations(store, cluster.root),
        standby=StandbyWorkers(store, cluster.root),
        failures=FailedTasks(store, cluster.root),
        transport=CircuitTransport(transport, circuits, clock),
        clock=clock,
        rng=rng,
        placement=placement,
        circuits=circuits,
    )


async def _check_readable(registrations: Registrations, tasks: UnderReplication) -> None:
    """Read once all data that a listing reads, so that the process fails at its start if it lacks a permission.

    Raises:
        AccessDeniedError: an ACL forbids a read.
        NotAClusterError: there is no list of bookies.
        StoreUnavailableError: the store does not answer.
    """
    await registrations.list()
    await tasks.locks.locked()
    await tasks.switches.is_disabled()


def _sinks(settings: ReplicatorSettings, counting: Sequence[EventSink], stdout: TextIO) -> EventSink:
    sinks: tuple[EventSink, ...] = (*counting, LogEvents())
    return Fanout((*sinks, JsonEvents(stdout)) if settings.is_output_json else sinks)


def _say(event: Mapping[str, str], text: str, settings: ReplicatorSettings, stdout: TextIO) -> None:
    """Write a line to stdout for the parent process, which waits for it."""
    stdout.write(json.dumps(event) + "\n" if settings.is_output_json else text + "\n")
    stdout.flush()


def _totals(snapshot: ProgressCounts) -> dict[str, int]:
    totals = {ending.value: count for ending, count in snapshot.endings}
    figures = {"fragments": snapshot.fragments, "entries": snapshot.entries, "bytes": snapshot.bytes}
    return totals | figures | {"recovered": snapshot.recovered}
