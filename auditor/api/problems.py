"""Errors as problem documents (RFC 9457). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from auditor.api.control import NotLeaderError, RunBusyError, RunEndedError, UnknownRunError
from auditor.api.idempotency import InvalidKeyError, KeyReusedError
from auditor.api.upkeep_port import StillWorkingError
from auditor.operating.client import NoSuchObjectError, RefusedError
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.errors import BkhealError, ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.runtime.access.access import ForbiddenError, RateLimitedError, UnauthenticatedError

PROBLEM_TYPE: Final = "application/problem+json"
_PREFIX: Final = "urn:bkheal:problem:"
_STORE_RETRY_S: Final = 5
_LEADER_RETRY_S: Final = 1
"""Pause before a retry. If several processes share one address, another connection may reach the leader."""


class InvalidRequestError(PermanentError):
    """A parameter, the body, or the type of the body is invalid."""


class ContradictionError(PermanentError):
    """Each part of the request is valid, but the parts contradict each other."""


class CrossSiteError(PermanentError):
    """A browser sent this request for a page of another site, or for a foreign host name."""


class OverloadedError(TransientError):
    """Too many concurrent requests of all clients."""


class NotOkToStopError(ConflictError):
    """Bookies must not be stopped now; ``verdict`` contains all reasons."""

    def __init__(self, text: str, verdict: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.verdict = verdict


class NotFoundError(PermanentError):
    """There is nothing at this path."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as callers see it."""

    status: int
    name: str
    """Short and stable, for programs; the ``type`` is made from it."""
    title: str
    detail: str = ""
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self, instance: str) -> dict[str, Any]:
        """Return the problem document. ``instance`` is the requested path."""
        fields = {"type": _PREFIX + self.name, "title": self.title, "status": self.status}
        return {**fields, "detail": self.detail or self.title, "instance": instance, **self.members}


def problem_of(error: Exception) -> Problem:
    """Return the problem for ``error``.

    It reveals no internal state of this process.
    """
    detail = str(error)
    match error:
        case UnauthenticatedError():
            return Problem(401, "unauthenticated", "A token is needed", detail, headers={"WWW-Authenticate": "Bearer"})
        case ForbiddenError():
            return Problem(403, "forbidden", "The token's role does not include this", detail)
        case CrossSiteError():
            return Problem(403, "cross-site", "Requests for other sites' pages are refused", detail)
        case RateLimitedError():
            return Problem(429, "too-many-requests", "Too many requests", detail, headers=_retry(error.retry_after_s))
        case RunBusyError():
            members = {"run_id": error.run_id or None, "check": error.kind.value}
            return Problem(409, "run-busy", "A run of this kind is under way", detail, members)
        case NotLeaderError():
            detail += "; only the leader starts and changes runs: send the request to it, or once more"
            members = {"leader": error.leader or None}
            return Problem(
                503, "not-leader", "This process is not the leader", detail, members, _retry(_LEADER_RETRY_S)
            )
        case RunEndedError():
            return Problem(409, "run-over", "The run has ended", detail)
        case KeyReusedError():
            return Problem(422, "key-reused", "The idempotency key was used for another request", detail)
        case ContradictionError():
            return Problem(422, "contradiction", "The parts of the request exclude each other", detail)
        case NotOkToStopError():
            verdict = {"verdict": dict(error.verdict)}
            return Problem(409, "not-ok-to-stop", "These bookies must not be stopped now", detail, verdict)
        case RefusedError():
            return Problem(409, "refused", "The state of the cluster does not allow this", detail)
        case StillWorkingError():
            return Problem(503, "still-working", "Ask again for the result", detail, headers=_retry(_STORE_RETRY_S))
        case UnknownRunError() | NotFoundError() | NoSuchObjectError():
            return Problem(404, "not-found", "The object does not exist", detail)
        case InvalidRequestError() | InvalidKeyError() | InvalidDelayError():
            return Problem(400, "invalid-request", "The request cannot be understood", detail)
        case OverloadedError():
            return Problem(503, "overloaded", "Too many requests at once", detail, headers=_retry(1))
        case StoreUnavailableError():
            return Problem(
                503, "store-unavailable", "The metadata store does not answer", detail, headers=_retry(_STORE_RETRY_S)
            )
        case OutcomeUnknownError():
            return Problem(503, "outcome-unknown", "The outcome is unknown: check before you try again", detail)
        case TransientError():
            return Problem(503, "unavailable", "Not now", detail, headers=_retry(_STORE_RETRY_S))
        case ConflictError():
            return Problem(409, "conflict", "The state has changed: read it again", detail)
        case BkhealError():
            return Problem(500, "failed", "The service could not do this", detail)
        case _:
            return Problem(500, "internal", "The service failed; see its log")


def http_problem(status: int, reason: str, path: str, allowed: str = "") -> Problem:
    """Return the problem for a refusal by the HTTP library itself."""
    match status:
        case 400:
            return Problem(400, "unreadable", "The request cannot be read", "it is not HTTP, or a header is too long")
        case 404:
            return Problem(
                404, "not-found", "The path does not exist", f"the API has no path {path}; see /openapi.json"
            )
        case 405:
            detail = f"{path} allows {allowed}"
            return Problem(
                405, "method-not-allowed", "The path does not support this method", detail, {}, {"Allow": allowed}
            )
        case 413:
            return Problem(413, "too-large", "The body is too large", "no request of this service needs such a body")
        case 414:
            return Problem(414, "line-too-long", "The request line is too long", "send fewer or shorter parameters")
        case _:
            return Problem(status, "http", reason)


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
