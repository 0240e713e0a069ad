"""Summaries and report files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bookie.metadata.bookies.registration import Bookies, BookieState
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.runtime.configuration.settings import ConfigurationError
from spark_jobs.report import writing as report
from spark_jobs.report.console import table
from spark_jobs.report.counts import (
    BookieCount,
    FindingSums,
    LedgerCounts,
    PublishOutcome,
    PublishResult,
    SeverityCount,
    WorstLedger,
)
from spark_jobs.report.page.render import render_report
from spark_jobs.report.summary import ClusterName, RunSummary, Verdict
from spark_jobs.runs.outcome import CheckResult, Outcome, RunName, ScanResult, assemble
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.settings import AuditSettings, FailOn

CRITICAL = SeverityCount(Severity.CRITICAL, 3, 4, 1000)
METADATA_ONLY = SeverityCount(Severity.METADATA_ONLY, 1, 1, 0)

CLEAN = RunSummary(
    run_id="20260102T030405Z-00000a",
    cluster=ClusterName("zk://zk1:2181/ledgers", "3b-instance"),
    started_ms=1_767_323_045_000,
    finished_ms=1_767_323_047_500,
    counts=LedgerCounts(1000, 1100, 0, 2, 100, 0, 900),
    severities=(),
    bookies=(BookieCount("a:3181", BookieState.WRITABLE, True, 1000, 1100, 0, 0),),
    worst_ledgers=(),
    published=PublishResult(PublishOutcome.NOTHING_TO_PUBLISH),
)
FOUND = replace(
    CLEAN,
    severities=(CRITICAL, METADATA_ONLY),
    bookies=(*CLEAN.bookies, BookieCount("b:3181", BookieState.UNREGISTERED, True, 5, 6, 4, 5)),
    worst_ledgers=(WorstLedger(7, Severity.CRITICAL, 1, 800, ("b:3181",)),),
    published=PublishResult(PublishOutcome.PUBLISHED, 4, 3),
)


@pytest.mark.parametrize(
    ("summary", "verdict"),
    [
        (CLEAN, Verdict.CLEAN),
        (FOUND, Verdict.UNDER_REPLICATED),
        (replace(FOUND, severities=(METADATA_ONLY,)), Verdict.METADATA_ONLY),
        (replace(FOUND, severities=(SeverityCount(Severity.NO_LIVE_COPY, 1, 1, 0), CRITICAL)), Verdict.NO_LIVE_COPY),
        (replace(CLEAN, counts=replace(CLEAN.counts, unreadable=1)), Verdict.UNREADABLE_METADATA),
        (replace(FOUND, problems=("1 ledger was not listed",)), Verdict.INCOMPLETE),
        (replace(FOUND, problems=("not read",), held_because="all bookies are gone"), Verdict.HELD),
    ],
)
def test_the_verdict_is_the_most_serious_that_applies(summary: RunSummary, verdict: Verdict) -> None:
    assert summary.verdict is verdict


@pytest.mark.parametrize(
    ("summary", "fail_on", "code"),
    [
        (CLEAN, FailOn.ANY, ExitCode.OK),
        (FOUND, FailOn.NEVER, ExitCode.OK),
        (FOUND, FailOn.UNDER_REPLICATED, ExitCode.FINDINGS),
        (FOUND, FailOn.CRITICAL, ExitCode.FINDINGS),
        (FOUND, FailOn.NO_LIVE_COPY, ExitCode.OK),
        (replace(FOUND, severities=(METADATA_ONLY,)), FailOn.UNDER_REPLICATED, ExitCode.OK),
        (replace(FOUND, severities=(METADATA_ONLY,)), FailOn.ANY, ExitCode.FINDINGS),
        (replace(CLEAN, counts=replace(CLEAN.counts, unreadable=1)), FailOn.NO_LIVE_COPY, ExitCode.FINDINGS),
        (replace(CLEAN, counts=replace(CLEAN.counts, unreadable=1)), FailOn.NEVER, ExitCode.OK),
        (replace(FOUND, problems=("not all",)), FailOn.ANY, ExitCode.PARTIAL),
        (
            replace(FOUND, published=PublishResult(PublishOutcome.INTERRUPTED, 1, 1)),
            FailOn.ANY,
            ExitCode.STORE_UNREACHABLE,
        ),
        (replace(FOUND, problems=("not read",), held_because="gone"), FailOn.ANY, ExitCode.HELD),
    ],
)
def test_exit_codes(summary: RunSummary, fail_on: FailOn, code: ExitCode) -> None:
    assert summary.exit_code(fail_on) is code


def test_the_summary_file_is_a_versioned_document(tmp_path: Path) -> None:
    report.prepare(tmp_path, FOUND.run_id)
    path, _ = report.finish(tmp_path, FOUND)
    document = json.loads(path.read_bytes())
    assert (document["apiVersion"], document["kind"]) == ("bkheal/v1", "AuditReport")
    assert (document["started"], document["finished"]) == ("2026-01-02T03:04:05.000Z", "2026-01-02T03:04:07.500Z")
    assert (document["verdict"], document["complete"]) == ("under-replicated", True)
    assert document["findings"][0] == {"severity": "critical", "ledgers": 3, "fragments": 4, "bytes_estimate": 1000}
    assert document["worst_ledgers"][0]["missing"] == ["b:3181"]
    assert document["published"] == {
        "outcome": "published",
        "ledgers": 4,
        "tasks_changed": 3,
        "held_back": {},
        "withdrawn": {},
        "damage_marked": 0,
        "repaired_early": 0,
        "ledgers_waiting": 0,
    }
    assert (document["run_kind"], document["dry_run"], document["replicas"]) == ("bookies", False, None)
    assert document["bookies"][1]["state"] == "lost"


def test_history_grows_by_one_run_at_a_time(tmp_path: Path) -> None:
    for run_id in ("20260102T030405Z-00000a", "20260103T030405Z-00000a"):
        report.prepare(tmp_path, run_id)
        report.finish(tmp_path, replace(FOUND, run_id=run_id))
    runs = pq.read_table(tmp_path / "history" / "runs").to_pylist()
    assert [run["run_id"] for run in runs] == ["20260102T030405Z-00000a", "20260103T030405Z-00000a"]
    assert (runs[0]["ledgers_critical"], runs[0]["verdict"]) == (3, "under-replicated")
    assert (runs[0]["run_kind"], runs[0]["dry_run"]) == ("bookies", False)
    bookies = pq.read_table(tmp_path / "history" / "bookies").to_pylist()
    assert [(row["bookie_id"], row["ledgers_found"]) for row in bookies] == [("a:3181", 0), ("b:3181", 4)] * 2
    assert pq.read_table(tmp_path / FOUND.run_id / "bookies.parquet").num_rows == 2


def test_runs_with_and_without_findings_have_the_same_schema(tmp_path: Path) -> None:
    for summary in (CLEAN, replace(FOUND, run_id="later")):
        report.prepare(tmp_path, summary.run_id)
        report.finish(tmp_path, summary)
    runs = pq.read_table(tmp_path / "history" / "runs").to_pylist()
    assert sorted(run["ledgers_critical"] for run in runs) == [0, 3]


def test_a_directory_without_a_summary_is_not_a_report(tmp_path: Path) -> None:
    report.prepare(tmp_path, "20260109T000000Z-000000")
    report.prepare(tmp_path, CLEAN.run_id)
    report.finish(tmp_path, CLEAN)
    assert [document["run_id"] for document in report.summaries(tmp_path)] == [CLEAN.run_id]


def test_earlier_ledgers_are_those_of_the_newest_complete_run_of_the_cluster(tmp_path: Path) -> None:
    other = ClusterName("zk://other/ledgers", "another-instance")
    newer = replace(CLEAN, run_id="3", counts=replace(CLEAN.counts, ledgers=7))
    for summary in (
        replace(CLEAN, run_id="1"),
        replace(CLEAN, run_id="2", counts=replace(CLEAN.counts, ledgers=500)),
        replace(newer, problems=("partial",)),
        replace(newer, run_id="4", held_because="gone"),
        replace(newer, run_id="5", cluster=other),
    ):
        report.prepare(tmp_path, summary.run_id)
        report.finish(tmp_path, summary)
    sample = replace(CLEAN, run_id="7", kind=RunKind.REPLICAS, counts=replace(CLEAN.counts, ledgers=5))
    report.prepare(tmp_path, "7")
    report.finish(tmp_path, sample)
    (tmp_path / "6").mkdir()
    (tmp_path / "6" / "summary.json").write_text("{ torn")
    assert report.earlier_ledgers(tmp_path, CLEAN.cluster.instance_id) == 500
    assert report.earlier_ledgers(tmp_path, "unheard of") is None


def test_an_unwritable_report_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(report.ReportDirError, match="cannot make the report directory"):
        report.prepare(tmp_path / "file", "run")


def test_the_text_report_contains_the_next_steps() -> None:
    text = table(replace(FOUND, problems=("2 ledgers were not listed",)))
    for words in ("incomplete", "2 ledgers were not listed", "critical", "b:3181", "4 ledgers are marked for repair"):
        assert words in text
    assert ["critical", "3", "4", "1000", "B"] in [line.split() for line in text.splitlines()]
    assert "auto-recovery is disabled" in table(replace(FOUND, published=PublishResult(PublishOutcome.DISABLED)))


def test_the_text_report_counts_withdrawn_marks() -> None:
    withdrawn = {"replaced": 2, "ledger_deleted": 30}
    text = table(replace(FOUND, published=PublishResult(PublishOutcome.PUBLISHED, 4, 3, withdrawn=withdrawn)))
    assert text.index("30 marks, the ledger was deleted") < text.index("2 marks, the bookies were replaced")


@pytest.mark.parametrize("count", [0, 5])
def test_the_text_report_counts_ledgers_marked_for_recorded_damage(count: int) -> None:
    published = PublishResult(PublishOutcome.NOTHING_TO_PUBLISH, damage_marked=count)
    summary = replace(FOUND, published=published)
    for text in (table(summary), render_report(summary, None, [], None).decode()):
        assert ("5 ledgers were marked because of damage" in text) is bool(count)


@pytest.mark.parametrize("count", [0, 43])
def test_the_reports_explain_more_marks_than_marked_ledgers(count: int) -> None:
    published = PublishResult(PublishOutcome.PUBLISHED, 45, 88, repaired_early=count)
    summary = replace(FOUND, published=published)
    page = render_report(summary, None, [], None).decode()
    for text in (table(summary), page):
        assert ("43 ledgers were marked first, and repaired or deleted" in text) is bool(count)
    assert ("88 new or changed, with 43 repaired since" in page) is bool(count)


def test_a_summary_is_assembled_from_the_results_of_its_phases() -> None:
    totals = ScanTotals(
        ledgers=9, fragments=11, unreadable=1, vanished=2, skipped=0, returned=3, open=1, in_recovery=0, closed=8,
        listed={}, ledgers_by_bookie={"a": 9, "gone": 4}, fragments_by_bookie={"a": 11, "gone": 5},
    )  # fmt: skip
    bookies = Bookies(frozenset({BookieId("a")}), frozenset({BookieId("ro")}))
    sums = FindingSums((CRITICAL,), {"gone": (4, 5)})
    checked = CheckResult(bookies, sums, (), PublishResult(PublishOutcome.DRY_RUN))
    name = RunName("run", CLEAN.cluster, 1, 2)
    summary = assemble(
        name, frozenset({BookieId("a"), BookieId("old")}), Outcome(ScanResult(totals, bookies, ()), checked)
    )
    assert summary.counts == LedgerCounts(10, 11, 1, 2, 1, 0, 8)
    assert summary.bookies == (
        BookieCount("a", BookieState.WRITABLE, True, 9, 11, 0, 0),
        BookieCount("gone", BookieState.UNREGISTERED, False, 4, 5, 4, 5),
        BookieCount("old", BookieState.UNREGISTERED, True, 0, 0, 0, 0),
        BookieCount("ro", BookieState.READ_ONLY, False, 0, 0, 0, 0),
    )


def test_a_run_that_the_brake_stopped_is_never_complete() -> None:
    bookies = Bookies(frozenset(), frozenset())
    summary = assemble(
        RunName("run", CLEAN.cluster, 1, 2), frozenset({BookieId("a")}), Outcome(None, CheckResult(bookies), "gone")
    )
    assert not summary.is_complete
    assert summary.exit_code() is ExitCode.HELD
    assert summary.published.outcome is PublishOutcome.HELD


@pytest.mark.parametrize(
    "wrong", [{"missing_share_max": 1.5}, {"missing_share_max": -0.1}, {"num_partitions": 0}, {"worst_ledgers_max": -1}]
)
def test_invalid_settings_are_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        AuditSettings("zk://zk1/ledgers", tmp_path, **wrong)  # type: ignore[arg-type]


def test_the_table_of_bookies_has_the_states_of_the_summary() -> None:
    states = report.bookies_table(FOUND).column("state").to_pylist()
    assert states == [item["state"] for item in FOUND.to_json()["bookies"]] == ["writable", "lost"]


def test_a_failed_run_leaves_no_empty_directory_behind(tmp_path: Path) -> None:
    empty, begun = report.prepare(tmp_path, "empty"), report.prepare(tmp_path, "begun")
    (begun / report.FINDINGS).mkdir()
    for directory in (empty, begun):
        report.abandon(directory)
    assert list(tmp_path.iterdir()) == [begun]
