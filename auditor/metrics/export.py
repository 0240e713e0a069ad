"""Exports the result of one run outside the service as metrics, to a file for node-exporter or to a Pushgateway.

It exports only the age and the result of the last run, as gauges by kind. There are no counters, because the next run
is another process. After a failed run, the time of the last success and the findings of the last complete run remain as
they are in the file or at the gateway. An incomplete run may have found more than the last complete one: the file then
has the higher numbers. A dry run, or a run of a range or a sample, counts here as a last run, but not as a success.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPSHandler, Request, build_opener

from prometheus_client import CollectorRegistry, pushadd_to_gateway, write_to_textfile
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from auditor.metrics.definitions import LAST_DURATION, LAST_FINDINGS, LAST_HELD_BACK, LAST_RUN, LAST_SUCCESS, STATE
from auditor.metrics.service_metrics import Key, duration_s, last_run_values, result_values
from bookie.model.errors import TransientError
from bookie.model.hosts import is_host
from bookie.model.run import RunRecord, RunState
from bookie.runtime.output_files import require_replaceable

PUSH_JOB: Final = "bkheal_audit"
_PUSH_TIMEOUT_S: Final = 10.0
_SUCCESS_ONLY_METRICS: Final = frozenset({LAST_SUCCESS, LAST_DURATION})
"""Metrics that only a complete run changes that is not a dry run."""
_KEPT: Final = _SUCCESS_ONLY_METRICS | {LAST_FINDINGS, LAST_HELD_BACK}
"""The metrics that a run may leave unchanged: those of a success, and those that only a run with a result changes."""


class MetricsExportError(TransientError):
    """The metrics of a run could not be exported; this does not affect the run itself."""


def export_to_file(record: RunRecord, path: Path) -> None:
    """Write the metrics of a completed run atomically to ``path``, which usually ends in ``.prom``.

    Each kind of run needs a file of its own.

    Raises:
        MetricsExportError: the file cannot be written.
    """
    try:
        write_to_textfile(str(path), _registry(record, {} if _is_success(record) else _earlier(record, path)))
    except OSError as error:
        raise _unwritable(path, error) from error


def push(record: RunRecord, gateway: str, cluster: str) -> None:
    """Push the metrics of a completed run to the Pushgateway at ``gateway``, grouped by cluster and kind.

    Args:
        record: the run.
        gateway: host and port, or a URL; a user and password in it are sent as basic authentication and never shown.
        cluster: name of the cluster, for the group.

    Raises:
        MetricsExportError: the gateway cannot be reached, or refused the request.
    """
    grouping = {"cluster": cluster, "kind": record.kind.value}
    try:
        url, handler = _with_access(gateway)
        pushadd_to_gateway(
            url,
            job=PUSH_JOB,
            registry=_registry(record, None),
            grouping_key=grouping,
            timeout=_PUSH_TIMEOUT_S,
            handler=handler,
        )
    except (OSError, ValueError, HTTPException) as error:  # the last two: an invalid URL
        raise MetricsExportError(f"cannot push metrics to {without_secrets(gateway)}: {_reason(error)}") from None


def require_metrics_file(path: Path) -> None:
    """Check that the metrics of a run could be written to ``path``; nothing is changed.

    Raises:
        MetricsExportError: they could not.
    """
    try:
        require_replaceable(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def gateway_problem(gateway: str) -> str | None:
    """Return what is wrong with the address of a Pushgateway, without its secrets; None: nothing. Nothing is sent."""
    try:
        _with_access(gateway)
    except ValueError as error:
        return f"{without_secrets(gateway)} is not the address of a Pushgateway: {error}, such as http://gateway:9091"
    return None


def _unwritable(path: Path, error: OSError) -> MetricsExportError:
    return MetricsExportError(
        f"cannot write metrics to {path}: {error.strerror or error}; give a path in a folder that can be written"
    )


def _registry(record: RunRecord, earlier: dict[Key, float] | None) -> CollectorRegistry:
    """Return the metrics of a run.

    Args:
        record: the run.
        earlier: the kept values of earlier runs; None: they are unknown here, and the gateway keeps omitted metrics.
    """
    values = last_run_values(record)
    found = result_values(record.kind, [record])
    if _is_success(record):
        kind = record.kind.value
        values |= found | {(LAST_SUCCESS, kind): record.started_ms / 1000, (LAST_DURATION, kind): duration_s(record)}
    elif record.is_complete:
        values |= found | {key: value for key, value in (earlier or {}).items() if key[0] in _SUCCESS_ONLY_METRICS}
    elif earlier is not None:
        values |= earlier
        if record.state is RunState.DONE:
            values |= {key: max(count, earlier.get(key, 0)) for key, count in found.items()}
    registry = CollectorRegistry()
    registry.register(_OneRun(record, values))
    return registry


def _is_success(record: RunRecord) -> bool:
    return record.is_complete and not record.is_dry_run


def _earlier(record: RunRecord, path: Path) -> dict[Key, float]:
    """Return the values in a file that remain after a run without a result."""
    try:
        before = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    labels = {definition.name: definition.labels for definition in STATE if definition.name in _KEPT}
    return {
        (family.name, *(sample.labels[name] for name in labels[family.name])): sample.value
        for family in before
        if family.name in _KEPT
        for sample in family.samples
        if sample.labels.get("kind") == record.kind.value and labels[family.name].keys() <= sample.labels.keys()
    }


class _OneRun(Collector):
    def __init__(self, record: RunRecord, values: dict[Key, float]) -> None:
        self._record = record
        self._values = values

    def collect(self) -> Iterable[Metric]:
        known = {name for name, *_ in self._values}
        for definition in STATE:
            if definition.name not in LAST_RUN:
                continue
            is_set = _is_success(self._record) if definition.name in _SUCCESS_ONLY_METRICS else self._record.is_complete
            if definition.name in _KEPT and definition.name not in known and not is_set:
                continue  # a missing number is unknown, not 0
            family = GaugeMetricFamily(definition.name, definition.help, labels=tuple(definition.labels))
            for labels in definition.combinations():
                if labels["kind"] == self._record.kind.value:
                    key = tuple(labels.values())
                    family.add_metric(key, self._values.get((definition.name, *key), 0))
            yield family


def _with_access(gateway: str) -> tuple[str, Callable[..., Callable[[], None]]]:
    """Return the URL without user and password, and a sender that authenticates with them.

    Raises:
        ValueError: it is not the URL of a web server.
    """
    parts = urlsplit(gateway if "://" in gateway else f"http://{gateway}")
    name = parts.hostname or ""
    is_misspelt = name in ("http", "https") or " " in name + parts.path  # the first after `http:/gateway`
    if parts.scheme not in ("http", "https") or not is_host(name) or is_misspelt:
        raise ValueError("it must be an http or https URL")
    if not _has_valid_port(parts):
        raise ValueError("its port must be a number from 1 to 65535")
    access, _, host = parts.netloc.rpartition("@")
    more = {"Authorization": f"Basic {b64encode(unquote(access).encode()).decode()}"} if access else {}

    def handler(
        url: str, method: str, timeout: float | None, headers: Iterable[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        def send() -> None:
            request = Request(url, data, dict(headers) | more, method=method)  # noqa: S310 (the scheme was checked)
            try:
                with build_opener(HTTPHandler, HTTPSHandler).open(request, timeout=timeout):
                    return
            except HTTPError as error:
                error.close()
                raise

        return send

    return urlunsplit(parts._replace(netloc=host)), handler


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """Return the URL without its secrets: user, password and query."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        shown = parts.hostname or "the given URL"
        return f"{shown}:{parts.port}" if parts.port else shown
    except ValueError:
        return "the given URL"


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "")) or type(error).__name__
