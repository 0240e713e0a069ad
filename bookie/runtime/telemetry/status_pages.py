"""The contents of ``/metrics``, ``/livez``, ``/readyz`` and ``/version``, without any sockets. Knows no sockets."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from bookie.runtime.telemetry.metrics import MetricSet, render

Check = Callable[[], str]
"""The reasons for a failed check; empty after a success.

Called in the server's threads; reads attributes only.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes ask, by name."""

    live: Mapping[str, Check] = field(default_factory=dict)
    """Nothing outside this process."""
    ready: Mapping[str, Check] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/plain; charset=utf-8"),)


class Pages:
    """Makes the answer to each request."""

    def __init__(self, metrics: MetricSet, health: Health, *, needs_certificate: bool) -> None:
        """With ``needs_certificate``, only the probes are for clients without one."""
        self._metrics = metrics
        self._health = health
        self._needs_certificate = needs_certificate

    def page(self, target: str, accept: str, accept_encoding: str, *, has_certificate: bool) -> Page:
        """Answer a GET.

        Args:
            target: path and query as they were sent.
            accept: value of that header, empty for none; the same for ``accept_encoding``.
            accept_encoding: see there.
            has_certificate: whether the client showed one that the client CA signed.
        """
        parts = urlsplit(target)
        is_verbose = "verbose" in parse_qs(parts.query, keep_blank_values=True)
        match parts.path:
            case "/livez":
                return _probe(self._health.live, is_verbose)
            case "/readyz":
                return _probe(self._health.ready, is_verbose)
            case "/metrics" | "/version" if self._needs_certificate and not has_certificate:
                return Page(HTTPStatus.FORBIDDEN, b"a client certificate is needed\n")
            case "/metrics":
                shown = render(self._metrics.registry, accept, accept_encoding)
                return Page(HTTPStatus.OK, shown.body, shown.headers)
            case "/version":
                return Page(HTTPStatus.OK, self._version(), (("Content-Type", "application/json"),))
        return Page(HTTPStatus.NOT_FOUND, b"known are /metrics, /livez, /readyz and /version\n")

    def _version(self) -> bytes:
        known = {"component": self._metrics.component, "version": self._metrics.version}
        return json.dumps(known | {"python": platform.python_version()}).encode() + b"\n"


def _probe(checks: Mapping[str, Check], is_verbose: bool) -> Page:
    """In the form of Kubernetes' own probes."""
    results = {name: check() for name, check in checks.items()}
    lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in results.items()]
    if any(results.values()):
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join([*lines, "failed", ""]).encode())
    return Page(HTTPStatus.OK, "\n".join([*(lines if is_verbose else ()), "ok", ""]).encode())
