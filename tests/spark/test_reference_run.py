"""The references check: ledgers without a reference in Pulsar, references to missing ledgers, and undecided ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.port import AccessDeniedError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.checks.references.comparison import suspects
from spark_jobs.datasource import references
from spark_jobs.datasource.register import register
from spark_jobs.datasource.task_rows import READING
from spark_jobs.reference_rows import REFERENCE_SCHEMA
from spark_jobs.report.console import table
from spark_jobs.report.counts import NamespaceCount
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.findings.one_run import read_findings
from spark_jobs.report.summary import Verdict
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.kinds import reference_run
from spark_jobs.runs.port import RunStoppedError
from spark_jobs.runs.prerequisites import ExportError, NoPulsarError
from spark_jobs.runs.run import AuditResult
from spark_jobs.runs.spark_failures import ScanFailedError
from spark_jobs.settings import FailOn
from tests.sessions import LONG_SESSION_S
from tests.spark.audit_world import Place, kept_by, lose_blocks, opened
from tests.worlds.pulsar_nodes import (
    KINDS,
    MESSAGES,
    ML,
    OTHER,
    Custom,
    cursor,
    ledger,
    managed,
    of_pulsar,
    partitioned,
    put_node,
    schema,
)

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@dataclass
class Pulsar:
    """A cluster, and the root of the brokers' metadata."""

    place: Place
    root: str

    def put(self, path: str, data: bytes) -> None:
        self.place.do(put_node(self.place.store, f"{self.root}/{path}", data))

    def check(self, spark: SparkSession, *roots: str, grace_s: float = 0, export: Path | None = None) -> AuditResult:
        named = ",".join(roots or (self.root,))
        settings = {"pulsar_roots": named, "reference_grace_s": grace_s, "export": export}
        result = self.place.check(spark, RunKind.REFERENCES, **settings)
        assert self.place.marked() == {}
        return result

    def found(self, result: AuditResult) -> dict[str, list[int]]:
        rows = read_findings(self.place.report_dir, result.run_id, 1000).rows
        kinds = sorted({row["kind"] for row in rows})
        return {kind: [row["ledger_id"] for row in rows if row["kind"] == kind] for kind in kinds}


@pytest.fixture
def pulsar(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Pulsar]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        made = Pulsar(place, f"{fresh_root}-brokers")
        made.put(f"managed-ledgers/{ML}", b"")
        yield made


def counts(result: AuditResult) -> Sequence[int]:
    found = result.summary.references
    assert found is not None
    return found.referenced, found.unreferenced, found.lost, found.undecodable


