"""The start of a bookie, phase by phase, up to the moment at which clients find it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.own_state import claim_state_root
from bookie.metadata.store.reaching import until_reached
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.runtime.access.access import Access
from bookie.runtime.listening import host_and_port
from bookie.runtime.telemetry.metrics import SESSION
from bookie.runtime.telemetry.telemetry import observable
from bookie.runtime.version import installed_version
from bookie.server.administration.servicer import AdministrationServicer
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.listener import ApacheListener
from bookie.server.copying import Copying
from bookie.server.grpc.server import GrpcServer
from bookie.server.joining.admission import AdmittedBookie
from bookie.server.measured import MeasuredService
from bookie.server.metrics import bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.settings import BookieSettings
from bookie.server.start.background import RegisteredBookie, administered, register_gauges, start_upkeep
from bookie.server.start.context import Context, Listeners, Metadata, say
from bookie.server.start.opening import join_cluster, journal_roles, open_disks
from bookie.server.upkeep.disk_watch import free_bytes, should_be_read_only
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly, read_recorded_request
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage
from bookie.wire.grpc.transport import GrpcTransport

_log = logging.getLogger(__name__)

_UNREGISTER_DEADLINE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class StartedBookie:
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


@dataclass(slots=True)
class _Readiness:
    """Whether clients can find the bookie. It can be queried from the beginning of the start."""

    is_store_reached: bool = False
    keeper: RegistrationKeeper | None = None

    def check(self) -> str:
        if not self.is_store_reached:
            return "not registered: ZooKeeper has not answered yet"
        return "" if self.keeper is not None and self.keeper.is_registered else "not registered in ZooKeeper"


async def start_bookie(settings: BookieSettings, stack: AsyncExitStack) -> StartedBookie:
    """Run all steps of the start up to the ready line.

    The wait for ZooKeeper is first (R147): until then, the ports refuse connections, so clients try other bookies at
    once. Ports are bound before the disks, so a second process with the same settings ends before it touches one. The
    bookie joins before it serves, because its answers count as evidence. It also determines before that whether it is
    read-only, because writers of the previous process continue at once. It registers last, so every bookie that a
    writer finds answers.
    """
    context, readiness = Context(settings, stack, bookie_metrics(installed_version())), _Readiness()
    begun_s = context.clock.monotonic_s()
    await _serve_metrics(context, readiness)
    metadata = await until_reached(partial(_connect, settings), context.clock)
    context.stack.push_async_callback(metadata.store.close)
    context.metrics.watch(SESSION, lambda: metadata.store.session.is_connected)
    readiness.is_store_reached = True
    listeners = _bind(context)
    disks = await open_disks(context)
    admission, ledger_disk, storage = await join_cluster(context, listeners, disks, metadata)
    drain = DrainWatch(Drains(metadata.store, metadata.cluster.root), admission.bookie_id, context.clock)
    await drain.check()
    read_only = OperatorReadOnly(ledger_disk, await read_recorded_request(ledger_disk))
    by_role: dict[str, Disk] = {**journal_roles(disks.journals), "ledgers": ledger_disk}
    is_low = should_be_read_only(False, await free_bytes(tuple(by_role.values())), settings.read_only_below_bytes)
    is_requested = drain.is_drained or read_only.wish is not None
    service = _service(context, ledger_disk, metadata, storage, admission)
    service.is_read_only = is_low or storage.is_full or is_requested
    await _serve(context, listeners, service)
    keeper = await _register(context, listeners, metadata, admission, is_read_only=service.is_read_only)
    readiness.keeper = keeper
    bookie = RegisteredBookie(
        admission=admission,
        disks=by_role,
        storage=storage,
        service=service,
        keeper=keeper,
        drain=drain,
        read_only=read_only,
    )
    register_gauges(context.metrics, bookie, listeners.server)
    upkeep = start_upkeep(context, metadata, bookie)
    journal_paths = dict(zip(journal_roles(disks.journals), settings.journal_dirs, strict=True))
    listeners.administration.node = administered(context, listeners.server, bookie, upkeep, journal_paths, begun_s)
    await listeners.server.report_serving()
    if listeners.apache_port is not None:
        say(f"bookie speaks Apache's protocol on {host_and_port(settings.advertised, listeners.apache_port)}")
    say(f"bookie {admission.bookie_id} ready on {host_and_port(settings.advertised, listeners.port)}")
    return StartedBookie(storage, service, listeners.server, listeners.apache, keeper)


async def _serve_metrics(context: Context, readiness: _Readiness) -> None:
    checks = {"registered": readiness.check}
    http = await context.stack.enter_async_context(
        observable(context.settings.http, context.metrics, checks, context.clock)
    )
    if http is not None:
        say(f"bookie metrics on {http.url}")


def _bind(context: Context) -> Listeners:
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
    return Listeners(server, apache, administration, port, apache_port)


async def _connect(settings: BookieSettings) -> Metadata:
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
    return Metadata(store, cluster)


def _service(
    context: Context, ledger_disk: Disk, metadata: Metadata, storage: LedgerStorage, admission: AdmittedBookie
) -> BookieService:
    identity = BookieIdentity(admission.incarnation, installed_version())
    return BookieService(storage, ledger_disk, identity, copying=_copying(context, metadata))


def _copying(context: Context, metadata: Metadata) -> Copying:
    """Return an object that copies from bookies registered in this cluster, with this bookie's certificate."""
    tls, clock = context.settings.tls, context.clock
    resolver = RegistrationResolver(Registrations(metadata.store, metadata.cluster), clock)
    sources = GrpcTransport(resolver, tls=tls, is_plaintext=tls is None)
    context.stack.push_async_callback(sources.close)
    return Copying(sources, clock)


async def _serve(context: Context, listeners: Listeners, service: BookieService) -> None:
    measured = MeasuredService(service, context.metrics, context.clock)
    await listeners.server.start(measured, listeners.administration)
    if listeners.apache_port is not None:
        await listeners.apache.start(measured)


async def _register(
    context: Context, listeners: Listeners, metadata: Metadata, admission: AdmittedBookie, *, is_read_only: bool
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
