"""JSON schemas of the documents, by name, for the description and for tests of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from auditor.api.http.documents import API_VERSION
from auditor.api.operations_port import TaskState
from auditor.operating.boosting import SPAN_S_MAX
from auditor.operating.maintenance import NOTE_MAX
from auditor.safety.dead_letters import DeadLetterOutcome
from bookie.metadata.bookies.maintenance import WINDOW_S_MAX
from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.tasks.copy_limits import CopyProfile
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.switches import DELAY_S_MAX
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.impact import Effect, Standing
from bookie.model.run import RunCause, RunKind, RunState
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FindingKind
from spark_jobs.report.history import BRIEF

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_BOOLEAN_SCHEMA: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _nullable(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


_UNREADABLE_MARKS_SCHEMA: Final[Schema] = {**_COUNT, "description": "Ledgers with a mark that cannot be read."}
_READABLE_DELAY_SCHEMA: Final[Schema] = {**_nullable(_COUNT), "description": "Null: it cannot be read."}


def _one_of(values: list[str], *, or_null: bool = False) -> Schema:
    return {"enum": [*values, None]} if or_null else {"type": "string", "enum": values}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _map(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def _fields(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _body(properties: Mapping[str, Schema], *required: str) -> Schema:
    fields: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**fields, "required": list(required)} if required else fields


def _document(kind: str, properties: Mapping[str, Schema]) -> Schema:
    return _fields({"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}, **properties})


BOOKIE_ID_PATTERN: Final = r"^[a-zA-Z0-9:-_.\-]{1,256}$"
"""Ids of bookies, as in ``bookie.model.ids``."""
WINDOW_TARGET_PATTERN: Final = (
    r"^(?:[a-zA-Z0-9:-_.\-]{1,256}|rack:/?[A-Za-z0-9._:@=+\-]{1,128}(?:/[A-Za-z0-9._:@=+\-]{1,128}){0,7})$"
)
"""Targets of maintenance windows: the id of a bookie, or the location of a rack as in ``bookie.model.topology``."""
DRAINS_MAX: Final = 50
"""Bookies whose drains one request begins: this many of the longest ids fit into a body."""
LEDGERS_MAX: Final = 100
"""Ledgers in one request, because each needs several requests to the store."""
REASON_MAX: Final = 500
"""Largest number of recorded characters of an operator's reason."""
_RATE_MAX: Final = 1 << 50
"""Largest rate in bytes per second: more than any network can transfer."""
LIMITS: Final[Mapping[str, int]] = {
    "bytes_per_second": _RATE_MAX,
    "requests_per_second": 10_000_000,
    "bookie_in_bytes_per_second": _RATE_MAX,
    "bookie_out_bytes_per_second": _RATE_MAX,
    "critical_bytes_per_second": _RATE_MAX,
}
"""Limits on copying and their largest values. 0: no limit."""


_MARK_MISPLACED: Final[Mapping[str, Schema]] = {
    "mark_misplaced": {
        **_BOOLEAN_SCHEMA,
        "default": False,
        "description": "Mark the ledgers that a replacement would improve.",
    }
}


def _run_request(kind: RunKind, options: Mapping[str, Schema]) -> Schema:
    dry_run = {**_BOOLEAN_SCHEMA, "default": False, "description": "Report only, and mark nothing."}
    properties = {"kind": {"const": kind.value}, "dry_run": dry_run, **options}
    return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}


