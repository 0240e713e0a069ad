"""Compare ledgers and references: a DataFrame with one verdict for each."""

from __future__ import annotations

import enum
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.model.ownership import Component
from spark_jobs.checks.sql_text import in_list, literal
from spark_jobs.reference_rows import LEDGERS, Claim


class ReferenceVerdict(enum.StrEnum):
    """The verdict on a ledger, or on a reference."""

    REFERENCED = "REFERENCED"
    ALSO_ELSEWHERE = "ALSO_ELSEWHERE"
    """The ledger has a reference, and its entries are also in another storage."""
    OFFLOADED = "OFFLOADED"
    """A reference: the entries are only in another storage."""
    EMPTY = "EMPTY"
    """A reference to a ledger closed without entries, which need not exist."""
    UNREFERENCED = "UNREFERENCED"
    LOST = "LOST"
    """A reference to a nonexistent ledger."""
    NOT_JUDGED = "NOT_JUDGED"
    CHANGED = "CHANGED"
    """The second look found another state than the first."""


class NotJudged(enum.StrEnum):
    """Why a ledger without a reference, or a reference without a ledger, has no verdict."""

    UNREADABLE = "its metadata cannot be read"
    FOREIGN = "not of Pulsar"
    OPEN = "not closed"
    UNNAMED = "it names no topic, or no subscription"
    UNDECODABLE = "a node of its topic cannot be decoded"
    IN_LEDGER = "the reference to the compacted ledger is in a ledger"
    YOUNG = "younger than the grace period"
    MAYBE_SHADOW = "it does not exist, and only topics that may be shadow topics refer to it"


_SECOND_LOOK_VERDICTS: Final = (ReferenceVerdict.UNREFERENCED.value, ReferenceVerdict.LOST.value)
NEEDS_SECOND_LOOK: Final = in_list("verdict", _SECOND_LOOK_VERDICTS)
"""Selects the rows of ``compared`` with a possible finding, for the second look."""
_MAY_BE_UNREFERENCED: Final = f"""
    verdict = {literal(ReferenceVerdict.UNREFERENCED.value)}
    OR verdict = {literal(ReferenceVerdict.NOT_JUDGED.value)} AND reason = {literal(NotJudged.YOUNG.value)}
"""

HAS_UNKNOWN_REFERENCE: Final = "error IS NOT NULL OR position_in IS NOT NULL"
"""Selects the rows of ``bk_references`` for nodes with an unknown reference."""
_BROADCAST_MAX: Final = 100_000
"""Largest number of ids that are sent to each executor as a whole, about a megabyte."""
NODES_MAX: Final = 16
"""Largest number of nodes named for a nonexistent ledger. Several nodes refer to one ledger only if all but one belong
to shadow topics."""
_BY: Final = ("root", "kind", "name", "cursor")
_BY_TYPE: Final = "array<struct<root: string, kind: string, name: string, cursor: string>>"
# The column ``standing``: 0 for a ledger of Pulsar that needs a reference, else the number of one of these cases (1 to
# 3).
_NOT_JUDGED_CASES: Final = {
    "error IS NOT NULL": NotJudged.UNREADABLE,
    "NOT is_pulsar": NotJudged.FOREIGN,
    "NOT is_closed": NotJudged.OPEN,
}
_STANDING_COLUMN_SQL: Final = (
    "CAST(CASE "
    + " ".join(f"WHEN {condition} THEN {number}" for number, condition in enumerate(_NOT_JUDGED_CASES, 1))
    + " ELSE 0 END AS tinyint)"
)
_REASON: Final = (
    "CASE WHEN claim IS NOT NULL THEN NULL "
    + " ".join(
        f"WHEN standing = {number} THEN {literal(why.value)}"
        for number, why in enumerate(_NOT_JUDGED_CASES.values(), 1)
    )
    + " END"
)
_VERDICT: Final = f"""
    CASE WHEN claim IS NULL AND standing = 0 THEN {literal(ReferenceVerdict.UNREFERENCED.value)}
         WHEN claim IS NULL THEN {literal(ReferenceVerdict.NOT_JUDGED.value)}
         WHEN standing IS NOT NULL AND claim <= {Claim.EMPTY.value} THEN {literal(ReferenceVerdict.REFERENCED.value)}
         WHEN standing IS NOT NULL THEN {literal(ReferenceVerdict.ALSO_ELSEWHERE.value)}
         WHEN claim = {Claim.ENTRIES.value} THEN {literal(ReferenceVerdict.LOST.value)}
         WHEN claim = {Claim.EMPTY.value} THEN {literal(ReferenceVerdict.EMPTY.value)}
         ELSE {literal(ReferenceVerdict.OFFLOADED.value)} END
"""


