"""The bookie check: fragments that name a bookie which is not registered, with what that costs them.

A pure function of two tables. Severity is computed by Spark SQL expressions, without Python per row, and equals
``bookie.model.severity.fragment_health``; a property test holds them together. A healthy ledger costs one look-up per
named bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind

_FRAGMENTS: Final = (
    *("ledger_id", "state", "ensemble_size", "write_quorum", "ack_quorum", "last_entry_id", "length"),
    "size(fragments) AS fragment_count",
    "posexplode(fragments) AS (fragment_index, fragment)",
)
# The last entry is compared before anything is subtracted, so that no difference overflows.
_FRAGMENT: Final = (
    "*",
    "fragment.first_entry_id AS first",
    "fragment.last_entry_id AS last",
    "filter(sequence(0, ensemble_size - 1), position -> NOT is_live[position]) AS missing_positions",
    """CASE WHEN fragment.last_entry_id < fragment.first_entry_id THEN 0L
            ELSE try_add(fragment.last_entry_id - fragment.first_entry_id, 1L) END AS entries""",
)
# Entry n is on the Qw positions from n mod E on. So the write sets that occur are named by their first positions: every
# one if the end is not known or E entries are there, none in an empty fragment. Then the smallest count, Qw of none.
_COPIES_MIN: Final = """
    coalesce(
        array_min(transform(
            CASE WHEN last IS NULL THEN sequence(0, ensemble_size - 1)
                 WHEN last >= first THEN transform(
                     sequence(0, CAST(least(last - first, ensemble_size - 1) AS int)),
                     offset -> CAST((first % ensemble_size + offset) % ensemble_size AS int)) END,
            start -> aggregate(
                sequence(0, write_quorum - 1), 0,
                (copies, offset) -> copies + CAST(is_live[(start + offset) % ensemble_size] AS int)))),
        write_quorum) AS copies_min
"""
_SEVERITY_RANK: Final = f"""
    CASE WHEN copies_min >= write_quorum THEN {Severity.METADATA_ONLY.value}
         WHEN copies_min = 0 THEN {Severity.NO_LIVE_COPY.value}
         WHEN copies_min = 1 THEN {Severity.CRITICAL.value}
         WHEN copies_min < ack_quorum THEN {Severity.BELOW_ACK_QUORUM.value}
         ELSE {Severity.BELOW_WRITE_QUORUM.value} END AS severity_rank
"""
_SEVERITY: Final = f"element_at(array({', '.join(repr(level.name) for level in sorted(Severity))}), severity_rank + 1)"
# Payload on the missing positions, each of which stores about Qw/E of the fragment's entries.
_BYTES_ESTIMATE: Final = """
    CASE WHEN last_entry_id >= 0 THEN try_cast(rint(
             length / (CAST(last_entry_id AS double) + 1) * entries * size(missing_positions)
             * write_quorum / ensemble_size) AS bigint)
         WHEN last_entry_id IS NOT NULL THEN 0L END
"""
_VALUES: Final = {
    "kind": repr(FindingKind.MISSING_BOOKIE.value),
    "fragment_first_entry_id": "first",
    "fragment_last_entry_id": "last",
    "is_last_fragment": "fragment_index = fragment_count - 1",
    "missing": "array_distinct(transform(missing_positions, position -> fragment.members[position]))",
    "severity": _SEVERITY,
    "bytes_estimate": _BYTES_ESTIMATE,
    "detail": "CAST(NULL AS string)",
}
_NAMES: Final = [column.split()[0] for column in FINDING_DDL.split(",")]
_FINDING: Final = [f"{_VALUES.get(name, name)} AS {name}" for name in _NAMES]


def bookie_check(ledgers: DataFrame, live: Sequence[str] | DataFrame) -> DataFrame:
    """Return one finding per fragment that names a bookie outside of ``live``.

    Args:
        ledgers: rows of ``bk_ledgers``; those with an error are passed over (they are the lint check's).
        live: ids of the registered bookies, writable and read-only (S8, R17), or a table with a column ``bookie_id``,
            which is collected: a cluster has hundreds. It must have been read after ``ledgers`` (R2).
    """
    is_live = _in("member", live_ids(live))
    return (
        ledgers.where(
            f"error IS NULL AND exists(fragments, fragment -> exists(fragment.members, member -> NOT {is_live}))"
        )
        .selectExpr(*_FRAGMENTS)
        .selectExpr("*", f"transform(fragment.members, member -> {is_live}) AS is_live")
        .where("exists(is_live, live_here -> NOT live_here)")
        .selectExpr(*_FRAGMENT)
        .selectExpr("*", _COPIES_MIN, _SEVERITY_RANK)
        .selectExpr(*_FINDING)
    )


def live_ids(live: Sequence[str] | DataFrame) -> list[str]:
    """Return bookie ids given as a table or a sequence, sorted, each once."""
    if isinstance(live, DataFrame):
        return sorted({row["bookie_id"] for row in live.select("bookie_id").collect()})
    return sorted(set(live))


def _in(name: str, bookies: Sequence[str]) -> str:
    """SQL text; a list of literals becomes a hash set, built once."""
    if not bookies:
        return "false"
    # Bookie ids may hold backslashes (formats 1.4); nothing but a registration's name is trusted to be one.
    quoted = [bookie.replace("\\", "\\\\").replace("'", "\\'") for bookie in bookies]
    return "{} IN ('{}')".format(name, "', '".join(quoted))
