"""The metrics of one process: its own registry, created from definitions, and the rendering of that registry.

There is no global state: each process (and each test) creates its own ``MetricSet``. Values may be read and changed
from any thread; nothing here blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.exposition import gzip_accepted

from bookie.model.errors import InvariantError
from bookie.runtime.telemetry.metric_definitions import Definition, MetricType

BUILD_INFO: Final = "bkheal_build_info"
SESSION: Final = "bkheal_zookeeper_session_connected"

COMMON: Final = (
    Definition(
        BUILD_INFO,
        MetricType.GAUGE,
        "Always 1; the labels are the version and the name of the process",
        {"version": (), "component": ()},
        watch="two versions run for longer than a roll-out takes",
        is_free=True,
    ),
    Definition(
        SESSION,
        MetricType.GAUGE,
        "Whether this process has a connected session with ZooKeeper (1) or not (0)",
        watch="it is 0 for minutes: the process cannot read or change anything in ZooKeeper",
    ),
)
"""The metrics of every process."""

SHARED_RENDERING_AGE_S_MAX: Final = 1.0
"""How long one rendering is used for all requests for its format, in seconds."""
_OPENMETRICS: Final = "application/openmetrics-text"
_FORMATS: Final = {
    (_OPENMETRICS, ""): f"{_OPENMETRICS}; version=1.0.0",
    (_OPENMETRICS, "1.0.0"): f"{_OPENMETRICS}; version=1.0.0",
    ("text/plain", "1.0.0"): "text/plain; version=1.0.0",
}
"""The ``Accept`` header of each format other than the default, text of version 0.0.4, by media type and version.

No metric of bkheal has a name that must be escaped, so the escaping scheme in a client's header is ignored.
"""

Labels = tuple[tuple[str, str], ...]


class MetricSet:
    """The metrics of one process in a registry."""

    def __init__(self, component: str, version: str, definitions: Iterable[Definition]) -> None:
        """Register everything and set it to 0.

        Args:
            component: the process: ``auditor``, ``replicator`` or ``bookie``.
            version: the version of the program.
            definitions: the metrics in addition to ``COMMON`` and the collectors of the process and of Python.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]  # global in the library, wanted for all our metrics
        self.component = component
        self.version = version
        self.registry = CollectorRegistry(auto_describe=True)
        self._children: dict[tuple[str, Labels], Any] = {}
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        for definition in (*COMMON, *definitions):
            self._register(definition)
        build = self._children[BUILD_INFO, ()].labels(version=version, component=component)
        build.set(1)

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter with these labels. A caller should keep it for frequent use.

        Raises:
            InvariantError: no such counter with these labels is defined; ``gauge`` and ``histogram`` raise it as well.
        """
        return cast(Counter, self._child(name, labels, Counter))

    def gauge(self, name: str, **labels: str) -> Gauge:
        """Return the gauge with these labels."""
        return cast(Gauge, self._child(name, labels, Gauge))

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Return the histogram with these labels."""
        return cast(Histogram, self._child(name, labels, Histogram))

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Export the result of ``read`` at each scrape. It runs in other threads and may only read attributes."""
        self.gauge(name, **labels).set_function(read)

    def _register(self, definition: Definition) -> None:
        kind = {MetricType.COUNTER: Counter, MetricType.GAUGE: Gauge, MetricType.HISTOGRAM: Histogram}[definition.type]
        more = {"buckets": definition.buckets} if definition.buckets else {}
        metric: Any = kind(definition.name, definition.help, tuple(definition.labels), registry=self.registry, **more)
        if not definition.labels or definition.is_free:
            self._children[definition.name, ()] = metric
            return
        for labels in definition.combinations():
            self._children[definition.name, _key(labels)] = metric.labels(**labels)

    def _child(self, name: str, labels: Mapping[str, str], kind: type[Any]) -> Any:
        child = self._children.get((name, _key(labels)))
        if not isinstance(child, kind):
            raise InvariantError(f"no {kind.__name__.lower()} {name} with labels {dict(labels)} is defined")
        return child


@dataclass(frozen=True, slots=True)
class Exposition:
    """One rendering of a registry."""

    headers: tuple[tuple[str, str], ...]
    """The content type, and the encoding if the body is compressed."""
    body: bytes


def render(registry: CollectorRegistry, accept: str = "", accept_encoding: str = "") -> Exposition:
    """Render a registry as text or OpenMetrics, according to ``accept``; compressed if ``accept_encoding`` names gzip.

    Works with any HTTP server and takes a few milliseconds. Raises the errors of the registry's collectors.
    """
    return _rendered(registry, _format(accept), "gzip" if gzip_accepted(accept_encoding) else "")


class SharedRendering:
    """Renders a registry for each format once a second at most, for any number of requests in any threads."""

    def __init__(
        self, registry: CollectorRegistry, monotonic_s: Callable[[], float], update: Callable[[], None] = lambda: None
    ) -> None:
        """Store the arguments. ``update`` is called before each rendering, to set the values of the registry."""
        self._registry = registry
        self._monotonic_s = monotonic_s
        self._update = update
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, str], tuple[float, Exposition]] = {}
        """The end and the result of the last rendering, by format and encoding. There are only a few of these."""

    def exposition(self, accept: str = "", accept_encoding: str = "") -> Exposition:
        """Return the result of ``render``, up to ``SHARED_RENDERING_AGE_S_MAX`` seconds old.

        Waits if another thread is rendering.
        """
        asked = (_format(accept), "gzip" if gzip_accepted(accept_encoding) else "")
        with self._lock:
            ended_s, shown = self._shared.get(asked, (0.0, None))
            if shown is None or self._monotonic_s() - ended_s >= SHARED_RENDERING_AGE_S_MAX:
                self._update()
                shown = _rendered(self._registry, *asked)
                self._shared[asked] = (self._monotonic_s(), shown)
            return shown


def _format(accept: str) -> str:
    """Return the ``Accept`` header of the first supported format in ``accept``; empty for the default format."""
    for part in accept.split(","):
        media_type, *parameters = (word.strip() for word in part.split(";"))
        version = next((word.removeprefix("version=") for word in parameters if word.startswith("version=")), "")
        if known := _FORMATS.get((media_type, version)):
            return known
    return ""


def _rendered(registry: CollectorRegistry, accept: str, accept_encoding: str) -> Exposition:
    headers: list[tuple[str, str]] = []

    def started(status: str, given: list[tuple[str, str]], error: object = None) -> Callable[[bytes], object]:
        headers.extend(given)
        return headers.append  # type: ignore[return-value]  # the legacy "write" function, never called

    asked = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/metrics",
        "QUERY_STRING": "",
        "HTTP_ACCEPT": accept,
        "HTTP_ACCEPT_ENCODING": accept_encoding,
    }
    body = b"".join(make_wsgi_app(registry)(asked, started))
    return Exposition(tuple(headers), body)


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