@pytest.mark.long
def test_references_that_were_lost_with_an_executor_are_read_again(
    spark: SparkSession, pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, one verdict would be based on references that were read at two different times (R2)."""
    pulsar.place.create({1: ledger(MESSAGES)})
    pulsar.put(f"managed-ledgers/{ML}", managed(1, 40))
    first_look = [None]

    def after_a_loss(first: DataFrame, found: DataFrame, lost: int) -> DataFrame:
        if first_look:
            first_look.pop()
            assert lost == 1
            lose_blocks(spark)
            pulsar.place.do(pulsar.place.store.set(f"{pulsar.root}/managed-ledgers/{ML}", managed(1), -1))
        return suspects(first, found, lost)

    monkeypatch.setattr(reference_run, "suspects", after_a_loss)
    assert counts(pulsar.check(spark)) == (1, 0, 0, 0)
    assert "metadata was lost with an executor, so it is read again" in caplog.text


def test_every_kind_of_reference_is_counted_and_all_other_ledgers_are_reported(
    spark: SparkSession, pulsar: Pulsar, tmp_path: Path
) -> None:
    place, file = pulsar.place, tmp_path / "ids.txt"
    numbered = dict(enumerate(KINDS, 1))
    place.create({number + ten: ledger(custom) for number, custom in numbered.items() for ten in (0, 10)})
    place.create({20: ledger(OTHER), 21: ledger(MESSAGES), 30: ledger(()), 31: ledger(MESSAGES, is_open=True)})
    place.create({32: ledger(of_pulsar(b"managed-ledger", managed__ledger="t/n/persistent/%zz"))})
    place.create({33: ledger(of_pulsar(b"delayed-index-bucket", delayedIndexBucketKey="k")), 34: ledger(MESSAGES)})
    place.damage(34)
    pulsar.put(f"managed-ledgers/{ML}", managed(1, 21, 40, 41, 42, offloaded=[41], copied=[21], empty=[42]))
    pulsar.put("managed-ledgers/t/n/persistent/copies", managed(1, 40, offloaded=[40], copied=[1]))
    pulsar.put(f"managed-ledgers/{ML}/s%2F1", cursor(2, bucket=5))
    pulsar.put(f"managed-ledgers/{ML}/__compaction", cursor(compacted=4))
    pulsar.put("schemas/t/n/orders", schema(3))

    result = pulsar.check(spark, export=file)
    summary, found = result.summary, result.summary.references
    assert found is not None
    assert counts(result) == (6, 6, 1, 0)
    assert (found.offloaded_and_here, found.offloaded, found.unreferenced_stored_bytes) == (1, 1, 1200)
    assert found.namespaces == (NamespaceCount("t/n", 5, 1000), NamespaceCount("t/m", 1, 200))
    assert found.not_judged == {
        "its metadata cannot be read": 1,
        "not of Pulsar": 1,
        "not closed": 1,
        "it names no topic, or no subscription": 2,
    }
    assert pulsar.found(result) == {
        "dangling_reference": [40],
        "unreadable_metadata": [34],
        "unreferenced_ledger": [11, 12, 13, 14, 15, 20],
    }
    assert file.read_text(encoding="ascii").split() == ["11", "12", "13", "14", "15", "20"]
    (worst,) = summary.worst_ledgers
    # If a ledger has several references, the one with the worst effect counts.
    assert (worst.ledger_id, worst.severity, worst.topic) == (40, Severity.LOST, "persistent://t/n/orders")
    assert (summary.verdict, summary.is_complete) == (Verdict.LOST, True)
    assert [(row.topic, row.severity) for row in summary.impact.topics] == [(worst.topic, Severity.LOST)]
    assert decode_summary(json.loads(result.summary_path.read_bytes())) == summary
    assert "t/n" in table(summary)
    page = (result.summary_path.parent / "report.html").read_text()
    assert "Pulsar refers to 1 ledger that does not exist." in page
    assert "Unreferenced ledgers by namespace" in page

    young = pulsar.check(spark, grace_s=3600)
    assert counts(young) == (6, 0, 1, 0)
    assert young.summary.references is not None
    assert young.summary.references.not_judged["younger than the grace period"] == 6


def deny(zookeeper: EmbeddedZooKeeper, path: str) -> None:
    client = KazooClient(zookeeper.connect_string, timeout=LONG_SESSION_S)
    client.start()
    client.set_acls(path, [make_digest_acl("owner", "unknown", all=True)])
    client.stop()
    client.close()


def test_a_node_that_cannot_be_decoded_is_a_finding_and_its_topic_is_not_reported(
    spark: SparkSession, pulsar: Pulsar, zookeeper: EmbeddedZooKeeper
) -> None:
    def topic(name: str) -> str:
        return f"persistent://t/n/{name}"

    def messages(name: str) -> Custom:
        return of_pulsar(b"managed-ledger", managed__ledger=f"t/n/persistent/{name}")

    damaged = ("managed-ledgers/t/n/persistent/a", "managed-ledgers/t/n/persistent/b/s", "schemas/t/n/c")
    for path in damaged:
        pulsar.put(path, b"\x47\x78\x00\x00")
    denied = "managed-ledgers/t/n/persistent/e"
    pulsar.put(denied, managed(8))
    deny(zookeeper, f"{pulsar.root}/{denied}")
    pulsar.put("managed-ledgers/t/n/persistent/d/__compaction", cursor(5))
    compacted = [of_pulsar(b"compacted-ledger", compactedTopic=topic(name)) for name in ("a", "d")]
    owned = of_pulsar(b"managed-ledger", managed__ledger="t/n/persistent/d", cursor="__compaction")
    customs = [messages("a"), messages("b"), messages("c"), compacted[0], owned, compacted[1], messages("d")]
    customs.append(messages("e"))
    pulsar.place.create({number: ledger(custom) for number, custom in enumerate(customs, 1)})

    result = pulsar.check(spark)
    assert counts(result) == (1, 1, 0, 4)
    assert pulsar.found(result) == {
        "undecodable_references": [1, 2, 3, 4, 8],
        "unread_reference": [5],
        "unreferenced_ledger": [7],
    }
    unread = next(
        row
        for row in read_findings(pulsar.place.report_dir, result.run_id, 1000).rows
        if row["kind"] == "unread_reference"
    )
    assert (unread["namespace"], unread["topic"], unread["subscription"]) == ("t/n", topic("d"), "__compaction")
    assert unread["detail"] == f"cursor state of {topic('d')} is in ledger 5: compacted ledger not checked"
    found = result.summary.references
    assert found is not None
    assert found.not_judged == {
        "a node of its topic cannot be decoded": 5,
        "the reference to the compacted ledger is in a ledger": 1,
    }
    nodes = {node.path: node.reason for node in found.undecodable_nodes}
    assert sorted(nodes) == sorted(f"{pulsar.root}/{path}" for path in (*damaged, denied))
    assert nodes[f"{pulsar.root}/{denied}"] == "the node's ACL does not let this session read it"
    assert (result.summary.verdict, result.exit_code()) == (Verdict.INCOMPLETE, ExitCode.PARTIAL)
    assert "and 1 more" in result.summary.problems[0]

    pulsar.put("managed-ledgers/t/n/persistent/%zz", b"\xff")
    assert counts(pulsar.check(spark)) == (1, 0, 0, 5), "an unreadable name may belong to any topic"


def test_changes_during_the_run_and_references_of_another_pulsar_are_not_reported(
    spark: SparkSession, pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger gets its reference, and a reference loses its ledger, after the references were read."""
    pulsar.place.create({number: ledger(MESSAGES) for number in (1, 5, 6)})
    pulsar.put(f"managed-ledgers/{ML}", managed(2))
    second = Pulsar(pulsar.place, f"{pulsar.root}-2")
    second.put(f"managed-ledgers/{ML}", managed(6))
    real = ClusterView.leaf_parents

    def changed(self: ClusterView) -> object:
        pulsar.put(f"managed-ledgers/{ML}", managed(1))
        return real(self)

    monkeypatch.setattr(ClusterView, "leaf_parents", changed)
    result = pulsar.check(spark, pulsar.root, second.root)
    assert counts(result) == (1, 1, 0, 0)
    assert pulsar.found(result) == {"unreferenced_ledger": [5]}
    assert (result.summary.verdict, result.exit_code(FailOn.ANY)) == (Verdict.UNREFERENCED, ExitCode.OK)


def test_a_shadow_topic_has_no_lost_ledgers_and_does_not_hide_a_loss_of_its_source(
    spark: SparkSession, pulsar: Pulsar
) -> None:
    source = "persistent://t/n/orders"
    pulsar.place.create({1: ledger(MESSAGES), 2: ledger(MESSAGES)})
    pulsar.put(f"managed-ledgers/{ML}", managed(1, 8))
    pulsar.put("managed-ledgers/t/n/persistent/a", managed(1, 2, 7, 8, shadow_of=source))
    pulsar.put("managed-ledgers/t/n/persistent/a/s", cursor(9))
    pulsar.put("managed-ledgers/t/n/persistent/b-partition-0", managed(1, 7, 8))
    pulsar.put("admin/partitioned-topics/t/n/persistent/b", partitioned(shadow_of=source))
    pulsar.put("managed-ledgers/t/n/persistent/c-partition-0", managed(6))
    result = pulsar.check(spark)
    assert counts(result) == (1, 1, 2, 0)
    assert pulsar.found(result) == {"dangling_reference": [8, 9], "unreferenced_ledger": [2]}
    assert {each.topic for each in result.summary.worst_ledgers} == {source, "persistent://t/n/a"}
    assert result.summary.references is not None
    assert result.summary.references.not_judged == {
        "it does not exist, and only topics that may be shadow topics refer to it": 1
    }


def test_a_large_namespace_is_read_in_parts_without_loss(
    spark: SparkSession, pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "TOPICS_PER_SHARE", 3)
    for number in range(20):
        pulsar.put(f"managed-ledgers/t/n/persistent/topic-{number}", managed(100 + number))
    register(spark)
    read = spark.read.format(references.NAME).option("metadata_uri", pulsar.place.uri)
    frame = read.option(references.PULSAR_ROOTS, pulsar.root).load()
    assert sorted(each["ledger_id"] for row in frame.collect() for each in row["ledgers"]) == list(range(100, 120))
    written = frame.drop(READING).schema
    assert pa.schema(list(to_arrow_schema(written))).names == REFERENCE_SCHEMA.names
    assert to_arrow_schema(written).types == REFERENCE_SCHEMA.types


def test_a_run_without_pulsar_an_export_directory_or_a_permission_fails_with_the_reason(
    spark: SparkSession, pulsar: Pulsar, tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    with pytest.raises(NoPulsarError, match="below /elsewhere: name the roots"):
        pulsar.check(spark, "/elsewhere/")
    with pytest.raises(ExportError, match="cannot write the ids"):
        pulsar.check(spark, export=tmp_path / "absent" / "ids.txt")
    deny(zookeeper, f"{pulsar.root}/managed-ledgers/t")  # without this permission the topics are unknown
    with pytest.raises(AccessDeniedError, match=f"{pulsar.root}/managed-ledgers/t"):
        pulsar.check(spark)


def test_a_failure_of_spark_while_the_ids_are_written_has_its_own_error(
    spark: SparkSession, pulsar: Pulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulsar.place.create({1: ledger(MESSAGES)})

    def failing(unreferenced: DataFrame, file: Path) -> None:
        unreferenced.selectExpr("raise_error('no space left')").collect()

    monkeypatch.setattr(reference_run, "export", failing)
    with pytest.raises(ScanFailedError, match="no space left"):
        pulsar.check(spark, export=tmp_path / "ids.txt")


def test_an_export_that_fails_leaves_no_part_of_its_file(spark: SparkSession, tmp_path: Path) -> None:
    failing = spark.range(1).selectExpr("CAST(raise_error('it failed') AS bigint) AS ledger_id")
    with pytest.raises(Py4JJavaError, match="it failed"):
        reference_run.export(failing, tmp_path / "ids.txt")
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_have_no_export(pulsar: Pulsar, tmp_path: Path) -> None:
    words = ["audit", "run", "--metadata-uri", pulsar.place.uri, "--export", str(tmp_path / "ids.txt")]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "a run of kind bookies has no --export" in " ".join(refused.stderr.replace("│", " ").split())


def test_spark_keeps_no_references_after_a_stopped_read(
    spark: SparkSession, pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = type(spark.range(1))
    real = frames.count

    def stop(rows: DataFrame) -> int:
        real(rows)
        raise RunStoppedError("cancelled")

    before = kept_by(spark)
    monkeypatch.setattr(frames, "count", stop)
    with pytest.raises(RunStoppedError):
        pulsar.check(spark)
    assert kept_by(spark) == before
