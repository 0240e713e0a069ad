"""The bookie check: fragments that name a bookie which is not registered, or is being drained, and what that costs.

A pure function of two tables. Severity is computed by Spark SQL expressions, without Python per row, and equals
``bookie.model.severity.fragment_health``; a property test holds them together. A healthy ledger costs one look-up per
named bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from pyspark.sql import DataFrame

from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.sql_text import in_list

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
    """filter(sequence(0, ensemble_size - 1),
              position -> NOT is_live[position] OR is_draining[position]) AS missing_positions""",
    "forall(is_live, live_here -> live_here) AS are_all_live",
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
    CASE WHEN copies_min >= write_quorum
             THEN CASE WHEN are_all_live THEN {Severity.DRAIN.value} ELSE {Severity.METADATA_ONLY.value} END
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
    "kind": f"IF(are_all_live, {FindingKind.DRAINED_BOOKIE.value!r}, {FindingKind.MISSING_BOOKIE.value!r})",
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


def bookie_check(
    ledgers: DataFrame, live: Sequence[str] | DataFrame, draining: AbstractSet[str] = frozenset()
) -> DataFrame:
    """Return one finding per fragment that names a bookie outside of ``live``, or one that is being drained.

    Args:
        ledgers: rows of ``bk_ledgers``; those with an error are passed over (they are the lint check's).
        live: ids of the registered bookies, writable and read-only (S8, R17), or a table with a column ``bookie_id``,
            which is collected: a cluster has hundreds. It must have been read after ``ledgers`` (R2).
        draining: bookies that are being drained. As long as one is live, what it holds counts as a copy.
    """
    ids = live_ids(live)
    is_live, is_draining = in_list("member", ids), in_list("member", sorted(draining))
    is_staying = in_list("member", [bookie for bookie in ids if bookie not in draining])
    return (
        ledgers.where(
            f"error IS NULL AND exists(fragments, fragment -> exists(fragment.members, member -> NOT {is_staying}))"
        )
        .selectExpr(*_FRAGMENTS)
        .where(f"exists(fragment.members, member -> NOT {is_staying})")
        .selectExpr(
            "*",
            f"transform(fragment.members, member -> {is_live}) AS is_live",
            f"transform(fragment.members, member -> {is_draining}) AS is_draining",
        )
        .selectExpr(*_FRAGMENT)
        .selectExpr("*", _COPIES_MIN, _SEVERITY_RANK)
        .selectExpr(*_FINDING)
    )


def live_ids(live: Sequence[str] | DataFrame) -> list[str]:
    """Return bookie ids given as a table or a sequence, sorted, each once."""
    if isinstance(live, DataFrame):
        return sorted({row["bookie_id"] for row in live.select("bookie_id").collect()})
    return sorted(set(live))
