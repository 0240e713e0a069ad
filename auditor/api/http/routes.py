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
from bookie.runtime.access.trail import Trail

JSON: Final = "application/json"
TEXT: Final = "text/plain"
HTML: Final = "text/html"

_PATTERN: Final = re.compile(r":[^}]+(?=})")


@dataclass(frozen=True, slots=True)
class Call:
    """One admitted request."""

    request: web.Request
    who: Principal
    trail: Trail
    """Written only for requests that would change something."""

    async def body(self) -> bytes:
        """Return the body of the request.

        Raises:
            InvalidRequestError: it is not encoded as its headers say, or the client left before its end.
        """
        try:
            return await self.request.read()
        except web.RequestPayloadError as error:
            raise InvalidRequestError("the body is not encoded as its Content-Encoding header says") from error
        except ConnectionError as error:
            raise InvalidRequestError("the connection ended before the end of the body") from error


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One way in which a request can succeed, or fail in a way of its own."""

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
    """Return a segment of a path, a text conforming to ``schema``."""
    return Parameter(name, description, {"type": "string", **schema}, "path", is_required=True)


RUN_ID: Final = segment("run_id", "Id of the run.")


@dataclass(frozen=True, slots=True)
class Route:
    """One route: method, path, handler and rules."""

    method: str
    path: str
    """``{name}`` stands for one segment."""
    operation: str
    """Its name in the description, and the name of the action in the audit log."""
    summary: str
    handler: Handler
    answers: tuple[Answer, ...]
    role: Role | None = Role.READ
    """None: open, not counted and never refused; for probes."""
    tag: str = "auditor"
    segments: tuple[Parameter, ...] = ()
    """One for each ``{name}`` of the path."""
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    """Name of the body's schema; empty: there is none."""
    is_limited: bool = True
    """Counts for the rate of its client and for the requests in flight; false for the requests of monitors."""
    is_slash_optional: bool = False
    """Also answers with a final slash, as in some paths of Apache's documentation."""
    is_changing: bool = False
    """Written into the audit log, and refused to pages of other sites."""

    @property
    def described_path(self) -> str:
        """Return the path as shown in a description: without the patterns of its segments."""
        return _PATTERN.sub("", self.path)


def changing(route: Route) -> bool:
    """Return whether pages of other sites must not send this."""
    return route.is_changing or route.method not in ("GET", "HEAD")
