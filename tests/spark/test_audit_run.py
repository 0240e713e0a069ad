"""Whole audit runs on a real ZooKeeper: the marks, the reports, and the cases without either."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.cluster import NotAClusterError
from bookie.metadata.layout import cookie_path, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.port import NODE_DATA_MAX, StoreUnavailableError
from bookie.metadata.runs.readers import Readers
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind, RunState
from bookie.model.severity import Severity
from bookie.runtime.clock import SystemClock
from spark_jobs import audit as audit_module
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.one_shot import run as one_shot
from spark_jobs.pacing.budget import Budget, TaskBudget
from spark_jobs.remote_files import StoredFile
from spark_jobs.report import writing as report
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.findings.filters import FindingFilter
from spark_jobs.report.findings.one_run import read_findings
from spark_jobs.report.history import find
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import fetch_missing, opened_store
from spark_jobs.report.summary import Verdict
from spark_jobs.report.tables.sql import ask
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.kinds import bookie_run
from spark_jobs.runs.life_cycle import outcome_of
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from spark_jobs.runs.reading import ledger_scan
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.reading.live_reading import LiveReading
from spark_jobs.runs.run import run_audit
from spark_jobs.settings import AuditSettings, FailOn
from tests.lent_session import lend_session
from tests.spark.audit_world import Place, after_listing, closed, kept_by, opened
from tests.worlds.ledgers import names

pytestmark = [pytest.mark.spark, pytest.mark.integration]

HEALTHY = closed("a:1", "b:1", "ro:1")
LEDGERS = {
    1: HEALTHY,
    2: closed("a:1", "x:1"),
    3: closed("x:1", "y:1"),
    4: closed("a:1", "x:1", last=-1),
    5: LedgerMetadata(2, 2, 1, (Fragment(EntryId(0), (BookieId("a:1"), BookieId("y:1"))),)),
    1 << 33: closed("y:1", "b:1", "c:1"),
}
LOST = {2: ["x:1"], 3: ["x:1", "y:1"], 4: ["x:1"], 5: ["y:1"], 1 << 33: ["y:1"]}


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """A cluster in which the ledgers of ``LOST`` name x and y, which no longer exist; the bookie ro is read-only."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        place.register("ro:1", is_read_only=True)
        place.create(LEDGERS)
        yield place


def test_lost_copies_are_marked_and_reported(spark: SparkSession, place: Place) -> None:
    place.add_cookies("a:1", "x:1", "old:1")
    result = place.audit(spark)

    assert place.marked() == LOST
    summary = result.summary
    assert (summary.verdict, summary.is_complete) == (Verdict.NO_LIVE_COPY, True)
    assert (summary.counts.ledgers, summary.counts.fragments, summary.counts.open) == (6, 6, 1)
    assert {count.severity: (count.ledgers, count.fragments) for count in summary.severities} == {
        Severity.NO_LIVE_COPY: (1, 1),
        Severity.CRITICAL: (3, 3),
        Severity.METADATA_ONLY: (1, 1),
    }
    assert (summary.published.outcome, summary.published.ledgers) == (PublishOutcome.PUBLISHED, 5)
    assert summary.worst_ledgers[0].ledger_id == 3
    assert [bookie.bookie_id for bookie in summary.bookies] == ["a:1", "b:1", "c:1", "old:1", "ro:1", "x:1", "y:1"]
    assert {b.bookie_id: b.ledgers_found for b in summary.bookies if b.ledgers_found} == {"x:1": 3, "y:1": 3}

    document = json.loads(result.summary_path.read_bytes())
    assert (document["run_id"], document["complete"]) == (result.run_id, True)
    findings = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    assert {row["ledger_id"]: row["missing"] for row in findings} == LOST
    assert {row["run_id"] for row in findings} == {result.run_id}
    assert (result.exit_code(), result.exit_code(FailOn.CRITICAL)) == (ExitCode.OK, ExitCode.FINDINGS)


