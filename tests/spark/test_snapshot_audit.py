"""Audits from a snapshot of a real ZooKeeper: the findings of the current cluster, or a refusal."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded import zookeeper as embedded
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from spark_jobs import audit as audit_module
from spark_jobs.report import writing as report
from spark_jobs.report.counts import SnapshotCounts
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.runs.reading import snapshot_reading
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.run import AuditResult
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.index import SnapshotIndex, index_snapshot
from tests.sessions import LONG_SESSION_S
from tests.spark.audit_world import Place, after_listing, closed, kept_by
from tests.worlds.admin_server import Answer, serving

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROOTS = [f"/{number}/ledgers" for number in range(11)]
"""Each test has a separate cluster; one snapshot has all of them."""
HEALTHY = closed("a:1", "b:1", "c:1")


def growing(*members: str) -> LedgerMetadata:
    return LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), tuple(map(BookieId, members))),))


LEDGERS = {
    1: HEALTHY,
    2: closed("a:1", "x:1"),
    3: closed("x:1", "y:1"),
    4: closed("a:1", "x:1", last=-1),
    5: growing("a:1", "b:1"),
    6: growing("a:1", "b:1"),
    7: closed("a:1", "x:1"),
    8: closed("b:1", "y:1"),
    9: HEALTHY,
    10_001: HEALTHY,
    10_002: closed("b:1", "c:1", "x:1"),
    20_001: HEALTHY,
    20_002: closed("a:1", "x:1"),
    30_001: closed("a:1", "x:1"),
    1 << 33: closed("y:1", "b:1", "c:1"),
} | dict.fromkeys(range(100, 600), HEALTHY)
"""When the audits run, x and y are lost. Ledger 10 is damaged."""


def newest(server: EmbeddedZooKeeper) -> Path:
    """Restart the server, which writes a snapshot at its start; return the newest one."""
    asyncio.run(server.restart())
    found = (server.log_path.parent / "data" / "version-2").glob("snapshot.*")
    return max(found, key=lambda file: (int(file.name.split(".")[1], 16), file.stat().st_mtime_ns))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = asyncio.run(EmbeddedZooKeeper.start(tmp_path_factory.mktemp("snapshots"), is_durable=False))
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def snapshot(server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of the clusters with ``LEDGERS``. It is a copy, because a server keeps only its last snapshots."""

    async def fill() -> None:
        store = await ZooKeeperStore.connect(server.connect_string, session_timeout_s=LONG_SESSION_S)
        for root in ROOTS:
            await format_cluster(store, root, rng=random.Random(root))
            cluster = await open_cluster(store, root)
            ledgers = LedgerStore(store, cluster, random.Random(1))
            await ledgers.create_many([(LedgerId(number), metadata) for number, metadata in LEDGERS.items()])
            await store.create(f"{root}/00/0000/L0010", b"damage")
            await store.create(f"{root}/cookies")
            await store.create(f"{root}/cookies/x:1")
        await store.close()

    asyncio.run(fill())
    return Path(shutil.copy(newest(server), tmp_path_factory.mktemp("kept")))


@pytest.fixture(scope="module")
def unused(snapshot: Path) -> list[str]:
    """The roots that no test has used yet."""
    return list(ROOTS)


@pytest.fixture
def place(server: EmbeddedZooKeeper, unused: list[str], tmp_path: Path) -> Iterator[Place]:
    """A cluster as it is in the snapshot, with some of its bookies."""

    async def connect() -> ZooKeeperStore:
        return await ZooKeeperStore.connect(server.connect_string, session_timeout_s=LONG_SESSION_S)

    with asyncio.Runner() as runner:
        store = runner.run(connect())
        try:
            place = Place(runner, store, runner.run(open_cluster(store, unused.pop())), server.connect_string, tmp_path)
            place.register("a:1", "b:1", "c:1")
            yield place
        finally:
            runner.run(store.close())


def findings(result: AuditResult) -> list[dict[str, Any]]:
    rows = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    return sorted(({**row, "run_id": ""} for row in rows), key=lambda row: (row["ledger_id"], str(row)))


