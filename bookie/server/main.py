"""A bookie process from its start to its end: identity, storage, servers, registration and stop.

Standard output has one line, which is written when clients can find the bookie. Before it, metrics and Apache's
protocol each write a line with their address. A failure is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.own_state import claim_state_root
from bookie.metadata.store.reaching import until_reached
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode, bookie_exit_code
from bookie.runtime.access.access import Access
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.configuration.file_watch import following
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.large_messages import prepare_for_large_messages
from bookie.runtime.open_files import raise_open_files_limit
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.telemetry.metrics import SESSION, MetricSet
from bookie.runtime.telemetry.telemetry import observable
from bookie.runtime.version import installed_version
from bookie.runtime.waiting import within_running_time
from bookie.server import metrics as names
from bookie.server.administration.node import ServingBookie
from bookie.server.administration.servicer import AdministrationServicer
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.server.collection_figures import record_collection
from bookie.server.copying import Copying
from bookie.server.grpc.server import CONNECTIONS_MAX, GrpcServer
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit
from bookie.server.joining.directories import CURRENT, INDEX_DIRECTORY, DirectoryRole
from bookie.server.joining.limbo import finish_start
from bookie.server.joining.salvaged import salvage_at_start
from bookie.server.measured import MeasuredService, TimedDisk
from bookie.server.metrics import Sampler, bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.settings import BookieSettings
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.server.upkeep.damage_repair import DamageRepair
from bookie.server.upkeep.disk_watch import DiskWatch, ReadOnlyReason, free_bytes, should_be_read_only
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly, read_recorded_request
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.server.upkeep.scrubber import Scrubber
from bookie.storage.disks.files import FileDisk, is_thread_waiting
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.errors import DamagedJournalError
from bookie.storage.port import DISK_SILENCE_S_MAX, Disk, DiskError, StalledDiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.grpc.transport import GrpcTransport

_log = logging.getLogger(__name__)

_UNREGISTER_DEADLINE_S: Final = 5.0
_RESERVED_FILES: Final = 1024
"""Open files of a bookie without connections: up to 512 of the index and 256 entry logs, the journals, and a
reserve."""
_INDEX_OPEN_TIMEOUT_S: Final = 600.0
"""The longest time to open the index, which includes the replay of its log of up to 64 MiB."""


async def run_bookie(settings: BookieSettings, config: ConfigSource | None = None) -> int:
    """Run a bookie until SIGTERM, SIGINT or a disk failure, and return the exit code of the process.

    Changes of ``config``, the configuration file of the process, are logged: all of them need a restart.
    """
    prepare_for_large_messages()
    _allow_open_files(settings)
    try:
        await _run(settings, config, _stop_requested())
        code: int = ExitCode.OK
    except BkhealError as error:
        code = _reported(error)
    if is_thread_waiting():
        _exit_now(code)
    return code


def _allow_open_files(settings: BookieSettings) -> None:
    """Raise the limit of open files, and warn if connections could use up the files that the storage needs (R134)."""
    limit = raise_open_files_limit()
    wanted = (
        _RESERVED_FILES + CONNECTIONS_MAX + (settings.apache_connections_max if settings.apache_port is not None else 0)
    )
    if limit < wanted:
        _log.warning("the hard limit of open files is low", extra={"limit": limit, "recommended": wanted})


async def _run(settings: BookieSettings, config: ConfigSource | None, stop_asked: asyncio.Future[None]) -> None:
    stack = AsyncExitStack()
    problem: BkhealError | None = None
    try:
        await stack.enter_async_context(following(config, {}, SystemClock(), lambda: _ask(stop_asked)))
        start = asyncio.create_task(_start(settings, stack), name="bookie start")
        await _first_of(start, stop_asked)
        if not start.done():
            await cancel(start)
            return
        running = start.result()
        await _first_of(running.storage.fatal, running.keeper.replaced, stop_asked)
        await running.stop(settings.drain_deadline_s)
        if running.storage.fatal.done():
            fatal = running.storage.fatal.result()
            if isinstance(fatal, StalledDiskError):  # the disk has the index or a journal, so nothing can be closed
                _exit_now(_reported(fatal))
            raise fatal
        if running.keeper.replaced.done():
            raise running.keeper.replaced.result()
    except BkhealError as error:
        problem = error
        raise
    finally:
        await _close(stack, problem)


async def _close(stack: AsyncExitStack, problem: BkhealError | None) -> None:
    """Close everything. ``problem`` is the reason for the end, if it is an error: it is reported first."""
    try:
        await within_running_time(DISK_SILENCE_S_MAX, stack.aclose())
    except TimeoutError:  # all acknowledged data is in the journals
        what = f"the storage has not been closed within {DISK_SILENCE_S_MAX:g} s: a disk does not answer"
        stalled = StalledDiskError(what)
        code = _reported(problem or stalled)
        if problem is not None:
            _reported(stalled)
        _exit_now(code)


def _reported(error: BkhealError) -> int:
    """Write the error to standard error, and return the exit code."""
    sys.stderr.write(f"bookie: {error}\n")
    return bookie_exit_code(error)


def _exit_now(code: int) -> NoReturn:
    """End the process at once. An orderly end would wait for threads that a disk blocks."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class _Running:
    """A serving bookie."""

    storage: LedgerStorage
    service: BookieService
    server: GrpcServer
    apache: ApacheListener
    keeper: RegistrationKeeper

    async def stop(self, drain_deadline_s: float) -> None:
        """Refuse new requests and finish the running ones. Unregister first, so writers choose other bookies."""
        self.service.refuse_everything()
        await self.server.report_not_serving()
        await self.keeper.stop(_UNREGISTER_DEADLINE_S)
        if not await self.service.drain(drain_deadline_s):
            _log.warning("requests were cut off", extra={"after_s": drain_deadline_s})
        await asyncio.gather(self.server.stop(), self.apache.stop())


