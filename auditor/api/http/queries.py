"""Parses parameters and bodies of requests. Pure; every error names the accepted values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from auditor.api.problems import ContradictionError, InvalidRequestError
from bookie.metadata.tasks.switches import DELAY_S_MAX
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.run import RunKind
from spark_jobs.settings import KINDS_WITH_OPTION


def refuse_unknown(given: Collection[str], known: Collection[str], what: str) -> None:
    """Refuse unknown names. They are usually typing errors, which would otherwise have no effect.

    Raises:
        InvalidRequestError: a name is unknown; the message has the unknown and the known names.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        shown = ", ".join(name[:40] for name in unknown[:5])
        raise InvalidRequestError(f"unknown {what}: {shown}; known: {', '.join(sorted(known)) or 'none'}")


def whole_number(text: str, name: str, lowest: int, highest: int) -> int:
    """Read a number within bounds, both inclusive.

    Raises:
        InvalidRequestError: it is not such a number, or it is out of bounds.
    """
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
        raise InvalidRequestError(f"{name} must be a whole number, not {text[:40]!r}")
    if not lowest <= int(text) <= highest:
        raise InvalidRequestError(f"{name} must be {lowest} to {highest}, not {text}")
    return int(text)


BOOLEAN_PATTERN: Final = "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"
"""The texts that ``boolean`` accepts."""


def boolean(text: str, name: str) -> bool:
    """Read ``true`` or ``false``, in any case.

    Raises:
        InvalidRequestError: it is neither.
    """
    if text.lower() not in ("true", "false"):
        raise InvalidRequestError(f"{name} must be true or false, not {text[:40]!r}")
    return text.lower() == "true"


def json_object(body: bytes) -> Mapping[str, Any]:
    """Read a body with one JSON object.

    Raises:
        InvalidRequestError: it is anything else.
    """
    try:
        found = json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is valid JSON, but not valid text
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("the body must be one JSON object")
    return found


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The body of a request that starts a run."""

    kind: RunKind
    is_dry_run: bool = False
    options: Mapping[str, bool | int | float] = field(default_factory=dict)
    """Options of this run by their names in ``AuditSettings``; other options have their defaults."""

    def __str__(self) -> str:
        """Return the request as text; equal requests have equal texts."""
        options = (f"{name}={json.dumps(value)}" for name, value in sorted(self.options.items()))
        return " ".join([self.kind.value, *(["dry run"] if self.is_dry_run else []), *options])


RUN_OPTIONS: Final[Mapping[str, tuple[RunKind, ...]]] = {
    name: KINDS_WITH_OPTION[name] for name in ("mark_misplaced", "ledger_min", "ledger_max", "sample", "sample_seed")
}
"""The options allowed in a request, with the kinds of check for each. They only narrow a check, or add marks that
request better placement; the brake and the placement policy are settings of the service."""


def run_request(body: bytes) -> StartRequest:
    """Read the body of a request that starts a run: its kind, whether it only reports, and its options.

    Raises:
        InvalidRequestError: it is not such a body, or the kind does not have one of the options.
        ContradictionError: no ledger is in the range.
    """
    fields = json_object(body)
    refuse_unknown(fields, ("kind", "dry_run", *RUN_OPTIONS), "field")
    kind, is_dry_run = run_kind(fields.get("kind")), json_boolean(fields.get("dry_run", False), "dry_run")
    return StartRequest(kind, is_dry_run, run_options(kind, fields))


def run_options(kind: RunKind, fields: Mapping[str, Any]) -> Mapping[str, bool | int | float]:
    """Read the options of a run of one kind; other fields are left out.

    Raises:
        InvalidRequestError: the kind does not have one of the options, or a value is invalid.
        ContradictionError: no ledger is in the range.
    """
    for name in RUN_OPTIONS.keys() & fields.keys():
        if kind not in RUN_OPTIONS[name]:
            having = " or ".join(each.value for each in RUN_OPTIONS[name])
            raise InvalidRequestError(f"a {kind.value} run has no {name}, only a {having} run has")
    options = {name: _run_option(name, fields[name]) for name in RUN_OPTIONS if name in fields}
    if options.get("ledger_min", 0) > options.get("ledger_max", LEDGER_ID_MAX):
        raise ContradictionError("ledger_min must not exceed ledger_max")
    return options


def json_integer(value: object, name: str, lowest: int, highest: int) -> int:
    """Read a JSON number without a fraction (60.0 is one) within bounds, both inclusive.

    Raises:
        InvalidRequestError: it is not such a number, or it is out of bounds.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be a whole number, not {str(value)[:40]!r}")
    if not lowest <= value <= highest:
        raise InvalidRequestError(f"{name} must be {lowest} to {highest}, not {str(value)[:40]}")
    return value


def _run_option(name: str, value: object) -> bool | int | float:
    if name == "mark_misplaced":
        return json_boolean(value, name)
    if name != "sample":
        return json_integer(value, name, 0, LEDGER_ID_MAX)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"sample must be a number, not {str(value)[:40]!r}")
    if not 0 < value <= 1:
        raise InvalidRequestError(f"sample must be more than 0 and at most 1, not {value}")
    return value


def json_boolean(value: object, name: str) -> bool:
    """Read a JSON true or false.

    Raises:
        InvalidRequestError: it is neither.
    """
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false, not {str(value)[:40]!r}")
    return value


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
    """Read Apache's body for the lost-bookie delay, ``{"delay_seconds": N}``.

    Raises:
        InvalidRequestError: it is not such a body.
    """
    return json_integer(json_object(body).get("delay_seconds"), "delay_seconds", 0, DELAY_S_MAX)
