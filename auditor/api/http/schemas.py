"""JSON schemas of the documents, by name, for the description and for tests of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from auditor.api.http.schema_parts import (
    BACKLOG_PART,
    BOOLEAN,
    COUNT,
    LEDGER_ID,
    OWNER,
    TEXT,
    TIME,
    WINDOW,
    Schema,
    document_of,
    fields_of,
    list_of,
    map_of,
    nullable,
    one_of,
    ref,
)
from auditor.api.http.upkeep_schemas import UPKEEP_SCHEMAS
from auditor.api.operations_port import TaskState
from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.switches import DELAY_S_MAX
from bookie.model.run import RunCause, RunKind, RunState
from bookie.model.severity import Severity
from spark_jobs.report.history import BRIEF

_MARK_MISPLACED: Final[Mapping[str, Schema]] = {
    "mark_misplaced": {
        **BOOLEAN,
        "default": False,
        "description": "Mark the ledgers that a replacement would improve.",
    }
}


def _run_request(kind: RunKind, options: Mapping[str, Schema]) -> Schema:
    dry_run = {**BOOLEAN, "default": False, "description": "Report only, and mark nothing."}
    properties = {"kind": {"const": kind.value}, "dry_run": dry_run, **options}
    return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}


_RUN: Final = fields_of(
    {
        "run_id": TEXT,
        "kind": one_of([kind.value for kind in RunKind]),
        "cause": one_of([cause.value for cause in RunCause]),
        "owner": TEXT,
        "process": TEXT,
        "state": one_of([state.value for state in RunState]),
        "dry_run": BOOLEAN,
        "every_ledger": {**BOOLEAN, "description": "False for an ended run of a range or a sample."},
        "phase": TEXT,
        "done": COUNT,
        "total": nullable(COUNT),
        "started": TIME,
        "updated": TIME,
        "finished": TIME,
        "eta": TIME,
        "verdict": nullable(TEXT),
        "exit_code": {"type": ["integer", "null"], "description": "The exit code that a one-shot run would have."},
        "ledgers": COUNT,
        "findings": {**map_of(COUNT), "description": "Ledgers by severity."},
        "tasks_changed": COUNT,
        "held_back": {
            "type": "object",
            "additionalProperties": COUNT,
            "description": "Ledgers with findings that were not marked yet, by reason.",
        },
        "withdrawn": {**map_of(COUNT), "description": "Marks that were withdrawn, by what ended their reason."},
        "image": {
            **map_of(COUNT),
            "description": "Of the image of ledger metadata: ledgers marked by it, and the one that the run wrote.",
        },
        "report": nullable(TEXT),
        "detail": nullable(TEXT),
        "paused_until": {**TIME, "description": "When a paused run continues automatically."},
    }
)
_PAUSE: Final = {
    "paused": BOOLEAN,
    "paused_until": {**TIME, "description": "When the pause of the schedule ends automatically."},
    "paused_by": nullable(TEXT),
}
_LOST: Final = fields_of(
    {
        "bookie_id": TEXT,
        "first_seen_down": TIME,
        "audit_due": {**TIME, "description": "When its ledgers may be marked; null: an audit covered them."},
        "critical_due": {**TIME, "description": "When its ledgers with one copy left may be marked."},
        "hold_reason": {**nullable(TEXT), "description": "What its ledgers wait for until then."},
        "hold_detail": nullable(TEXT),
    }
)
_CHECK: Final = fields_of(
    {
        "schedule": {
            "type": ["string", "null"],
            "description": "The schedule that this auditor follows as the leader; null: not scheduled.",
        },
        "period_seconds": {"type": ["number", "null"], "description": "Null: not scheduled."},
        "next_run": {
            **TIME,
            "description": "Null also if another auditor is the leader: only the leader knows the time.",
        },
        "last_success": TIME,
        **_PAUSE,
        "last": {"anyOf": [ref("RunFields"), {"type": "null"}]},
    }
)
_STATUS: Final = document_of(
    "ServiceStatus",
    {
        "version": TEXT,
        "process": TEXT,
        "is_leader": BOOLEAN,
        "leader": nullable(TEXT),
        "store_connected": BOOLEAN,
        "metadata_uri": TEXT,
        "instance_id": TEXT,
        "recovery_enabled": BOOLEAN,
        "lost_bookie_delay_seconds": COUNT,
        "held_because": nullable(TEXT),
        "maintenance": list_of(WINDOW),
        "bookies": fields_of({"writable": list_of(TEXT), "read_only": list_of(TEXT), "lost": list_of(_LOST)}),
        "backlog": fields_of(
            {
                "counted": TIME,
                "ledgers": COUNT,
                "severities": map_of(BACKLOG_PART),
                "healthy": BACKLOG_PART,
                "unreadable": COUNT,
                "locked": COUNT,
                "parked": map_of(COUNT),
            }
        ),
        "running": list_of(ref("RunFields")),
        "checks": fields_of({kind.value: _CHECK for kind in RunKind}),
    },
)
_TASK: Final = fields_of(
    {
        "ledger_id": COUNT,
        "state": one_of([state.value for state in TaskState]),
        "condition": one_of([*(severity.label for severity in Severity), "healthy", "unreadable", "gone"]),
        "missing": list_of(TEXT),
        "marked": TIME,
        "copies_min": nullable(COUNT),
        "ledger_bytes": nullable(COUNT),
        "park_reason": one_of([reason.value for reason in ParkReason], or_null=True),
        "detail": nullable(TEXT),
        **OWNER,
    }
)
_BOOKIE: Final = fields_of(
    {
        "bookie_id": TEXT,
        "state": one_of([state.label for state in BookieState]),
        "host": nullable(TEXT),
        "port": nullable(COUNT),
        "protocol": nullable(TEXT),
        "disk_total_bytes": nullable(COUNT),
        "disk_free_bytes": nullable(COUNT),
        "ledger_count": nullable(COUNT),
        "first_seen_down": TIME,
        "audit_due": TIME,
    }
)
_REPORT: Final = fields_of(
    {
        "run_id": TEXT,
        "modified": TIME,
        "summary": {"type": ["string", "null"], "description": "Path of summary.json on this server."},
        "page": {"type": ["string", "null"], "description": "Path of the page for people on this server."},
        "report": {
            "type": ["object", "null"],
            "description": f"Of its summary.json: {', '.join(BRIEF)}. Null: it cannot be read.",
        },
    }
)

SCHEMAS: Final[Mapping[str, Schema]] = {
    "RunFields": _RUN,
    "Run": document_of("Run", {"run": ref("RunFields")}),
    "RunList": document_of("RunList", {"items": list_of(ref("RunFields"))}),
    "RunRequest": {
        "description": "One of the kinds of run, each with its own options.",
        "oneOf": [
            ref("BookiesRunRequest"),
            ref("PlacementRunRequest"),
            ref("ReplicasRunRequest"),
            ref("ReferencesRunRequest"),
            ref("EverythingRunRequest"),
        ],
    },
    "BookiesRunRequest": _run_request(RunKind.BOOKIES, {}),
    "PlacementRunRequest": _run_request(RunKind.PLACEMENT, _MARK_MISPLACED),
    "ReplicasRunRequest": _run_request(
        RunKind.REPLICAS,
        {
            "ledger_min": {**LEDGER_ID, "description": "Lowest ledger id, inclusive; at most `ledger_max`."},
            "ledger_max": {**LEDGER_ID, "description": "Highest ledger id, inclusive."},
            "sample": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "Share of the ledgers, chosen by id.",
            },
            "sample_seed": {**LEDGER_ID, "description": "Which sample; absent: a new one."},
        },
    ),
    "ReferencesRunRequest": _run_request(RunKind.REFERENCES, {}),
    "EverythingRunRequest": _run_request(RunKind.EVERYTHING, _MARK_MISPLACED),
    **UPKEEP_SCHEMAS,
    "ServiceStatus": _STATUS,
    "ScheduleList": document_of(
        "ScheduleList", {"items": list_of(fields_of({"check": one_of([kind.value for kind in RunKind]), **_PAUSE}))}
    ),
    "Schedule": document_of("Schedule", {"check": one_of([kind.value for kind in RunKind]), **_PAUSE}),
    "UnderReplicatedLedgerList": document_of(
        "UnderReplicatedLedgerList",
        {
            "items": list_of(_TASK),
            "next_after": {
                "type": ["integer", "null"],
                "description": "Value of `after` for the next page. Null: there is none. A page may be shorter than "
                "the limit although more follow.",
            },
            "total": {
                **nullable(COUNT),
                "description": "All marked ledgers, as of `counted`. Null: this auditor is not the leader, or the "
                "list is filtered.",
            },
            "counted": TIME,
        },
    ),
    "BookieList": document_of("BookieList", {"items": list_of(_BOOKIE)}),
    "ReportList": document_of(
        "ReportList",
        {
            "items": list_of(_REPORT),
            "next_after": {**nullable(TEXT), "description": "Value of `after` for the next page; null: none."},
        },
    ),
    "Version": document_of("Version", {"version": TEXT, "component": TEXT}),
    "RecoverySwitch": fields_of({"enabled": BOOLEAN}),
    "DelayRequest": {
        "type": "object",
        "properties": {"delay_seconds": {"type": "integer", "minimum": 0, "maximum": DELAY_S_MAX}},
        "required": ["delay_seconds"],
    },
    "LedgerIds": {
        "anyOf": [list_of(COUNT), map_of(list_of(TEXT))],
        "description": "Ids; with printmissingreplica, the missing bookies by id.",
    },
    "ClusterInfo": fields_of(
        {
            "auditorElected": BOOLEAN,
            "auditorId": TEXT,
            "clusterUnderReplicated": BOOLEAN,
            "ledgerReplicationEnabled": BOOLEAN,
            "totalBookiesCount": COUNT,
            "writableBookiesCount": COUNT,
            "readonlyBookiesCount": COUNT,
            "unavailableBookiesCount": COUNT,
        }
    ),
    "BookieNames": {**map_of(nullable(TEXT)), "description": "Host names by bookie id; null unless asked for."},
    "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
    "Problem": {
        "type": "object",
        "description": "RFC 9457. Some types have members of their own, such as `run_id` and `leader`.",
        "properties": {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "instance": TEXT,
        },
        "required": ["type", "title", "status", "detail", "instance"],
    },
}
