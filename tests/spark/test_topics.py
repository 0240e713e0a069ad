"""The topics of a run's findings: in the columns of findings, the summary, the page and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.run import RunKind
from spark_jobs.checks.findings import FindingKind
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.findings.one_run import read_findings
from spark_jobs.report.impact_rows import ImpactFilter, read_impact_page
from spark_jobs.runs.run import run_check
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

CHANGES = "t/n/persistent/__change_events"


def of_pulsar(metadata: LedgerMetadata, managed_ledger: bytes, cursor: bytes | None = None) -> LedgerMetadata:
    custom = [("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", managed_ledger)]
    if cursor is not None:
        custom.append(("pulsar/cursor", cursor))
    return replace(metadata, custom=tuple(custom))


def open_ledger(*members: str) -> LedgerMetadata:
    return LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), tuple(map(BookieId, members))),))


LEDGERS = {
    1: of_pulsar(closed("a:1", "b:1"), b"t/n/persistent/whole"),
    2: of_pulsar(closed("a:1", "x:1"), b"t/n/persistent/orders-partition-1"),
    3: of_pulsar(closed("x:1", "y:1"), b"t/n/persistent/orders-partition-0"),
    4: of_pulsar(open_ledger("x:1", "y:1"), b"u/m/persistent/a%2Fb"),
    5: of_pulsar(closed("x:1", "y:1"), CHANGES.encode()),
    6: of_pulsar(closed("x:1", "b:1"), b"t/n/persistent/orders-partition-0", b"billing"),
    7: closed("x:1", "b:1"),
    8: of_pulsar(closed("x:1", "b:1"), b"t/n/persistent/\xff"),
    9: of_pulsar(closed("y:1", "b:1"), b"t/n/persistent/orders-partition-0", b"billing"),
}


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """The bookies x and y no longer exist."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create(LEDGERS)
        yield place


def dry(place: Place) -> AuditSettings:
    return AuditSettings(place.uri, report_dir=place.report_dir, is_dry_run=True, missing_share_max=1)


def test_findings_name_the_topics_and_the_summary_ranks_them(spark: SparkSession, place: Place) -> None:
    result = run_check(spark, RunKind.BOOKIES, dry(place))
    found = {row["ledger_id"]: row for row in read_findings(place.report_dir, result.run_id, 100).rows}
    assert sorted(found) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [found[4][name] for name in OWNER_COLUMNS] == ["u", "u/m", "persistent://u/m/a/b", "managed-ledger", None]
    assert [found[6][name] for name in OWNER_COLUMNS][2:] == [
        "persistent://t/n/orders-partition-0",
        "cursor",
        "billing",
    ]
    assert [found[7][name] for name in OWNER_COLUMNS] == [None] * 5
    assert [found[8][name] for name in OWNER_COLUMNS] == [None, None, None, "unknown", None]

    impact = result.summary.impact
    assert [
        (row.severity.label, row.effect.name, row.standing.value, row.topic, row.ledgers) for row in impact.topics
    ] == [
        ("no_live_copy", "NAMESPACE_DOWN", "now", "persistent://t/n/__change_events", 1),
        ("no_live_copy", "TOPIC_DOWN", "now", "persistent://u/m/a/b", 1),
        ("no_live_copy", "READS_STOP", "now", "persistent://t/n/orders-partition-0", 1),
        ("critical", "READS_STOP", "at risk", "persistent://t/n/orders-partition-1", 1),
        ("critical", "REWINDS", "at risk", "persistent://t/n/orders-partition-0", 2),
    ]
    assert [(each.severity.label, each.namespaces, each.topics, each.ledgers) for each in impact.severities] == [
        ("no_live_copy", 2, 3, 3),
        ("critical", 1, 2, 3),
    ]
    assert [(each.severity.label, each.namespace, each.effect.name) for each in impact.namespaces] == [
        ("no_live_copy", "t/n", "NAMESPACE_DOWN"),
        ("no_live_copy", "u/m", "TOPIC_DOWN"),
        ("critical", "t/n", "READS_STOP"),
    ]
    assert impact.unnamed_ledgers == 2
    assert decode_summary(json.loads(json.dumps(result.summary.to_json()))).impact == impact
    worst = {ledger.ledger_id: ledger.topic for ledger in result.summary.worst_ledgers}
    assert worst[5] == "persistent://t/n/__change_events"
    assert worst[7] == ""

    page = (place.report_dir / result.run_id / "report.html").read_text(encoding="utf-8")
    assert "persistent://t/n/__change_events" in page
    filtered = read_impact_page(place.report_dir, result.run_id, 10, ImpactFilter(topic="persistent://t/n/orders"))
    assert [row.topic[-1] for row in filtered.rows] == ["0", "1", "0"]

    command = ["impact", "--report-dir", str(place.report_dir), "--namespace", "u/m"]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0
    assert "persistent://u/m/a/b" in printed.stdout
    assert "__change_events" not in printed.stdout


def test_placement_findings_name_topics_without_missing_copies(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.register("y:1")
    topology = tmp_path / "topology.json"
    topology.write_text('{"a:1": "/r1", "b:1": "/r1", "x:1": "/r1", "y:1": "/r2"}', encoding="utf-8")
    settings = replace(dry(place), topology_file=topology)
    result = run_check(spark, RunKind.PLACEMENT, settings)
    rows = read_findings(place.report_dir, result.run_id, 100).rows
    misplaced = {row["ledger_id"]: row["topic"] for row in rows if row["kind"] == FindingKind.MISPLACED.value.lower()}
    assert misplaced[1] == "persistent://t/n/whole"
    assert {row.standing.value for row in result.summary.impact.topics} == {"none"}
