"""Compare our findings with the existing tasks, ledger by ledger, as tables.

Pure functions on DataFrames.

Both sides may have millions of rows, so Spark joins them and returns only the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name known to every Spark user)

from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.sql_text import in_list
from spark_jobs.shadow.reasons import Agreement

_KINDS: Final = ", ".join(repr(kind.value) for kind in (FindingKind.MISSING_BOOKIE, FindingKind.DRAINED_BOOKIE))
# Apache's auditor has no drains, so a draining bookie is not a loss for it. It counts only if no bookie is lost.
_OUTCOME: Final = f"""
    CASE WHEN NOT is_marked THEN {Agreement.ONLY_HERE.value!r}
         WHEN NOT is_found THEN {Agreement.ONLY_THERE.value!r}
         WHEN marked IS NULL THEN {Agreement.DIFFER.value!r}
         WHEN size(array_except(IF(size(lost) > 0, lost, drained), marked)) > 0 THEN {Agreement.DIFFER.value!r}
         ELSE {Agreement.AGREE.value!r} END AS outcome
"""


def found_ledgers(findings: DataFrame, draining: AbstractSet[str] = frozenset()) -> DataFrame:
    """Return one row per ledger with findings of lost or drained bookies.

    The columns are ``ledger_id``, ``lost``, ``drained`` and ``severity``.

    Args:
        findings: rows of a report's findings (``FINDING_DDL``, and perhaps more columns); other kinds of findings are
            ignored.
        draining: registered bookies that are draining.
    """
    is_draining = in_list("bookie", sorted(draining))
    named = findings.where(f"kind IN ({_KINDS})").groupBy("ledger_id")
    return named.agg(
        F.expr("array_distinct(flatten(collect_list(missing))) AS named"),
        F.expr("min_by(severity, severity_rank) AS severity"),
    ).selectExpr(
        "ledger_id",
        f"array_sort(filter(named, bookie -> NOT {is_draining})) AS lost",
        f"array_sort(filter(named, bookie -> {is_draining})) AS drained",
        "severity",
    )


def compared(found: DataFrame, tasks: DataFrame) -> DataFrame:
    """Return one row per ledger on either side, with the columns ``ledger_id``, ``outcome`` and ``severity``.

    ``severity`` is the worst of our findings; null: we have none.

    The two agree if the task names at least the bookies that we found lost. It may name more, because names are never
    removed from a task.

    Args:
        found: ``found_ledgers``.
        tasks: rows of ``bk_tasks``; ``missing`` is null in an unreadable task.
    """
    here = found.withColumn("is_found", F.lit(True))
    there = tasks.selectExpr("ledger_id", "missing AS marked", "true AS is_marked")
    both = here.join(there, "ledger_id", "full_outer")
    sides = both.selectExpr(
        "ledger_id", "lost", "drained", "marked", "severity",
        "coalesce(is_found, false) AS is_found", "coalesce(is_marked, false) AS is_marked",
    )  # fmt: skip
    return sides.selectExpr("ledger_id", _OUTCOME, "severity")


def outcomes(table: DataFrame) -> Mapping[Agreement, int]:
    """Return the number of ledgers of each outcome in ``compared``."""
    found = {Agreement(row["outcome"]): int(row["count"]) for row in table.groupBy("outcome").count().collect()}
    return {outcome: found.get(outcome, 0) for outcome in Agreement}


def differing(table: DataFrame) -> DataFrame:
    """Return the rows of ``compared`` to look at again, sorted by ledger id."""
    return table.where(F.col("outcome") != Agreement.AGREE.value).orderBy("ledger_id")
