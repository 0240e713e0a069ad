"""A bookie process from start to end: who it is, its storage, its server, its registration, and how it stops.

Standard output has one line, once clients can find the bookie; if metrics are served, or Apache's protocol is spoken,
an earlier line has the address. What goes wrong is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode, bookie_exit_code
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.configuration.file_watch import following
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.metrics import SESSION, MetricSet
from bookie.runtime.telemetry.telemetry import observable
from bookie.runtime.version import installed_version
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.server.grpc.server import GrpcServer
from bookie.server.joining.admission import Place, admit
from bookie.server.joining.directories import CURRENT, Role
from bookie.server.joining.limbo import finish_start
from bookie.server.measured import MeasuredService, TimedDisk
from bookie.server.metrics import COLLECTED, LEDGERS, REGISTERED, WRITABLE, Sampler, bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.settings import BookieSettings
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.server.upkeep.disk_watch import DiskWatch, free_bytes, should_be_read_only
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import Disk
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

_UNREGISTER_DEADLINE_S: Final = 5.0
_INDEX_DIRECTORY: Final = "index"


async def run_bookie(settings: BookieSettings, config: ConfigSource | None = None) -> int:
    """Run a bookie until SIGTERM, SIGINT or the failure of a disk; returns the process's exit code.

    Changes of ``config``, the file that the process was started with, are logged: all of them need a restart.
    """
    stop_asked = _stop_asked()
    try:
        settings.check()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(following(config, {}, SystemClock(), lambda: _ask(stop_asked)))
            start = asyncio.create_task(_start(settings, stack), name="bookie start")
            await _first_of(start, stop_asked)
            if not start.done():
                await cancel(start)
                return ExitCode.OK
            running = start.result()
            await _first_of(running.storage.fatal, stop_asked)
            await running.stop(settings.drain_deadline_s)
            if running.storage.fatal.done():
                raise running.storage.fatal.result()
    except BkhealError as error:
        sys.stderr.write(f"bookie: {error}\n")
        return bookie_exit_code(error)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Running:
    """A bookie that serves."""

    storage: LedgerStorage
    service: BookieService
    server: GrpcServer
    apache: ApacheListener
    keeper: RegistrationKeeper

    async def stop(self, drain_deadline_s: float) -> None:
        """Take no more requests and finish those there are. Unregister first, so that writers choose others."""
        self.service.refuse_everything()
        await self.server.say_not_serving()
        await self.keeper.stop(_UNREGISTER_DEADLINE_S)
        if not await self.service.drain(drain_deadline_s):
            _log.warning("requests were cut off", extra={"after_s": drain_deadline_s})
        await asyncio.gather(self.server.stop(), self.apache.stop())


async def _start(settings: BookieSettings, stack: AsyncExitStack) -> _Running:
    """Do everything up to the ready line; ``stack`` undoes it, in whichever way the process ends."""
    clock = SystemClock()
    metrics = bookie_metrics(installed_version())
    is_ready = _Readiness()
    http = await stack.enter_async_context(observable(settings.http, metrics, {"registered": is_ready.check}, clock))
    if http is not None:
        _say(f"bookie metrics on {http.url}")
    server = GrpcServer(concurrent_requests_max=settings.concurrent_requests_max)
    stack.push_async_callback(server.stop)
    apache = ApacheListener(ListenerLimits(connections_max=settings.apache_connections_max), clock)
    stack.push_async_callback(apache.stop)
    port = server.bind(settings.host, settings.port, settings.tls)
    apache_port = None
    if settings.apache_port is not None:
        apache_port = apache.bind(settings.host, settings.apache_port, settings.tls)
    journal = await _disk(settings.journal_dir, stack)
    ledgers = await _disk(settings.ledger_dir, stack)
    store, cluster = await _connect(settings, stack)
    metrics.watch(SESSION, lambda: store.session.is_connected)
    places = (Place(Role.JOURNAL, settings.journal_dir, journal), Place(Role.LEDGERS, settings.ledger_dir, ledgers))
    default_id = f"{settings.advertised}:{port if apache_port is None else apache_port}"
    rng = random.SystemRandom()
    admitted = await admit(
        store,
        cluster,
        places,
        settings.bookie_id or "",
        default_id,
        clock,
        rng,
        may_be_new_incarnation=settings.is_new_incarnation,
        speaks_apache=apache_port is not None,
    )
    storage = await _storage(settings, TimedDisk(journal, metrics, clock), ledgers, clock, stack)
    await finish_start(
        store, cluster, places, admitted, storage, clock, rng, takeover_deadline_s=settings.takeover_deadline_s
    )
    service = BookieService(storage, ledgers, BookieIdentity(admitted.incarnation, installed_version()))
    measured = MeasuredService(service, metrics, clock)
    await server.start(measured)
    if apache_port is not None:
        await apache.start(measured)
    keeper = RegistrationKeeper(
        store,
        Registrations(store, cluster),
        admitted.bookie_id,
        service_info(
            settings.advertised,
            port,
            admitted.incarnation,
            apache_port=apache_port,
            is_tls=settings.tls is not None,
        ),
        clock,
        takeover_deadline_s=settings.takeover_deadline_s,
    )
    is_low = should_be_read_only(False, await free_bytes((journal, ledgers)), settings.read_only_below_bytes)
    drain = DrainWatch(Drains(store, cluster.root), admitted.bookie_id, clock)
    await drain.look()
    service.is_read_only = is_low or storage.is_full or drain.is_drained
    await keeper.start(is_read_only=service.is_read_only)
    is_ready.keeper = keeper
    _watch(metrics, storage, service, keeper)
    sampler = Sampler(metrics, {"journal": journal, "ledgers": ledgers}, storage, clock)
    stack.push_async_callback(cancel, guarded("metrics sampler", sampler.run()))
    watch = DiskWatch(
        (journal, ledgers),
        storage,
        service,
        keeper,
        clock,
        read_only_below_bytes=settings.read_only_below_bytes,
        is_drained=lambda: drain.is_drained,
    )
    stack.push_async_callback(cancel, guarded("disk watch", watch.run()))
    stack.push_async_callback(cancel, guarded("drain watch", drain.run(watch.look)))
    if settings.collect_interval_s > 0:
        collector = Collector(store, cluster, storage, admitted.bookie_id, clock, rng, _pace(settings))
        collected = metrics.counter(COLLECTED)
        passes = collector.run(lambda report: collected.inc(report.collected))
        stack.push_async_callback(cancel, guarded("collector", passes))
    await server.say_serving()
    if apache_port is not None:
        _say(f"bookie speaks Apache's protocol on {settings.advertised}:{apache_port}")
    _say(f"bookie {admitted.bookie_id} ready on {settings.advertised}:{port}")
    return _Running(storage, service, server, apache, keeper)


def _pace(settings: BookieSettings) -> CollectorSettings:
    # Longer than any session timeout that a server grants, or a look could be answered by the past.
    confirm_after_s = settings.takeover_deadline_s
    return CollectorSettings(settings.collect_interval_s, confirm_after_s, ratio_max=settings.collect_ratio_max)


@dataclass(slots=True)
class _Readiness:
    """Whether the bookie can be found; asked from the very start on."""

    keeper: RegistrationKeeper | None = None

    def check(self) -> str:
        return "" if self.keeper is not None and self.keeper.is_registered else "not registered in ZooKeeper"


def _watch(metrics: MetricSet, storage: LedgerStorage, service: BookieService, keeper: RegistrationKeeper) -> None:
    """Figures from plain attributes, read at the time of a scrape."""
    metrics.watch(LEDGERS, lambda: storage.ledger_count)
    metrics.watch(REGISTERED, lambda: keeper.is_registered)
    metrics.watch(WRITABLE, lambda: keeper.is_registered and not service.is_read_only)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _disk(directory: Path, stack: AsyncExitStack) -> FileDisk:
    disk = await FileDisk.acquire(directory / CURRENT)
    stack.push_async_callback(disk.close)
    return disk


async def _connect(settings: BookieSettings, stack: AsyncExitStack) -> tuple[ZooKeeperStore, Cluster]:
    uri = parse_uri(settings.metadata_uri)
    store = await ZooKeeperStore.connect(
        uri.hosts, session_timeout_s=settings.session_timeout_s, connect_timeout_s=settings.connect_timeout_s
    )
    stack.push_async_callback(store.close)
    return store, await open_cluster(store, uri)


async def _storage(
    settings: BookieSettings, journal: Disk, ledgers: FileDisk, clock: Clock, stack: AsyncExitStack
) -> LedgerStorage:
    index = await RocksIndex.open(settings.ledger_dir / CURRENT / _INDEX_DIRECTORY)
    stack.push_async_callback(index.close)
    storage = await LedgerStorage.open(journal, ledgers, index, StorageSettings(), clock)
    stack.push_async_callback(storage.close)
    return storage


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _stop_asked() -> asyncio.Future[None]:
    """Completes at the first SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask, asked)
    return asked


def _ask(asked: asyncio.Future[None]) -> None:
    if not asked.done():
        _log.info("stop asked for")
        asked.set_result(None)
