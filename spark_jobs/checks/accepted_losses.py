"""Findings whose loss an operator accepted: they are reported as accepted, and neither counted nor marked.

A finding is accepted if each of its positions is accepted, with the same bookie. So another lost position of the same
fragment, or another bookie at an accepted position, is a finding like any other (R45). A position that also stores
other entries than those accepted by their ids is not accepted: a worker gives it another bookie (R148). A record of a
ledger with another creation time accepts nothing, because the id of a deleted ledger may be used again.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.tasks.decisions import Decision, LostFragment
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind

_ACCEPTED_DDL: Final = """
    ledger_id bigint, accepted_by string, created_ms bigint,
    accepted array<struct<first: bigint, positions: array<int>, bookies: array<string>>>
"""
_IS_ACCEPTED: Final = f"""
    finding.kind = {FindingKind.MISSING_BOOKIE.value!r} AND (created_ms IS NULL OR created_ms <=> ctime_ms)
    AND exists(accepted, loss ->
        loss.first = finding.fragment_first_entry_id
        AND size(array_except(finding.missing_positions, loss.positions)) = 0
        AND size(array_except(finding.missing, loss.bookies)) = 0)
"""
_VALUES: Final = {
    "kind": repr(FindingKind.LOSS_ACCEPTED.value),
    "severity": repr(Severity.LOST.label),
    "severity_rank": str(Severity.LOST.value),
    "detail": "concat('loss accepted by ', accepted_by)",
}
_COLUMNS: Final = [column.split() for column in FINDING_DDL.split(",")]
_FINDING: Final = [f"CAST({_VALUES.get(name, f'finding.{name}')} AS {kind}) AS {name}" for name, kind in _COLUMNS]


class Split(NamedTuple):
    """The findings of a check, divided into those with and without an accepted loss."""

    found: DataFrame
    """The result of the check without the accepted findings. A ledger with only accepted findings is left out."""
    accepted: DataFrame
    """The accepted findings, one row each, with the columns of findings."""


def without_accepted(spark: SparkSession, found: DataFrame, decisions: Iterable[Decision]) -> Split:
    """Separate the accepted findings from the others.

    Args:
        spark: the session.
        found: rows with a ``ledger_id``, its ``ctime_ms`` and all of its findings (``found``), as
            ``bookie_check_by_ledger`` returns them.
        decisions: the accepted losses. They are sent to each task, so their number must be bounded.
    """
    rows: list[tuple[Any, ...]] = [
        (
            decision.ledger_id,
            decision.by,
            decision.ledger_ctime_ms,
            [_accepted_positions(loss) for loss in decision.lost],
        )
        for decision in decisions
    ]
    known = F.broadcast(spark.createDataFrame(rows, _ACCEPTED_DDL))
    others = f"IF(accepted IS NULL, found, filter(found, finding -> NOT ({_IS_ACCEPTED})))"
    found_others = found.join(known, "ledger_id", "left").selectExpr("ledger_id", f"{others} AS found")
    accepted = found.join(known, "ledger_id").selectExpr("*", "explode(found) AS finding").where(_IS_ACCEPTED)
    return Split(found_others.where("size(found) > 0"), accepted.selectExpr(*_FINDING))


def _accepted_positions(loss: LostFragment) -> tuple[int, list[int], list[str]]:
    whole = loss.whole()
    return loss.first_entry_id, [position for position, _ in whole], [bookie for _, bookie in whole]
