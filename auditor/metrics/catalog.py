"""All metrics of all processes, for the document, the alert rules, the dashboards and their tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from auditor.metrics import apache as auditor_apache
from auditor.metrics.definitions import AUDITOR
from bookie.runtime.telemetry.metric_definitions import Definition
from bookie.runtime.telemetry.metrics import COMMON
from bookie.server.metrics import BOOKIE
from replicator.telemetry import apache_metrics as replicator_apache
from replicator.telemetry.metrics import REPLICATOR

CATALOG: Mapping[str, Sequence[Definition]] = {
    "every process": COMMON,
    "auditor": AUDITOR,
    "replicator": REPLICATOR,
    "bookie": BOOKIE,
}
"""Definitions by process."""

APACHE: Mapping[str, Mapping[str, str]] = {
    "auditor": auditor_apache.APACHE,
    "replicator": replicator_apache.APACHE,
}
"""Names and help texts of the Apache-compatible metrics, by process."""
