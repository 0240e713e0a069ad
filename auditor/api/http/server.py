"""The HTTP API: one listening address, and all routes on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override

from auditor.api.access.tls import ReloadingContext
from auditor.api.control import Control
from auditor.api.http.apache_routes import ApacheRoutes
from auditor.api.http.cluster_routes import ClusterRoutes
from auditor.api.http.connections import CONNECTIONS_MAX, Places, serve_bounded
from auditor.api.http.dead_letter_routes import DeadLetterRoutes
from auditor.api.http.drain_routes import DrainRoutes
from auditor.api.http.findings_routes import FindingsRoutes
from auditor.api.http.guard import Guard
from auditor.api.http.openapi import describe
from auditor.api.http.process_routes import ProcessRoutes, RenderMetrics
from auditor.api.http.report_routes import ReportRoutes
from auditor.api.http.routes import Route
from auditor.api.http.run_routes import RunRoutes
from auditor.api.http.upkeep_routes import UpkeepRoutes
from auditor.api.idempotency import IdempotentRuns
from auditor.api.operations_port import Operations
from auditor.api.peer_port import PeerReports
from auditor.api.settings import ApiSettings, check_settings
from auditor.api.upkeep_port import Upkeep
from bookie.runtime.access.access import Access
from bookie.runtime.clock import Clock
from bookie.runtime.listening import address_in_use
from bookie.runtime.tasks import cancel, guarded

_log = logging.getLogger(__name__)
_library_log = logging.getLogger(f"{__name__}.library")

_CERTIFICATE_CHECK_S: Final = 10.0
_LINGERING_S: Final = 1.0
"""How long the rest of a refused body is read, so that its sender receives the answer."""
_SHUTDOWN_S: Final = 2.0
"""How long answers under way may take when the server stops."""


def _is_of_service(record: logging.LogRecord) -> bool:
    """Return whether a record of the HTTP library is about this service, not about an incomplete body of a client.

    The library reads the rest of a body after the answer, and logs what it cannot read as an error.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], web.RequestPayloadError | ConnectionError))


_library_log.addFilter(_is_of_service)


class _HttpConnection(web.RequestHandler):
    """A connection that answers invalid HTTP and too long requests with a problem document.

    The library would answer with text, and log the client's mistake as an error.
    """

    __slots__ = ("_guard",)

    def __init__(self, guard: Guard, server: web.Server, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._guard = guard

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        response = self._guard.unreadable(request, exc)
        response.force_close()
        return response


class HttpApi:
    """``start``, ``stop``, and ``port`` while it runs.

    Lives on the event loop of its ``Control``.
    """

    def __init__(
        self,
        control: Control,
        operations: Operations,
        settings: ApiSettings,
        clock: Clock,
        *,
        upkeep: Upkeep,
        metrics: RenderMetrics | None = None,
        peers: PeerReports | None = None,
    ) -> None:
        """Store the arguments.

        Args:
            control: the service.
            operations: its cluster.
            settings: addresses, limits, files.
            upkeep: operators' work on the cluster.
            clock: for rates and the age of keys.
            metrics: renders the metrics for ``/metrics``; None: there are none.
            peers: auditors that may have reports that are missing here; None: there are none.
        """
        self._control = control
        self._settings = settings
        self._clock = clock
        self._access = Access(settings, clock)
        self._guard = Guard(settings, self._access)
        self._process = ProcessRoutes(control, metrics)
        self.routes: Sequence[Route] = (
            *RunRoutes(control, IdempotentRuns(clock), upkeep).routes(),
            *ClusterRoutes(control, operations).routes(),
            *FindingsRoutes(settings.report_dir).routes(),
            *UpkeepRoutes(upkeep).routes(),
            *DeadLetterRoutes(upkeep).routes(),
            *DrainRoutes(upkeep).routes(),
            *ReportRoutes(settings.report_dir, peers, settings.report_store).routes(),
            *ApacheRoutes(control, operations, upkeep).routes(),
            *self._process.routes(),
        )
        self._runner: web.AppRunner | None = None
        self._servers: Sequence[asyncio.Server] = ()
        self._certificates: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: the settings would admit every client, or cannot work.
            TlsFilesError: the TLS files cannot be used.
            AddressInUseError: the address is not available.
        """
        check_settings(self._settings)
        tls = ReloadingContext(self._settings.tls) if self._settings.tls is not None else None
        self._process.description = describe(self.routes, self._control.status().version, self._access.open_to_all)
        self._runner = web.AppRunner(self._application(), handle_signals=False, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        assert self._runner.server is not None, "set up by the line above"
        host, port = self._settings.http_host, self._settings.http_port
        try:
            places = Places(CONNECTIONS_MAX, self._clock)
            connect = partial(self._connect, self._runner.server)
            self._servers = await serve_bounded(connect, host, port, tls.context if tls else None, places)
        except OSError as error:
            await self.stop()
            raise address_in_use(host, port, "HTTP", ("--http-port", "--http-host"), error) from error
        if tls is not None:
            self._certificates = guarded("certificates", self._follow(tls))
        _log.info("http api listens", extra={"host": host, "port": self.port, "tls": tls is not None})

    @property
    def port(self) -> int:
        """Return the listening port."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    def set_requests_per_second(self, rate: float) -> None:
        """Change the rate of each client, from its next request on."""
        self._access.set_requests_per_second(rate)

    def report_stopping(self) -> None:
        """Report to readiness probes that the process is stopping; requests are still answered."""
        self._process.report_stopping()

    async def stop(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        self.report_stopping()
        await cancel(self._certificates)
        for server in self._servers:
            server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _connect(self, server: web.Server) -> _HttpConnection:
        return _HttpConnection(
            self._guard,
            server,
            access_log=None,
            logger=_library_log,
            keepalive_timeout=self._settings.idle_connection_s,
            max_line_size=self._settings.line_bytes_max,
            max_field_size=self._settings.header_bytes_max,
            lingering_time=_LINGERING_S,
        )

    def _application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._guard.catch], client_max_size=self._settings.body_bytes_max, handler_args=None
        )
        for route in self.routes:
            handler = self._guard.wrap(route)
            for path in (route.path, route.path + "/") if route.is_slash_optional else (route.path,):
                if route.method == "GET":
                    application.router.add_get(path, handler)
                else:
                    application.router.add_route(route.method, path, handler)
        application.on_response_prepare.append(self._guard.prepare)
        return application

    async def _follow(self, tls: ReloadingContext) -> None:
        while True:
            await self._clock.sleep(_CERTIFICATE_CHECK_S)
            tls.refresh()
