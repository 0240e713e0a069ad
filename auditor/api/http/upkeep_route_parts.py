"""What the routes of operators have in common: their answers, parameters and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from auditor.api.http import upkeep_queries as queries
from auditor.api.http.documents import document
from auditor.api.http.queries import whole_number
from auditor.api.http.routes import JSON, Call, Parameter, Route, RouteAnswer
from auditor.api.http.schema_parts import BOOKIE_ID_PATTERN, LEDGER_ID
from auditor.api.problems import InvalidRequestError
from auditor.operating.client import Actor, Document
from bookie.model.ids import LEDGER_ID_MAX, BookieId, LedgerId
from bookie.runtime.access.tokens import Role

API: Final = "/api/v1"
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
BOOKIES_MAX: Final = 100
"""Bookies in one query."""
BOOKIES: Final = {
    "type": "array",
    "items": {"type": "string", "pattern": BOOKIE_ID_PATTERN},
    "minItems": 1,
    "maxItems": BOOKIES_MAX,
}
_LIMIT: Final = Parameter(
    "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}
)
PAGING: Final = (_LIMIT, Parameter("after", "Begin after this ledger.", LEDGER_ID))


def answer(kind: str, fields: Document) -> web.Response:
    """Return a document as the answer."""
    return web.json_response(document(kind, fields))


def actor_of(call: Call) -> Actor:
    """Return who makes a request, for the records of changes."""
    return Actor(call.who.name, "http")


def bookies_of_query(call: Call) -> tuple[BookieId, ...]:
    """Return the bookies named in a query, each once; may be empty.

    Raises:
        InvalidRequestError: a name is not an id, or there are too many.
    """
    named = call.request.query.getall("bookie", [])
    if len(named) > BOOKIES_MAX:
        raise InvalidRequestError(f"name 1 to {BOOKIES_MAX} bookies: ?bookie=ID, repeated for each")
    return tuple(dict.fromkeys(map(queries.bookie, named)))


def page_of(query: Mapping[str, str]) -> tuple[int, LedgerId | None]:
    """Return the parameters ``PAGING`` of a query: most rows, and the ledger after which they begin.

    Raises:
        InvalidRequestError: one of them is out of range.
    """
    limit = whole_number(query.get("limit", str(PAGE_DEFAULT)), "limit", 1, PAGE_MAX)
    after = LedgerId(whole_number(query["after"], "after", 0, LEDGER_ID_MAX)) if "after" in query else None
    return limit, after


def reading(
    path: str, operation: str, summary: str, handler: Any, schema: str, parameters: tuple[Parameter, ...] = ()
) -> Route:
    """Describe a route that reads."""
    answer = RouteAnswer(200, "The current state.", JSON, schema)
    return Route("GET", path, operation, summary, handler, (answer,), tag="upkeep", parameters=parameters)


def changing(
    method: str,
    path: str,
    operation: str,
    summary: str,
    handler: Any,
    schema: str,
    *,
    role: Role = Role.OPERATE,
    segments: tuple[Parameter, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    body: str = "",
) -> Route:
    """Describe a route that changes something; ``role`` is what the caller needs."""
    answer = RouteAnswer(200, "The result.", JSON, schema)
    return Route(
        method,
        path,
        operation,
        summary,
        handler,
        (answer,),
        role=role,
        tag="upkeep",
        segments=segments,
        parameters=parameters,
        body=body,
        is_changing=True,
    )
