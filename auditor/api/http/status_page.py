"""The page at ``/status``. It has no script and loads nothing; all values are escaped. The template is in ``html``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from auditor.api.control import ServiceStatus, why_no_next_run
from bookie.metadata.runs.notes import KindPause
from bookie.model.run import RunKind, RunRecord
from bookie.model.times import rfc3339_if_known
from spark_jobs.pages import page_environment, style_hash

_TEMPLATES: Final = files("auditor.api.http").joinpath("html")


@dataclass(frozen=True, slots=True)
class Page:
    """A page and the security policy that is sent with it."""

    html: str
    policy: str


@dataclass(frozen=True, slots=True)
class FactLine:
    """One line about the service."""

    name: str
    text: str
    is_bad: bool = False
    """Shown in red."""


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A kind of audit."""

    name: str
    next: str
    last_success: str
    verdict: str


@dataclass(frozen=True, slots=True)
class BacklogLine:
    """Marked ledgers of one severity."""

    severity: str
    ledgers: int
    oldest: str = ""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run."""

    run_id: str
    quoted_id: str
    """The id, quoted for the path of a URL."""
    kind: str
    state: str
    started_by: str
    progress: str
    verdict: str
    has_report: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StatusView:
    """The contents of the page, as plain values for its template."""

    metadata_uri: str
    facts: Sequence[FactLine]
    checks: Sequence[CheckLine]
    backlog: Sequence[BacklogLine]
    runs: Sequence[RunLine]


def status_page(status: ServiceStatus, runs: Sequence[RunRecord]) -> Page:
    """Return the rendered page."""
    css = _style()
    html = _environment().get_template("status.html").render(page=status_view(status, runs), css=css)
    policy = f"default-src 'none'; style-src '{style_hash(css)}'; base-uri 'none'; frame-ancestors 'none'"
    return Page(html, policy)


def status_view(status: ServiceStatus, runs: Sequence[RunRecord]) -> StatusView:
    """Return the values of the page."""
    return StatusView(
        metadata_uri=status.metadata_uri,
        facts=_facts(status),
        checks=[_check(status, kind) for kind in RunKind],
        backlog=_backlog(status),
        runs=[_run(run) for run in runs],
    )


def _facts(status: ServiceStatus) -> Sequence[FactLine]:
    role = "leads" if status.is_leader else f"follows {status.leader or 'nobody known'}"
    lost = ", ".join(lost.bookie_id for lost in status.lost)
    bookies = f"{len(status.writable)} writable, {len(status.read_only)} read-only, {len(status.lost)} lost"
    store = FactLine("Metadata store", "connected")
    if not status.is_store_connected:
        store = FactLine("Metadata store", "no connection", is_bad=True)
    recovery = FactLine("Recovery", "enabled")
    if not status.is_recovery_enabled:
        recovery = FactLine("Recovery", "disabled", is_bad=True)
    facts = [
        FactLine("This process", f"{status.process} {role}, version {status.version}"),
        store,
        recovery,
        FactLine("Lost-bookie delay", f"{status.lost_bookie_delay_s} s"),
        FactLine("Bookies", bookies),
    ]
    if lost:
        facts.append(FactLine("Lost", lost, is_bad=True))
    facts.extend(
        FactLine("Maintenance", f"{window.target} until {rfc3339_if_known(window.until_ms)}, by {window.by}")
        for window in status.windows
    )
    if status.held_because:
        facts.append(FactLine("Held", status.held_because, is_bad=True))
    return [*facts, *(FactLine("Refused", problem, is_bad=True) for problem in status.problems)]


def _check(status: ServiceStatus, kind: RunKind) -> CheckLine:
    last = status.last.get(kind)
    return CheckLine(
        name=kind.value + _paused(status.paused_kinds.get(kind)),
        next=rfc3339_if_known(status.next_run_ms.get(kind, 0)) or why_no_next_run(status, kind),
        last_success=rfc3339_if_known(status.last_success_ms.get(kind, 0)) or "never",
        verdict="" if last is None else last.verdict or last.state.value,
    )


def _paused(pause: KindPause | None) -> str:
    if pause is None:
        return ""
    until = rfc3339_if_known(pause.until_ms)
    return f" (paused until {until})" if until else " (paused)"


def _backlog(status: ServiceStatus) -> Sequence[BacklogLine]:
    return [
        *(
            BacklogLine(severity.label.replace("_", " "), part.ledgers, rfc3339_if_known(part.oldest_ms) or "")
            for severity, part in sorted(status.backlog.severities.items())
        ),
        BacklogLine("healthy again", status.backlog.healthy.ledgers),
        BacklogLine("unreadable", status.backlog.unreadable),
    ]


def _run(run: RunRecord) -> RunLine:
    return RunLine(
        run_id=run.run_id,
        quoted_id=quote(run.run_id, safe=""),
        kind=run.kind.value,
        state=run.state.value,
        started_by=run.started_by,
        progress="" if run.state.is_final else f"{run.phase} {run.done}/{run.total or '?'}",
        verdict=run.verdict,
        has_report=bool(run.report),
        detail=run.detail,
    )


@functools.cache
def _style() -> Markup:
    return Markup(_TEMPLATES.joinpath("status.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file


@functools.cache
def _environment() -> Environment:
    return page_environment(_TEMPLATES)