def comparable(summary: RunSummary) -> RunSummary:
    """Return the summary without the differences between two runs, and between the two ways to read."""
    vanished = replace(summary.counts, vanished=0)
    waiting = tuple(
        replace(bookie, first_seen_down_ms=0, until_ms=0, critical_until_ms=0) for bookie in summary.waiting
    )
    return replace(summary, run_id="", started_ms=0, finished_ms=0, snapshot=None, counts=vanished, waiting=waiting)


def assert_as_live(
    spark: SparkSession, place: Place, snapshot: Path, live: AuditResult | None = None
) -> SnapshotCounts:
    live = live or place.audit(spark, is_dry_run=True)
    result = place.audit(spark, is_dry_run=True, snapshot=snapshot)
    assert comparable(result.summary) == comparable(live.summary)
    assert findings(result) == findings(live) != []
    assert result.summary.is_complete
    assert result.summary.snapshot is not None
    return result.summary.snapshot


def test_an_audit_of_a_snapshot_has_the_findings_of_the_cluster(
    spark: SparkSession, place: Place, snapshot: Path
) -> None:
    live = place.audit(spark, is_dry_run=True)
    counts = assert_as_live(spark, place, snapshot, live)
    assert (counts.ledgers, counts.read_again, counts.read_live) == (504, 12, 0)

    packed = place.report_dir / "packed"
    packed.write_bytes(gzip.compress(snapshot.read_bytes(), 1))
    assert replace(assert_as_live(spark, place, packed, live), file=counts.file) == counts


def test_changes_since_the_snapshot_are_read_from_the_cluster(
    spark: SparkSession, place: Place, snapshot: Path
) -> None:
    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))

    def write(ledger_id: int, metadata: LedgerMetadata) -> None:
        version = place.do(ledgers.read(LedgerId(ledger_id)))
        place.do(ledgers.write(LedgerId(ledger_id), metadata, version.version))

    place.do(ledgers.delete(LedgerId(2)))  # in the snapshot this ledger lacks a copy
    place.do(ledgers.delete(LedgerId(20_002)))
    place.do(ledgers.delete(LedgerId(30_001)))  # the last ledger of its node
    write(7, closed("a:1", "c:1"))  # repaired
    moved = (
        Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"))),
        Fragment(EntryId(5), (BookieId("a:1"), BookieId("y:1"))),
    )
    write(5, replace(growing("a:1", "b:1"), fragments=moved))  # the writer replaced a bookie by one that is lost now
    write(6, growing("a:1", "b:1").closed(EntryId(3), 30))
    counts = assert_as_live(spark, place, snapshot)
    assert (counts.ledgers, counts.read_again, counts.read_live) == (504, 11, 0)

    place.create({10_003: closed("c:1", "y:1"), 40_001: closed("a:1", "y:1"), 1 << 34: closed("a:1", "x:1")})
    counts = assert_as_live(spark, place, snapshot)
    assert (counts.ledgers, counts.read_live) == (503, 5)

    expected = place.audit(spark, is_dry_run=True)
    assert place.marked() == {}
    result = place.audit(spark, snapshot=snapshot)
    marked = place.marked()
    assert sorted(marked) == [3, 4, 5, 8, 10_002, 10_003, 40_001, 1 << 33, 1 << 34]
    assert (marked[5], marked[3]) == (["y:1"], ["x:1", "y:1"])
    assert result.summary.severities == expected.summary.severities
    assert (result.summary.verdict, result.exit_code()) == (Verdict.NO_LIVE_COPY, ExitCode.OK)
    assert place.audited() == set(), "a run from a snapshot must not count as the audit of a loss"
    place.audit(spark)
    assert place.audited() == {"x:1"}
    assert place.marked() == marked


