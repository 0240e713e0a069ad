"""Reports of a running service, for ``bkheal report`` and ``bkheal impact`` with ``--at``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from auditor.cli.at import Service
    from spark_jobs.report.summary import RunSummary

LATEST: Final = "latest"
_FULL_RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
"""The form of the ids that ``bookie.model.run.new_run_id`` makes."""
_PAGE: Final = 100
_REPORTS_EXAMINED_MAX: Final = 2_000
"""Largest number of reports that are examined in a search for one."""


def remote_reports(service: Service, limit: int) -> list[dict[str, Any]]:
    """Return the newest reports of a service, with the members of their summaries that lists use.

    A report that the service cannot read is omitted, as in a list of a directory.
    """
    found: list[dict[str, Any]] = []
    for row in _rows(service, limit):
        if row.get("report") is not None:
            found.append(row["report"])
            if len(found) == limit:
                break
    return found


def remote_report_rows(service: Service) -> Iterator[dict[str, Any]]:
    """Return the rows of the newest reports of a service, the newest first, at most ``_REPORTS_EXAMINED_MAX``."""
    return _rows(service, _PAGE)


def remote_latest_run_id(service: Service) -> str:
    """Return the id of the newest run with a report at a service.

    Raises:
        NoSuchReportError: there is none.
    """
    from spark_jobs.report.history import NoSuchReportError, latest

    row = latest(_rows(service, 1), round(time.time() * 1000))
    if row is None:
        raise NoSuchReportError("the service has no report; `bkheal audit list` shows where the report of each run is")
    return str(row["run_id"])


def remote_run_id(service: Service, name: str) -> str:
    """Return the id of the named run: its id or a unique prefix of it, or the latest run.

    Raises:
        NoSuchReportError: there is no report, or several ids have this prefix.
    """
    from spark_jobs.report.history import ambiguous

    if name == LATEST:
        return remote_latest_run_id(service)
    if _FULL_RUN_ID.fullmatch(name):
        return name  # without a list, for which the service reads a file per row
    found = []
    for row in _rows(service, _PAGE):
        if row["run_id"] == name:
            return name
        if name and str(row["run_id"]).startswith(name):
            found.append(str(row["run_id"]))
    if len(found) > 1:
        raise ambiguous(name, found)
    return found[0] if found else name  # another auditor may have a report that this list lacks


def remote_summary(service: Service, run_id: str) -> RunSummary:
    """Return the summary of a run.

    Raises:
        RemoteRefusedError: the service has no such report.
        DamagedReportError: the report cannot be read.
    """
    from spark_jobs.report.decoding import decode_summary
    from spark_jobs.report.files import SUMMARY

    return decode_summary(service.document("GET", f"/reports/{quote(run_id, safe='')}/{SUMMARY}"))


def remote_earlier_run(service: Service, later: RunSummary) -> RunSummary | None:
    """Return the run to compare with: see ``spark_jobs.report.history.earlier_run_to_compare``."""
    from spark_jobs.report.history import is_whole

    for row in _rows(service, _PAGE, after=later.run_id):
        brief = row.get("report")
        if brief is None or not brief["complete"] or brief["run_kind"] != later.kind.value:
            continue
        if brief["cluster"].get("instance_id") == later.cluster.instance_id:
            summary = remote_summary(service, str(row["run_id"]))
            if is_whole(summary):
                return summary
    return None


def _rows(service: Service, page: int, after: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows, the newest first, at most ``_REPORTS_EXAMINED_MAX``. They are requested in pages."""
    seen = 0
    while seen < _REPORTS_EXAMINED_MAX:
        answer = service.ask("GET", "/reports", {"limit": min(page, _PAGE), "after": after})
        yield from answer["items"]
        seen += len(answer["items"])
        after = answer.get("next_after")
        if after is None:
            return
