"""The listening socket of a bookie: limits, keepalive policy, TLS, health service."""

from __future__ import annotations

from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie.runtime.listening import address_in_use, host_and_port
from bookie.server.grpc.servicer import ADD_STREAMS_MAX, BookieServicer
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.administration_pb2_grpc import AdministrationServicer, add_AdministrationServicer_to_server
from bookie.wire.bookie_pb2 import DESCRIPTOR
from bookie.wire.grpc.channel import MESSAGE_BYTES_MAX, METADATA_BYTES_MAX
from bookie.wire.handler import BookieHandler
from bookie.wire.health import WATCHES_MAX, BoundedHealth
from bookie.wire.security import TlsSettings
from bookie.wire.tls import server_credentials

_SERVICE: Final = DESCRIPTOR.services_by_name["Bookie"].full_name
_FLUSH_DEADLINE_S: Final = 2.0
"""Deadline for sending the remaining acknowledgements after all requests have ended."""
_STOP_GRACE_S: Final = 0.5
CONNECTIONS_MAX: Final = ADD_STREAMS_MAX
"""The most concurrent connections; a further one is closed. Each client, replicator or auditor uses one."""

# The age of a connection is not limited: its end would break add streams, and writers would change the ensemble.
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.so_reuseport", 0),  # a second bookie on the same port must fail
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # limits the pings of clients (RECV in the C constant)
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),  # detects clients whose machine vanished, and frees their streams
    ("grpc.keepalive_timeout_ms", 10_000),
)


class GrpcServer:
    """One gRPC server for one bookie: ``bind``, ``start``, ``stop``."""

    def __init__(self, *, concurrent_requests_max: int) -> None:
        # Streams of adds and health checks last as long as their connections, so they are counted separately.
        self._server = grpc.aio.server(
            options=_OPTIONS, maximum_concurrent_rpcs=concurrent_requests_max + ADD_STREAMS_MAX + WATCHES_MAX
        )
        self._health = BoundedHealth()
        self._servicer: BookieServicer | None = None

    def bind(self, host: str, port: int, tls: TlsSettings | None) -> int:
        """Bind the port (0: any free one) and return it. Connections are served after ``start``.

        Raises:
            AddressInUseError: the port is not available.
            TlsFilesError: the TLS files cannot be used.
        """
        address = host_and_port(host, port)
        credentials = server_credentials(tls) if tls is not None else None
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise address_in_use(host, port, "gRPC", ("--port", "--host")) from error

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that clients have not received yet."""
        return 0 if self._servicer is None else self._servicer.unsent.bytes

    async def start(self, handler: BookieHandler, administration: AdministrationServicer | None = None) -> None:
        """Serve ``handler`` and ``administration``. Health checks report "not serving" until ``report_serving``."""
        self._servicer = BookieServicer(handler)
        if administration is not None:
            add_AdministrationServicer_to_server(administration, self._server)  # type: ignore[no-untyped-call]
        rpc.add_BookieServicer_to_server(self._servicer, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def report_serving(self) -> None:
        """Report to health checks that clients can find this bookie."""
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def report_not_serving(self) -> None:
        """Report to health checks permanently that the bookie is stopping. Requests are still answered."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Send the remaining acknowledgements, and close every connection. Idempotent."""
        if self._servicer is not None:
            await self._servicer.finish_adds(_FLUSH_DEADLINE_S)
        await self._server.stop(_STOP_GRACE_S)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", _SERVICE):
            await self._health.set(service, status)