def test_a_second_run_changes_nothing_and_adds_to_the_history(spark: SparkSession, place: Place) -> None:
    first, second = place.audit(spark), place.audit(spark)
    assert (first.summary.published.tasks_changed, second.summary.published.tasks_changed) == (5, 0)
    assert place.marked() == LOST
    runs = pq.read_table(place.report_dir / report.HISTORY / "runs").to_pylist()
    assert {run["run_id"] for run in runs} == {first.run_id, second.run_id}
    for table in ("findings", "tasks"):
        rows = ask(place.report_dir, f"SELECT run_id, ledger_id, missing FROM {table}", limit=100, timeout_s=60).rows
        for run_id in (first.run_id, second.run_id):
            assert {ledger: missing for run, ledger, missing in rows if run == run_id} == LOST
    since = "SELECT DISTINCT first_run_id, run_id FROM ledgers_unhealthy_since"
    assert ask(place.report_dir, since, limit=9, timeout_s=60).rows == [(first.run_id, second.run_id)]


def test_an_auditor_that_cannot_write_its_report_still_marks(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1", "y:1")
    place.report_dir.write_text("a file where the directory should be")
    result = place.audit(spark)
    assert place.marked() == LOST
    assert "cannot make the report directory" in result.report_problem
    assert (result.summary.verdict, result.exit_code()) == (Verdict.NO_LIVE_COPY, ExitCode.CONFIGURATION)
    assert place.audited() == {"x:1", "y:1"}, "another audit of the loss is due"
    with pytest.raises(report.ReportDirError):  # the report is the only purpose of a dry run
        place.audit(spark, is_dry_run=True)


def test_a_disk_that_fills_during_a_run_prevents_the_report_but_no_marks(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1", "y:1")

    def fill(event: ProgressEvent) -> None:
        """Prevent all further writes: a file replaces the directory of the run."""
        if event.phase is Phase.REPORT:
            (run,) = (path for path in place.report_dir.iterdir() if path.name != "image")
            run.rmdir()
            run.write_bytes(b"")

    result = run_audit(spark, AuditSettings(place.uri, place.report_dir), fill)
    assert (place.marked(), place.audited()) == (LOST, {"x:1", "y:1"})
    outcome = outcome_of(result.summary, result.summary_path, result.report_problem)
    assert (outcome.state, outcome.is_success, outcome.verdict) == (RunState.DONE, True, Verdict.NO_LIVE_COPY.value)
    assert (outcome.report, sum(outcome.findings.values())) == ("", 5)
    assert "the report is missing: cannot write the findings" in outcome.detail


def test_a_dry_run_reports_and_marks_nothing(spark: SparkSession, place: Place) -> None:
    result = place.audit(spark, is_dry_run=True)
    assert place.marked() == {}
    assert result.summary.published.outcome is PublishOutcome.DRY_RUN
    assert sum(count.ledgers for count in result.summary.severities) == 5


def test_while_auto_recovery_is_disabled_nothing_is_marked(spark: SparkSession, place: Place) -> None:
    place.do(place.tasks.initialize())
    place.do(place.tasks.switches.disable())
    result = place.audit(spark)
    assert place.marked() == {}
    assert (result.summary.published.outcome, result.exit_code()) == (PublishOutcome.DISABLED, ExitCode.OK)


def test_damage_recorded_by_a_worker_is_marked_after_the_ledger_is_closed(spark: SparkSession, place: Place) -> None:
    notes = DamageNotes(place.store, place.cluster.root)
    place.do(notes.add(LedgerId(1), names("b:1")))
    place.do(notes.add(LedgerId(5), names("a:1")))  # this ledger is not closed
    place.audit(spark, is_dry_run=True)
    assert (place.marked(), len(place.do(notes.all()))) == ({}, 2)
    place.audit(spark)
    assert place.marked() == LOST | {1: ["b:1"]}
    assert [note.ledger_id for note in place.do(notes.all())] == [5]


def test_a_healthy_cluster_has_a_clean_verdict(spark: SparkSession, place: Place) -> None:
    place.register("x:1", "y:1")
    result = place.audit(spark)
    assert (result.summary.verdict, result.exit_code(FailOn.ANY)) == (Verdict.CLEAN, ExitCode.OK)
    assert result.summary.published.outcome is PublishOutcome.NOTHING_TO_PUBLISH
    assert pq.read_table(result.summary_path.parent / report.FINDINGS).num_rows == 0


def test_unreadable_metadata_is_a_finding_and_does_not_stop_the_run(spark: SparkSession, place: Place) -> None:
    place.damage(1)
    result = place.audit(spark)
    assert place.marked() == LOST
    assert (result.summary.counts.unreadable, result.summary.is_complete) == (1, True)
    findings = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    assert [row["ledger_id"] for row in findings if row["kind"] == "UNREADABLE_METADATA"] == [1]
    pages = read_findings(place.report_dir, result.run_id, 100).rows
    assert [(row["ledger_id"], row["missing"]) for row in pages if row["missing"]] == sorted(LOST.items())
    (unreadable,) = read_findings(place.report_dir, result.run_id, 1).rows
    assert (unreadable["ledger_id"], unreadable["kind"], unreadable["severity"]) == (1, "unreadable_metadata", None)
    worst = read_findings(place.report_dir, result.run_id, 9, FindingFilter(severity=Severity.NO_LIVE_COPY)).rows
    assert [row["ledger_id"] for row in worst] == [3]


@pytest.mark.parametrize("cookies", [("p:1", "q:1", "r:1", "s:1", "t:1"), ()])
def test_the_brake_prevents_marks_if_most_bookies_are_missing(
    spark: SparkSession, place: Place, cookies: Sequence[str]
) -> None:
    place.add_cookies(*cookies)
    if not cookies:  # without cookies, only the metadata names the lost bookies
        place.create({6: closed("p:1", "q:1", "r:1")})
    result = place.audit(spark)
    assert place.marked() == {}
    assert (result.summary.verdict, result.exit_code(FailOn.ANY)) == (Verdict.HELD, ExitCode.HELD)
    assert result.summary.held_because is not None
    assert "known bookies are not registered" in result.summary.held_because
    assert place.audit(spark, missing_share_max=0.9).summary.published.ledgers >= 5


def test_the_brake_does_not_count_a_decommissioned_bookie_whose_copies_were_accepted_as_lost(
    spark: SparkSession, place: Place
) -> None:
    gone = {number: names(f"gone-{number}:1 gone-{number}:2") for number in (6, 7)}
    place.create({number: closed(*bookies) for number, bookies in gone.items()})
    for number, bookies in gone.items():
        accept(place, number, LostFragment(EntryId(0), EntryId(9), (0, 1), bookies))
    assert place.audit(spark).summary.verdict is not Verdict.HELD  # of the other 6 bookies, 2 are missing
    assert place.marked() == LOST
    place.add_cookies(*gone[6], *gone[7])
    assert place.audit(spark).summary.verdict is Verdict.HELD  # they are not decommissioned


def test_the_brake_prevents_marks_if_every_ledger_is_missing(spark: SparkSession, place: Place) -> None:
    place.create(dict.fromkeys(range(100, 200), HEALTHY))
    place.audit(spark, is_dry_run=True)
    store = LedgerStore(place.store, place.cluster, random.Random(1))
    for number in [*LEDGERS, *range(100, 200)]:
        place.do(store.delete(LedgerId(number)))
    result = place.audit(spark)
    assert result.exit_code() is ExitCode.HELD
    assert "last complete report has 106" in str(result.summary.held_because)


def test_a_bookie_that_comes_back_before_publishing_is_not_reported(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_listing(monkeypatch, 2, lambda: place.register("x:1"))
    result = place.audit(spark)
    assert place.marked() == {3: ["y:1"], 5: ["y:1"], 1 << 33: ["y:1"]}
    assert sum(count.ledgers for count in result.summary.severities) == 3


def test_a_bookie_that_leaves_during_the_scan_is_found(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_listing(monkeypatch, 1, lambda: place.unregister("b:1"))
    result = place.audit(spark, missing_share_max=0.6)
    assert place.marked()[1] == ["b:1"]
    assert result.summary.is_complete


def test_a_bookie_that_joined_and_left_during_the_run_has_its_delay(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add_cookies("a:1", "b:1", "c:1", "ro:1")
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))

    def join_and_leave() -> None:
        place.do(place.store.create(cookie_path(place.cluster.root, BookieId("n:1"))))
        place.create({6: closed("a:1", "n:1")})

    after_listing(monkeypatch, 1, join_and_leave)
    result = place.audit(spark)
    assert place.marked() == LOST, "the ledger of the new bookie was marked without the delay"
    assert [each.bookie_id for each in result.summary.waiting] == ["n:1"]


def test_bookies_that_keep_leaving_make_the_run_incomplete(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_run, "SCANS_MAX", 1)
    after_listing(monkeypatch, 1, lambda: place.unregister("b:1"))
    result = place.audit(spark, missing_share_max=0.6)
    assert "b:1 lost the registration while ledgers were read" in result.summary.problems[0]
    assert result.exit_code(FailOn.ANY) is ExitCode.PARTIAL
    assert set(place.marked()) >= set(LOST), "the findings were not marked"


def test_unlisted_ledgers_make_the_run_incomplete(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ClusterView.leaf_parents
    monkeypatch.setattr(
        ClusterView,
        "leaf_parents",
        lambda self: tuple(type(parent)(parent.path, parent.planned + 2) for parent in real(self)),
    )
    monkeypatch.setattr(
        ClusterView, "count_planned", lambda self, plan, totals: {parent.path: 1_000 for parent in plan}
    )
    of_a_deleted_ledger = {9_999: ["gone:1"]}
    place.do(place.tasks.marking.mark(LedgerId(9_999), [BookieId("gone:1")]))
    result = place.audit(spark)
    assert "ledgers exist and were not listed" in result.summary.problems[0]
    assert result.exit_code() is ExitCode.PARTIAL
    assert place.marked() == LOST | of_a_deleted_ledger, "a partial run may add marks, and must withdraw none"


def test_progress_is_reported_for_each_phase(spark: SparkSession, place: Place) -> None:
    events: list[ProgressEvent] = []
    run_audit(spark, AuditSettings(place.uri, place.report_dir), events.append)
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == [Phase.PLAN, Phase.SCAN, Phase.CHECK, Phase.PUBLISH, Phase.REPORT, Phase.DONE]
    assert [event.total for event in events if event.phase is Phase.PUBLISH] == [5]


def test_a_run_shares_its_limits_with_other_runs_that_read(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, seen, divided = Readers(place.store, "another-run"), list[set[str]](), list[tuple[str, str, int]]()
    place.do(others.join())
    real = Budget.share

    def runs() -> set[str]:
        names = place.do(others.runs())
        return set(names or ())

    def share(self: Budget, tasks: int, slots_max: int | None) -> TaskBudget:
        divided.append((self.run_id, self.instance_id, self.readers))
        return real(self, tasks, slots_max)

    monkeypatch.setattr(Budget, "share", share)
    settings = AuditSettings(place.uri, place.report_dir, is_dry_run=True)
    run_id = run_audit(spark, settings, lambda event: seen.append(runs())).run_id
    assert seen[0] >= {"another-run", run_id}
    assert [(reader, cluster, count >= 2) for reader, cluster, count in divided] == [
        (run_id, place.cluster.instance_id, True)
    ]
    assert run_id not in runs()


def test_a_missing_cluster_and_an_unreachable_store_are_different_errors(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    with pytest.raises(NotAClusterError) as missing:
        run_audit(spark, AuditSettings(f"zk://{zookeeper.connect_string}/nothing/here", tmp_path))
    assert one_shot.exit_code_of(missing.value) is ExitCode.CONFIGURATION
    with pytest.raises(StoreUnavailableError) as unreachable:
        run_audit(spark, AuditSettings("zk://127.0.0.1:9/ledgers", tmp_path, connect_timeout_s=0.2))
    assert one_shot.exit_code_of(unreachable.value) is ExitCode.STORE_UNREACHABLE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "listings"),
    [(RunKind.BOOKIES, 2), (RunKind.BOOKIES, 3), (RunKind.REPLICAS, 2)],
    ids=["after the scan", "after the judgement", "before the bookies are asked"],
)
def test_spark_keeps_no_rows_of_a_run_that_lost_the_store(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, kind: RunKind, listings: int
) -> None:
    def fail() -> None:
        raise StoreUnavailableError("no answer")

    before = kept_by(spark)
    after_listing(monkeypatch, listings, fail)
    with pytest.raises(StoreUnavailableError):
        place.check(spark, kind, missing_share_max=0.9)
    assert kept_by(spark) == before


def test_spark_keeps_no_rows_of_a_scan_that_was_stopped(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(rows: object) -> ScanTotals:
        raise RunStoppedError("cancelled")

    before = kept_by(spark)
    monkeypatch.setattr(ledger_scan, "_totals", stop)
    with pytest.raises(RunStoppedError):
        place.audit(spark)
    assert kept_by(spark) == before


def test_the_command_prints_the_summary_and_returns_the_exit_code(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lend_session(monkeypatch, spark)
    arguments = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--dry-run"]
    assert audit_module.main([*arguments, "--output", "json", "--fail-on", "critical"]) == ExitCode.FINDINGS
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "no live copy"
    assert "reading ledger metadata" in printed.err
    assert audit_module.main([*arguments, "--quiet"]) == ExitCode.OK
    assert "dry run: nothing was marked" in capsys.readouterr().out
    assert audit_module.main([*arguments, "--missing-share-max", "7"]) == ExitCode.CONFIGURATION
    assert "missing_share_max" in capsys.readouterr().err


def test_the_loss_of_a_bookie_that_leaves_after_the_scan_is_left_to_another_run(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add_cookies("a:1", "b:1", "x:1")
    after_listing(monkeypatch, 3, lambda: place.unregister("b:1"))
    result = place.audit(spark, missing_share_max=0.9)
    assert result.summary.is_complete
    assert 1 not in place.marked(), "the ledgers of the bookie were marked"
    noted = place.do(FirstSeenDown(place.store, place.cluster.root).read())
    assert {bookie: down.audited_ms > 0 for bookie, down in noted.items()} == {"b:1": False, "x:1": True}


def test_a_bookie_that_returned_and_was_lost_again_during_the_scan_is_left_to_another_run(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add_cookies("x:1", "y:1")
    real, down = LiveReading.scan, FirstSeenDown(place.store, place.cluster.root)

    def watch(lost: str) -> None:
        """Record the losses, as the leader does while an audit runs."""
        registered = frozenset(names("a:1 b:1 c:1 ro:1 x:1")) - set(names(lost))
        place.do(down.reconcile(frozenset(names(lost)), SystemClock().epoch_ms(), registered=registered))

    def scan(self: LiveReading, live: AbstractSet[str]) -> LedgerScan:
        scanned = real(self, live)
        place.register("x:1")
        watch("y:1")
        place.create({7: closed("a:1", "x:1")})
        place.unregister("x:1")
        watch("x:1 y:1")
        return scanned

    with monkeypatch.context() as during:
        during.setattr(LiveReading, "scan", scan)
        assert place.audit(spark).summary.is_complete
    assert (place.marked(), place.audited()) == (LOST, {"y:1"})
    place.audit(spark)
    assert (place.marked(), place.audited()) == (LOST | {7: ["x:1"]}, {"x:1", "y:1"})


ACCEPTED = LostFragment(EntryId(0), EntryId(9), (0, 1), (BookieId("x:1"), BookieId("y:1")))


def accept(place: Place, ledger_id: int, *lost: LostFragment) -> None:
    decisions = Decisions(place.store, place.cluster.root)
    decision = Decision(LedgerId(ledger_id), DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", None, lost)

    async def write() -> None:
        await place.store.multi([await decisions.writing(decision)])

    place.do(write())


def accepted_ledgers(place: Place) -> list[int]:
    return [each.ledger_id for each in place.do(Decisions(place.store, place.cluster.root).accepted())]


def test_an_accepted_loss_is_reported_and_not_marked(spark: SparkSession, place: Place) -> None:
    accept(place, 3, ACCEPTED)
    result = place.audit(spark)
    summary = result.summary
    assert place.marked() == {ledger_id: missing for ledger_id, missing in LOST.items() if ledger_id != 3}
    assert (summary.accepted.ledgers, summary.accepted.fragments, summary.accepted.ledgers_returned) == (1, 1, 0)
    assert (summary.verdict, summary.worst) == (Verdict.UNDER_REPLICATED, Severity.CRITICAL)
    findings = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    (found,) = [row for row in findings if row["ledger_id"] == 3]
    assert (found["kind"], found["severity"], found["detail"]) == ("LOSS_ACCEPTED", "lost", "loss accepted by ops")
    assert (found["missing_positions"], found["missing"]) == ([0, 1], ["x:1", "y:1"])
    assert len(findings) == len(LOST)
    assert decode_summary(json.loads(result.summary_path.read_bytes())).accepted == summary.accepted
    assert accepted_ledgers(place) == [3]


@pytest.mark.long
def test_an_accepted_loss_is_marked_again_if_anything_else_is_lost(spark: SparkSession, place: Place) -> None:
    other = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), names("x:1 y:1")), Fragment(EntryId(10), names("a:1 b:1"))))
    place.create({9: other.closed(EntryId(19), 2000), 10: closed("x:1", "y:1", "z:1")})
    place.register("d:1", "e:1")  # with more live bookies, the brake does not act
    accept(place, 9, ACCEPTED)
    accept(place, 10, ACCEPTED)  # the accepted loss does not include z, at the third position
    place.audit(spark)
    assert (9 in place.marked(), place.marked()[10]) == (False, ["x:1", "y:1", "z:1"])
    place.unregister("b:1")
    result = place.audit(spark)
    assert place.marked()[9] == ["b:1"]
    assert result.summary.accepted.fragments == 1
    assert accepted_ledgers(place) == [9, 10]


def test_a_returning_bookie_of_an_accepted_loss_causes_a_mark(spark: SparkSession, place: Place) -> None:
    accept(place, 3, ACCEPTED)
    place.register("y:1")
    dry = place.audit(spark, is_dry_run=True)
    assert (dry.summary.accepted.ledgers_returned, place.marked(), accepted_ledgers(place)) == (1, {}, [3])
    result = place.audit(spark)
    assert place.marked()[3] == ["x:1", "y:1"]
    assert (result.summary.accepted.ledgers, result.summary.accepted.ledgers_returned) == (0, 1)
    assert accepted_ledgers(place) == []


def test_an_accepted_loss_whose_bookies_all_return_is_marked_once(spark: SparkSession, place: Place) -> None:
    place.register("x:1", "y:1")
    accept(place, 3, ACCEPTED)
    result = place.audit(spark)
    assert place.marked() == {3: ["x:1", "y:1"]}
    assert (result.summary.verdict, accepted_ledgers(place)) == (Verdict.CLEAN, [])


def test_a_return_while_auto_recovery_is_disabled_keeps_the_accepted_loss(spark: SparkSession, place: Place) -> None:
    accept(place, 3, ACCEPTED)
    place.register("y:1")
    place.do(place.tasks.initialize())
    place.do(place.tasks.switches.disable())
    place.audit(spark)
    assert (place.marked(), accepted_ledgers(place)) == ({}, [3])


def test_a_return_in_a_run_at_its_limit_of_marks_keeps_the_accepted_loss(spark: SparkSession, place: Place) -> None:
    place.create({9: closed("x:1", "y:1")})
    place.register("x:1", "y:1")
    accept(place, 3, ACCEPTED)
    accept(place, 9, ACCEPTED)
    place.audit(spark, marks_max=1)
    assert (len(place.marked()), accepted_ledgers(place)) == (1, [3, 9])
    place.audit(spark, marks_max=1)
    assert (set(place.marked()), accepted_ledgers(place)) == ({3, 9}, [])


def test_findings_held_back_after_a_returned_accepted_loss_name_the_limit(spark: SparkSession, place: Place) -> None:
    place.create({9: closed("x:1", "y:1"), 11: closed("a:1", "z:1")})
    place.register("x:1", "y:1")
    accept(place, 3, ACCEPTED)
    accept(place, 9, ACCEPTED)
    result = place.audit(spark, marks_max=1)
    assert set(place.marked()) < {3, 9}
    (row,) = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    assert (row["ledger_id"], "(limit)" in (row["detail"] or "")) == (11, True)


def test_accepted_losses_cause_no_request_per_ledger(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in (3, 20, 21, 22):
        accept(place, ledger_id, ACCEPTED)
    reads: list[int] = []
    real = Decisions.accepted

    async def counted(self: Decisions) -> list[Decision]:
        reads.append(1)
        return await real(self)

    monkeypatch.setattr(Decisions, "accepted", counted)
    monkeypatch.setattr(Decisions, "get", None)
    place.audit(spark)
    assert reads == [1]


def test_a_run_uploads_its_report_even_if_findings_are_written_to_a_folder(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "findings"
    settings = AuditSettings(
        place.uri, place.report_dir, report_store=f"file://{tmp_path}/store", findings_dir=f"file://{folder}"
    )
    result = run_audit(spark, settings)

    assert not result.report_problem
    assert folder.is_dir()
    assert list(folder.iterdir()) == [], "files are left in the folder"
    assert {row["ledger_id"] for row in read_findings(place.report_dir, result.run_id, 100).rows} >= set(LOST)
    there = tmp_path / "elsewhere"
    store = opened_store(f"file://{tmp_path}/store")
    assert store is not None
    assert fetch_missing(store, there) == [result.run_id]
    assert read_findings(there, result.run_id, 100).rows == read_findings(place.report_dir, result.run_id, 100).rows


def test_a_store_that_refuses_the_report_prevents_neither_marks_nor_the_local_report(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")

    result = run_audit(spark, AuditSettings(place.uri, place.report_dir, report_store=f"file://{tmp_path}/store"))

    assert place.marked() == LOST
    assert "cannot write file://" in result.report_problem
    assert f"complete in {place.report_dir / result.run_id}" in result.report_problem
    assert result.exit_code() is ExitCode.CONFIGURATION
    assert find(place.report_dir, "latest").run_id == result.run_id


def test_a_hanging_store_delays_no_mark(
    place: Place, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers only after the run has marked, so a run that waits for the answer would not mark."""
    marked, waited = threading.Event(), []

    def answer(store: ReportStore, folder: str = "", **how: bool) -> tuple[list[StoredFile], list[str]]:
        waited.append(marked.wait(30))
        return [], []

    def note(event: ProgressEvent) -> None:
        if event.phase is Phase.REPORT:
            marked.set()

    monkeypatch.setattr(ReportStore, "list", answer)

    run_audit(spark, AuditSettings(place.uri, place.report_dir, report_store=f"file://{tmp_path}/store"), note)

    assert waited == [True]
    assert place.marked() == LOST


def of_many_fragments(*members: str) -> bytes:
    """Return valid metadata of nearly the maximum size of a node, whose last fragment has these members."""
    fragments = [Fragment(EntryId(number), names("a:1 b:1")) for number in range(15_000)]
    fragments.append(Fragment(EntryId(15_000), tuple(map(BookieId, members))))
    filler = (("filler", b"x" * 700_000),)
    return encode(LedgerMetadata(2, 2, 2, tuple(fragments), custom=filler).closed(EntryId(99_999), 10_000_000))


def test_nodes_that_are_truncated_or_nearly_too_large_are_judged_one_by_one(spark: SparkSession, place: Place) -> None:
    sound, large = encode(closed("a:1", "x:1")), of_many_fragments("a:1", "x:1")
    assert 0.9 * NODE_DATA_MAX < len(large) <= NODE_DATA_MAX
    bad = [b"", sound[:1], sound[: len(sound) // 2], sound[:-1], b"x" * NODE_DATA_MAX, large[:-100], b"\0" * 500_000]
    for number, data in enumerate([*bad, large], start=100):
        place.create({number: HEALTHY})
        place.do(place.store.set(ledger_path(place.cluster.kind, place.cluster.root, number), data, -1))
    result = place.audit(spark)
    assert place.marked() == LOST | {100 + len(bad): ["x:1"]}
    assert (result.summary.counts.unreadable, result.summary.is_complete) == (len(bad), True)
    findings = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    unreadable = {row["ledger_id"]: row["detail"] for row in findings if row["kind"] == "UNREADABLE_METADATA"}
    assert set(unreadable) == set(range(100, 100 + len(bad)))
    assert all(0 < len(detail) < 1000 for detail in unreadable.values())


def test_a_leaf_that_is_deleted_after_the_plan_hides_no_finding_of_the_others(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create({30_001: closed("a:1", "x:1"), 30_002: HEALTHY})
    ledgers, leaf = LedgerStore(place.store, place.cluster, random.Random(1)), f"{place.cluster.root}/00/0003"
    real = ClusterView.leaf_parents
    planned = list[str]()

    def leaf_parents(self: ClusterView) -> tuple[LeafParent, ...]:
        found = real(self)
        planned.extend(parent.path for parent in found)
        for number in (30_001, 30_002):
            place.do(ledgers.delete(LedgerId(number)))
        return found

    monkeypatch.setattr(ClusterView, "leaf_parents", leaf_parents)
    result = place.audit(spark)
    assert leaf in planned
    assert place.do(place.store.stat(leaf)) is None
    assert place.marked() == LOST
    assert (result.summary.is_complete, result.summary.counts.ledgers) == (True, len(LEDGERS))