LEDGER_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": LEDGER_ID_MAX}
_RUN: Final = _fields(
    {
        "run_id": _TEXT,
        "kind": _one_of([kind.value for kind in RunKind]),
        "cause": _one_of([cause.value for cause in RunCause]),
        "owner": _TEXT,
        "process": _TEXT,
        "state": _one_of([state.value for state in RunState]),
        "dry_run": _BOOLEAN_SCHEMA,
        "phase": _TEXT,
        "done": _COUNT,
        "total": _nullable(_COUNT),
        "started": _TIME,
        "updated": _TIME,
        "finished": _TIME,
        "eta": _TIME,
        "verdict": _nullable(_TEXT),
        "exit_code": {"type": ["integer", "null"], "description": "The exit code that a one-shot run would have."},
        "ledgers": _COUNT,
        "findings": {**_map(_COUNT), "description": "Ledgers by severity."},
        "tasks_changed": _COUNT,
        "held_back": {
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "Ledgers with findings that were not marked yet, by reason.",
        },
        "withdrawn": {**_map(_COUNT), "description": "Marks that were withdrawn, by what ended their reason."},
        "image": {
            **_map(_COUNT),
            "description": "Of the image of ledger metadata: ledgers marked by it, and the one that the run wrote.",
        },
        "report": _nullable(_TEXT),
        "detail": _nullable(_TEXT),
        "paused_until": {**_TIME, "description": "When a paused run continues automatically."},
    }
)
_PAUSE: Final = {
    "paused": _BOOLEAN_SCHEMA,
    "paused_until": {**_TIME, "description": "When the pause of the schedule ends automatically."},
    "paused_by": _nullable(_TEXT),
}
_OWNER: Final[Mapping[str, Schema]] = {
    "tenant": _nullable(_TEXT),
    "namespace": {**_nullable(_TEXT), "description": "Of Pulsar, with its tenant. Null: the ledger does not name it."},
    "topic": {**_nullable(_TEXT), "description": "The name in full."},
    "component": {**_nullable(_TEXT), "description": "What the ledger contains: managed-ledger, cursor, schema, ..."},
    "subscription": _nullable(_TEXT),
}
_PART: Final = _fields({"ledgers": _COUNT, "bytes_estimate": _COUNT, "oldest": _TIME})
_WINDOW_FIELDS: Final = {
    "target": {**_TEXT, "description": "A bookie, or rack: and the location of a rack."},
    "bookies": _list(_TEXT),
    "by": _TEXT,
    "since": _TIME,
    "until": {**_TIME, "description": "The window ends automatically at this time."},
    "hold_critical": {**_BOOLEAN_SCHEMA, "description": "Whether ledgers with one copy left wait as well."},
    "note": _nullable(_TEXT),
}
_WINDOW: Final = _fields(_WINDOW_FIELDS)
_LOST: Final = _fields(
    {
        "bookie_id": _TEXT,
        "first_seen_down": _TIME,
        "audit_due": {**_TIME, "description": "When its ledgers may be marked; null: an audit covered them."},
        "critical_due": {**_TIME, "description": "When its ledgers with one copy left may be marked."},
        "hold_reason": {**_nullable(_TEXT), "description": "What its ledgers wait for until then."},
        "hold_detail": _nullable(_TEXT),
    }
)
_CHECK: Final = _fields(
    {
        "schedule": {
            "type": ["string", "null"],
            "description": "The schedule that this auditor follows as the leader; null: not scheduled.",
        },
        "period_seconds": {"type": ["number", "null"], "description": "Null: not scheduled."},
        "next_run": {
            **_TIME,
            "description": "Null also if another auditor is the leader: only the leader knows the time.",
        },
        "last_success": _TIME,
        **_PAUSE,
        "last": {"anyOf": [_ref("RunFields"), {"type": "null"}]},
    }
)
_STATUS: Final = _document(
    "ServiceStatus",
    {
        "version": _TEXT,
        "process": _TEXT,
        "is_leader": _BOOLEAN_SCHEMA,
        "leader": _nullable(_TEXT),
        "store_connected": _BOOLEAN_SCHEMA,
        "metadata_uri": _TEXT,
        "instance_id": _TEXT,
        "recovery_enabled": _BOOLEAN_SCHEMA,
        "lost_bookie_delay_seconds": _COUNT,
        "held_because": _nullable(_TEXT),
        "maintenance": _list(_WINDOW),
        "bookies": _fields({"writable": _list(_TEXT), "read_only": _list(_TEXT), "lost": _list(_LOST)}),
        "backlog": _fields(
            {
                "counted": _TIME,
                "ledgers": _COUNT,
                "severities": _map(_PART),
                "healthy": _PART,
                "unreadable": _COUNT,
                "locked": _COUNT,
                "parked": _map(_COUNT),
            }
        ),
        "running": _list(_ref("RunFields")),
        "checks": _fields({kind.value: _CHECK for kind in RunKind}),
    },
)
_TASK: Final = _fields(
    {
        "ledger_id": _COUNT,
        "state": _one_of([state.value for state in TaskState]),
        "condition": _one_of([*(severity.label for severity in Severity), "healthy", "unreadable", "gone"]),
        "missing": _list(_TEXT),
        "marked": _TIME,
        "copies_min": _nullable(_COUNT),
        "ledger_bytes": _nullable(_COUNT),
        "park_reason": _one_of([reason.value for reason in ParkReason], or_null=True),
        "detail": _nullable(_TEXT),
        **_OWNER,
    }
)
_BOOKIE: Final = _fields(
    {
        "bookie_id": _TEXT,
        "state": _one_of([state.label for state in BookieState]),
        "host": _nullable(_TEXT),
        "port": _nullable(_COUNT),
        "protocol": _nullable(_TEXT),
        "disk_total_bytes": _nullable(_COUNT),
        "disk_free_bytes": _nullable(_COUNT),
        "ledger_count": _nullable(_COUNT),
        "first_seen_down": _TIME,
        "audit_due": _TIME,
    }
)
_REPORT: Final = _fields(
    {
        "run_id": _TEXT,
        "modified": _TIME,
        "summary": {"type": ["string", "null"], "description": "Path of summary.json on this server."},
        "page": {"type": ["string", "null"], "description": "Path of the page for people on this server."},
        "report": {
            "type": ["object", "null"],
            "description": f"Of its summary.json: {', '.join(BRIEF)}. Null: it cannot be read.",
        },
    }
)

