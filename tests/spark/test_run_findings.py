"""The parts of a report computed by Spark, compared with plain Python over the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.tasks.decisions import Decision, DecisionKind, LostFragment
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.ownership import NO_OWNER
from bookie.model.severity import Severity
from spark_jobs.checks.accepted_losses import without_accepted
from spark_jobs.checks.bookie_check import bookie_check, bookie_check_by_ledger
from spark_jobs.datasource.ledger_schema import LEDGER_DDL
from spark_jobs.report.counts import FindingSums, SeverityCount
from spark_jobs.report.files import FINDINGS
from spark_jobs.runs.findings import finding_sums, ledgers_found, ledgers_judged, to_mark
from spark_jobs.runs.run_report import RunReport
from spark_jobs.session import ROWS_PER_BATCH

pytestmark = pytest.mark.spark

LIVE = ["a", "b", "c"]


def row(ledger_id: int, *ensembles: str) -> tuple[Any, ...]:
    """Return a closed ledger with ten entries per ensemble. An ensemble is a text of one-letter bookies."""
    last = 10 * len(ensembles) - 1
    fragments = [(10 * number, 10 * number + 9, list(members)) for number, members in enumerate(ensembles)]
    return (ledger_id, "CLOSED", 2, 2, 2, last, 1000, "CRC32C", None, 3, fragments, None)


def ledgers(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame([(*row, *NO_OWNER, None) for row in rows], LEDGER_DDL)


def _summed(found: Iterable[Row]) -> FindingSums:
    """Return what ``finding_sums`` returns, in plain Python."""
    severities: dict[int, list[int]] = {}
    bookies: dict[str, list[int]] = {}
    for each in found:
        severities.setdefault(each["severity_rank"], [0, 0, 0])[0] += 1
        for bookie in each["missing"]:
            bookies.setdefault(bookie, [0, 0])[0] += 1
        for finding in each["found"]:
            counts = severities.setdefault(finding["severity_rank"], [0, 0, 0])
            counts[1] += 1
            counts[2] += finding["bytes_estimate"] or 0
            for bookie in finding["missing"]:
                bookies[bookie][1] += 1
    return FindingSums(
        tuple(SeverityCount(Severity(rank), *counts) for rank, counts in sorted(severities.items())),
        {BookieId(bookie): (ledgers, fragments) for bookie, (ledgers, fragments) in bookies.items()},
    )


def test_findings_computed_for_each_ledger_equal_those_grouped_by_ledger(spark: SparkSession) -> None:
    table = ledgers(
        spark,
        row(1, "ab", "ac"),
        row(2, "ab", "xb", "yx", "xa"),
        row(3, "yx", "ya"),
        row(4, "xx"),
        row(5, "zx", "ab", "bc", "zx"),
    )
    within = ledgers_judged(bookie_check_by_ledger(table, LIVE, frozenset({"c"})))
    grouped = ledgers_found(bookie_check(table, LIVE, frozenset({"c"})))
    assert within.dtypes == grouped.dtypes
    found = sorted(within.collect())
    assert found == sorted(grouped.collect())
    assert [(each["ledger_id"], each["missing"], each["fragments"]) for each in found] == [
        (1, ["c"], 1),
        (2, ["x", "y"], 3),
        (3, ["x", "y"], 2),
        (4, ["x"], 1),
        (5, ["c", "x", "z"], 3),
    ]
    assert finding_sums(within) == finding_sums(grouped) == _summed(found)


def test_all_ledgers_to_mark_are_returned_with_the_most_severe_first(spark: SparkSession) -> None:
    count = 2 * ROWS_PER_BATCH + 7
    made = spark.range(count, numPartitions=3).selectExpr(
        "id AS ledger_id",
        f"CAST(IF(id % 5 = 0, {Severity.NO_LIVE_COPY.value}, {Severity.CRITICAL.value}) AS int) AS severity_rank",
        "IF(id % 5 = 0, array('x', 'y'), array('z')) AS missing",
        "CAST(id AS double) AS bytes_estimate",
        "array(named_struct('severity_rank', 0, 'missing', array('x'))) AS found",
    )
    expected: list[tuple[int, tuple[str, ...]]] = [(number, ("x", "y")) for number in range(0, count, 5)]
    expected += [(number, ("z",)) for number in range(count) if number % 5]
    streamed = list(to_mark(made))
    assert [(each.ledger_id, each.missing) for each in streamed] == expected
    assert all(each.bytes_estimate == each.ledger_id and not each.critical_missing for each in streamed)


def test_without_findings_there_is_nothing_to_mark(spark: SparkSession) -> None:
    found = ledgers_judged(bookie_check_by_ledger(ledgers(spark, row(1, "ab")), LIVE))
    assert list(to_mark(found)) == []
    assert finding_sums(found).severities == ()


def test_a_ledger_to_mark_is_returned_with_the_members_of_its_critical_fragments(spark: SparkSession) -> None:
    table = ledgers(spark, row(1, "ab", "xb", "yz"), row(2, "xy"), row(3, "xa", "by"))
    found = ledgers_judged(bookie_check_by_ledger(table, LIVE))
    assert {each.ledger_id: (each.missing, set(each.critical_missing)) for each in to_mark(found)} == {
        1: (("x", "y", "z"), {"x"}),
        2: (("x", "y"), set()),
        3: (("x", "y"), {"x", "y"}),
    }


@pytest.mark.parametrize("is_run_failing", [True, False], ids=["run fails", "only the report fails"])
def test_the_folder_of_findings_is_removed_after_a_failure_of_executors(
    spark: SparkSession, tmp_path: Path, is_run_failing: bool
) -> None:
    findings = tmp_path / "findings"
    report = RunReport(tmp_path / "reports", "run", is_needed=True, findings_dir=findings.as_uri())
    found = ledgers_found(bookie_check(ledgers(spark, row(1, "ax")), LIVE))
    failing = found.selectExpr("inline(found)").withColumn("detail", F.raise_error(F.lit("failed")).cast("string"))
    if is_run_failing:
        with pytest.raises(PySparkException):
            report.write_findings(found, failing)
        report.abandon()
        assert not report.directory.exists()
    else:
        with report.tolerated():
            report.write_findings(found, failing)
        assert "cannot write the findings" in str(report.problem)
    assert list(findings.iterdir()) == []


def test_findings_that_the_driver_cannot_store_stay_where_executors_wrote_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    findings = tmp_path / "findings"
    report = RunReport(tmp_path / "reports", "run", is_needed=True, findings_dir=findings.as_uri())
    (report.directory / FINDINGS).write_text("a file where the directory should be")
    found = ledgers_found(bookie_check(ledgers(spark, row(1, "ax")), LIVE))
    report.write_findings(found, found.selectExpr("inline(found)").limit(0))
    assert f"they are in {findings.as_uri()}/run" in str(report.problem)
    report.abandon()
    assert spark.read.parquet(f"{findings}/run").select("ledger_id").collect() == [(1,)]


def test_an_accepted_loss_counts_only_for_the_ledger_with_the_same_creation_time(spark: SparkSession) -> None:
    """The id of a deleted ledger may be used again."""

    def created(ledger_id: int, ctime_ms: int | None) -> tuple[Any, ...]:
        before, after = row(ledger_id, "xa")[:8], row(ledger_id, "xa")[9:]
        return (*before, ctime_ms, *after)

    def accepted(ledger_id: int, ctime_ms: int | None) -> Decision:
        lost = LostFragment(EntryId(0), EntryId(9), (0,), (BookieId("x"),))
        number = LedgerId(ledger_id)
        return Decision(number, DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", lost=(lost,), ledger_ctime_ms=ctime_ms)

    table = ledgers(spark, created(1, 1000), created(2, 2000), created(3, None), created(4, 1000), created(5, None))
    decisions = [accepted(1, 1000), accepted(2, 1000), accepted(3, 1000), accepted(4, None)]
    split = without_accepted(spark, bookie_check_by_ledger(table, LIVE), decisions)
    assert sorted(each["ledger_id"] for each in split.found.collect()) == [2, 3, 5]
    assert sorted(each["ledger_id"] for each in split.accepted.collect()) == [1, 4]
