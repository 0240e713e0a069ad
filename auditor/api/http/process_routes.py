"""Paths about the process itself: probes, metrics, version, and the description of all other paths.

Probes follow Kubernetes: ``/livez`` reports whether this process answers, regardless of the metadata store, because a
restart would not repair the store; ``/readyz`` reports whether it can do its work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web

from auditor.api.control import Control
from auditor.api.http.documents import document
from auditor.api.http.routes import JSON, TEXT, Call, Parameter, Route, RouteAnswer
from auditor.api.problems import NotFoundError
from bookie.runtime.telemetry.metrics import Exposition

COMPONENT: Final = "auditor"


RenderMetrics = Callable[[str, str], Exposition]
"""Renders metrics for the request's ``Accept`` and ``Accept-Encoding``."""


class ProcessRoutes:
    """Handlers about this process."""

    def __init__(self, control: Control, metrics: RenderMetrics | None) -> None:
        self._control = control
        self._metrics = metrics
        self._is_stopping = False
        self.description: dict[str, Any] = {}
        """The answer of ``/openapi.json``; set after all routes are known."""

    def report_stopping(self) -> None:
        """Report this process as not ready from now on."""
        self._is_stopping = True

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        ok, text = RouteAnswer(200, "Yes.", TEXT), "text/plain"
        verbose = (Parameter("verbose", "With each check.", {"type": "string"}),)
        return (
            Route("GET", "/livez", "get_livez", "Whether this process answers.", self._live, (ok,), None, "process"),
            Route("GET", "/healthz", "get_healthz", "As /livez.", self._live, (ok,), None, "process"),
            Route("GET", "/readyz", "get_readyz", "Whether this process can do its work.", self._ready,
                  (ok, RouteAnswer(503, "No, with the checks.", text)), None, "process", parameters=verbose),
            Route("GET", "/metrics", "get_metrics", "Metrics for Prometheus.", self._show_metrics,
                  (RouteAnswer(200, "Text or OpenMetrics, as requested.", ""),), tag="process", is_limited=False),
            Route("GET", "/version", "get_version", "The version.", self._version,
                  (RouteAnswer(200, "Version.", JSON, "Version"),), tag="process"),
            Route("GET", "/openapi.json", "get_openapi", "This description.", self._describe,
                  (RouteAnswer(200, "OpenAPI.", JSON, "Description"),), tag="process"),
            Route("GET", "/", "get_root", "Redirects to the status page.", self._root,
                  (RouteAnswer(302, "To /status.", ""),), tag="process"),
        )  # fmt: skip

    async def _live(self, call: Call) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, call: Call) -> web.Response:
        status = self._control.status()
        checks = {
            "metadata-store": status.is_store_connected,
            "permissions": not status.problems,
            "not-stopping": not self._is_stopping,
        }
        is_ready = all(checks.values())
        if is_ready and "verbose" not in call.request.query:
            return web.Response(text="ok")
        lines = [f"[{'+' if is_ok else '-'}]{name} {'ok' if is_ok else 'failed'}" for name, is_ok in checks.items()]
        lines += [f"permissions: {problem}" for problem in status.problems]
        lines.append(f"readyz check {'passed' if is_ready else 'failed'}")
        return web.Response(text="\n".join(lines) + "\n", status=200 if is_ready else 503)

    async def _show_metrics(self, call: Call) -> web.Response:
        if self._metrics is None:
            raise NotFoundError("this process has no metrics")
        asked = call.request.headers
        shown = self._metrics(asked.get("Accept", ""), asked.get("Accept-Encoding", ""))
        return web.Response(body=shown.body, headers=list(shown.headers))

    async def _version(self, call: Call) -> web.Response:
        version = self._control.status().version
        return web.json_response(document("Version", {"version": version, "component": COMPONENT}))

    async def _describe(self, call: Call) -> web.Response:
        return web.json_response(self.description)

    async def _root(self, call: Call) -> web.Response:
        return web.Response(status=302, headers={"Location": "/status"})
