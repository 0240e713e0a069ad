"""Reading parameters and bodies of requests. Pure; every error names the accepted values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from auditor.api.problems import InvalidRequestError
from bookie.model.run import RunKind


def refuse_unknown(given: Collection[str], known: Collection[str], what: str) -> None:
    """Refuse unknown names: usually a typing error that would go unnoticed.

    Raises:
        InvalidRequestError: names them and what is known.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        shown = ", ".join(name[:40] for name in unknown[:5])
        raise InvalidRequestError(f"unknown {what}: {shown}; known: {', '.join(sorted(known)) or 'none'}")


def whole_number(text: str, name: str, lowest: int, highest: int) -> int:
    """Read a number within bounds, both inclusive.

    Raises:
        InvalidRequestError: it is none, or outside.
    """
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
        raise InvalidRequestError(f"{name} must be a whole number, not {text[:40]!r}")
    if not lowest <= int(text) <= highest:
        raise InvalidRequestError(f"{name} must be {lowest} to {highest}, not {text}")
    return int(text)


def truth(text: str, name: str) -> bool:
    """Read ``true`` or ``false``, in any case.

    Raises:
        InvalidRequestError: neither.
    """
    if text.lower() not in ("true", "false"):
        raise InvalidRequestError(f"{name} must be true or false, not {text[:40]!r}")
    return text.lower() == "true"


def json_object(body: bytes) -> Mapping[str, Any]:
    """Read a body that is one JSON object.

    Raises:
        InvalidRequestError: it is not.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("the body must be one JSON object")
    return found


def run_request(body: bytes) -> tuple[RunKind, bool]:
    """Read the body that starts a run: its kind, and whether it only reports.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("kind", "dry_run"), "field")
    kind, is_dry_run = fields.get("kind"), fields.get("dry_run", False)
    if not isinstance(is_dry_run, bool):
        raise InvalidRequestError("dry_run must be true or false")
    return run_kind(kind), is_dry_run


def run_kind(given: object) -> RunKind:
    """Read a kind of run.

    Raises:
        InvalidRequestError: there is no such kind.
    """
    kinds = [kind.value for kind in RunKind]
    if not isinstance(given, str) or given not in kinds:
        raise InvalidRequestError(f"kind must be one of {', '.join(kinds)}, not {str(given)[:40]!r}")
    return RunKind(given)


def delay_request(body: bytes) -> int:
    """Read Apache's body that sets the lost-bookie delay, ``{"delay_seconds": N}``.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    seconds = json_object(body).get("delay_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise InvalidRequestError('the body must be {"delay_seconds": N} with a whole number of seconds')
    return seconds
