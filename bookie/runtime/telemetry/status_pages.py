"""The contents of ``/metrics``, ``/livez``, ``/readyz`` and ``/version``, without any sockets."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from bookie.runtime.telemetry.metrics import MetricSet, render

Check = Callable[[], str]
"""A function to return the reason for a failed check, or an empty text after a success.

It runs in the server's threads and only reads attributes.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """The checks behind the probes, by name."""

    live: Mapping[str, Check] = field(default_factory=dict)
    """Checks of liveness, which must depend on nothing outside this process."""
    ready: Mapping[str, Check] = field(default_factory=dict)
    """Checks of readiness."""


@dataclass(frozen=True, slots=True)
class StatusResponse:
    """One response."""

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/plain; charset=utf-8"),)


class Pages:
    """The pages of the server; creates the response to each request."""

    def __init__(self, metrics: MetricSet, health: Health, *, needs_certificate: bool) -> None:
        """With ``needs_certificate``, clients without a certificate may only read the probes."""
        self._metrics = metrics
        self._health = health
        self._needs_certificate = needs_certificate

    def page(self, target: str, accept: str, accept_encoding: str, *, has_certificate: bool) -> StatusResponse:
        """Return the response to a GET.

        Args:
            target: path and query as received.
            accept: value of the ``Accept`` header; empty without one.
            accept_encoding: value of the ``Accept-Encoding`` header; empty without one.
            has_certificate: whether the client presented a certificate signed by the client CA.
        """
        parts = urlsplit(target)
        is_verbose = "verbose" in parse_qs(parts.query, keep_blank_values=True)
        match parts.path:
            case "/livez":
                return _probe(self._health.live, is_verbose)
            case "/readyz":
                return _probe(self._health.ready, is_verbose)
            case "/metrics" | "/version" if self._needs_certificate and not has_certificate:
                return StatusResponse(HTTPStatus.FORBIDDEN, b"a client certificate is required\n")
            case "/metrics":
                shown = render(self._metrics.registry, accept, accept_encoding)
                return StatusResponse(HTTPStatus.OK, shown.body, shown.headers)
            case "/version":
                return StatusResponse(HTTPStatus.OK, self._version(), (("Content-Type", "application/json"),))
        return StatusResponse(
            HTTPStatus.NOT_FOUND, b"not found; the pages are /metrics, /livez, /readyz and /version\n"
        )

    def _version(self) -> bytes:
        known = {"component": self._metrics.component, "version": self._metrics.version}
        return json.dumps(known | {"python": platform.python_version()}).encode() + b"\n"


def _probe(checks: Mapping[str, Check], is_verbose: bool) -> StatusResponse:
    """Return the result of ``checks`` in the format of Kubernetes' own probes."""
    results = {name: check() for name, check in checks.items()}
    lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in results.items()]
    if any(results.values()):
        return StatusResponse(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join([*lines, "failed", ""]).encode())
    return StatusResponse(HTTPStatus.OK, "\n".join([*(lines if is_verbose else ()), "ok", ""]).encode())
