"""The listeners of the service: HTTP, gRPC and metrics. They listen before the store is reached."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from typing_extensions import override

from auditor.api.access.proxies import parse_proxies
from auditor.api.grpc.server import GrpcApi
from auditor.api.http.server import HttpApi
from auditor.api.operations import StoreOperations
from auditor.api.operations_port import ALL_MARKS, BookieView, MarkFilter, MarkPage, Operations, TaskPage
from auditor.api.peer_port import PeerReports
from auditor.api.settings import ApiSettings, ServerTls
from auditor.api.upkeep_port import Upkeep
from auditor.metrics.service_metrics import AuditorMetrics
from auditor.service.events import ServiceEvents
from auditor.service.service import AuditorService, StoreConnection
from auditor.service.settings import ServiceSettings
from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.registration import Registrations
from bookie.model.ids import LedgerId
from bookie.model.run import RunRecord
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import SharedRendering
from bookie.wire.routing import open_transport
from bookie.wire.security import SecurityFiles


class Listener(Protocol):
    """A port on which clients connect, or work that lasts as long as the ports listen."""

    async def start(self) -> None:
        """Listen. Raises errors of the permanent family if this is impossible."""
        ...

    async def stop(self) -> None:
        """Stop listening, and end what is open. Idempotent."""
        ...

    def set_requests_per_second(self, rate: float) -> None:
        """Change the rate of each client, from its next request on."""
        ...


@contextlib.asynccontextmanager
async def listening(listeners: Sequence[Listener]) -> AsyncIterator[None]:
    """Start all of ``listeners`` in order, and stop them in reverse, even if one of them does not start."""
    async with contextlib.AsyncExitStack() as stack:
        for listener in listeners:
            stack.push_async_callback(listener.stop)
            await listener.start()
        yield


def set_rates(listeners: Sequence[Listener], requests_per_second: float) -> None:
    """Change the rate of each client at all of ``listeners``."""
    for listener in listeners:
        listener.set_requests_per_second(requests_per_second)


def api_listeners(
    service: AuditorService,
    settings: ServiceSettings,
    metrics: AuditorMetrics,
    clock: Clock,
    upkeep: Upkeep,
    peers: PeerReports | None = None,
) -> Sequence[Listener]:
    """HTTP and gRPC of a service, not started yet."""
    api = api_settings(settings)

    # Rendering blocks the event loop, and the leadership depends on that loop.
    shared = SharedRendering(metrics.registry, clock.monotonic_s, lambda: metrics.show(service.status()))
    operations = DeferredOperations(lambda: service.connection, clock, settings.bookie_security)
    http = HttpApi(service, operations, api, clock, upkeep=upkeep, metrics=shared.exposition, peers=peers)
    return (http, GrpcApi(service, api, clock))


def api_settings(settings: ServiceSettings) -> ApiSettings:
    """Return the settings of the APIs."""
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return ApiSettings(
        report_dir=settings.report_dir,
        report_store=settings.report_store,
        http_host=settings.http_host,
        http_port=settings.http_port,
        grpc_host=settings.grpc_host,
        grpc_port=settings.grpc_port,
        tokens_file=settings.tokens_file,
        allow_anonymous_read=settings.allow_anonymous_read,
        allow_anonymous_write=settings.allow_anonymous_write,
        tls=tls,
        requests_per_second=settings.requests_per_second,
        trusted_proxies=parse_proxies(settings.trusted_proxies),
    )


class ServiceMetricsEvents(ServiceEvents):
    """Counts the events of the service for its metrics."""

    def __init__(self, metrics: AuditorMetrics) -> None:
        self._metrics = metrics

    @override
    def leadership_changed(self, is_leader: bool) -> None:
        self._metrics.leads(is_leader)

    @override
    def run_started(self, record: RunRecord) -> None:
        pass

    @override
    def run_ended(self, record: RunRecord) -> None:
        self._metrics.run_ended(record)

    @override
    def loss_audited(self, seconds: float) -> None:
        self._metrics.detected(seconds)


class DeferredOperations(Operations):
    """``Operations`` of a cluster that may not be connected yet."""

    def __init__(self, connection: Callable[[], StoreConnection], clock: Clock, security: SecurityFiles) -> None:
        """``connection`` raises StoreUnavailableError until there is one; ``security`` is for the bookies."""
        self._connection = connection
        self._clock = clock
        self._security = security
        self._operations: StoreOperations | None = None

    @override
    async def list_tasks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> TaskPage:
        return await self._require_operations().list_tasks(limit, after, wanted)

    @override
    async def list_marks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> MarkPage:
        return await self._require_operations().list_marks(limit, after, wanted)

    @override
    async def is_any_marked(self) -> bool:
        return await self._require_operations().is_any_marked()

    @override
    async def bookies(self) -> Sequence[BookieView]:
        return await self._require_operations().bookies()

    @override
    async def is_recovery_enabled(self) -> bool:
        return await self._require_operations().is_recovery_enabled()

    @override
    async def set_recovery(self, *, is_on: bool) -> None:
        await self._require_operations().set_recovery(is_on=is_on)

    @override
    async def lost_bookie_delay_s(self) -> int:
        return await self._require_operations().lost_bookie_delay_s()

    @override
    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        await self._require_operations().set_lost_bookie_delay_s(seconds)

    def _require_operations(self) -> StoreOperations:
        connection = self._connection()
        if self._operations is None:
            resolver = RegistrationResolver(Registrations(connection.store, connection.cluster), self._clock)
            transport = open_transport(resolver, self._security.load())
            self._operations = StoreOperations(connection.store, connection.cluster, transport, self._clock)
        return self._operations