@pytest.mark.long
def test_a_full_check_of_a_snapshot_has_the_findings_of_the_cluster(
    spark: SparkSession, place: Place, snapshot: Path, tmp_path: Path
) -> None:
    """Most ledgers are misplaced. A check reads its findings again, so a moved ledger is not a finding."""
    racks = tmp_path / "racks.json"
    racks.write_text(json.dumps({"a:1": "/r1", "b:1": "/r1", "c:1": "/r2", "x:1": "/r3", "y:1": "/r4"}))

    def everything(**settings: Any) -> AuditResult:
        return place.check(spark, RunKind.EVERYTHING, is_dry_run=True, topology_file=racks, **settings)

    live, read = everything(), everything(snapshot=snapshot)
    assert comparable(read.summary) == comparable(live.summary)
    assert findings(read) == findings(live)
    assert sum(row["kind"] == "MISPLACED" for row in findings(read)) > 500
    assert read.summary.snapshot is not None
    assert (read.summary.snapshot.ledgers, read.summary.is_complete) == (504, True)

    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))
    version = place.do(ledgers.read(LedgerId(1))).version
    place.do(ledgers.write(LedgerId(1), closed("a:1", "c:1"), version))
    place.do(ledgers.delete(LedgerId(9)))
    live, read = everything(), everything(snapshot=snapshot)
    assert findings(read) == findings(live)
    assert not {1, 9} & {row["ledger_id"] for row in findings(read)}

    place.do(place.store.delete(f"{place.cluster.root}/00/0000/L0010"))  # no cookie is judged while this node exists
    place.do(place.store.create(f"{place.cluster.root}/cookies/w:1"))
    version = place.do(ledgers.read(LedgerId(1))).version
    place.do(ledgers.write(LedgerId(1), closed("w:1", "c:1"), version))  # moved there, and lost again
    assert "DANGLING_COOKIE" not in {row["kind"] for row in findings(everything(snapshot=snapshot))}


@pytest.mark.long
def test_a_full_check_of_a_snapshot_marks_but_does_not_count_as_the_audit_of_a_loss(
    spark: SparkSession, place: Place, snapshot: Path, tmp_path: Path
) -> None:
    place.do(place.tasks.switches.set_lost_bookie_delay_s(0))
    racks = tmp_path / "racks.json"
    racks.write_text(json.dumps(dict.fromkeys(("a:1", "b:1", "c:1", "x:1", "y:1"), "/r1")))
    summary = place.check(spark, RunKind.EVERYTHING, snapshot=snapshot, topology_file=racks).summary
    assert 3 in place.marked()
    assert (place.audited(), summary.problems) == (set(), ())
    assert place.do(CheckTimes(place.store, place.cluster).read(CheckKind.PLACEMENT)) == -1


