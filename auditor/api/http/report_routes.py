"""``/reports``: the files of reports, and no other files of this machine.

A path is checked by its form before the first access to the file system, and by its real target afterwards. Pages of
reports contain names from untrusted sources, so they are sent with a policy under which they cannot load or send
anything.

A report that is missing here is requested from the other auditors of the service (``peer_port``). Only paths with an
allowed form are requested, and this process sets the type and the policy of the answer.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from typing_extensions import override

from auditor.api.http.documents import document
from auditor.api.http.queries import refuse_unknown, run_kind, whole_number
from auditor.api.http.routes import HTML, JSON, RUN_ID, Call, Parameter, Route, RouteAnswer, segment
from auditor.api.peer_port import ASKED_BY_AUDITOR_HEADER, PeerAnswer, PeerReports
from auditor.api.problems import InvalidRequestError, NotFoundError
from bookie.model.errors import TransientError
from bookie.model.run import RunKind
from bookie.model.times import rfc3339_if_known
from bookie.runtime.waiting import in_bounded_thread
from spark_jobs.report.decoding import DamagedReportError, decode_summary
from spark_jobs.report.files import INDEX, PAGE, SUMMARY, ReportDirError, is_run_id
from spark_jobs.report.history import brief, latest, summaries

_log = logging.getLogger(__name__)

REPORTS_MAX: Final = 500
"""Reports in one page, and reports examined in a search for a report of one kind."""
_LISTED_DEFAULT: Final = 100
"""Reports in one page by default; each needs one file read."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")
"""One segment of a path. It excludes hidden files, because they are incomplete."""
_DEPTH_MAX: Final = 8
_READERS: Final = 2
"""Threads that access the directory at a time. A volume that hangs must not block all threads of this process, because
other work needs them as well."""
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that show that there is no such file."""
_CHUNK_BYTES: Final = 1 << 20
"""Bytes of a file that are read at a time."""
_KIND: Final[Mapping[str, Any]] = {"type": "string", "enum": [kind.value for kind in RunKind]}
_PAGES: Final = (PAGE, INDEX)
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".json": "application/json",
    ".txt": "text/plain",
    ".csv": "text/csv",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".parquet": "application/vnd.apache.parquet",
}
"""Content types by the ending of a file. Files with other endings are not served."""
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-scripts allow-popups allow-top-navigation-by-user-activation"
)
"""A sandbox without an origin: even an injected script cannot send requests to this server on behalf of the user who
reads the page."""


_PAGING: Final = (
    Parameter(
        "limit",
        "Most rows to list.",
        {"type": "integer", "minimum": 1, "maximum": REPORTS_MAX, "default": _LISTED_DEFAULT},
    ),
    Parameter("after", "Begin after this run.", {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_\-]{0,127}$"}),
)


class UnreadableReportsError(TransientError):
    """The directory of reports cannot be read, so it is unknown whether a report exists."""


class ReportRoutes:
    """Handlers over a directory."""

    def __init__(self, report_dir: Path, peers: PeerReports | None = None, report_store: str = "") -> None:
        """Store the arguments.

        Args:
            report_dir: of this auditor.
            peers: the other auditors of the service; None: there are none.
            report_store: address of the store from which missing reports are fetched; empty: there is none.
        """
        self._report_dir = report_dir
        self._peers = peers
        self._report_store = report_store
        self._fetching = asyncio.Semaphore(1)
        self._readers = asyncio.Semaphore(_READERS)

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        run, path = (RUN_ID,), segment("path", "Path below the report's directory.")
        page = (RouteAnswer(200, "A self-contained page.", HTML),)
        file = (RouteAnswer(200, "The file.", ""),)
        return (
            Route("GET", "/api/v1/reports", "list_reports", "Reports on this server, the newest first.", self._list,
                  (RouteAnswer(200, "A page.", JSON, "ReportList"),), tag="reports", parameters=_PAGING),
            Route("GET", "/reports/", "get_report_index", "The list of reports as a page.", self._index, page,
                  tag="reports"),
            Route("GET", "/reports/index.html", "get_report_index_file", "The same, as pages of reports link to it.",
                  self._index, page, tag="reports"),
            Route("GET", "/reports/latest/", "get_latest_report",
                  "Redirects to the newest report, optionally of one kind.",
                  self._latest, (RouteAnswer(302, "To the report's page.", ""),), tag="reports",
                  parameters=(Parameter("kind", "Kind of the run.", _KIND),)),
            Route("GET", "/reports/{run_id}/", "get_report_page", "A report as a page.", self._page, page,
                  tag="reports", segments=run),
            Route("GET", "/reports/{run_id}/{path:.+}", "get_report_file", "A file of a report.", self._file, file,
                  tag="reports", segments=(*run, path)),
        )  # fmt: skip

    async def _list(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after"), "parameter")
        limit = whole_number(query.get("limit", str(_LISTED_DEFAULT)), "limit", 1, REPORTS_MAX)
        after = query.get("after")
        if after is not None and not is_run_id(after):
            raise InvalidRequestError("after must be the id of a run")
        found = await in_bounded_thread(self._readers, partial(list_reports, self._report_dir, limit, after))
        return web.json_response(document("ReportList", found))

    async def _index(self, call: Call) -> web.StreamResponse:
        found = await self._found([INDEX])
        if found is None:
            raise NotFoundError("there is no report")
        return found

    async def _latest(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, ("kind",), "parameter")
        kind = run_kind(call.request.query["kind"]) if "kind" in call.request.query else None
        run_id, unknown = None, None
        try:
            run_id = await in_bounded_thread(self._readers, partial(latest_report, self._report_dir, kind))
        except UnreadableReportsError as error:
            unknown = error
        if run_id is None:
            run_id = await self._latest_peer_report(call)
        if run_id is None:
            raise unknown or NotFoundError("there is no report of such a run")
        # The location is relative, because a proxy may serve this API under another path.
        return web.Response(status=302, headers={"Location": f"../{run_id}/", "Cache-Control": "no-store"})

    async def _page(self, call: Call) -> web.StreamResponse:
        run_id = call.request.match_info["run_id"]
        return await self._first_existing_file(call, [f"{run_id}/{page}" for page in _PAGES])

    async def _file(self, call: Call) -> web.StreamResponse:
        return await self._first_existing_file(
            call, [f"{call.request.match_info['run_id']}/{call.request.match_info['path']}"]
        )

    async def _first_existing_file(self, call: Call, paths: Sequence[str]) -> web.StreamResponse:
        """Return the first of these files that exists here, or else the first one of another auditor.

        Raises:
            UnreadableReportsError: the directory cannot be read, and no other auditor has the file.
            PeersUnknownError: another auditor, which may have the file, does not answer.
            NotFoundError: there is no such file.
        """
        found, unknown = None, None
        try:
            found = await self._found(paths)
        except UnreadableReportsError as error:
            unknown = error
        if found is None and unknown is None and self._report_store and is_admitted(paths[0]):
            await self._fetch(paths[0].split("/")[0])
            found = await self._found(paths)
        if found is None and is_admitted(paths[0]):
            answer = await self._get_from_peer(call, f"/reports/{paths[0]}")
            if answer is not None and not answer.location:
                found = web.Response(body=answer.body, headers=_headers(paths[0]))
        if found is None:
            raise unknown or NotFoundError(
                "there is no such report, or no such file in it; a run that a command started leaves its "
                "report in the --report-dir of that command: `bkheal audit show RUN` shows where"
            )
        return found

    async def _fetch(self, run_id: str) -> None:
        """Fetch a report from the store, one at a time.

        Raises:
            TransientError: the store cannot be read, so it is unknown whether the report exists.
        """
        from spark_jobs.report.store_runs import fetch_run, opened_store

        def fetch() -> None:
            store = opened_store(self._report_store)
            if store is not None:
                fetch_run(store, self._report_dir, run_id)

        try:
            await in_bounded_thread(self._fetching, fetch)
        except ReportDirError as error:
            _log.warning("a report was not fetched", extra={"run_id": run_id, "reason": str(error)})
            raise TransientError("the store of reports cannot be read now; see the log of the auditor") from error

    async def _found(self, paths: Sequence[str]) -> web.StreamResponse | None:
        for path in paths:
            found = await in_bounded_thread(self._readers, partial(find_file, self._report_dir, path))
            if found is not None:
                return _ReportFile(found, _headers(path), self._readers)
        return None

    async def _latest_peer_report(self, call: Call) -> str | None:
        """Return the id of another auditor's newest report; None: there is none.

        Raises:
            PeersUnknownError: another auditor, which may have one, does not answer.
        """
        answer = await self._get_from_peer(call, call.request.path_qs)
        run_id = "" if answer is None else answer.location.removeprefix("../").removesuffix("/")
        return run_id if is_run_id(run_id) else None

    async def _get_from_peer(self, call: Call, path: str) -> PeerAnswer | None:
        if self._peers is None or ASKED_BY_AUDITOR_HEADER in call.request.headers:
            return None
        return await self._peers.get(path, call.request.headers.get("Authorization"))


class _ReportFile(web.FileResponse):
    """A file that only the threads of ``_READERS`` read.

    The HTTP library would read it with ``sendfile`` on the event loop, which a volume that hangs would stop. So the
    auditor would lose its leadership.
    """

    def __init__(self, path: Path, headers: Mapping[str, str], readers: asyncio.Semaphore) -> None:
        super().__init__(path, headers=headers)
        self._readers = readers

    @override
    async def _sendfile(self, request: web.BaseRequest, fobj: IO[Any], offset: int, count: int) -> AbstractStreamWriter:
        writer = await web.StreamResponse.prepare(self, request)
        assert writer is not None, "no answer was sent for this request yet"
        end = offset + count
        while offset < end:
            read = partial(self._seek_and_read, fobj, offset, min(_CHUNK_BYTES, end - offset))
            chunk = await in_bounded_thread(self._readers, read)
            if not chunk:
                break
            await writer.write(chunk)
            offset += len(chunk)
        await writer.drain()
        return writer


def is_admitted(path: str) -> bool:
    """Return whether a path below the directory has the form of a served file. Pure."""
    segments = path.split("/")
    if len(segments) > _DEPTH_MAX or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        return False
    if len(segments) > 1 and not is_run_id(segments[0]):
        return False
    return Path(path).suffix in _TYPES


def find_file(report_dir: Path, path: str) -> Path | None:
    """Return the regular file at ``path`` below ``report_dir``; None if there is none, or if it may not be sent.

    Args:
        report_dir: root of all served files.
        path: ``index.html``, or a run's id and a path below its directory.

    Raises:
        UnreadableReportsError: the directory cannot be read.
    """
    if not is_admitted(path):
        return None
    try:
        root = report_dir.resolve(strict=True)
        found = root.joinpath(*path.split("/")).resolve(strict=True)
        return found if found.is_relative_to(root) and found.is_file() else None
    except RuntimeError:  # links in a circle
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise _unreadable(report_dir, error) from error


def latest_report(report_dir: Path, kind: RunKind | None) -> str | None:
    """Return the id of the newest run with a report, of ``kind`` if given; None: there is none among the newest.

    Raises:
        UnreadableReportsError: the directory cannot be read.
    """
    _names(report_dir)
    newest = itertools.islice(summaries(report_dir), REPORTS_MAX)
    of_kind = (each for each in newest if kind is None or each.get("run_kind") == kind.value)
    found = latest(of_kind, round(time.time() * 1000))
    return None if found is None else str(found["run_id"])


def list_reports(report_dir: Path, limit: int = REPORTS_MAX, after: str | None = None) -> dict[str, Any]:
    """Return the reports in the directory, the newest first by id, which begins with the time.

    The result is empty if the directory does not exist.

    Args:
        report_dir: root of the reports.
        limit: how many at most.
        after: begin after this run; None: with the newest.

    Raises:
        UnreadableReportsError: the directory cannot be read.
    """
    names = sorted(filter(is_run_id, _names(report_dir)), reverse=True)
    known = ((name, _file_of(report_dir, name, SUMMARY)) for name in names if after is None or name < after)
    found = list(itertools.islice(((name, path) for name, path in known if path is not None), limit + 1))
    rows = [_row(report_dir, name, path) for name, path in found[:limit]]
    return {"items": rows, "next_after": found[limit - 1][0] if len(found) > limit else None}


def _file_of(report_dir: Path, run_id: str, name: str) -> Path | None:
    """Return a file of one report in a list; None: there is none, or it cannot be read, as the log shows."""
    try:
        return find_file(report_dir, f"{run_id}/{name}")
    except UnreadableReportsError:
        return None


def _names(report_dir: Path) -> list[str]:
    """Return the names in the directory; none if it does not exist."""
    try:
        return os.listdir(report_dir)
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        raise _unreadable(report_dir, error) from error


def _unreadable(report_dir: Path, error: OSError) -> UnreadableReportsError:
    _log.warning("reports are unreadable", extra={"path": str(report_dir), "reason": str(error)})
    return UnreadableReportsError(f"the directory of reports cannot be read: {error.strerror}")


def _row(report_dir: Path, run_id: str, path: Path) -> dict[str, Any]:
    page = next((page for page in _PAGES if _file_of(report_dir, run_id, page)), None)
    modified_ms, summary = -1, None
    try:
        modified_ms = path.stat().st_mtime_ns // 1_000_000
        summary = brief(decode_summary(json.loads(path.read_bytes())))
    except (OSError, ValueError, RecursionError, DamagedReportError) as error:
        _log.warning("report summary is unreadable", extra={"path": str(path), "reason": str(error)})
    return {
        "run_id": run_id,
        "modified": rfc3339_if_known(modified_ms),
        "summary": f"/reports/{run_id}/{SUMMARY}",
        "page": f"/reports/{run_id}/" if page else None,
        "report": summary,
    }


def _headers(path: str) -> dict[str, str]:
    kind = _TYPES[Path(path).suffix]
    headers = {"Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind}
    if kind in (HTML, "image/svg+xml"):
        headers["Content-Security-Policy"] = _POLICY
    return headers