def compared(ledgers: DataFrame, references: DataFrame) -> DataFrame:
    """Return one row per ledger, and one per reference to a nonexistent ledger.

    Only numbers are compared and moved between executors. The columns are ``ledger_id``, ``verdict``, ``reason``, and
    the ``topic_hash`` of the ledger.

    Args:
        ledgers: brief rows of ``bk_ledgers``, of every ledger.
        references: rows of ``bk_references``, of every Pulsar cluster on these bookies.
    """
    of_ledger = ledgers.selectExpr("ledger_id", "topic_hash", f"{_STANDING_COLUMN_SQL} AS standing")
    named = references.selectExpr(f"inline({LEDGERS})").groupBy("ledger_id").agg(F.min("claim").alias("claim"))
    both = of_ledger.join(named, "ledger_id", "full_outer")
    return both.selectExpr("ledger_id", "topic_hash", f"{_VERDICT} AS verdict", f"{_REASON} AS reason")


def suspects(compared: DataFrame, references: DataFrame, lost: int) -> DataFrame:
    """Return the rows of ``compared`` with a possible finding.

    The additional column ``by`` has up to ``NODES_MAX`` nodes that refer to a nonexistent ledger. ``lost`` is the
    number of such ledgers.
    """
    some = compared.where(NEEDS_SECOND_LOOK)
    if not lost:
        return some.withColumn("by", F.expr(f"CAST(NULL AS {_BY_TYPE})"))
    missing = some.where(F.col("verdict") == ReferenceVerdict.LOST.value).select("ledger_id")
    named = references.selectExpr(*_BY, f"inline({LEDGERS})").where(F.col("claim") == Claim.ENTRIES.value)
    missing = F.broadcast(missing) if lost <= _BROADCAST_MAX else missing
    order = Window.partitionBy("ledger_id").orderBy(*_BY)
    numbered = named.join(missing, "ledger_id", "left_semi").withColumn("number", F.row_number().over(order))
    known = numbered.where(F.col("number") <= NODES_MAX).groupBy("ledger_id")
    return some.join(known.agg(F.expr(f"collect_list(struct({', '.join(_BY)})) AS by")), "ledger_id", "left")


def without_doubtful_topics(seen: DataFrame, references: DataFrame) -> DataFrame:
    """Return rows of the second look (``SECOND_LOOK_DDL``), with the verdicts on ledgers of doubtful topics removed.

    Args:
        seen: the rows.
        references: rows of ``bk_references``. If a node of a topic is undecodable, none of the topic's ledgers counts
            as unreferenced. If a reference of a topic is stored in a ledger, none of its compacted ledgers does.
    """
    doubts = references.where(HAS_UNKNOWN_REFERENCE).where("topic IS NOT NULL").groupBy("topic")
    doubtful = doubts.agg(
        F.expr("bool_or(error IS NOT NULL) AS is_undecodable"),
        F.expr("bool_or(position_in IS NOT NULL) AS is_in_ledger"),
    )
    judged = seen.join(doubtful, "topic", "left").withColumn(
        "doubt",
        F.expr(f"""
            CASE WHEN NOT ({_MAY_BE_UNREFERENCED}) THEN NULL
                 WHEN is_undecodable THEN {literal(NotJudged.UNDECODABLE.value)}
                 WHEN is_in_ledger AND component = {literal(Component.COMPACTED.value)}
                 THEN {literal(NotJudged.IN_LEDGER.value)} END
        """),
    )
    not_judged = f"IF(doubt IS NULL, verdict, {literal(ReferenceVerdict.NOT_JUDGED.value)}) AS verdict"
    others = {"verdict": not_judged, "reason": "coalesce(doubt, reason) AS reason"}
    return judged.selectExpr(*(others.get(name, name) for name in seen.columns))


def unread(references: DataFrame) -> DataFrame:
    """Return one row per ledger that contains a reference to a compacted ledger, with the owner's columns."""
    some = references.where("position_in IS NOT NULL AND topic IS NOT NULL").groupBy("position_in")
    found = some.agg(F.expr("min(struct(topic, tenant, namespace, cursor)) AS by"))
    return found.selectExpr(
        "position_in AS ledger_id",
        "by.tenant",
        "by.namespace",
        "by.topic",
        f"{literal(Component.CURSOR.value)} AS component",
        "by.cursor AS subscription",
    )
