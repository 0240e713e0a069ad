"""Names, labels and texts of all metrics follow Prometheus' rules and ours, and match the document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from auditor.metrics.catalog import APACHE, CATALOG
from bookie.model.errors import InvariantError
from bookie.runtime.telemetry.metric_definitions import Definition, MetricType, problems
from bookie.runtime.telemetry.metrics import COMMON, MetricSet, render
from tests.worlds.sources import ROOT, sources

ALL = [definition for definitions in CATALOG.values() for definition in definitions]
COUNTER = Definition("bkheal_x_total", MetricType.COUNTER, "Things", {"kind": ("a", "b"), "way": ("in", "out")})


def test_all_definitions_follow_the_rules() -> None:
    assert problems(ALL) == []
    assert len(ALL) > 50


def test_broken_definitions_are_reported() -> None:
    counter, gauge, histogram = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
    broken = [
        Definition("queue", gauge, "No prefix"),
        Definition("bkheal_queueSize", gauge, "Camels"),
        Definition("bkheal_things", counter, "No suffix"),
        Definition("bkheal_others_total", gauge, "The suffix of counters"),
        Definition("bkheal_things_count", gauge, "The suffix of histograms"),
        Definition("bkheal_wait_seconds", histogram, "No buckets"),
        Definition("bkheal_pause_seconds", histogram, "Not ascending", buckets=(2.0, 1.0)),
        Definition("bkheal_waits", histogram, "No unit", buckets=(1.0,)),
        Definition("bkheal_helpless", gauge, "A sentence."),
        Definition("bkheal_unbounded", gauge, "An id", {"ledger_id": ("1",)}),
        Definition("bkheal_empty", gauge, "No values", {"kind": ()}),
    ]
    assert len(problems(broken)) == len(broken)
    assert problems([COUNTER, COUNTER]) == ["bkheal_x_total: bkheal_x is defined twice"]
    assert problems([Definition("bkheal_x", gauge, "The counter's family"), COUNTER]) != []


def test_every_combination_of_labels_starts_at_zero() -> None:
    metrics = MetricSet("bookie", "1", [COUNTER])
    assert {
        metrics.registry.get_sample_value("bkheal_x_total", {"kind": kind, "way": way})
        for kind in ("a", "b")
        for way in ("in", "out")
    } == {0.0}


def test_undefined_metrics_and_labels_cannot_be_counted() -> None:
    metrics = MetricSet("bookie", "1", [COUNTER])
    metrics.counter("bkheal_x_total", way="in", kind="a").inc()
    assert metrics.registry.get_sample_value("bkheal_x_total", {"kind": "a", "way": "in"}) == 1
    for labels in ({}, {"kind": "a"}, {"kind": "c", "way": "in"}):
        with pytest.raises(InvariantError):
            metrics.counter("bkheal_x_total", **labels)
    with pytest.raises(InvariantError):
        metrics.gauge("bkheal_x_total", kind="a", way="in")


def test_processes_do_not_share_metrics() -> None:
    one, other = MetricSet("bookie", "1", [COUNTER]), MetricSet("bookie", "1", [COUNTER])
    one.counter("bkheal_x_total", kind="a", way="in").inc()
    assert other.registry.get_sample_value("bkheal_x_total", {"kind": "a", "way": "in"}) == 0


@pytest.mark.parametrize("process", ["replicator", "bookie"])
def test_a_scrape_contains_every_metric_with_its_type_and_help(process: str) -> None:
    metrics = MetricSet(process, "1", CATALOG[process])
    found = {one.name: one for one in text_string_to_metric_families(render(metrics.registry).body.decode())}
    for definition in (*COMMON, *CATALOG[process]):
        shown = found[definition.name.removesuffix("_total")]
        assert (shown.type, shown.documentation) == (definition.type.value, definition.help)
        assert {name for sample in shown.samples for name in sample.labels} - {"le"} == set(definition.labels)


def test_the_document_is_up_to_date(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "generate_metrics_doc.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path / "made.md")], check=True, timeout=60)
    made = (tmp_path / "made.md").read_text()
    assert (ROOT / "docs/metrics.md").read_text() == made, "run: python .ci/generate_metrics_doc.py"
    named = {definition.name for definition in ALL} | {name for names in APACHE.values() for name in names}
    assert all(f"| `{name}` |" in made for name in named)


def test_core_packages_do_not_import_prometheus() -> None:
    """Metrics belong to the edges: storage, client, metadata and model are measured from outside."""
    for package in ("model", "metadata", "storage", "client", "wire"):
        for source in sources(f"bookie/{package}"):
            used = [name for name in source.imported if name.startswith(("prometheus_client", "bookie.runtime.metric"))]
            assert used == [], source.path
