"""The placement check: find ensembles that violate the rack, zone and region policy, or leave their groups.

A cluster has far fewer different ensembles and groups than fragments, so the verdict (``placement_rules``, plain
Python) is made once for each and joined back. Fragments without entries have no copies to place and are skipped; the
last fragment of an open ledger is judged, because its writer still adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.model.ids import BookieId
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from spark_jobs.checks.rack_matrix import cells_of
from spark_jobs.checks.sql_text import in_list, literal
from spark_jobs.group_rows import parse_groups_text

VERDICT_DDL: Final = """
    members array<string>, write_quorum int, groups_text string,
    fragments bigint, ledgers_alone bigint, payload_bytes double,
    spread string, detail string, is_fixable boolean, is_outside boolean,
    cells array<struct<racks: int, first: string, second: string>>
"""
"""The columns of ``ensemble_verdicts``.

``ledgers_alone`` counts the ledgers that have only one fragment. ``payload_bytes`` is the payload of fragments of
closed ledgers, each entry once. ``cells`` are the cells of the ensemble in the placement matrix (``rack_matrix``).
"""
_VERDICT_SCHEMA: Final = pa.schema(
    [
        ("members", pa.list_(pa.string())),
        ("write_quorum", pa.int32()),
        ("groups_text", pa.string()),
        ("fragments", pa.int64()),
        ("ledgers_alone", pa.int64()),
        ("payload_bytes", pa.float64()),
        ("spread", pa.string()),
        ("detail", pa.string()),
        ("is_fixable", pa.bool_()),
        ("is_outside", pa.bool_()),
        ("cells", pa.list_(pa.struct([("racks", pa.int32()), ("first", pa.string()), ("second", pa.string())]))),
    ]
)
_OF_LEDGER: Final = ("ledger_id", "state", "write_quorum", "ack_quorum", *OWNER_COLUMNS)
_FRAGMENTS: Final = (
    *_OF_LEDGER,
    "last_entry_id AS ledger_last",
    "length",
    "size(fragments) AS fragment_count",
    "posexplode(fragments) AS (fragment_index, fragment)",
)
# A fragment beyond the end of its ledger has no entries.
_FRAGMENT: Final = (
    *_OF_LEDGER,
    "groups_text",
    "fragment_index",
    "fragment.members AS members",
    "fragment.first_entry_id AS fragment_first_entry_id",
    "least(fragment.last_entry_id, ledger_last) AS fragment_last_entry_id",
    "fragment_index = fragment_count - 1 AS is_last_fragment",
    "fragment_count = 1 AS is_alone",
    """CASE WHEN ledger_last >= 0 THEN length / (CAST(ledger_last AS double) + 1)
            * (CAST(least(fragment.last_entry_id, ledger_last) AS double) - fragment.first_entry_id + 1)
            ELSE 0D END AS payload_bytes""",
)
_VERDICT_COLUMNS: Final = ("members", "write_quorum", "groups_text")
"""The columns that determine a verdict."""
_FAULTY: Final = (Spread.MISPLACED, Spread.UNKNOWN, Spread.UNREADABLE_GROUPS)
_IS_MISPLACED: Final = f"spread = {literal(Spread.MISPLACED.value)}"
_VALUES: Final = {
    "kind": f"CASE WHEN {_IS_MISPLACED} THEN {literal(FindingKind.MISPLACED.value)} "
    f"ELSE {literal(FindingKind.UNKNOWN_PLACE.value)} END",
    "missing_positions": "CAST(array() AS array<int>)",
    "missing": "CAST(array() AS array<string>)",
    "copies_min": "CAST(NULL AS int)",
    "severity": f"CASE WHEN {_IS_MISPLACED} THEN {literal(Severity.MISPLACED.label)} END",
    "severity_rank": f"CASE WHEN {_IS_MISPLACED} THEN {Severity.MISPLACED.value} END",
    "entries": "try_add(fragment_last_entry_id - fragment_first_entry_id, 1L)",
    "bytes_estimate": "CAST(NULL AS bigint)",
}
_NAMES: Final = [column.split()[0] for column in FINDING_DDL.split(",")]
_FINDING: Final = [f"{_VALUES.get(name, name)} AS {name}" for name in _NAMES]


def placed_fragments(ledgers: DataFrame, *, has_groups: bool = True) -> DataFrame:
    """Return one row per fragment with entries, from rows of ``bk_ledgers``; unreadable ledgers are skipped.

    Without groups in the topology, the groups requested by ledgers are left out: every bookie is permitted, and Spark
    has less to compare.
    """
    groups = "coalesce(bookie_groups, '')" if has_groups else "''"
    return (
        ledgers.where("error IS NULL")
        .selectExpr(*_FRAGMENTS, f"{groups} AS groups_text")
        .selectExpr(*_FRAGMENT)
        .where("fragment_last_entry_id IS NULL OR fragment_last_entry_id >= fragment_first_entry_id")
    )


def ensemble_verdicts(fragments: DataFrame, rules: PlacementRules) -> DataFrame:
    """Return one verdict, with counts, per distinct ensemble, write quorum and requested groups."""
    ensembles = fragments.groupBy(*_VERDICT_COLUMNS).agg(
        F.count("*").alias("fragments"),
        F.sum(F.col("is_alone").cast("bigint")).alias("ledgers_alone"),
        F.sum("payload_bytes").alias("payload_bytes"),
    )
    return ensembles.mapInArrow(_batch_judge(rules), VERDICT_DDL)


def placement_check(fragments: DataFrame, verdicts: DataFrame) -> DataFrame:
    """Return one finding per misplaced fragment or fragment without a verdict; ``is_fixable`` is the last column.

    Args:
        fragments: ``placed_fragments``.
        verdicts: ``ensemble_verdicts`` of the same fragments.
    """
    faults = verdicts.where(in_list("spread", [spread.value for spread in _FAULTY]))
    faults = faults.select(*_VERDICT_COLUMNS, "spread", "detail", "is_fixable")
    return fragments.join(faults, list(_VERDICT_COLUMNS)).selectExpr(*_FINDING, "is_fixable")


def _batch_judge(rules: PlacementRules) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                members = [BookieId(member) for member in row["members"]]
                verdict = rules.judge(members, row["write_quorum"], *parse_groups_text(row["groups_text"]))
                judged = {
                    "spread": verdict.spread.value,
                    "detail": verdict.detail,
                    "is_fixable": verdict.is_fixable,
                    "is_outside": verdict.is_outside,
                }
                cells = [
                    {"racks": racks, "first": first, "second": second}
                    for racks, first, second in cells_of([members], rules.topology)
                ]
                rows.append(row | judged | {"cells": cells})
            yield pa.RecordBatch.from_pylist(rows, schema=_VERDICT_SCHEMA)

    return judge