@dataclass(frozen=True, slots=True)
class _Context:
    """The objects that all start phases use. ``stack`` undoes each phase, however the process ends."""

    settings: BookieSettings
    stack: AsyncExitStack
    metrics: MetricSet
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)

    def start_background_task(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Start a task that is cancelled at the end of the process."""
        self.stack.push_async_callback(cancel, guarded(name, work))


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The servers of the two protocols, with their bound ports."""

    server: GrpcServer
    apache: ApacheListener
    administration: AdministrationServicer
    port: int
    apache_port: int | None


@dataclass(frozen=True, slots=True)
class _Upkeep:
    """The background work that operators can see or start."""

    watch: DiskWatch
    scrubber: Scrubber | None
    collector: Collector


@dataclass(frozen=True, slots=True)
class _Disks:
    """The directories that this process has locked. A ledger directory other than the first may be unusable."""

    journals: Sequence[FileDisk]
    ledgers: Sequence[FileDisk | DiskError]


@dataclass(frozen=True, slots=True)
class _Metadata:
    store: ZooKeeperStore
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class _Bookie:
    """A bookie that serves and is registered, for its upkeep."""

    admission: AdmittedBookie
    disks: Mapping[str, Disk]
    """Each journal, and the ledger directories as one disk (``ledgers``)."""
    storage: LedgerStorage
    service: BookieService
    keeper: RegistrationKeeper
    drain: DrainWatch
    read_only: OperatorReadOnly


async def _start(settings: BookieSettings, stack: AsyncExitStack) -> _Running:
    """Run all steps of the start up to the ready line.

    The wait for ZooKeeper is first (R147): until then, the ports refuse connections, so clients try other bookies at
    once. Ports are bound before the disks, so a second process with the same settings ends before it touches one. The
    bookie joins before it serves, because its answers count as evidence. It also determines before that whether it is
    read-only, because writers of the previous process continue at once. It registers last, so every bookie that a
    writer finds answers.
    """
    context, readiness = _Context(settings, stack, bookie_metrics(installed_version())), _Readiness()
    begun_s = context.clock.monotonic_s()
    await _serve_metrics(context, readiness)
    metadata = await until_reached(partial(_connect, settings), context.clock)
    context.stack.push_async_callback(metadata.store.close)
    context.metrics.watch(SESSION, lambda: metadata.store.session.is_connected)
    readiness.is_store_reached = True
    listeners = _bind(context)
    disks = await _open_disks(context)
    admission, ledger_disk, storage = await _join(context, listeners, disks, metadata)
    drain = DrainWatch(Drains(metadata.store, metadata.cluster.root), admission.bookie_id, context.clock)
    await drain.check()
    read_only = OperatorReadOnly(ledger_disk, await read_recorded_request(ledger_disk))
    by_role: dict[str, Disk] = {**_journal_roles(disks.journals), "ledgers": ledger_disk}
    is_low = should_be_read_only(False, await free_bytes(tuple(by_role.values())), settings.read_only_below_bytes)
    is_asked = drain.is_drained or read_only.wish is not None
    service = _service(context, ledger_disk, metadata, storage, admission)
    service.is_read_only = is_low or storage.is_full or is_asked
    await _serve(context, listeners, service)
    keeper = await _register(context, listeners, metadata, admission, is_read_only=service.is_read_only)
    readiness.keeper = keeper
    bookie = _Bookie(
        admission=admission,
        disks=by_role,
        storage=storage,
        service=service,
        keeper=keeper,
        drain=drain,
        read_only=read_only,
    )
    _register_gauges(context.metrics, bookie, listeners.server)
    upkeep = _start_upkeep(context, metadata, bookie)
    journal_paths = dict(zip(_journal_roles(disks.journals), settings.journal_dirs, strict=True))
    listeners.administration.node = _node(context, listeners.server, bookie, upkeep, journal_paths, begun_s)
    await listeners.server.report_serving()
    if listeners.apache_port is not None:
        _say(f"bookie speaks Apache's protocol on {settings.advertised}:{listeners.apache_port}")
    _say(f"bookie {admission.bookie_id} ready on {settings.advertised}:{listeners.port}")
    return _Running(storage, service, listeners.server, listeners.apache, keeper)


async def _serve_metrics(context: _Context, readiness: _Readiness) -> None:
    checks = {"registered": readiness.check}
    http = await context.stack.enter_async_context(
        observable(context.settings.http, context.metrics, checks, context.clock)
    )
    if http is not None:
        _say(f"bookie metrics on {http.url}")


def _bind(context: _Context) -> _Listeners:
    """Bind both ports, without serving yet."""
    settings = context.settings
    server = GrpcServer(concurrent_requests_max=settings.concurrent_requests_max)
    context.stack.push_async_callback(server.stop)
    apache = ApacheListener(ListenerLimits(connections_max=settings.apache_connections_max), context.clock)
    context.stack.push_async_callback(apache.stop)
    port, apache_port = server.bind(settings.host, settings.port, settings.tls), None
    if settings.apache_port is not None:
        apache_port = apache.bind(settings.host, settings.apache_port, settings.tls)
    administration = AdministrationServicer(Access(settings.access, context.clock))
    return _Listeners(server, apache, administration, port, apache_port)


async def _open_disks(context: _Context) -> _Disks:
    """Lock the directories for this process. The first ledger directory must be usable."""
    settings, stack = context.settings, context.stack
    journals = [await _open_disk(directory, stack) for directory in settings.journal_dirs]
    ledgers: list[FileDisk | DiskError] = [await _open_disk(settings.ledger_dirs[0], stack)]
    for directory in settings.ledger_dirs[1:]:
        try:
            ledgers.append(await _open_disk(directory, stack, may_be_read_only=True))
        except DiskError as error:
            ledgers.append(error)
    return _Disks(journals, ledgers)


def _journal_roles(disks: Sequence[FileDisk]) -> dict[str, FileDisk]:
    """Name the journals' disks ``journal``, ``journal-2``, and so on."""
    return {"journal" if number == 1 else f"journal-{number}": disk for number, disk in enumerate(disks, 1)}


async def _connect(settings: BookieSettings) -> _Metadata:
    """Open a session with the cluster's store. The caller closes it; after an error, nothing remains open."""
    uri = parse_uri(settings.metadata_uri)
    store = await ZooKeeperStore.connect(
        uri.hosts, session_timeout_s=settings.session_timeout_s, connect_timeout_s=settings.connect_timeout_s
    )
    try:
        cluster = await open_cluster(store, uri)
        await claim_state_root(store, cluster.root)
    except BaseException:
        await store.close()
        raise
    return _Metadata(store, cluster)


async def _join(
    context: _Context, listeners: _Listeners, disks: _Disks, metadata: _Metadata
) -> tuple[AdmittedBookie, Disk, LedgerStorage]:
    """Check that the disks belong to this bookie id, and open them. Also return all ledger directories as one disk."""
    settings, clock, rng = context.settings, context.clock, context.rng
    store, cluster = metadata.store, metadata.cluster
    directories = (
        *(
            RoleDirectory(DirectoryRole.JOURNAL, *each)
            for each in zip(settings.journal_dirs, disks.journals, strict=True)
        ),
        *(_ledger_directory(*each) for each in zip(settings.ledger_dirs, disks.ledgers, strict=True)),
    )
    port = listeners.port if listeners.apache_port is None else listeners.apache_port

    async def admitted() -> AdmittedBookie:
        return await admit(
            store,
            cluster,
            directories,
            settings.bookie_id or "",
            f"{settings.advertised}:{port}",
            clock,
            rng,
            may_be_new_incarnation=settings.is_new_incarnation,
            speaks_apache=listeners.apache_port is not None,
            takeover_deadline_s=settings.takeover_deadline_s,
        )

    admission = await admitted()
    journals = [TimedDisk(disk, context.metrics, clock) for disk in disks.journals]
    ledger_disk = await _ledger_disk(directories, admission, clock)
    try:
        storage = await _open_storage(settings, journals, ledger_disk, clock, context.stack)
    except DamagedJournalError as error:
        if not settings.may_salvage_journal:
            raise
        await salvage_at_start(
            disks.journals, disks.ledgers, settings.journal_dirs, settings.ledger_dirs, error, rng, clock
        )
        admission = await admitted()
        ledger_disk = await _ledger_disk(directories, admission, clock)
        storage = await _open_storage(settings, journals, ledger_disk, clock, context.stack)
    await finish_start(
        store, cluster, directories, admission, storage, clock, rng, takeover_deadline_s=settings.takeover_deadline_s
    )
    return admission, ledger_disk, storage


def _ledger_directory(path: Path, disk: FileDisk | DiskError) -> RoleDirectory:
    if isinstance(disk, DiskError):
        return RoleDirectory(DirectoryRole.LEDGERS, path, None, str(disk))
    return RoleDirectory(DirectoryRole.LEDGERS, path, disk)


async def _ledger_disk(directories: Sequence[RoleDirectory], admission: AdmittedBookie, clock: Clock) -> Disk:
    """Return the ledger directories as one disk."""
    parts = []
    for directory in (directory for directory in directories if directory.role is DirectoryRole.LEDGERS):
        path = str(directory.path.resolve())
        problem = admission.out_of_use.get(path, "")
        if problem:
            _log.error("ledger directory out of use", extra={"directory": path, "problem": problem})
        parts.append(SpreadDirectory(path, None if problem else directory.disk, problem))
    if len(parts) > 1:
        return await SpreadDisk.over(parts, clock)
    assert parts[0].disk is not None
    return parts[0].disk


def _service(
    context: _Context, ledger_disk: Disk, metadata: _Metadata, storage: LedgerStorage, admission: AdmittedBookie
) -> BookieService:
    identity = BookieIdentity(admission.incarnation, installed_version())
    return BookieService(storage, ledger_disk, identity, copying=_copying(context, metadata))


async def _serve(context: _Context, listeners: _Listeners, service: BookieService) -> None:
    measured = MeasuredService(service, context.metrics, context.clock)
    await listeners.server.start(measured, listeners.administration)
    if listeners.apache_port is not None:
        await listeners.apache.start(measured)


def _copying(context: _Context, metadata: _Metadata) -> Copying:
    """Return an object that copies from bookies registered in this cluster, with this bookie's certificate."""
    tls, clock = context.settings.tls, context.clock
    resolver = RegistrationResolver(Registrations(metadata.store, metadata.cluster), clock)
    sources = GrpcTransport(resolver, tls=tls, is_plaintext=tls is None)
    context.stack.push_async_callback(sources.close)
    return Copying(sources, clock)


async def _register(
    context: _Context, listeners: _Listeners, metadata: _Metadata, admission: AdmittedBookie, *, is_read_only: bool
) -> RegistrationKeeper:
    settings = context.settings
    info = service_info(
        settings.advertised,
        listeners.port,
        admission.incarnation,
        apache_port=listeners.apache_port,
        is_tls=settings.tls is not None,
        can_copy=True,
    )
    keeper = RegistrationKeeper(
        metadata.store,
        Registrations(metadata.store, metadata.cluster),
        admission.bookie_id,
        info,
        context.clock,
        takeover_deadline_s=settings.takeover_deadline_s,
    )
    await keeper.start(is_read_only=is_read_only)
    return keeper


def _start_upkeep(context: _Context, metadata: _Metadata, bookie: _Bookie) -> _Upkeep:
    """Start the background work: samples, watches of disks and drains, scrubs, the garbage collector."""
    settings, clock = context.settings, context.clock
    admission, disks, storage, service = bookie.admission, bookie.disks, bookie.storage, bookie.service
    drain, read_only = bookie.drain, bookie.read_only
    sampler = Sampler(context.metrics, disks, storage, clock, polls_refused=lambda: service.polls_refused)
    context.start_background_task("metrics sampler", sampler.run())
    watch = DiskWatch(
        tuple(disks.values()),
        storage,
        service,
        bookie.keeper,
        clock,
        read_only_below_bytes=settings.read_only_below_bytes,
        requests={
            ReadOnlyReason.OPERATOR: lambda: read_only.wish is not None,
            ReadOnlyReason.DRAIN: lambda: drain.is_drained,
        },
        journal_paths=settings.journal_dirs,
        ledger_path=settings.ledger_dirs[0],
    )
    context.start_background_task("disk watch", watch.run())
    context.start_background_task("drain watch", drain.run(watch.check))
    scrubber = None
    if settings.scrub_interval_s > 0:
        ledger_store = LedgerStore(metadata.store, metadata.cluster, context.rng)
        repair = DamageRepair(ledger_store, service, admission.bookie_id, admission.incarnation)
        scrubber = Scrubber(
            storage,
            disks["ledgers"],
            admission.bookie_id,
            context.metrics,
            clock,
            interval_s=settings.scrub_interval_s,
            bytes_per_s=settings.scrub_bytes_per_second,
            repair=repair.repair,
            service=service,
        )
        context.start_background_task("scrubber", scrubber.run())
    collector = Collector(
        metadata.store,
        metadata.cluster,
        storage,
        admission.bookie_id,
        clock,
        context.rng,
        _collector_settings(settings),
    )
    context.start_background_task("collector", collector.run(partial(record_collection, context.metrics)))
    return _Upkeep(watch, scrubber, collector)


def _node(
    context: _Context,
    server: GrpcServer,
    bookie: _Bookie,
    upkeep: _Upkeep,
    journal_paths: Mapping[str, Path],
    begun_s: float,
) -> ServingBookie:
    """Return the bookie as the administration sees it."""
    return ServingBookie(
        bookie=bookie.admission.bookie_id,
        identity=BookieIdentity(bookie.admission.incarnation, installed_version()),
        storage=bookie.storage,
        service=bookie.service,
        disks=bookie.disks,
        watch=upkeep.watch,
        drain=bookie.drain,
        read_only=bookie.read_only,
        collector=upkeep.collector,
        scrubber=upkeep.scrubber,
        unsent_bytes=lambda: server.unsent_bytes,
        clock=context.clock,
        journal_paths=journal_paths,
        begun_s=begun_s,
    )


def _collector_settings(settings: BookieSettings) -> CollectorSettings:
    # Longer than any session timeout that a server grants: otherwise a stale server could answer the second check.
    confirm_after_s = settings.takeover_deadline_s
    return CollectorSettings(settings.collect_interval_s, confirm_after_s, ratio_max=settings.collect_ratio_max)


@dataclass(slots=True)
class _Readiness:
    """Whether clients can find the bookie. It can be queried from the beginning of the start."""

    is_store_reached: bool = False
    keeper: RegistrationKeeper | None = None

    def check(self) -> str:
        if not self.is_store_reached:
            return "not registered: ZooKeeper has not answered yet"
        return "" if self.keeper is not None and self.keeper.is_registered else "not registered in ZooKeeper"


def _register_gauges(metrics: MetricSet, bookie: _Bookie, server: GrpcServer) -> None:
    """Register metrics from plain attributes, read during a scrape."""
    storage, service, keeper = bookie.storage, bookie.service, bookie.keeper
    metrics.watch(names.OUT_OF_USE, lambda: storage.directories_out_of_use)
    metrics.watch(names.LEDGERS, lambda: storage.ledger_count)
    metrics.watch(names.REGISTERED, lambda: keeper.is_registered)
    metrics.watch(names.WRITABLE, lambda: keeper.is_registered and not service.is_read_only)
    metrics.watch(names.DAMAGED, lambda: service.damaged.count)
    metrics.watch(names.ADDS_WAITING, lambda: service.load.add_bytes)
    metrics.watch(names.READS_RUNNING, lambda: service.load.reads_running)
    metrics.watch(names.READS_WAITING, lambda: service.load.reads_waiting)
    metrics.watch(names.JOURNAL_WAITING, lambda: storage.memory.journal_bytes)
    metrics.watch(names.WRITE_CACHE, lambda: storage.memory.cache_bytes)
    metrics.watch(names.UNSENT, lambda: server.unsent_bytes)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _open_disk(directory: Path, stack: AsyncExitStack, *, may_be_read_only: bool = False) -> FileDisk:
    disk = await FileDisk.acquire(directory / CURRENT, may_be_read_only=may_be_read_only)
    stack.push_async_callback(disk.close)
    return disk


async def _open_storage(
    settings: BookieSettings, journals: Sequence[Disk], ledger_disk: Disk, clock: Clock, stack: AsyncExitStack
) -> LedgerStorage:
    path = settings.ledger_dirs[0] / CURRENT / INDEX_DIRECTORY
    try:
        index = await within_running_time(_INDEX_OPEN_TIMEOUT_S, RocksIndex.open(path))
    except TimeoutError as error:
        what = f"the index {path} has not been opened within {_INDEX_OPEN_TIMEOUT_S:g} s: its disk does not answer"
        raise StalledDiskError(what) from error
    try:
        bounds = StorageSettings(read_cache_bytes_max=settings.read_cache_bytes)
        first, *others = journals
        storage = await LedgerStorage.open(first, ledger_disk, index, bounds, clock, more_journals=others)
    except BaseException:
        await index.close()
        raise
    stack.push_async_callback(index.close)
    stack.push_async_callback(storage.close)
    return storage


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _stop_requested() -> asyncio.Future[None]:
    """Return a future that completes at the first SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask, asked)
    return asked


def _ask(asked: asyncio.Future[None]) -> None:
    if not asked.done():
        _log.info("stop requested")
        asked.set_result(None)
