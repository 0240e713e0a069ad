"""The bookie check on literal tables, for one shape of ledger after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie.model.ownership import NO_OWNER, OWNER_COLUMNS
from spark_jobs.checks.bookie_check import bookie_check, bookie_check_by_ledger
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.datasource.ledger_schema import LEDGER_DDL

pytestmark = pytest.mark.spark

LIVE = ["a", "b", "c", "d"]


def ledger(
    fragments: Sequence[tuple[int, int | None, str]],
    *,
    quorums: tuple[int, int] = (2, 2),
    state: str = "CLOSED",
    length: int | None = 1000,
    ledger_id: int = 1,
) -> tuple[Any, ...]:
    """Return the row of a ledger; each member is one letter."""
    size = len(fragments[0][2])
    last = fragments[-1][1]
    rows = [(first, end, list(members)) for first, end, members in fragments]
    return (ledger_id, state, size, *quorums, last, length, "CRC32C", None, 3, rows, None)


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame([(*row, *NO_OWNER, None) for row in rows], LEDGER_DDL)


def check(
    spark: SparkSession, *rows: tuple[Any, ...], live: Sequence[str] = LIVE, draining: str = ""
) -> list[dict[str, Any]]:
    found = bookie_check(table(spark, *rows), live, frozenset(draining))
    return [row.asDict() for row in found.orderBy("ledger_id", "fragment_index").collect()]


def test_ledgers_on_registered_bookies_have_no_finding(spark: SparkSession) -> None:
    assert check(spark, ledger([(0, 9, "abc")]), ledger([(0, 9, "a")], quorums=(1, 1), ledger_id=2)) == []


def test_a_finding_names_fragment_positions_and_bookies(spark: SparkSession) -> None:
    found = check(spark, ledger([(0, 4, "abc"), (5, 9, "axy"), (10, 19, "bcd")], length=2000))
    assert found == [
        {
            "kind": "MISSING_BOOKIE",
            "ledger_id": 1,
            "fragment_index": 1,
            "fragment_first_entry_id": 5,
            "fragment_last_entry_id": 9,
            "is_last_fragment": False,
            "state": "CLOSED",
            "missing_positions": [1, 2],
            "missing": ["x", "y"],
            "copies_min": 0,
            "severity": "no_live_copy",
            "severity_rank": 1,
            "entries": 5,
            # 5 entries of 100 bytes; two of three positions are missing, each with two thirds of the entries
            "bytes_estimate": 667,
            "detail": None,
            "write_quorum": 2,
            "ack_quorum": 2,
            **dict.fromkeys(OWNER_COLUMNS),
        }
    ]


@pytest.mark.parametrize(
    ("members", "quorums", "copies", "severity"),
    [
        ("x", (1, 1), 0, "no_live_copy"),
        ("ax", (2, 2), 1, "critical"),
        ("abx", (3, 3), 2, "below_ack_quorum"),
        ("abx", (3, 2), 2, "below_write_quorum"),
        ("abx", (2, 2), 1, "critical"),
        ("abcxd", (1, 1), 0, "no_live_copy"),
        ("xx", (2, 2), 0, "no_live_copy"),
        ("aax", (3, 2), 1, "critical"),
        ("aabx", (3, 2), 1, "critical"),
    ],
)
def test_severity_follows_the_entry_with_the_fewest_copies(
    spark: SparkSession, members: str, quorums: tuple[int, int], copies: int, severity: str
) -> None:
    (found,) = check(spark, ledger([(0, 99, members)], quorums=quorums))
    assert (found["copies_min"], found["severity"]) == (copies, severity)


def test_a_short_fragment_with_no_entry_on_the_missing_bookie_lacks_no_copy(spark: SparkSession) -> None:
    # Entry 6 of E=5, Qw=2 is on positions 1 and 2.
    (found,) = check(spark, ledger([(6, 6, "abcxd")]))
    assert (found["copies_min"], found["severity"], found["missing_positions"]) == (2, "metadata_only", [3])


def test_an_open_last_fragment_is_judged_as_if_every_entry_were_there(spark: SparkSession) -> None:
    row = ledger([(0, 9, "abc"), (10, None, "abx")], state="OPEN", length=None)
    (found,) = check(spark, row)
    assert found["fragment_last_entry_id"] is None
    assert found["is_last_fragment"]
    assert (found["copies_min"], found["severity"], found["entries"], found["bytes_estimate"]) == (
        1,
        "critical",
        None,
        None,
    )


def test_an_empty_ledger_needs_only_a_change_of_its_metadata(spark: SparkSession) -> None:
    (found,) = check(spark, ledger([(0, -1, "xyz")], length=0))
    assert (found["severity"], found["entries"], found["bytes_estimate"]) == ("metadata_only", 0, 0)


def test_a_closed_last_fragment_beyond_the_last_entry_is_empty(spark: SparkSession) -> None:
    first, last = check(spark, ledger([(0, 9, "abx"), (10, 9, "abx")]))
    assert (first["severity"], first["entries"]) == ("critical", 10)
    assert (last["severity"], last["entries"], last["is_last_fragment"]) == ("metadata_only", 0, True)


def test_a_drained_bookie_is_a_finding_of_its_own_and_counts_as_a_copy(spark: SparkSession) -> None:
    drained, both = check(
        spark,
        ledger([(0, 9, "abc")], length=1000),
        ledger([(0, 9, "abx")], ledger_id=2),
        ledger([(0, 9, "ac")], ledger_id=3),
        draining="by",
    )
    assert (drained["kind"], drained["severity"], drained["missing"]) == ("DRAINED_BOOKIE", "drain", ["b"])
    assert (drained["copies_min"], drained["bytes_estimate"]) == (2, 667)
    assert (both["kind"], both["severity"], both["missing"]) == ("MISSING_BOOKIE", "critical", ["b", "x"])


def test_a_drained_bookie_that_is_lost_counts_as_missing(spark: SparkSession) -> None:
    (found,) = check(spark, ledger([(0, 9, "ax")]), draining="x")
    assert (found["kind"], found["severity"]) == ("MISSING_BOOKIE", "critical")


def test_a_bookie_at_two_positions_is_named_once(spark: SparkSession) -> None:
    (found,) = check(spark, ledger([(0, 9, "xax")], quorums=(3, 2)))
    assert (found["missing_positions"], found["missing"]) == ([0, 2], ["x"])


def test_registered_bookies_may_be_given_as_a_table(spark: SparkSession) -> None:
    # Read-only bookies are registered, so the table has both kinds.
    bookies = spark.createDataFrame([("a", "writable"), ("b", "read_only")], "bookie_id string, state string")
    rows = table(spark, ledger([(0, 9, "ab")]), ledger([(0, 9, "ax")], ledger_id=2))
    assert [row["ledger_id"] for row in bookie_check(rows, bookies).collect()] == [2]


def test_any_text_may_be_a_bookie_id(spark: SparkSession) -> None:
    odd = ["back\\slash", "quo'te", "b\\'oth", "{brace}", "%s"]
    row = (1, "CLOSED", 6, 2, 2, 9, 10, "CRC32C", None, 3, [(0, 9, [*odd, "x"])], None)
    assert check(spark, row, live=[*odd, "x"]) == []
    (found,) = check(spark, row, live=odd)
    assert found["missing"] == ["x"]


def test_no_registered_bookie_means_that_all_are_missing(spark: SparkSession) -> None:
    (found,) = check(spark, ledger([(0, 9, "ab")]), live=[])
    assert (found["missing"], found["severity"]) == (["a", "b"], "no_live_copy")


def test_extreme_numbers_do_not_end_a_run(spark: SparkSession) -> None:
    huge = (1 << 63) - 1
    rows = [
        ledger([(0, huge, "ax")], length=huge),
        ledger([(huge, huge, "ax")], length=huge, ledger_id=2),
        ledger([(huge, -huge, "ax")], length=-huge, ledger_id=3),
        ledger([(0, huge - 1, "x"), (huge, None, "x")], quorums=(1, 1), state="OPEN", length=None, ledger_id=4),
    ]
    severities = [found["severity"] for found in check(spark, *rows)]
    assert severities == ["critical", "critical", "metadata_only", "no_live_copy", "no_live_copy"]


def test_unreadable_metadata_is_a_finding_of_its_own(spark: SparkSession) -> None:
    damaged = (7, *[None] * 10, "cut short")
    rows = table(spark, damaged, ledger([(0, 9, "ax")]))
    assert [row["ledger_id"] for row in bookie_check(rows, LIVE).collect()] == [1]
    (found,) = unreadable_metadata(rows).collect()
    assert (found["kind"], found["ledger_id"], found["detail"]) == ("UNREADABLE_METADATA", 7, "cut short")
    assert found["severity"] is None


def test_all_checks_give_the_same_columns(spark: SparkSession) -> None:
    expected = spark.createDataFrame([], FINDING_DDL).dtypes
    rows = table(spark, ledger([(0, 9, "ax")]))
    assert bookie_check(rows, LIVE).dtypes == expected
    assert unreadable_metadata(rows).dtypes == expected


def test_the_fragments_of_a_ledger_are_compared_with_the_live_bookies_once(spark: SparkSession) -> None:
    """Spark moves a filter on a column below the computation of the column, and then computes it twice."""
    ledgers = (
        spark.range(1).selectExpr("from_json(string(id), 'struct<" + LEDGER_DDL.strip() + ">') AS row").select("row.*")
    )
    plan = bookie_check_by_ledger(ledgers, LIVE)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("missing_positions, filter(") == 1
