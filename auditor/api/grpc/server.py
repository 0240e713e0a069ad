"""The gRPC API: the control service and gRPC's own health service on one address.

Health has three names: ``liveness`` and the empty one report whether this process answers, ``readiness`` whether it can
do its work. A Kubernetes probe without a name uses the empty one, and a liveness probe must not fail because of the
metadata store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from auditor.api import control_pb2_grpc as rpc
from auditor.api.control import Control
from auditor.api.grpc.servicer import ControlServicer
from auditor.api.idempotency import IdempotentRuns
from auditor.api.settings import ApiSettings, ServerTls, check_settings
from bookie.runtime.access.access import Access
from bookie.runtime.clock import Clock
from bookie.runtime.listening import address_in_use, host_and_port
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.health import WATCHES_MAX, BoundedHealth
from bookie.wire.tls import reloading_credentials

_log = logging.getLogger(__name__)

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
_HEALTH_CHECK_S: Final = 1.0
_STOP_GRACE_S: Final = 1.0
_MESSAGE_BYTES_MAX: Final = 64 * 1024
"""Size limit of requests, of which the largest has some hundred bytes. It does not limit answers."""
_REQUESTS_AT_ONCE: Final = 64
"""Concurrent requests, in addition to the streams that watch runs and health."""
CONNECTIONS_MAX: Final = 1_024
"""Open connections, as of HTTP. A further one is closed, because they use the limited open files of this process."""


class GrpcApi:
    """``start``, ``stop``, and ``port`` while it runs.

    Lives on the event loop of its ``Control``.
    """

    def __init__(self, control: Control, settings: ApiSettings, clock: Clock) -> None:
        """Store the arguments.

        Args:
            control: the service.
            settings: address, limits, files.
            clock: for rates, the age of keys, and checks of readiness.
        """
        self._control = control
        self._settings = settings
        self._clock = clock
        self._access = Access(settings, clock)
        self._health = BoundedHealth()
        self._server: grpc.aio.Server | None = None
        self._following: asyncio.Task[None] | None = None
        self.port = 0
        """The listening port, after the start."""

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: the settings would admit every client, or cannot work.
            TlsFilesError: the TLS files cannot be used.
            AddressInUseError: the address is not available.
        """
        check_settings(self._settings)
        self._server = grpc.aio.server(
            options=_options(self._settings),
            maximum_concurrent_rpcs=_REQUESTS_AT_ONCE + self._settings.watchers_max + WATCHES_MAX,
        )
        servicer = ControlServicer(self._control, self._access, IdempotentRuns(self._clock), self._settings)
        rpc.add_AuditorServiceServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._bind(self._server)
        for service in ("", LIVENESS):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self._set_readiness()
        await self._server.start()
        self._following = guarded("grpc readiness", self._follow())
        _log.info("grpc api listens", extra={"host": self._settings.grpc_host, "port": self.port})

    def set_requests_per_second(self, rate: float) -> None:
        """Change the rate of each client, from its next request on."""
        self._access.set_requests_per_second(rate)

    async def report_stopping(self) -> None:
        """Report to health checks, permanently, that the process is stopping; requests are still answered."""
        await cancel(self._following)
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Stop listening. Requests under way have a short time to complete; streams end. Idempotent."""
        await self.report_stopping()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)

    def _bind(self, server: grpc.aio.Server) -> int:
        host, port = self._settings.grpc_host, self._settings.grpc_port
        address = host_and_port(host, port)
        try:
            if self._settings.tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, _credentials(self._settings.tls))
        except RuntimeError as error:
            raise address_in_use(host, port, "gRPC", ("--grpc-port", "--grpc-host")) from error

    async def _follow(self) -> None:
        while True:
            await self._clock.sleep(_HEALTH_CHECK_S)
            await self._set_readiness()

    async def _set_readiness(self) -> None:
        status = self._control.status()
        is_ready = status.is_store_connected and not status.problems
        response = health_pb2.HealthCheckResponse
        await self._health.set(READINESS, response.SERVING if is_ready else response.NOT_SERVING)


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    return reloading_credentials(tls.cert, tls.key, tls.client_ca)


def _options(settings: ApiSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second service on the port must fail
        ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", settings.header_bytes_max),
        ("grpc.max_concurrent_streams", _REQUESTS_AT_ONCE),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # the C name of the limit on clients' pings
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),  # detects watchers whose machine has failed
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
