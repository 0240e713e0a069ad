"""A small HTTP server in addition to the main work of a process: ``/metrics``, ``/livez``, ``/readyz``, ``/version``.

It runs in its own threads, so a blocked event loop is reported as not alive instead of giving no answer. Unlike the
server of prometheus-client, it has the other paths and limits threads and time. It performs the TLS handshake in the
connection's own thread, because an unresponsive client must not block the others.

With a client CA, ``/metrics`` and ``/version`` require a client certificate signed by this CA. The two probes require
none, because a kubelet has none; they return only success or failure and the reason.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

from bookie.model.errors import PermanentError
from bookie.runtime.configuration.options import range_problems
from bookie.runtime.listening import address_in_use, host_and_port
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.runtime.telemetry.status_pages import Health, Pages, StatusResponse
from bookie.runtime.telemetry.status_settings import StatusServerSettings

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16
"""Maximum number of concurrent connections. A scraper and a few probes use one each.

If there are more, the oldest connection that has not sent a complete request is closed.
"""
LONG_ANSWERS_MAX: Final = CONNECTIONS_MAX // 2
"""Maximum number of connections that send a long body at the same time; further ones get a 503. So slow readers of
metrics do not block probes."""
_LONG_ANSWER_BYTES_MIN: Final = 4_096
"""A shorter body fits in the buffers of a connection: its thread does not wait for the client."""
CONNECTION_WAIT_S_MAX: Final = 1.0
"""How long a connection above the limit waits for the end of another one, in seconds. Then it is closed."""
DEADLINE_S: Final = 10.0
"""Longest life of a connection from its acceptance, even if its client is slow."""
_STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.25
TLS_RELOAD_INTERVAL_S: Final = 30.0
"""Interval between two checks for replaced TLS files."""


class StatusServerError(PermanentError):
    """The server cannot start with its settings."""


class StatusServer:
    """The HTTP server for metrics and probes. It listens once constructed, and answers from ``start`` to ``stop``."""

    def __init__(self, settings: StatusServerSettings, metrics: MetricSet, health: Health) -> None:
        """Bind the address.

        Raises:
            StatusServerError: the settings are inconsistent, or a TLS file cannot be used.
            AddressInUseError: the server cannot listen on its address.
        """
        if problems := [*range_problems(settings), *settings.problems()]:
            raise StatusServerError("; ".join(problems))
        tls = _Tls(settings) if settings.cert is not None else None
        self._server = _Server(settings, tls, Pages(metrics, health, needs_certificate=settings.client_ca is not None))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="http", daemon=True)
        scheme = "http" if tls is None else "https"
        self.port = int(self._server.server_address[1])
        self.url = f"{scheme}://{host_and_port(settings.host, self.port)}"

    def start(self) -> None:
        """Begin to answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; takes up to a quarter of a second. Requests in progress continue until their deadline."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, settings: StatusServerSettings, tls: _Tls | None, pages: Pages) -> None:
        self.pages = pages
        self._tls = tls
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.long_answers = threading.BoundedSemaphore(LONG_ANSWERS_MAX)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        self._waiting: dict[socket.socket, None] = {}
        """Connections without a complete request, oldest first. A connection that is closed to make room is removed."""
        self._own = threading.local()
        try:
            found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__(found[0][4][:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            options = ("--http-port", "--http-host")
            raise address_in_use(settings.host, settings.port, "metrics and probes", options, error) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._acquire_connection_slot():
            self.shutdown_request(request)
            return
        request.settimeout(DEADLINE_S)
        with self._lock:
            self._open[request] = time.monotonic() + DEADLINE_S
            self._waiting[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._leave(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._own.request = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        # A second descriptor: the deadline can then close the connection in any state of TLS.
        with self._tls.context.wrap_socket(request.dup(), server_side=True) as secured:
            super().finish_request(secured, client_address)

    def begin_answer(self) -> None:
        """Record that the request is complete: the connection of this thread is no longer closed to make room."""
        with self._lock:
            self._waiting.pop(self._own.request, None)

    def service_actions(self) -> None:
        """Close overdue connections, and check the TLS files if it is time. Called every quarter of a second."""
        now_s = time.monotonic()
        if self._tls is not None:
            self._tls.renew(now_s)
        with self._lock:
            for request, until_s in self._open.items():
                if until_s <= now_s:
                    _shut_down_socket(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level only: usually the client has left or does not speak HTTP or TLS."""
        _log.debug("HTTP connection ended early", exc_info=True)

    def _acquire_connection_slot(self) -> bool:
        """Take a place for one more connection, and return whether there was one."""
        if self._places.acquire(blocking=False):
            return True
        with self._lock:
            first = next(iter(self._waiting), None)
            if first is not None:
                del self._waiting[first]
                _shut_down_socket(first)
        return self._places.acquire(timeout=CONNECTION_WAIT_S_MAX)

    def _leave(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._waiting.pop(request, None)
        self._places.release()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "bkheal"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(is_body_sent=True)

    def do_HEAD(self) -> None:
        self._answer(is_body_sent=False)

    def _refuse(self) -> None:
        self.server.begin_answer()
        self._send(StatusResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET or HEAD\n", (("Allow", "GET, HEAD"),)), True)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 (names of the standard library)

    def _answer(self, *, is_body_sent: bool) -> None:
        self.server.begin_answer()
        connection = self.connection
        has_certificate = isinstance(connection, ssl.SSLSocket) and bool(connection.getpeercert())
        accept, accept_encoding = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
        try:
            page = self.server.pages.page(self.path, accept, accept_encoding, has_certificate=has_certificate)
        except Exception:  # noqa: BLE001 (task boundary: a failed page is one failed response)
            _log.exception("HTTP page failed", extra={"path": self.path[:200]})
            page = StatusResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error, see the log\n")
        if len(page.body) < _LONG_ANSWER_BYTES_MIN or not is_body_sent:
            self._send(page, is_body_sent)
        elif self.server.long_answers.acquire(blocking=False):
            try:
                self._send(page, is_body_sent)
            finally:
                self.server.long_answers.release()
        else:
            busy = b"too many clients read metrics; try again in a moment\n"
            self._send(StatusResponse(HTTPStatus.SERVICE_UNAVAILABLE, busy, (("Retry-After", "1"),)), is_body_sent)

    def _send(self, page: StatusResponse, is_body_sent: bool) -> None:
        self.send_response(page.status)
        headers = (*page.headers, ("Content-Length", str(len(page.body))))
        for name, value in (*headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")):
            self.send_header(name, value)
        self.end_headers()
        if is_body_sent:
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: one line for each probe and scrape would be too many."""


def _shut_down_socket(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


class _Tls:
    """The TLS context, recreated if its files were replaced. If new files are invalid, the old context stays in use."""

    def __init__(self, settings: StatusServerSettings) -> None:
        self._settings = settings
        self._files = [path for path in (settings.cert, settings.key, settings.client_ca) if path is not None]
        self._times = self._modification_times()
        self._check_again_s = 0.0
        self.context = _tls_context(settings, self._files)

    def renew(self, now_s: float) -> None:
        """Recreate the context if it is time to check and the files have changed."""
        if now_s < self._check_again_s:
            return
        self._check_again_s = now_s + TLS_RELOAD_INTERVAL_S
        times = self._modification_times()
        if times == self._times:
            return
        try:
            self.context = _tls_context(self._settings, self._files)
        except StatusServerError as error:  # perhaps half-way through being replaced
            _log.warning("TLS files changed and cannot be used", extra={"error": str(error)})
        else:
            self._times = times
            _log.info("TLS files read again", extra={"cert": str(self._settings.cert)})

    def _modification_times(self) -> list[int]:
        try:
            return [path.stat().st_mtime_ns for path in self._files]
        except OSError:
            return []


def _tls_context(settings: StatusServerSettings, files: Sequence[Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files[0], settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # a presented certificate must verify; each path decides on its own
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(map(str, files))
        raise StatusServerError(f"cannot use the TLS files for HTTP ({named}): {error}") from error
    return context
