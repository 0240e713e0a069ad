"""``/api/v1``: the present state of the service and its cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from auditor.api.control import Backlog, Control
from auditor.api.http.documents import bookie_list, status_document, task_list
from auditor.api.http.queries import refuse_unknown, whole_number
from auditor.api.http.routes import HTML, JSON, Call, Parameter, Route, RouteAnswer
from auditor.api.http.schema_parts import LEDGER_ID
from auditor.api.http.status_page import status_page
from auditor.api.operations_port import ALL_MARKS, MarkFilter, Operations
from bookie.metadata.port import StoreUnavailableError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.model.run import RunRecord

_PAGE_RUNS: Final = 20
_PAGE_PATIENCE_S: Final = 2.0
"""Longest wait of the page for the store. Without it, a store that does not answer would exceed browsers' timeouts."""
_PAGE_DEFAULT: Final = 100
_PAGE_MAX: Final = 1_000


class ClusterRoutes:
    """Handlers over ``Control`` and ``Operations``."""

    def __init__(self, control: Control, operations: Operations) -> None:
        self._control = control
        self._operations = operations

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        return (
            Route("GET", "/api/v1/status", "get_status", "The service and its cluster.", self._status,
                  (RouteAnswer(200, "Status, some seconds old at most.", JSON, "ServiceStatus"),)),
            Route("GET", "/status", "get_status_page", "The same as a page that reloads itself.", self._page,
                  (RouteAnswer(200, "A page.", HTML),)),
            Route("GET", "/api/v1/underreplicated", "list_underreplicated", "Ledgers marked for repair, by id.",
                  self._tasks, (RouteAnswer(200, "A page.", JSON, "UnderReplicatedLedgerList"),), parameters=_PAGING),
            Route("GET", "/api/v1/bookies", "list_bookies", "Every known bookie with its state and free space.",
                  self._bookies, (RouteAnswer(200, "Bookies.", JSON, "BookieList"),)),
        )  # fmt: skip

    async def _status(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return web.json_response(status_document(self._control.status()))

    async def _page(self, call: Call) -> web.Response:
        runs: Sequence[RunRecord] = ()
        with contextlib.suppress(StoreUnavailableError, TimeoutError):  # the rest is known without the store
            async with asyncio.timeout(_PAGE_PATIENCE_S):
                runs = await self._control.runs(_PAGE_RUNS)
        page = status_page(self._control.status(), runs, round(time.time() * 1000))
        return web.Response(
            text=page.html, content_type=HTML, headers={"Content-Security-Policy": page.policy, "Refresh": "10"}
        )

    async def _tasks(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after", "missing"), "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, _PAGE_MAX)
        after = LedgerId(whole_number(query["after"], "after", 0, LEDGER_ID_MAX)) if "after" in query else None
        wanted = MarkFilter(query.get("missing", ""))
        page = await self._operations.list_tasks(limit, after, wanted)
        is_counted = wanted == ALL_MARKS
        return web.json_response(task_list(page, self._control.status().backlog if is_counted else Backlog()))

    async def _bookies(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return web.json_response(bookie_list(await self._operations.bookies(), self._control.status().lost))


_PAGING: Final = (
    Parameter(
        "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": _PAGE_MAX, "default": _PAGE_DEFAULT}
    ),
    Parameter("after", "Begin after this ledger.", LEDGER_ID),
    Parameter("missing", "Only ledgers that lack a copy on this bookie.", {"type": "string"}),
)
