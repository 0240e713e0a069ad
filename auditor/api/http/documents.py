"""Makes the JSON documents of the HTTP API from values. Pure.

They begin with ``apiVersion`` and ``kind``. Names are in snake_case, times in RFC 3339, sizes in bytes; unknown values
are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from auditor.api.control import Backlog, LostBookie, ServiceStatus, SeverityBacklog
from auditor.api.operations_port import BookieView, TaskPage, TaskView
from auditor.operating.maintenance import window_document
from bookie.metadata.runs.notes import KindPause
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.run import RunKind, RunRecord
from bookie.model.times import rfc3339_if_known

API_VERSION: Final = "bkheal/v1"


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of one kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def run_document(record: RunRecord) -> dict[str, Any]:
    """Return the document of one run."""
    return document("Run", {"run": record.to_json()})


def run_list(records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return the document of runs, the newest first."""
    return document("RunList", {"items": [record.to_json() for record in records]})


def status_document(status: ServiceStatus) -> dict[str, Any]:
    """Return the full status of the service and its cluster."""
    return document(
        "ServiceStatus",
        {
            "version": status.version,
            "process": status.process,
            "is_leader": status.is_leader,
            "leader": status.leader or None,
            "store_connected": status.is_store_connected,
            "metadata_uri": status.metadata_uri,
            "instance_id": status.instance_id,
            "recovery_enabled": status.is_recovery_enabled,
            "lost_bookie_delay_seconds": status.lost_bookie_delay_s,
            "held_because": status.held_because or None,
            "maintenance": [window_document(window) for window in status.windows],
            "bookies": {
                "writable": list(status.writable),
                "read_only": list(status.read_only),
                "lost": [_lost(lost) for lost in status.lost],
            },
            "backlog": _backlog(status.backlog),
            "running": [record.to_json() for record in status.running],
            "checks": {kind.value: _check(status, kind) for kind in RunKind},
        },
    )


def schedule_document(kind: RunKind, pause: KindPause | None) -> dict[str, Any]:
    """Return the document of a kind's schedule, with its pause."""
    return document("Schedule", {"check": kind.value, **_pause(pause)})


def task_list(page: TaskPage, backlog: Backlog) -> dict[str, Any]:
    """Return the document of a page of marked ledgers; ``backlog`` is their last count, if there is one."""
    return document(
        "UnderReplicatedLedgerList",
        {
            "items": [_task(task) for task in page.tasks],
            "next_after": page.next_after,
            "total": backlog.ledgers if backlog.counted_ms else None,
            "counted": rfc3339_if_known(backlog.counted_ms),
        },
    )


def bookie_list(bookies: Sequence[BookieView], lost: Sequence[LostBookie]) -> dict[str, Any]:
    """Return the document of every known bookie."""
    since = {known.bookie_id: known for known in lost}
    return document("BookieList", {"items": [_bookie(view, since.get(view.bookie_id)) for view in bookies]})


def _check(status: ServiceStatus, kind: RunKind) -> dict[str, Any]:
    last = status.last.get(kind)
    return {
        "schedule": status.schedules.get(kind),
        "period_seconds": status.period_s.get(kind),
        "next_run": rfc3339_if_known(status.next_run_ms.get(kind, 0)),
        "last_success": rfc3339_if_known(status.last_success_ms.get(kind, 0)),
        **_pause(status.paused_kinds.get(kind)),
        "last": last.to_json() if last else None,
    }


def _pause(pause: KindPause | None) -> dict[str, Any]:
    return {
        "paused": pause is not None,
        "paused_until": rfc3339_if_known(pause.until_ms) if pause else None,
        "paused_by": pause.owner if pause else None,
    }


def _backlog(backlog: Backlog) -> dict[str, Any]:
    return {
        "counted": rfc3339_if_known(backlog.counted_ms),
        "ledgers": backlog.ledgers,
        "severities": {severity.label: _part(part) for severity, part in backlog.severities.items()},
        "healthy": _part(backlog.healthy),
        "unreadable": backlog.unreadable,
        "locked": backlog.locked,
        "parked": {reason.value: count for reason, count in backlog.parked.items()},
    }


def _part(part: SeverityBacklog) -> dict[str, Any]:
    return {"ledgers": part.ledgers, "bytes_estimate": part.bytes_estimate, "oldest": rfc3339_if_known(part.oldest_ms)}


def _lost(lost: LostBookie) -> dict[str, Any]:
    return {
        "bookie_id": lost.bookie_id,
        "first_seen_down": rfc3339_if_known(lost.first_seen_down_ms),
        "audit_due": rfc3339_if_known(lost.audit_due_ms),
        "critical_due": rfc3339_if_known(lost.critical_due_ms),
        "hold_reason": lost.hold_reason or None,
        "hold_detail": lost.hold_detail or None,
    }


def _task(task: TaskView) -> dict[str, Any]:
    return {
        "ledger_id": task.ledger_id,
        "state": task.state.value,
        "condition": task.condition,
        "missing": list(task.missing),
        "marked": rfc3339_if_known(task.marked_ms),
        "copies_min": task.copies_min,
        "ledger_bytes": task.ledger_bytes,
        "park_reason": task.park_reason.value if task.park_reason else None,
        "detail": task.detail or None,
        **dict(zip(OWNER_COLUMNS, task.owner, strict=True)),
    }


def _bookie(view: BookieView, lost: LostBookie | None) -> dict[str, Any]:
    return {
        "bookie_id": view.bookie_id,
        "state": view.state.label,
        "host": view.host or None,
        "port": view.port or None,
        "protocol": view.protocol or None,
        "disk_total_bytes": view.disk_total_bytes,
        "disk_free_bytes": view.disk_free_bytes,
        "ledger_count": view.ledger_count,
        "first_seen_down": rfc3339_if_known(lost.first_seen_down_ms) if lost else None,
        "audit_due": rfc3339_if_known(lost.audit_due_ms) if lost else None,
    }
