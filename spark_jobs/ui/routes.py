"""The action that a request names. This is an allow-list: no other paths exist."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from bookie.model.run import RunKind
from spark_jobs.ui.request import TabRequest

TAB_PATH: Final = "/auditor/"
API_PATH: Final = "/auditor/api"
"""Prefix of the paths of the tab's API."""
STATUS_PATH: Final = "/v1/status"
TOKEN_PATH: Final = "/v1/token"  # noqa: S105  a path
RUNS_PATH: Final = "/v1/runs"
_RUN_ACTION_PATH: Final = re.compile(r"/v1/runs/([0-9A-Za-z][0-9A-Za-z-]{0,63})/(cancel|pause|resume)")

Verb: TypeAlias = Literal["run", "cancel", "pause", "resume"]


@dataclass(frozen=True, slots=True)
class Action:
    """A requested action."""

    verb: Verb
    target: str
    """Kind of the audit to run, or id of the run."""


class BadActionError(Exception):
    """The path is one of the tab's, but the request is invalid."""


def is_action_path(path: str) -> bool:
    """Return whether a path is that of an action, for which every method except POST is refused."""
    return path == RUNS_PATH or _RUN_ACTION_PATH.fullmatch(path) is not None


def parse_action(request: TabRequest) -> Action:
    """Read the action of a request to an action path.

    Raises:
        BadActionError: the kind does not exist, or the body is malformed.
    """
    match = _RUN_ACTION_PATH.fullmatch(request.path)
    if match is not None:
        verbs: dict[str, Verb] = {"cancel": "cancel", "pause": "pause", "resume": "resume"}
        return Action(verbs[match[2]], match[1])
    kind = _json_kind(request.body) if request.is_json else request.form.get("kind")
    if kind not in [known.value for known in RunKind]:
        raise BadActionError(f"kind must be one of {', '.join(known.value for known in RunKind)}")
    return Action("run", str(kind))


def _json_kind(body: str) -> object:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadActionError("the body is not JSON") from error
    return values.get("kind") if isinstance(values, dict) else None