def test_a_bookie_that_leaves_during_the_scan_repeats_it(
    spark: SparkSession, place: Place, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_listing(monkeypatch, 1, lambda: place.unregister("c:1"))
    result = place.audit(spark, is_dry_run=True, snapshot=snapshot, missing_share_max=0.9)
    assert result.summary.is_complete
    assert sum(count.ledgers for count in result.summary.severities) > len(range(100, 600))


def test_an_unusable_snapshot_changes_nothing(
    spark: SparkSession, place: Place, snapshot: Path, tmp_path: Path
) -> None:
    sound, before = snapshot.read_bytes(), place.marked()
    bad = tmp_path / "bad"
    for data, reason in (
        (sound[:-1], "lacks the end mark of a snapshot"),
        (sound[: len(sound) // 2], "cut off"),
        (sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:], "damaged"),
        (b"something else", "is not a snapshot"),
    ):
        bad.write_bytes(data)
        with pytest.raises(SnapshotError, match=reason):
            place.audit(spark, snapshot=bad)
    with pytest.raises(SnapshotError, match="reads no snapshot"):
        place.check(spark, RunKind.PLACEMENT, snapshot=snapshot)
    place.uri = place.uri.replace(place.cluster.root, "/new")
    place.do(format_cluster(place.store, "/new", rng=random.Random(3)))
    with pytest.raises(SnapshotError, match="has no cluster at /new"):
        place.audit(spark, snapshot=snapshot)
    assert place.marked() == before


def test_a_snapshot_replaced_after_its_verification_marks_nothing(
    spark: SparkSession, place: Place, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(snapshot, tmp_path / "mine"))

    def verified(*arguments: Any) -> SnapshotIndex:
        index = index_snapshot(*arguments)
        file.write_bytes(snapshot.read_bytes().replace(b"a:1", b"z:1"))
        return index

    monkeypatch.setattr(snapshot_reading, "index_snapshot", verified)
    with pytest.raises(SnapshotError, match=r"mine changed while it was read: run the audit again; nothing was marked"):
        place.audit(spark, snapshot=file)
    assert place.marked() == {}


def test_commands_read_a_snapshot(
    place: Place, snapshot: Path, tmp_path: Path, running: None, capsys: pytest.CaptureFixture[str]
) -> None:
    place.register("x:1", "y:1")
    given = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--dry-run"]
    run = CliRunner()
    result = run.invoke(audit_cli.app, ["run", *given, "--snapshot", str(snapshot)])
    assert (result.exit_code, "ledgers judged by it" in result.stdout) == (0, True)
    result = run.invoke(audit_cli.app, ["run", *given, "--snapshot", str(snapshot), "-o", "json"])
    assert json.loads(result.stdout)["snapshot"]["file"] == str(snapshot)
    wrong = run.invoke(audit_cli.app, ["run", *given, "--kind", "placement", "--snapshot", str(snapshot)])
    assert (wrong.exit_code, "a run of kind placement has no --snapshot" in wrong.output) == (2, True)

    bad = tmp_path / "bad"
    bad.write_bytes(snapshot.read_bytes()[:-9])
    refused = run.invoke(audit_cli.app, ["run", *given, "--snapshot", str(bad)])
    assert (refused.exit_code, "is damaged or cut off" in refused.output) == (78, True)

    with serving(Answer(snapshot.read_bytes(), headers={"last_zxid": "0xffff00000001"})) as url:
        result = run.invoke(audit_cli.app, ["run", *given, "--snapshot-url", url, "-o", "json"])
        assert json.loads(result.stdout)["snapshot"]["file"] == url
        assert list(place.report_dir.glob(".snapshot-*")) == []
        wrong = run.invoke(audit_cli.app, ["run", *given, "--kind", "placement", "--snapshot-url", url])
        assert (wrong.exit_code, "a run of kind placement has no --snapshot" in wrong.output) == (2, True)
        both = run.invoke(audit_cli.app, ["run", *given, "--incremental", "--snapshot-url", url])
        assert (both.exit_code, "exclude each other" in both.output) == (2, True)

    capsys.readouterr()
    assert audit_module.main([*given, "--quiet", "--snapshot", str(snapshot)]) == ExitCode.OK
    assert "ledgers judged by it" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        audit_module.main([*given, "--kind", "replicas", "--snapshot", str(snapshot)])
    assert "a run of kind replicas has no --snapshot" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "ending"), [("gz", ".gz"), ("snappy", ".snappy")])
def test_snapshots_compressed_by_zookeeper_can_be_read(
    place: Place, server: EmbeddedZooKeeper, method: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = newest(server)
    write = embedded._write_configuration

    def compressing(launch: Any) -> None:
        write(launch)
        with (launch.directory / "zoo.cfg").open("a") as settings:
            settings.write(f"snapshot.compression.method={method}\n")

    monkeypatch.setattr(embedded, "_write_configuration", compressing)
    packed = newest(server)
    assert (plain.suffix, packed.suffix) == (plain.suffix, ending)
    expected, found = index_snapshot(plain, place.cluster), index_snapshot(packed, place.cluster)
    assert found.is_seekable is False
    assert [(p.parent, p.ledgers, p.creates) for p in found.parts] == [
        (p.parent, p.ledgers, p.creates) for p in expected.parts
    ]


def test_spark_keeps_no_rows_of_a_snapshot_whose_second_reading_failed(
    spark: SparkSession, place: Place, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> LedgerScan:
        raise StoreUnavailableError("no answer")

    before = kept_by(spark)
    monkeypatch.setattr(snapshot_reading, "reread_rows", fail)
    with pytest.raises(StoreUnavailableError):
        place.audit(spark, is_dry_run=True, snapshot=snapshot)
    assert kept_by(spark) == before
