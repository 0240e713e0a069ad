"""Settings of the service's APIs, and their checks before a server starts to listen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from auditor.api.access.proxies import Network
from bookie.runtime.access.access import anonymous_write_problems
from bookie.runtime.configuration.settings import ConfigurationError

ANONYMOUS_ACTIONS_TEXT: Final = "start and stop runs"
"""The possible actions of callers without a token."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a server. Certificate and key are read again after they change."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    """Clients need a certificate signed by one of these authorities; None: they need none. HTTP reads the file only at
    the start, because an authority cannot be removed from an SSL context that is in use."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Settings shared by both APIs, and their addresses."""

    report_dir: Path
    report_store: str = ""
    """Address of the store from which missing reports are fetched; empty: none."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    """0: any free one."""
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 8081
    """0: any free one."""
    tokens_file: Path | None = None
    """File of the tokens (``bookie.runtime.access.tokens``); None: no tokens."""
    allow_anonymous_read: bool = True
    allow_anonymous_write: bool = False
    """Only allowed if all addresses are loopback addresses."""
    tls: ServerTls | None = None
    requests_per_second: float = 20.0
    """Average rate of one client; twice as many requests may come in a burst. Health checks do not count."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests without a token may have on a loopback address, in addition to this machine's names:
    those that a proxy on this machine forwards."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Host`` count."""
    request_deadline_s: float = 30.0
    """Longest time from a request's headers to the beginning of its answer."""
    body_bytes_max: int = 16 * 1024
    """Size limit of a body: it holds the longest ids of as many bookies as one request may drain."""
    line_bytes_max: int = 32 * 1024
    """Size limit of the request line: it holds as many of the longest host names as a query may have bookies."""
    header_bytes_max: int = 8 * 1024
    """Size limit of each header."""
    idle_connection_s: float = 30.0
    """A connection that sends no complete request in this time is closed."""
    in_flight_max: int = 64
    """Concurrent requests of all clients; further ones are refused, and clients must retry them later."""
    watchers_max: int = 64
    """Concurrent streams of progress of all clients."""
    clients_max: int = 10_000
    """Clients whose rate is kept; the least recently seen client is removed first."""


def check_settings(settings: ApiSettings) -> None:
    """Refuse settings that would admit every client, or cannot work.

    Raises:
        ConfigurationError: lists every problem.
    """
    problems = []
    if settings.allow_anonymous_write:
        problems += anonymous_write_problems((settings.http_host, settings.grpc_host), ANONYMOUS_ACTIONS_TEXT)
    if settings.requests_per_second <= 0:
        problems.append(f"requests_per_second must be more than 0, not {settings.requests_per_second:g}")
    files = [settings.tokens_file]
    if settings.tls is not None:
        files += [settings.tls.cert, settings.tls.key, settings.tls.client_ca]
    problems += [f"cannot find the file {path}" for path in files if path is not None and not path.is_file()]
    if problems:
        raise ConfigurationError(problems)
