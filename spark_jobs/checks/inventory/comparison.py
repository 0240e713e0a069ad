"""Find the copies of an inventory outside of the metadata: suspects for a second look. Uses only Spark SQL.

A property test keeps ``_IS_PLACED`` equal to ``verdict.is_placed``.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.model.ownership import OWNER_COLUMNS
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.inventory.verdict import CopyVerdict
from spark_jobs.checks.sql_text import literal

NAMED_MAX: Final = 20
"""Largest number of bookies or entries named in the detail of a finding."""
_IS_PLACED: Final = """
    size(filter(fragments, (fragment, number) -> array_contains(fragment.members, bookie_id)
                AND fragment.first_entry_id <= copy_last
                AND (number = size(fragments) - 1 OR copy_first < fragments[number + 1].first_entry_id))) > 0
"""
_COPY: Final = (
    "ledger_id",
    "bookie_id",
    "first_entry_id AS copy_first",
    "last_entry_id AS copy_last",
)
_COLUMNS: Final = [column.split() for column in FINDING_DDL.split(",")]


def suspects(held: DataFrame, ledgers: DataFrame) -> DataFrame:
    """Return one row per ledger with copies outside of the metadata: ``ledger_id`` and ``copies``.

    Args:
        held: rows of ``asking.HELD_DDL``.
        ledgers: rows of ``bk_ledgers``, read before ``held``.
    """
    copies = held.where("answer IS NULL AND damaged IS NULL").selectExpr(*_COPY)
    placing = ledgers.selectExpr("ledger_id", "fragments", "error IS NOT NULL AS is_unreadable", "true AS is_there")
    compared = copies.join(placing, "ledger_id", "left")
    found = compared.where(f"is_there IS NULL OR (NOT is_unreadable AND NOT ({_IS_PLACED}))")
    return found.groupBy("ledger_id").agg(
        F.expr("collect_list(struct(bookie_id, copy_first AS first_entry_id, copy_last AS last_entry_id)) AS copies")
    )


def surplus_findings(seen: DataFrame) -> DataFrame:
    """Return one finding per ledger with superfluous copies, from rows of ``second_look.SEEN_DDL``."""
    kind = (
        f"CASE verdict WHEN {literal(CopyVerdict.UNOWNED.value)} THEN {literal(FindingKind.UNOWNED_LEDGER.value)} "
        f"ELSE {literal(FindingKind.OVER_REPLICATED_LEDGER.value)} END"
    )
    names = "array_sort(bookies)"
    more = f"IF(size(bookies) > {NAMED_MAX}, concat(' and ', size(bookies) - {NAMED_MAX}, ' more'), '')"
    values = {name: name for name in ("ledger_id", "state", "write_quorum", "ack_quorum", *OWNER_COLUMNS)}
    values |= {
        "kind": kind,
        "missing": "array()",
        "detail": f"concat('on ', array_join(slice({names}, 1, {NAMED_MAX}), ', '), {more})",
    }
    is_finding = f"verdict IN ({literal(CopyVerdict.UNOWNED.value)}, {literal(CopyVerdict.OVER_REPLICATED.value)})"
    return seen.where(is_finding).selectExpr(*_finding(values))


def damage_findings(held: DataFrame, ledgers: DataFrame) -> DataFrame:
    """Return one finding for each ledger with damaged entries on a bookie named in its metadata."""
    damaged = held.where("damaged IS NOT NULL").select("ledger_id", "bookie_id", "damaged")
    names = ("state", "write_quorum", "ack_quorum", *OWNER_COLUMNS)
    placing = ledgers.where("error IS NULL").select("ledger_id", "fragments", *names)
    is_named = "exists(fragments, fragment -> array_contains(fragment.members, bookie_id))"
    found = damaged.join(placing, "ledger_id").where(is_named)
    text = (
        f"concat(bookie_id, ' has ', size(damaged), IF(size(damaged) = 1, ' damaged entry: ', ' damaged entries: '), "
        f"array_join(slice(array_sort(damaged), 1, {NAMED_MAX}), ', '), IF(size(damaged) > {NAMED_MAX}, ' ...', ''))"
    )
    by_ledger = found.groupBy("ledger_id", *names).agg(F.expr(f"collect_set({text}) AS texts"))
    values = {name: name for name in ("ledger_id", *names)}
    values |= {
        "kind": literal(FindingKind.KNOWN_DAMAGE.value),
        "missing": "array()",
        "detail": f"array_join(slice(array_sort(texts), 1, {NAMED_MAX}), '; ')",
    }
    return by_ledger.selectExpr(*_finding(values))


def _finding(values: dict[str, str]) -> list[str]:
    return [f"CAST({values.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS]