_PARK_REASON: Final = _one_of([reason.value for reason in ParkReason])
_LEDGERS: Final = {"type": "array", "items": LEDGER_ID, "minItems": 1, "maxItems": LEDGERS_MAX}
_LOST_FRAGMENT: Final = _fields(
    {
        "first_entry_id": {"type": "integer"},
        "last_entry_id": {"type": "integer"},
        "positions": _list(_COUNT),
        "bookies": _list(_TEXT),
        "denials": _list(_fields({"position": _COUNT, "bookie_id": _TEXT, "entries": _COUNT})),
        "entry_count": _nullable(_COUNT),
        "entries": _list(_list(_COUNT)),
        "shared_positions": _list(_COUNT),
    }
)
_LIMIT_FIELDS: Final = {
    "limited": {**_BOOLEAN_SCHEMA, "description": "False: there are no limits."},
    **dict.fromkeys(LIMITS, _COUNT),
    "profile": _one_of([profile.value for profile in CopyProfile]),
    "by": _TEXT,
    "since": _TIME,
}
_DONE: Final = {"dry_run": _BOOLEAN_SCHEMA}
_VERDICT: Final = {
    "ok": _BOOLEAN_SCHEMA,
    "bookies": _list(_TEXT),
    "strict": _BOOLEAN_SCHEMA,
    "ledgers": {**_COUNT, "description": "Ledgers that were examined."},
    "unreadable_ledgers": _COUNT,
    "ledgers_at_risk": _COUNT,
    "worst": _list(
        _fields(
            {
                "ledger_id": _COUNT,
                "fragment_first_entry_id": _COUNT,
                "copies_left": _COUNT,
                "copies_needed": _COUNT,
                "growing": _BOOLEAN_SCHEMA,
                "bookies": _list(_TEXT),
                **_OWNER,
            }
        )
    ),
    "placement_problems": _list(_TEXT),
    "not_registered": _list(_TEXT),
}
_WHAT_IF: Final = {
    "bookies": _list(_TEXT),
    "not_registered": _list(_TEXT),
    "source": _one_of(["metadata", "image"]),
    "image_read_from": _TIME,
    "image_age_seconds": _nullable(_COUNT),
    "ledgers": {**_COUNT, "description": "Ledgers that were examined."},
    "unreadable_ledgers": _COUNT,
    "findings": _list(
        _fields(
            {
                "severity": _one_of([level.label for level in Severity]),
                "ledgers": {**_COUNT, "description": "Ledgers whose severity would be worse than now."},
                "already": {**_COUNT, "description": "Ledgers on these bookies that would stay as they are."},
                "bytes_estimate": _COUNT,
            }
        )
    ),
    "worst": _list(
        _fields(
            {
                "ledger_id": _COUNT,
                "severity": _one_of([level.label for level in Severity]),
                "severity_now": _nullable(_TEXT),
                "copies_left": _COUNT,
                "bookies": _list(_TEXT),
                "bytes_estimate": _COUNT,
                **_OWNER,
            }
        )
    ),
    "topics_total": _COUNT,
    "topics_cut": _BOOLEAN_SCHEMA,
    "unnamed_ledgers": {**_COUNT, "description": "Ledgers whose severity would be worse, and that name no topic."},
    "topics": _list(_fields({"topic": _TEXT, "severity": _TEXT, "ledgers": _COUNT})),
}
_DRAINED: Final = _fields(
    {"bookie_id": _TEXT, "since": _TIME, "by": _TEXT, "state": _one_of(["writable", "read_only", "lost"])}
)
_COPY: Final = _fields(
    {
        "first_entry_id": _COUNT,
        "position": _COUNT,
        "target": _TEXT,
        **{name: _nullable(_COUNT) for name in ("entries_done", "entries_total", "bytes_done", "bytes_total")},
    }
)
_DECISION_REQUEST: Final[Mapping[str, Schema]] = {
    "ledgers": _LEDGERS,
    "confirm": {**_LEDGERS, "description": "The ids in `ledgers` again. Required unless `dry_run` is true."},
    "dry_run": {**_BOOLEAN_SCHEMA, "default": False, "description": "Report what would be done, and change nothing."},
}
_UPKEEP: Final[Mapping[str, Schema]] = {
    "FindingList": _document(
        "FindingList",
        {
            "run_id": _TEXT,
            "items": _list(
                _fields(
                    {
                        "kind": _one_of([kind.value.lower() for kind in FindingKind]),
                        "ledger_id": _nullable(_COUNT),
                        "fragment_index": _nullable(_COUNT),
                        "fragment_first_entry_id": _nullable(_COUNT),
                        "fragment_last_entry_id": {"type": ["integer", "null"]},
                        "state": _nullable(_TEXT),
                        "missing": _list(_TEXT),
                        "copies_min": _nullable(_COUNT),
                        "severity": _one_of([severity.label for severity in Severity], or_null=True),
                        "entries": _nullable(_COUNT),
                        "bytes_estimate": _nullable(_COUNT),
                        "detail": _nullable(_TEXT),
                        **_OWNER,
                    }
                )
            ),
            "next_after": {**_nullable(_TEXT), "description": "Value of `after` for the next page; null: none."},
        },
    ),
    "TopicImpactList": _document(
        "TopicImpactList",
        {
            "run_id": _TEXT,
            "items": _list(
                _fields(
                    {
                        "severity": _one_of([severity.label for severity in Severity]),
                        "standing": _one_of([standing.value for standing in Standing]),
                        "effect": _one_of([effect.name for effect in Effect]),
                        "meaning": {**_TEXT, "description": "What it means for clients."},
                        "system": {
                            **_nullable(_TEXT),
                            "description": "The purpose of a topic that Pulsar itself uses.",
                        },
                        "tenant": _TEXT,
                        "namespace": _TEXT,
                        "topic": _TEXT,
                        "component": _TEXT,
                        "subscription": _nullable(_TEXT),
                        "ledgers": _COUNT,
                        "bytes_estimate": _COUNT,
                        "first_ledger": {**_COUNT, "description": "The lowest id."},
                    }
                )
            ),
            "total": {**_COUNT, "description": "Rows that the parameters select."},
            "unnamed_ledgers": {**_COUNT, "description": "Ledgers of the run with findings that name no topic."},
            "cut": {**_BOOLEAN_SCHEMA, "description": "Whether there are so many topics that some are not counted."},
        },
    ),
    "DeadLetterList": _document(
        "DeadLetterList",
        {
            "items": _list(
                _fields(
                    {
                        "ledger_id": _COUNT,
                        "reason": _PARK_REASON,
                        "since": _TIME,
                        "age_seconds": _COUNT,
                        "missing": _list(_TEXT),
                        "detail": _TEXT,
                        "advice": _TEXT,
                        **_OWNER,
                    }
                )
            ),
            "unreadable": {
                **_list(_COUNT),
                "description": "Ledgers of the page with a record that cannot be read. They are treated as "
                "not parked. Empty "
                "with `reason`.",
            },
            "next_after": {
                "type": ["integer", "null"],
                "description": "Value of `after` for the next page. Null: there is none. A page may be shorter than "
                "the limit although more follow.",
            },
        },
    ),
    "LedgersRequest": _body({"ledgers": _LEDGERS}, "ledgers"),
    "AcceptLossRequest": _body(
        {
            **_DECISION_REQUEST,
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": REASON_MAX,
                "description": "Why the loss is accepted; recorded.",
            },
        },
        "ledgers",
        "reason",
    ),
    "DropRequest": _body({**_DECISION_REQUEST, "reason": {"type": "string", "maxLength": REASON_MAX}}, "ledgers"),
    "DeadLetterRetry": _document("DeadLetterRetry", {**_DONE, "ledgers": _list(_COUNT)}),
    "DeadLetterDecision": _document(
        "DeadLetterDecision",
        {
            **_DONE,
            "by": _TEXT,
            "reason": _TEXT,
            "ledgers": _list(
                _fields(
                    {
                        "ledger_id": _COUNT,
                        "outcome": _one_of([outcome.value for outcome in DeadLetterOutcome]),
                        "detail": _TEXT,
                        "lost": _list(_LOST_FRAGMENT),
                    }
                )
            ),
        },
    ),
    "AcceptedLossList": _document(
        "AcceptedLossList",
        {
            "items": _list(
                _fields(
                    {
                        "ledger_id": _COUNT,
                        "accepted": _TIME,
                        "by": _TEXT,
                        "reason": _TEXT,
                        "park_reason": _one_of([reason.value for reason in ParkReason], or_null=True),
                        "lost": _list(_LOST_FRAGMENT),
                    }
                )
            )
        },
    ),
    "PlacementDebtList": _document(
        "PlacementDebtList",
        {
            "items": _list(
                _fields(
                    {
                        "ledger_id": _COUNT,
                        "state": _one_of(["waiting", "marked"]),
                        "since": _TIME,
                        "fragments": {**_list(_COUNT), "description": "First entries of the fragments."},
                        "detail": _TEXT,
                    }
                )
            ),
            "next_after": _nullable(_COUNT),
        },
    ),
    "MaintenanceWindowList": _document("MaintenanceWindowList", {"items": _list(_WINDOW)}),
    "MaintenanceWindow": _document("MaintenanceWindow", {**_DONE, **_WINDOW_FIELDS}),
    "MaintenanceEnd": _document("MaintenanceEnd", {**_DONE, "target": _TEXT, "was_open": _BOOLEAN_SCHEMA}),
    "MaintenanceRequest": _body(
        {
            "target": {
                "type": "string",
                "pattern": WINDOW_TARGET_PATTERN,
                "description": "A bookie, or rack: and the location of a rack, such as rack:/r1.",
            },
            "seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": WINDOW_S_MAX,
                "description": "How long the window is open.",
            },
            "hold_critical": {
                **_BOOLEAN_SCHEMA,
                "default": False,
                "description": "Also hold back ledgers with one copy left. Needs the role administer.",
            },
            "note": {"type": "string", "maxLength": NOTE_MAX, "description": "The reason, shown to other operators."},
            "dry_run": {
                **_BOOLEAN_SCHEMA,
                "default": False,
                "description": "Report what would be done, and change nothing.",
            },
        },
        "target",
        "seconds",
    ),
    "DrainList": _document("DrainList", {"items": _list(_DRAINED)}),
    "DrainsRequest": _body(
        {
            "bookies": {
                "type": "array",
                "items": {"type": "string", "pattern": BOOKIE_ID_PATTERN},
                "minItems": 1,
                "maxItems": DRAINS_MAX,
            }
        },
        "bookies",
    ),
    "DrainStart": _document(
        "DrainStart",
        {
            **_DONE,
            "bookies": _list(_TEXT),
            **dict.fromkeys(("ledgers", "open_ledgers", "fragments", "bytes", "unreadable_ledgers"), _COUNT),
            "unreadable_marks": _UNREADABLE_MARKS_SCHEMA,
            "stay_writable": {**_list(_TEXT), "description": "Apache bookies, which do not support drains."},
            "stay_read_only": _list(_TEXT),
        },
    ),
    "DrainStatus": _document(
        "DrainStatus",
        {
            "bookies": _list(_DRAINED),
            **dict.fromkeys(("ledgers_left", "bytes_left", "moving", "unmarked"), _COUNT),
            "unreadable_marks": _UNREADABLE_MARKS_SCHEMA,
            "accepted_ledgers": {
                **_COUNT,
                "description": "Further ledgers: the loss of their copies there was accepted.",
            },
            "parked": _map(_COUNT),
            "examples": _list(_fields({"ledger_id": _COUNT, "reason": _PARK_REASON, "detail": _TEXT})),
            "open_ledgers": _COUNT,
            "open_topics": {**_list(_TEXT), "description": "Some topics of Pulsar whose open ledgers are left."},
            "unreadable_ledgers": _COUNT,
            "ledgers_read": _COUNT,
            "recovery_enabled": _BOOLEAN_SCHEMA,
            "ledgers_per_second": {"type": ["number", "null"]},
            "eta_seconds": {"type": ["number", "null"]},
        },
    ),
    "DrainStop": _document("DrainStop", {**_DONE, "stopped": _list(_TEXT)}),
    "StopVerdict": _document("StopVerdict", _VERDICT),
    "WhatIf": _document("WhatIf", _WHAT_IF),
    "RecoveryStatus": _document(
        "RecoveryStatus", {"enabled": _BOOLEAN_SCHEMA, "lost_bookie_delay_seconds": _READABLE_DELAY_SCHEMA}
    ),
    "RecoveryRequest": {
        **_body(
            {
                "enabled": _BOOLEAN_SCHEMA,
                "lost_bookie_delay_seconds": {"type": "integer", "minimum": 0, "maximum": DELAY_S_MAX},
            }
        ),
        "minProperties": 1,
    },
    "CopyLimits": _document("CopyLimits", {**_LIMIT_FIELDS, "workers": _list(_TEXT)}),
    "CopyLimitsChange": _document("CopyLimitsChange", {**_DONE, **_LIMIT_FIELDS}),
    "CopyLimitsRequest": {
        **_body(
            {
                **{name: {"type": "integer", "minimum": 0, "maximum": most} for name, most in LIMITS.items()},
                "profile": _LIMIT_FIELDS["profile"],
            }
        ),
        "minProperties": 1,
    },
    "BoostList": _document("BoostList", {"items": _list(_fields({"ledger_id": _COUNT, "by": _TEXT, "until": _TIME}))}),
    "BoostRequest": _body({"seconds": {"type": "integer", "minimum": 1, "maximum": SPAN_S_MAX}}, "seconds"),
    "Boost": _document(
        "Boost",
        {
            **_DONE,
            "by": _TEXT,
            "ledgers": _list(
                _fields(
                    {
                        "ledger_id": _COUNT,
                        "outcome": _one_of(["boosted", "not_boosted", "ended"]),
                        "until": _TIME,
                        "parked": _BOOLEAN_SCHEMA,
                    }
                )
            ),
            "problem": _nullable(_TEXT),
        },
    ),
    "RepairProgress": _document(
        "RepairProgress",
        {
            "looked": _TIME,
            "recovery_enabled": _BOOLEAN_SCHEMA,
            "backlog": _fields(
                {
                    "ledgers": _COUNT,
                    "severities": _list(
                        _fields({"severity": _TEXT, "ledgers": _COUNT, "bytes_estimate": _COUNT, "oldest": _TIME})
                    ),
                }
            ),
            "waiting": _COUNT,
            "boosted": _COUNT,
            "parked": _map(_COUNT),
            "oldest_age_seconds": _nullable(_COUNT),
            "in_flight_ledgers": _COUNT,
            "in_flight": _list(
                _fields({"ledger_id": _COUNT, "worker": _TEXT, "severity": _TEXT, "copies": _list(_COPY)})
            ),
            "measured_seconds": {"type": "number", "minimum": 0},
            "ledgers_per_second": {"type": ["number", "null"]},
            "bytes_per_second": {"type": ["number", "null"]},
            "eta_seconds": {"type": ["number", "null"]},
        },
    ),
    "ClusterStatus": _document(
        "ClusterStatus",
        {
            "ledgers_root": _TEXT,
            "instance_id": _TEXT,
            "looked": {**_TIME, "description": "When the marks were read; the rest may be newer."},
            "auditor": _nullable(_TEXT),
            "recovery_enabled": _BOOLEAN_SCHEMA,
            "lost_bookie_delay_seconds": _READABLE_DELAY_SCHEMA,
            "held_because": {**_nullable(_TEXT), "description": "Why the mass-loss brake holds."},
            "bookies": _fields(
                {"writable": _COUNT, "read_only": _COUNT, "draining": _list(_TEXT), "lost": _list(_TEXT)}
            ),
            "underreplicated": _fields(
                {
                    **dict.fromkeys(("ledgers", "in_progress", "waiting", "parked"), _COUNT),
                    "parked_by_reason": _map(_COUNT),
                    "severities": _map(_PART),
                    "oldest_age_seconds": _nullable(_COUNT),
                    "ledgers_per_second": {"type": ["number", "null"]},
                    "eta_seconds": {"type": ["number", "null"]},
                }
            ),
            "running": _list(
                _fields(
                    {
                        "run_id": _TEXT,
                        "kind": _one_of([kind.value for kind in RunKind]),
                        "state": _one_of([state.value for state in RunState]),
                        "dry_run": _BOOLEAN_SCHEMA,
                        "phase": _TEXT,
                        "done": _COUNT,
                        "total": _nullable(_COUNT),
                        "started": _TIME,
                        "eta": _TIME,
                        "paused_until": _TIME,
                        "process": _TEXT,
                    }
                )
            ),
            "maintenance": _list(_WINDOW),
            "pauses": _list(_fields({"check": _one_of([kind.value for kind in RunKind]), "by": _TEXT, "until": _TIME})),
            "image": _nullable(
                _fields(
                    {
                        "run_id": _TEXT,
                        "process": _TEXT,
                        "read_from": _TIME,
                        "age_seconds": _COUNT,
                        "ledgers": _COUNT,
                        "bytes": _COUNT,
                    }
                )
            ),
        },
    ),
    "ChangeList": _document(
        "ChangeList",
        {"items": _list(_fields({"at": _TIME, "by": _TEXT, "via": _TEXT, "action": _TEXT, "detail": _TEXT}))},
    ),
}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "RunFields": _RUN,
    "Run": _document("Run", {"run": _ref("RunFields")}),
    "RunList": _document("RunList", {"items": _list(_ref("RunFields"))}),
    "RunRequest": {
        "description": "One of the kinds of run, each with its own options.",
        "oneOf": [
            _ref("BookiesRunRequest"),
            _ref("PlacementRunRequest"),
            _ref("ReplicasRunRequest"),
            _ref("ReferencesRunRequest"),
            _ref("EverythingRunRequest"),
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
    **_UPKEEP,
    "ServiceStatus": _STATUS,
    "ScheduleList": _document(
        "ScheduleList", {"items": _list(_fields({"check": _one_of([kind.value for kind in RunKind]), **_PAUSE}))}
    ),
    "Schedule": _document("Schedule", {"check": _one_of([kind.value for kind in RunKind]), **_PAUSE}),
    "UnderReplicatedLedgerList": _document(
        "UnderReplicatedLedgerList",
        {
            "items": _list(_TASK),
            "next_after": {
                "type": ["integer", "null"],
                "description": "Value of `after` for the next page. Null: there is none. A page may be shorter than "
                "the limit although more follow.",
            },
            "total": {
                **_nullable(_COUNT),
                "description": "All marked ledgers, as of `counted`. Null: this auditor is not the leader, or the "
                "list is filtered.",
            },
            "counted": _TIME,
        },
    ),
    "BookieList": _document("BookieList", {"items": _list(_BOOKIE)}),
    "ReportList": _document(
        "ReportList",
        {
            "items": _list(_REPORT),
            "next_after": {**_nullable(_TEXT), "description": "Value of `after` for the next page; null: none."},
        },
    ),
    "Version": _document("Version", {"version": _TEXT, "component": _TEXT}),
    "RecoverySwitch": _fields({"enabled": _BOOLEAN_SCHEMA}),
    "DelayRequest": {
        "type": "object",
        "properties": {"delay_seconds": {"type": "integer", "minimum": 0, "maximum": DELAY_S_MAX}},
        "required": ["delay_seconds"],
    },
    "LedgerIds": {
        "anyOf": [_list(_COUNT), _map(_list(_TEXT))],
        "description": "Ids; with printmissingreplica, the missing bookies by id.",
    },
    "ClusterInfo": _fields(
        {
            "auditorElected": _BOOLEAN_SCHEMA,
            "auditorId": _TEXT,
            "clusterUnderReplicated": _BOOLEAN_SCHEMA,
            "ledgerReplicationEnabled": _BOOLEAN_SCHEMA,
            "totalBookiesCount": _COUNT,
            "writableBookiesCount": _COUNT,
            "readonlyBookiesCount": _COUNT,
            "unavailableBookiesCount": _COUNT,
        }
    ),
    "BookieNames": {**_map(_nullable(_TEXT)), "description": "Host names by bookie id; null unless asked for."},
    "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
    "Problem": {
        "type": "object",
        "description": "RFC 9457. Some types have members of their own, such as `run_id` and `leader`.",
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "instance": _TEXT,
        },
        "required": ["type", "title", "status", "detail", "instance"],
    },
}
