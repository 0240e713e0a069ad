"""JSON schemas of what operators read and change besides runs (``upkeep_routes``), by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from auditor.api.http.schema_parts import (
    BACKLOG_PART,
    BOOKIE_ID_PATTERN,
    BOOLEAN,
    COUNT,
    LEDGER_ID,
    OWNER,
    TEXT,
    TIME,
    WINDOW,
    WINDOW_FIELDS,
    WINDOW_TARGET_PATTERN,
    Schema,
    body_of,
    document_of,
    fields_of,
    list_of,
    map_of,
    nullable,
    one_of,
)
from auditor.operating.boosting import SPAN_S_MAX
from auditor.operating.maintenance import NOTE_MAX
from auditor.safety.dead_letters import DeadLetterOutcome
from bookie.metadata.bookies.maintenance import WINDOW_S_MAX
from bookie.metadata.tasks.copy_limits import CopyProfile
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.switches import DELAY_S_MAX
from bookie.model.impact import Effect, Standing
from bookie.model.run import RunKind, RunState
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FindingKind

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
_UNREADABLE_MARKS_SCHEMA: Final[Schema] = {**COUNT, "description": "Ledgers with a mark that cannot be read."}
_READABLE_DELAY_SCHEMA: Final[Schema] = {**nullable(COUNT), "description": "Null: it cannot be read."}
_PARK_REASON: Final = one_of([reason.value for reason in ParkReason])
_LEDGERS: Final = {"type": "array", "items": LEDGER_ID, "minItems": 1, "maxItems": LEDGERS_MAX}
_LOST_FRAGMENT: Final = fields_of(
    {
        "first_entry_id": {"type": "integer"},
        "last_entry_id": {"type": "integer"},
        "positions": list_of(COUNT),
        "bookies": list_of(TEXT),
        "denials": list_of(fields_of({"position": COUNT, "bookie_id": TEXT, "entries": COUNT})),
        "entry_count": nullable(COUNT),
        "entries": list_of(list_of(COUNT)),
        "shared_positions": list_of(COUNT),
    }
)
_LIMIT_FIELDS: Final = {
    "limited": {**BOOLEAN, "description": "False: there are no limits."},
    **dict.fromkeys(LIMITS, COUNT),
    "profile": one_of([profile.value for profile in CopyProfile]),
    "by": TEXT,
    "since": TIME,
}
_DONE: Final = {"dry_run": BOOLEAN}
_VERDICT: Final = {
    "ok": BOOLEAN,
    "bookies": list_of(TEXT),
    "strict": BOOLEAN,
    "ledgers": {**COUNT, "description": "Ledgers that were examined."},
    "unreadable_ledgers": COUNT,
    "ledgers_at_risk": COUNT,
    "worst": list_of(
        fields_of(
            {
                "ledger_id": COUNT,
                "fragment_first_entry_id": COUNT,
                "copies_left": COUNT,
                "copies_needed": COUNT,
                "growing": BOOLEAN,
                "bookies": list_of(TEXT),
                **OWNER,
            }
        )
    ),
    "placement_problems": list_of(TEXT),
    "not_registered": list_of(TEXT),
}
_WHAT_IF: Final = {
    "bookies": list_of(TEXT),
    "not_registered": list_of(TEXT),
    "source": one_of(["metadata", "image"]),
    "image_read_from": TIME,
    "image_age_seconds": nullable(COUNT),
    "ledgers": {**COUNT, "description": "Ledgers that were examined."},
    "unreadable_ledgers": COUNT,
    "findings": list_of(
        fields_of(
            {
                "severity": one_of([level.label for level in Severity]),
                "ledgers": {**COUNT, "description": "Ledgers whose severity would be worse than now."},
                "already": {**COUNT, "description": "Ledgers on these bookies that would stay as they are."},
                "bytes_estimate": COUNT,
            }
        )
    ),
    "worst": list_of(
        fields_of(
            {
                "ledger_id": COUNT,
                "severity": one_of([level.label for level in Severity]),
                "severity_now": nullable(TEXT),
                "copies_left": COUNT,
                "bookies": list_of(TEXT),
                "bytes_estimate": COUNT,
                **OWNER,
            }
        )
    ),
    "topics_total": COUNT,
    "topics_cut": BOOLEAN,
    "unnamed_ledgers": {**COUNT, "description": "Ledgers whose severity would be worse, and that name no topic."},
    "topics": list_of(fields_of({"topic": TEXT, "severity": TEXT, "ledgers": COUNT})),
}
_DRAINED: Final = fields_of(
    {"bookie_id": TEXT, "since": TIME, "by": TEXT, "state": one_of(["writable", "read_only", "lost"])}
)
_COPY: Final = fields_of(
    {
        "first_entry_id": COUNT,
        "position": COUNT,
        "target": TEXT,
        **{name: nullable(COUNT) for name in ("entries_done", "entries_total", "bytes_done", "bytes_total")},
    }
)
_DECISION_REQUEST: Final[Mapping[str, Schema]] = {
    "ledgers": _LEDGERS,
    "confirm": {**_LEDGERS, "description": "The ids in `ledgers` again. Required unless `dry_run` is true."},
    "dry_run": {**BOOLEAN, "default": False, "description": "Report what would be done, and change nothing."},
}
UPKEEP_SCHEMAS: Final[Mapping[str, Schema]] = {
    "FindingList": document_of(
        "FindingList",
        {
            "run_id": TEXT,
            "items": list_of(
                fields_of(
                    {
                        "kind": one_of([kind.value.lower() for kind in FindingKind]),
                        "ledger_id": nullable(COUNT),
                        "fragment_index": nullable(COUNT),
                        "fragment_first_entry_id": nullable(COUNT),
                        "fragment_last_entry_id": {"type": ["integer", "null"]},
                        "state": nullable(TEXT),
                        "missing": list_of(TEXT),
                        "copies_min": nullable(COUNT),
                        "severity": one_of([severity.label for severity in Severity], or_null=True),
                        "entries": nullable(COUNT),
                        "bytes_estimate": nullable(COUNT),
                        "detail": nullable(TEXT),
                        **OWNER,
                    }
                )
            ),
            "next_after": {**nullable(TEXT), "description": "Value of `after` for the next page; null: none."},
        },
    ),
    "TopicImpactList": document_of(
        "TopicImpactList",
        {
            "run_id": TEXT,
            "items": list_of(
                fields_of(
                    {
                        "severity": one_of([severity.label for severity in Severity]),
                        "standing": one_of([standing.value for standing in Standing]),
                        "effect": one_of([effect.name for effect in Effect]),
                        "meaning": {**TEXT, "description": "What it means for clients."},
                        "system": {
                            **nullable(TEXT),
                            "description": "The purpose of a topic that Pulsar itself uses.",
                        },
                        "tenant": TEXT,
                        "namespace": TEXT,
                        "topic": TEXT,
                        "component": TEXT,
                        "subscription": nullable(TEXT),
                        "ledgers": COUNT,
                        "bytes_estimate": COUNT,
                        "first_ledger": {**COUNT, "description": "The lowest id."},
                    }
                )
            ),
            "total": {**COUNT, "description": "Rows that the parameters select."},
            "unnamed_ledgers": {**COUNT, "description": "Ledgers of the run with findings that name no topic."},
            "cut": {**BOOLEAN, "description": "Whether there are so many topics that some are not counted."},
        },
    ),
    "DeadLetterList": document_of(
        "DeadLetterList",
        {
            "items": list_of(
                fields_of(
                    {
                        "ledger_id": COUNT,
                        "reason": _PARK_REASON,
                        "since": TIME,
                        "age_seconds": COUNT,
                        "missing": list_of(TEXT),
                        "detail": TEXT,
                        "advice": TEXT,
                        **OWNER,
                    }
                )
            ),
            "unreadable": {
                **list_of(COUNT),
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
    "LedgersRequest": body_of({"ledgers": _LEDGERS}, "ledgers"),
    "AcceptLossRequest": body_of(
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
    "DropRequest": body_of({**_DECISION_REQUEST, "reason": {"type": "string", "maxLength": REASON_MAX}}, "ledgers"),
    "DeadLetterRetry": document_of("DeadLetterRetry", {**_DONE, "ledgers": list_of(COUNT)}),
    "DeadLetterDecision": document_of(
        "DeadLetterDecision",
        {
            **_DONE,
            "by": TEXT,
            "reason": TEXT,
            "ledgers": list_of(
                fields_of(
                    {
                        "ledger_id": COUNT,
                        "outcome": one_of([outcome.value for outcome in DeadLetterOutcome]),
                        "detail": TEXT,
                        "lost": list_of(_LOST_FRAGMENT),
                    }
                )
            ),
        },
    ),
    "AcceptedLossList": document_of(
        "AcceptedLossList",
        {
            "items": list_of(
                fields_of(
                    {
                        "ledger_id": COUNT,
                        "accepted": TIME,
                        "by": TEXT,
                        "reason": TEXT,
                        "park_reason": one_of([reason.value for reason in ParkReason], or_null=True),
                        "lost": list_of(_LOST_FRAGMENT),
                    }
                )
            )
        },
    ),
    "PlacementDebtList": document_of(
        "PlacementDebtList",
        {
            "items": list_of(
                fields_of(
                    {
                        "ledger_id": COUNT,
                        "state": one_of(["waiting", "marked"]),
                        "since": TIME,
                        "fragments": {**list_of(COUNT), "description": "First entries of the fragments."},
                        "detail": TEXT,
                    }
                )
            ),
            "next_after": nullable(COUNT),
        },
    ),
    "MaintenanceWindowList": document_of("MaintenanceWindowList", {"items": list_of(WINDOW)}),
    "MaintenanceWindow": document_of("MaintenanceWindow", {**_DONE, **WINDOW_FIELDS}),
    "MaintenanceEnd": document_of("MaintenanceEnd", {**_DONE, "target": TEXT, "was_open": BOOLEAN}),
    "MaintenanceRequest": body_of(
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
                **BOOLEAN,
                "default": False,
                "description": "Also hold back ledgers with one copy left. Needs the role administer.",
            },
            "note": {"type": "string", "maxLength": NOTE_MAX, "description": "The reason, shown to other operators."},
            "dry_run": {
                **BOOLEAN,
                "default": False,
                "description": "Report what would be done, and change nothing.",
            },
        },
        "target",
        "seconds",
    ),
    "DrainList": document_of("DrainList", {"items": list_of(_DRAINED)}),
    "DrainsRequest": body_of(
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
    "DrainStart": document_of(
        "DrainStart",
        {
            **_DONE,
            "bookies": list_of(TEXT),
            **dict.fromkeys(("ledgers", "open_ledgers", "fragments", "bytes", "unreadable_ledgers"), COUNT),
            "unreadable_marks": _UNREADABLE_MARKS_SCHEMA,
            "stay_writable": {**list_of(TEXT), "description": "Apache bookies, which do not support drains."},
            "stay_read_only": list_of(TEXT),
        },
    ),
    "DrainStatus": document_of(
        "DrainStatus",
        {
            "bookies": list_of(_DRAINED),
            **dict.fromkeys(("ledgers_left", "bytes_left", "moving", "unmarked"), COUNT),
            "unreadable_marks": _UNREADABLE_MARKS_SCHEMA,
            "accepted_ledgers": {
                **COUNT,
                "description": "Further ledgers: the loss of their copies there was accepted.",
            },
            "parked": map_of(COUNT),
            "examples": list_of(fields_of({"ledger_id": COUNT, "reason": _PARK_REASON, "detail": TEXT})),
            "open_ledgers": COUNT,
            "open_topics": {**list_of(TEXT), "description": "Some topics of Pulsar whose open ledgers are left."},
            "unreadable_ledgers": COUNT,
            "ledgers_read": COUNT,
            "recovery_enabled": BOOLEAN,
            "ledgers_per_second": {"type": ["number", "null"]},
            "eta_seconds": {"type": ["number", "null"]},
        },
    ),
    "DrainStop": document_of("DrainStop", {**_DONE, "stopped": list_of(TEXT)}),
    "StopVerdict": document_of("StopVerdict", _VERDICT),
    "WhatIf": document_of("WhatIf", _WHAT_IF),
    "RecoveryStatus": document_of(
        "RecoveryStatus", {"enabled": BOOLEAN, "lost_bookie_delay_seconds": _READABLE_DELAY_SCHEMA}
    ),
    "RecoveryRequest": {
        **body_of(
            {
                "enabled": BOOLEAN,
                "lost_bookie_delay_seconds": {"type": "integer", "minimum": 0, "maximum": DELAY_S_MAX},
            }
        ),
        "minProperties": 1,
    },
    "CopyLimits": document_of("CopyLimits", {**_LIMIT_FIELDS, "workers": list_of(TEXT)}),
    "CopyLimitsChange": document_of("CopyLimitsChange", {**_DONE, **_LIMIT_FIELDS}),
    "CopyLimitsRequest": {
        **body_of(
            {
                **{name: {"type": "integer", "minimum": 0, "maximum": most} for name, most in LIMITS.items()},
                "profile": _LIMIT_FIELDS["profile"],
            }
        ),
        "minProperties": 1,
    },
    "BoostList": document_of(
        "BoostList", {"items": list_of(fields_of({"ledger_id": COUNT, "by": TEXT, "until": TIME}))}
    ),
    "BoostRequest": body_of({"seconds": {"type": "integer", "minimum": 1, "maximum": SPAN_S_MAX}}, "seconds"),
    "Boost": document_of(
        "Boost",
        {
            **_DONE,
            "by": TEXT,
            "ledgers": list_of(
                fields_of(
                    {
                        "ledger_id": COUNT,
                        "outcome": one_of(["boosted", "not_boosted", "ended"]),
                        "until": TIME,
                        "parked": BOOLEAN,
                    }
                )
            ),
            "problem": nullable(TEXT),
        },
    ),
    "RepairProgress": document_of(
        "RepairProgress",
        {
            "looked": TIME,
            "recovery_enabled": BOOLEAN,
            "backlog": fields_of(
                {
                    "ledgers": COUNT,
                    "severities": list_of(
                        fields_of({"severity": TEXT, "ledgers": COUNT, "bytes_estimate": COUNT, "oldest": TIME})
                    ),
                }
            ),
            "waiting": COUNT,
            "boosted": COUNT,
            "parked": map_of(COUNT),
            "oldest_age_seconds": nullable(COUNT),
            "in_flight_ledgers": COUNT,
            "in_flight": list_of(
                fields_of({"ledger_id": COUNT, "worker": TEXT, "severity": TEXT, "copies": list_of(_COPY)})
            ),
            "measured_seconds": {"type": "number", "minimum": 0},
            "ledgers_per_second": {"type": ["number", "null"]},
            "bytes_per_second": {"type": ["number", "null"]},
            "eta_seconds": {"type": ["number", "null"]},
        },
    ),
    "ClusterStatus": document_of(
        "ClusterStatus",
        {
            "ledgers_root": TEXT,
            "instance_id": TEXT,
            "looked": {**TIME, "description": "When the marks were read; the rest may be newer."},
            "auditor": nullable(TEXT),
            "recovery_enabled": BOOLEAN,
            "lost_bookie_delay_seconds": _READABLE_DELAY_SCHEMA,
            "held_because": {**nullable(TEXT), "description": "Why the mass-loss brake holds."},
            "bookies": fields_of(
                {"writable": COUNT, "read_only": COUNT, "draining": list_of(TEXT), "lost": list_of(TEXT)}
            ),
            "underreplicated": fields_of(
                {
                    **dict.fromkeys(("ledgers", "in_progress", "waiting", "parked"), COUNT),
                    "parked_by_reason": map_of(COUNT),
                    "severities": map_of(BACKLOG_PART),
                    "oldest_age_seconds": nullable(COUNT),
                    "ledgers_per_second": {"type": ["number", "null"]},
                    "eta_seconds": {"type": ["number", "null"]},
                }
            ),
            "running": list_of(
                fields_of(
                    {
                        "run_id": TEXT,
                        "kind": one_of([kind.value for kind in RunKind]),
                        "state": one_of([state.value for state in RunState]),
                        "dry_run": BOOLEAN,
                        "phase": TEXT,
                        "done": COUNT,
                        "total": nullable(COUNT),
                        "started": TIME,
                        "eta": TIME,
                        "paused_until": TIME,
                        "process": TEXT,
                    }
                )
            ),
            "maintenance": list_of(WINDOW),
            "pauses": list_of(
                fields_of({"check": one_of([kind.value for kind in RunKind]), "by": TEXT, "until": TIME})
            ),
            "image": nullable(
                fields_of(
                    {
                        "run_id": TEXT,
                        "process": TEXT,
                        "read_from": TIME,
                        "age_seconds": COUNT,
                        "ledgers": COUNT,
                        "bytes": COUNT,
                    }
                )
            ),
        },
    ),
    "ChangeList": document_of(
        "ChangeList",
        {"items": list_of(fields_of({"at": TIME, "by": TEXT, "via": TEXT, "action": TEXT, "detail": TEXT}))},
    ),
}
