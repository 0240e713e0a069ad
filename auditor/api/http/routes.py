"""The parts of a route: its request, the required role, the handler, and the description."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from aiohttp import web

from auditor.api.problems import InvalidRequestError
from bookie.runtime.access.access import Principal
from bookie.runtime.access.tokens import Role
from bookie.runtime.access.trail import RequestTrail

JSON: Final = "application/json"
TEXT: Final = "text/plain"
HTML: Final = "text/html"

_PATTERN: Final = re.compile(r":[^}]+(?=})")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that passed the access checks."""

    request: web.Request
    who: Principal
    trail: RequestTrail
    """The audit log; written only for requests that change something."""

    async def body(self) -> bytes:
        """Return the body of the request.

        Raises:
            InvalidRequestError: its encoding does not match its headers, or the client disconnected before its end.
        """
        try:
            return await self.request.read()
        except web.RequestPayloadError as error:
            raise InvalidRequestError("the body is not encoded as its Content-Encoding header says") from error
        except ConnectionError as error:
            raise InvalidRequestError("the connection ended before the end of the body") from error


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """A possible answer: a success, or a failure that is specific to this route."""

    status: int
    description: str
    content_type: str = JSON
    schema: str = ""
    """Name in ``auditor.api.http.schemas``; empty: the body has no schema."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names of headers and their values."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, a segment of the path, or a header other than a credential."""

    name: str
    description: str
    schema: Mapping[str, Any]
    where: str = "query"
    is_required: bool = False


def segment(name: str, description: str, **schema: Any) -> Parameter:
    """Return a parameter for a segment of a path, a text that conforms to ``schema``."""
    return Parameter(name, description, {"type": "string", **schema}, "path", is_required=True)


RUN_ID: Final = segment("run_id", "Id of the run.")


@dataclass(frozen=True, slots=True)
class Route:
    """One route: method, path, handler and rules."""

    method: str
    path: str
    """``{name}`` stands for one segment."""
    operation: str
    """Its name in the description and in the audit log."""
    summary: str
    handler: Handler
    answers: tuple[RouteAnswer, ...]
    role: Role | None = Role.READ
    """The required role; None: open to every client, not counted and never refused, for probes."""
    tag: str = "auditor"
    segments: tuple[Parameter, ...] = ()
    """One for each ``{name}`` of the path."""
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    """Name of the body's schema; empty: there is none."""
    is_limited: bool = True
    """Whether it counts for the rate limit of its client and for the requests in flight; false for monitoring."""
    is_slash_optional: bool = False
    """Whether a final slash is accepted, as in some paths of Apache's documentation."""
    is_changing: bool = False
    """Whether requests are written to the audit log, and refused from pages of other sites."""

    @property
    def described_path(self) -> str:
        """Return the path as shown in a description: without the patterns of its segments."""
        return _PATTERN.sub("", self.path)


def changing(route: Route) -> bool:
    """Return whether pages of other sites must not send this request."""
    return route.is_changing or route.method not in ("GET", "HEAD")
