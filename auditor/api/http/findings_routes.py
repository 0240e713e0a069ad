"""The findings of a run, in pages, and the affected topics, from the report on this server.

``/api/v1/runs/{run_id}/findings`` and ``/api/v1/runs/{run_id}/impact``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from aiohttp import web

from auditor.api.http.documents import document
from auditor.api.http.queries import refuse_unknown, whole_number
from auditor.api.http.routes import JSON, RUN_ID, Call, Parameter, Route, RouteAnswer
from auditor.api.http.schema_parts import BOOKIE_ID_PATTERN, LEDGER_ID
from auditor.api.problems import InvalidRequestError, NotFoundError
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.severity import Severity
from bookie.runtime.waiting import in_bounded_thread
from spark_jobs.checks.findings import FindingKind
from spark_jobs.report.findings.filters import CURSOR_PATTERN, FindingFilter, parse_cursor
from spark_jobs.report.findings.one_run import FindingPage, read_findings
from spark_jobs.report.history import NoSuchReportError
from spark_jobs.report.impact_rows import ImpactFilter, read_impact_page

T = TypeVar("T")

_PAGE_DEFAULT: Final = 100
_PAGE_MAX: Final = 1_000
_SEVERITIES: Final = {severity.label: severity for severity in Severity}
_KINDS: Final = {kind.value.lower(): kind for kind in FindingKind}
_READERS: Final = 2
"""Pages that are read at a time, because each reads the whole table."""


class FindingsRoutes:
    """Handlers over the directory of reports."""

    def __init__(self, report_dir: Path) -> None:
        self._report_dir = report_dir
        self._readers = asyncio.Semaphore(_READERS)

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        page = RouteAnswer(200, "A page, by ledger.", JSON, "FindingList")
        return (
            Route("GET", "/api/v1/runs/{run_id}/findings", "list_findings",
                  "What a run found; 404 if its report is not on this server.", self._list, (page,), tag="reports",
                  segments=(RUN_ID,), parameters=_PARAMETERS),
            Route("GET", "/api/v1/runs/{run_id}/impact", "list_topic_impact",
                  "Which topics of Pulsar the findings concern, worst first; 404 if the report is not on this server.",
                  self._impact, (RouteAnswer(200, "The worst.", JSON, "TopicImpactList"),), tag="reports",
                  segments=(RUN_ID,), parameters=_IMPACT_PARAMETERS),
        )  # fmt: skip

    async def _list(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, [parameter.name for parameter in _PARAMETERS], "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, _PAGE_MAX)
        bookie = query.get("bookie")
        if bookie is not None and not re.fullmatch(BOOKIE_ID_PATTERN, bookie):
            raise InvalidRequestError(f"bookie must be the id of a bookie, not {bookie[:40]!r}")
        wanted = FindingFilter(
            severity=_named("severity", query.get("severity"), _SEVERITIES),
            bookie=bookie,
            ledger_id=whole_number(query["ledger"], "ledger", 0, LEDGER_ID_MAX) if "ledger" in query else None,
            kind=_named("kind", query.get("kind"), _KINDS),
        )
        after = query.get("after")
        if after is not None and not re.fullmatch(CURSOR_PATTERN, after):
            raise InvalidRequestError("after must be the value of next_after of a page")
        cursor = None if after is None else parse_cursor(after)
        run_id = call.request.match_info["run_id"]
        page = await self._read(partial(read_findings, self._report_dir, run_id, limit, wanted, cursor))
        return web.json_response(finding_list(run_id, page))

    async def _impact(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, [parameter.name for parameter in _IMPACT_PARAMETERS], "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, _PAGE_MAX)
        wanted = ImpactFilter(
            severity=_named("severity", query.get("severity"), _SEVERITIES),
            namespace=query.get("namespace"),
            topic=query.get("topic"),
        )
        run_id = call.request.match_info["run_id"]
        page = await self._read(partial(read_impact_page, self._report_dir, run_id, limit, wanted))
        return web.json_response(document("TopicImpactList", {"run_id": run_id, **page.to_json()}))

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await in_bounded_thread(self._readers, read)
        except NoSuchReportError as error:
            raise NotFoundError(str(error)) from error


def finding_list(run_id: str, page: FindingPage) -> dict[str, object]:
    """Return a page as a document."""
    after = None if page.next_after is None else str(page.next_after)
    return document("FindingList", {"run_id": run_id, "items": page.rows, "next_after": after})


def _named(name: str, given: str | None, known: dict[str, T]) -> T | None:
    if given is None:
        return None
    if given not in known:
        raise InvalidRequestError(f"{name} must be one of {', '.join(known)}, not {given[:40]!r}")
    return known[given]


_PARAMETERS: Final = (
    Parameter(
        "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": _PAGE_MAX, "default": _PAGE_DEFAULT}
    ),
    Parameter(
        "after", "Value of `next_after` of the page before, with the same filter.",
        {"type": "string", "pattern": CURSOR_PATTERN},
    ),
    Parameter("severity", "Only those of this severity.", {"type": "string", "enum": list(_SEVERITIES)}),
    Parameter("bookie", "Only those that lack this bookie's copy.", {"type": "string", "pattern": BOOKIE_ID_PATTERN}),
    Parameter("ledger", "Only those of this ledger.", LEDGER_ID),
    Parameter("kind", "Only those of this kind.", {"type": "string", "enum": list(_KINDS)}),
)  # fmt: skip
_IMPACT_PARAMETERS: Final = (
    _PARAMETERS[0],
    Parameter("severity", "Only those of this severity.", {"type": "string", "enum": list(_SEVERITIES)}),
    Parameter("namespace", "Only this namespace, with its tenant.", {"type": "string"}),
    Parameter("topic", "Only this topic, by its name in full; without a number, all its partitions.",
              {"type": "string"}),
)  # fmt: skip
