"""Ledgers and references side by side, as a DataFrame with one verdict each."""

from __future__ import annotations

import enum
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.pulsar.decoding import Copy
from bookie.model.metadata import LedgerState
from bookie.model.ownership import OWNER_COLUMNS, Component
from spark_jobs.checks.sql_text import in_list, literal
from spark_jobs.reference_rows import ReferenceRow


class Verdict(enum.StrEnum):
    """What is true of a ledger, or of a reference."""

    REFERENCED = "REFERENCED"
    ALSO_ELSEWHERE = "ALSO_ELSEWHERE"
    """The ledger is referred to, and its entries are also in another storage."""
    OFFLOADED = "OFFLOADED"
    """A reference: the entries are in another storage alone."""
    EMPTY = "EMPTY"
    """A reference to a ledger that ended without entries, and need not exist."""
    UNREFERENCED = "UNREFERENCED"
    LOST = "LOST"
    """A reference to a ledger that does not exist."""
    NOT_JUDGED = "NOT_JUDGED"
    CHANGED = "CHANGED"
    """The second look differed from the first."""


class NotJudged(enum.StrEnum):
    """Why a ledger without a reference has no verdict."""

    UNREADABLE = "its metadata cannot be read"
    FOREIGN = "not of Pulsar"
    OPEN = "not closed"
    UNNAMED = "it names no topic, or no subscription"
    UNDECODABLE = "a node of its topic cannot be decoded"
    IN_LEDGER = "the reference to the compacted ledger is in a ledger"
    YOUNG = "younger than the grace period"


_OF_LEDGER: Final = ("ledger_id", "state", "error", *OWNER_COLUMNS, "length * write_quorum AS stored_bytes")
_OF_REFERENCE: Final = ("root", "kind", "name", "cursor", "topic", "copy", "is_empty")
_FIRST_REFERENCE: Final = (
    f"min(struct({', '.join(_OF_REFERENCE)})) FILTER (WHERE `row` = {literal(ReferenceRow.REFERENCE.value)}) AS by"
)
_UNREAD_OF: Final = f"min(topic) FILTER (WHERE `row` = {literal(ReferenceRow.IN_LEDGER.value)}) AS unread_of"
_WITH_SUBSCRIPTION: Final = (Component.CURSOR.value, Component.DELAYED_INDEX.value)
_UNNAMED: Final = (
    f"topic IS NULL OR component = {literal(Component.UNKNOWN.value)} "
    f"OR {in_list('component', _WITH_SUBSCRIPTION)} AND subscription IS NULL"
)


def compared(ledgers: DataFrame, references: DataFrame, *, is_unsure: bool) -> DataFrame:
    """Return one row per ledger, and per reference to a ledger that does not exist, with ``verdict`` and ``reason``.

    Args:
        ledgers: rows of ``bk_ledgers``, of every ledger.
        references: rows of ``bk_references``, of every Pulsar cluster that uses these bookies.
        is_unsure: a node that matters belongs to an unknown topic, so no ledger is unreferenced.

    The columns are those of the ledger, ``stored_bytes`` on all bookies together, ``by``, the reference, of which one
    is kept if there are several, and ``unread_of``: the topic whose reference to its compacted ledger is in the ledger.
    """
    row = F.col("row")
    of_ledger = ledgers.selectExpr(*_OF_LEDGER)
    named = references.where(row != ReferenceRow.UNDECODABLE.value).groupBy("ledger_id")
    known = named.agg(F.expr(_FIRST_REFERENCE), F.expr(_UNREAD_OF))
    doubts = references.where((row != ReferenceRow.REFERENCE.value) & F.col("topic").isNotNull()).groupBy("topic")
    doubtful = doubts.agg(
        F.max(row == ReferenceRow.UNDECODABLE.value).alias("is_undecodable"),
        F.max(row == ReferenceRow.IN_LEDGER.value).alias("is_in_ledger"),
    )
    both = of_ledger.withColumn("is_there", F.lit(True)).join(known, "ledger_id", "full_outer")
    judged = both.join(doubtful, "topic", "left")
    judged = judged.withColumn("reason", F.expr(_reason(is_unsure=is_unsure)))
    return judged.withColumn("verdict", F.expr(_VERDICT)).drop("is_there", "is_undecodable", "is_in_ledger")


def _reason(*, is_unsure: bool) -> str:
    """Why the ledger of a row has no verdict, unless it is referred to."""
    reasons = (
        ("error IS NOT NULL", NotJudged.UNREADABLE),
        ("component IS NULL", NotJudged.FOREIGN),
        (f"state != {literal(LedgerState.CLOSED.name)}", NotJudged.OPEN),
        (_UNNAMED, NotJudged.UNNAMED),
        ("true" if is_unsure else "is_undecodable", NotJudged.UNDECODABLE),
        (f"component = {literal(Component.COMPACTED.value)} AND is_in_ledger", NotJudged.IN_LEDGER),
    )
    cases = " ".join(f"WHEN {condition} THEN {literal(reason.value)}" for condition, reason in reasons)
    return f"CASE WHEN is_there IS NULL OR by IS NOT NULL THEN NULL {cases} END"


_VERDICT: Final = f"""
    CASE WHEN is_there AND by IS NULL AND reason IS NULL THEN {literal(Verdict.UNREFERENCED.value)}
         WHEN is_there AND by IS NULL THEN {literal(Verdict.NOT_JUDGED.value)}
         WHEN is_there AND by.copy = {literal(Copy.BOOKKEEPER.value)} THEN {literal(Verdict.REFERENCED.value)}
         WHEN is_there THEN {literal(Verdict.ALSO_ELSEWHERE.value)}
         WHEN by.copy != {literal(Copy.BOOKKEEPER.value)} THEN {literal(Verdict.OFFLOADED.value)}
         WHEN by.is_empty THEN {literal(Verdict.EMPTY.value)}
         ELSE {literal(Verdict.LOST.value)} END
"""
