"""The metadata lint: problems of the metadata itself, independent of the registrations."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from spark_jobs.checks.findings import FINDING_DDL, FindingKind

_VALUES: Final = {"kind": repr(FindingKind.UNREADABLE_METADATA.value), "ledger_id": "ledger_id", "detail": "error"}
_COLUMNS: Final = [column.split() for column in FINDING_DDL.split(",")]
_FINDING: Final = [f"CAST({_VALUES.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS]


def unreadable_metadata(ledgers: DataFrame) -> DataFrame:
    """Return one finding per ledger whose metadata cannot be read. Nothing is known about its copies."""
    return ledgers.where("error IS NOT NULL").selectExpr(*_FINDING)
