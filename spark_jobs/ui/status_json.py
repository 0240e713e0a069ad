"""The tab's state for programs, at ``/auditor/api/v1/status``; runs are as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from spark_jobs.ui.port import TabState


def status_values(state: TabState | None, trouble: str) -> dict[str, Any]:
    """Return plain values. Times of facts are epoch milliseconds (``_ms``); 0 or null: unknown."""
    state = state or TabState(0)
    return {
        "taken_ms": state.taken_ms,
        "trouble": trouble or None,
        "facts": [{"label": fact.label, "value": fact.value, "is_bad": fact.is_bad} for fact in state.facts],
        "kinds": [
            {
                "kind": row.kind,
                "is_startable": row.is_startable,
                "why_not": row.why_not or None,
                "next_ms": row.next_ms,
                "last_success_ms": row.last_success_ms,
            }
            for row in state.kinds
        ],
        "backlog": [
            {
                "severity": row.severity,
                "ledgers": row.ledgers,
                "bytes_estimate": row.bytes_estimate,
                "oldest_ms": row.oldest_ms,
            }
            for row in state.backlog
        ],
        "why_not_counted": state.why_not_counted or None,
        "in_progress": state.in_progress,
        "parked": dict(state.parked),
        "runs": [run.record.to_json() | {"report_url": run.report_url or None} for run in state.runs],
    }
