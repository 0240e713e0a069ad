"""Parses the bodies and parameters of ``upkeep_routes``. Pure; every error names the accepted values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from auditor.api.http.queries import json_boolean, json_integer, json_object, refuse_unknown
from auditor.api.http.schema_parts import BOOKIE_ID_PATTERN, WINDOW_TARGET_PATTERN
from auditor.api.http.upkeep_schemas import DRAINS_MAX, LEDGERS_MAX, LIMITS, REASON_MAX
from auditor.api.problems import ContradictionError, InvalidRequestError, NotFoundError
from auditor.operating.maintenance import NOTE_MAX, window_target
from bookie.metadata.bookies.maintenance import WINDOW_S_MAX
from bookie.metadata.tasks.copy_limits import CopyProfile
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LEDGER_ID_MAX, BookieId, InvalidIdError, LedgerId
from bookie.model.topology import InvalidLocationError


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """The body of a decision about dead letters."""

    ledgers: tuple[LedgerId, ...]
    reason: str
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """The body of a request that opens a maintenance window."""

    target: str
    span_s: int
    is_critical_held: bool
    note: str
    is_dry_run: bool


def bookie(name: str) -> BookieId:
    """Read the id of a bookie.

    Raises:
        InvalidRequestError: it is not such an id.
    """
    if not re.fullmatch(BOOKIE_ID_PATTERN, name):
        raise InvalidRequestError(f"not the id of a bookie: {name[:40]!r}")
    return BookieId(name)


def park_reason(name: str) -> ParkReason:
    """Read the reason of a dead letter.

    Raises:
        InvalidRequestError: there is no such reason.
    """
    names = [each.value for each in ParkReason]
    if name not in names:
        raise InvalidRequestError(f"reason must be one of {', '.join(names)}, not {name[:40]!r}")
    return ParkReason(name)


def ledgers_request(body: bytes) -> tuple[LedgerId, ...]:
    """Read ``{"ledgers": [...]}``.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("ledgers",), "field")
    return _ledgers(fields.get("ledgers"), "ledgers")


def drains_request(body: bytes) -> tuple[BookieId, ...]:
    """Read ``{"bookies": [...]}``; the result has each bookie once.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("bookies",), "field")
    given = fields.get("bookies")
    if not isinstance(given, list) or not 1 <= len(given) <= DRAINS_MAX:
        raise InvalidRequestError(f"bookies must be a list of 1 to {DRAINS_MAX} ids of bookies")
    if not all(isinstance(each, str) for each in given):
        raise InvalidRequestError("the id of a bookie is a text")
    return tuple(dict.fromkeys(map(bookie, given)))


def decision_request(body: bytes, *, is_reason_required: bool) -> DecisionRequest:
    """Read ``{"ledgers": [...], "confirm": [...], "reason": ..., "dry_run": ...}``.

    ``confirm`` repeats the ledgers: the explicit confirmation of an irreversible change. A dry run needs none.

    Raises:
        InvalidRequestError: it is not such a body.
        ContradictionError: the confirmation is missing, or names other ledgers.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("ledgers", "confirm", "reason", "dry_run"), "field")
    ledgers = _ledgers(fields.get("ledgers"), "ledgers")
    confirmed = _ledgers(fields["confirm"], "confirm") if "confirm" in fields else ()
    given = fields.get("reason", "")
    if not isinstance(given, str) or len(given) > REASON_MAX:
        raise InvalidRequestError(f"reason must be a text of at most {REASON_MAX} characters")
    reason = " ".join(given.split())
    if is_reason_required and not reason:
        if "reason" in fields and given:
            raise ContradictionError("the reason contains only blanks: write one sentence")
        raise InvalidRequestError("reason is missing: write one sentence for those who read the record")
    is_dry_run = json_boolean(fields.get("dry_run", False), "dry_run")
    if not is_dry_run and set(confirmed) != set(ledgers):
        raise ContradictionError("confirm must repeat the ids in ledgers: this cannot be undone")
    return DecisionRequest(ledgers, reason, is_dry_run)


def limits_request(body: bytes) -> dict[str, Any]:
    """Read limits on copying; limits that are not named remain unchanged.

    Raises:
        InvalidRequestError: it is not such a body, or names none.
    """
    fields = json_object(body)
    refuse_unknown(fields, (*LIMITS, "profile"), "field")
    if not fields:
        raise InvalidRequestError(f"name at least one of {', '.join((*LIMITS, 'profile'))}")
    chosen: dict[str, Any] = {
        name: json_integer(fields[name], name, 0, highest) for name, highest in LIMITS.items() if name in fields
    }
    if "profile" in fields:
        profiles = [each.value for each in CopyProfile]
        if fields["profile"] not in profiles:
            raise InvalidRequestError(f"profile must be one of {', '.join(profiles)}")
        chosen["profile"] = CopyProfile(fields["profile"])
    return chosen


def boost_request(body: bytes, highest_s: int) -> int:
    """Read ``{"seconds": N}``.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("seconds",), "field")
    return json_integer(fields.get("seconds"), "seconds", 1, highest_s)


def window_target_of(given: object) -> str:
    """Read the target of a maintenance window.

    Raises:
        InvalidRequestError: it is neither a bookie nor a rack.
        NotFoundError: no bookie and no rack can have this name.
    """
    if not isinstance(given, str) or not re.fullmatch(WINDOW_TARGET_PATTERN, given):
        raise InvalidRequestError(f"target must be the id of a bookie, or rack: and a rack, not {str(given)[:40]!r}")
    try:
        return window_target(given)
    except (InvalidIdError, InvalidLocationError) as error:
        raise NotFoundError(str(error)) from error


def window_request(body: bytes) -> WindowRequest:
    """Read ``{"target": ..., "seconds": N, "hold_critical": ..., "note": ..., "dry_run": ...}``.

    Raises:
        InvalidRequestError: it is not such a body.
        NotFoundError: see ``window_target_of``.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("target", "seconds", "hold_critical", "note", "dry_run"), "field")
    span_s = json_integer(fields.get("seconds"), "seconds", 1, WINDOW_S_MAX)
    is_critical_held = json_boolean(fields.get("hold_critical", False), "hold_critical")
    is_dry_run = json_boolean(fields.get("dry_run", False), "dry_run")
    note = fields.get("note", "")
    if not isinstance(note, str) or len(note) > NOTE_MAX:
        raise InvalidRequestError(f"note must be a text of at most {NOTE_MAX} characters")
    return WindowRequest(window_target_of(fields.get("target")), span_s, is_critical_held, note, is_dry_run)


def _ledgers(given: object, name: str) -> tuple[LedgerId, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= LEDGERS_MAX:
        raise InvalidRequestError(f"{name} must be a list of 1 to {LEDGERS_MAX} ledger ids")
    return tuple(dict.fromkeys(LedgerId(json_integer(each, name, 0, LEDGER_ID_MAX)) for each in given))
