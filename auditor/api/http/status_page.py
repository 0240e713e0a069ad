"""The page at ``/status``: the state of the service and its cluster for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from auditor.api.control import ServiceStatus, lost_text, why_no_next_run, why_not_counted
from auditor.api.http.pages import HtmlPage, rendered
from bookie.metadata.runs.notes import KindPause
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.model.times import utc_text
from bookie.runtime.human import agreeing, counted, duration, size
from spark_jobs.pages import marked_text

_GOOD_VERDICTS: Final = ("", "clean")


@dataclass(frozen=True, slots=True)
class StatusHeadline:
    """The state of the cluster in one sentence."""

    text: str
    tone: str = "bad"
    """Its color: ``good``, ``info`` (what matters is not known here), ``warn`` or ``bad``."""


@dataclass(frozen=True, slots=True)
class FactLine:
    """One line about the service."""

    name: str
    text: str
    is_bad: bool = False
    """Shown in red."""


@dataclass(frozen=True, slots=True)
class When:
    """A time, and its distance from now; both empty: the time is not known."""

    at: str = ""
    distance: str = ""


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A kind of audit."""

    name: str
    next: When
    last_success: When
    verdict: str
    is_bad: bool


@dataclass(frozen=True, slots=True)
class StatusBacklogLine:
    """Marked ledgers of one severity."""

    severity: str
    ledgers: int
    size: str = ""
    oldest: When = When()


@dataclass(frozen=True, slots=True)
class StatusRunLine:
    """A run."""

    run_id: str
    quoted_id: str
    """The id, quoted for the path of a URL."""
    kind: str
    state: str
    """With the progress of a run that has not ended."""
    started: When
    took: str
    started_by: str
    verdict: str
    is_bad: bool
    has_report: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StatusView:
    """The contents of the page, as plain values for its template."""

    metadata_uri: str
    as_of: str
    version: str
    headline: StatusHeadline
    facts: Sequence[FactLine]
    checks: Sequence[CheckLine]
    marked: str
    """The number of marked ledgers, and what becomes of them; empty: no ledger is marked."""
    why_not_counted: str
    """Why the number of marked ledgers is not known here; empty: it is known."""
    has_parked: bool
    backlog: Sequence[StatusBacklogLine]
    runs: Sequence[StatusRunLine]


def status_page(status: ServiceStatus, runs: Sequence[RunRecord], now_ms: int) -> HtmlPage:
    """Return the rendered page."""
    return rendered("status.html", page=status_view(status, runs, now_ms))


def status_view(status: ServiceStatus, runs: Sequence[RunRecord], now_ms: int) -> StatusView:
    """Return the values of the page."""
    backlog = status.backlog
    return StatusView(
        metadata_uri=status.metadata_uri,
        as_of=utc_text(now_ms),
        version=status.version,
        headline=_headline(status),
        facts=_facts(status, now_ms),
        checks=[_check(status, kind, now_ms) for kind in RunKind],
        marked=marked_text(
            backlog.ledgers, backlog.locked, {why.value: count for why, count in backlog.parked.items()}
        ),
        why_not_counted=why_not_counted(status),
        has_parked=bool(backlog.parked),
        backlog=_backlog(status, now_ms),
        runs=[_run(run, now_ms) for run in runs],
    )


def _headline(status: ServiceStatus) -> StatusHeadline:
    """Return the worst of what is known. What this process cannot know is not reported as good."""
    backlog = status.backlog
    unread = sum(part.ledgers for severity, part in backlog.severities.items() if not severity.has_copies)
    if not status.is_store_connected:
        return StatusHeadline("There is no connection to the metadata store. What follows was true before it was lost.")
    if status.problems:
        return StatusHeadline("The metadata store refuses what an auditor needs.")
    if not status.leader:
        return StatusHeadline("No auditor leads, so nothing is detected or marked.")
    if unread:
        return StatusHeadline(
            f"{counted(unread, 'ledger')} {agreeing(unread, 'has', 'have')} entries without a live copy."
        )
    if status.held_because:
        return StatusHeadline("So many bookies are missing that nothing is marked.")
    if not status.is_recovery_enabled:
        return StatusHeadline("Recovery is disabled, so nothing is marked or repaired.", "warn")
    if backlog.ledgers:
        return StatusHeadline(
            f"{counted(backlog.ledgers, 'ledger')} {agreeing(backlog.ledgers, 'is', 'are')} marked for repair.", "warn"
        )
    lost = len(status.lost)
    bookies = f"{counted(lost, 'bookie')} {agreeing(lost, 'is', 'are')} lost" if lost else "Every bookie is registered"
    if uncounted := why_not_counted(status):
        return StatusHeadline(f"{bookies}. {uncounted}", "warn" if lost else "info")
    unmarked = f"{bookies}, and no ledger is marked for repair."
    if unproven := _unproven(status):
        return StatusHeadline(f"{unmarked} {unproven}", "warn" if lost else "info")
    return StatusHeadline(unmarked, "warn" if lost else "good")


def _unproven(status: ServiceStatus) -> str:
    """Return why ledgers without a mark may lack copies; empty: the last check of bookies read all ledgers."""
    if not status.last_success_ms.get(RunKind.BOOKIES):
        return "No audit has checked all ledgers yet."
    last = status.last.get(RunKind.BOOKIES)
    if last is None or last.is_complete or last.was_stopped:
        return ""
    return "The last audit did not check all ledgers."


def _facts(status: ServiceStatus, now_ms: int) -> Sequence[FactLine]:
    bookies = f"{len(status.writable)} writable, {len(status.read_only)} read-only, {len(status.lost)} lost"
    store = FactLine("Metadata store", "connected")
    if not status.is_store_connected:
        store = FactLine("Metadata store", "no connection", is_bad=True)
    recovery = FactLine("Recovery", "enabled")
    if not status.is_recovery_enabled:
        recovery = FactLine("Recovery", "disabled", is_bad=True)
    leader = f"{status.leader} (this auditor)" if status.is_leader else status.leader
    facts = [
        FactLine("Leader", leader or "none", is_bad=not leader),
        FactLine("This auditor", f"process {status.process}"),
        store,
        recovery,
        FactLine("Lost-bookie delay", f"{status.lost_bookie_delay_s} s"),
        FactLine("Bookies", bookies),
    ]
    facts.extend(FactLine("Lost bookie", lost_text(bookie, now_ms), is_bad=True) for bookie in status.lost)
    facts.extend(
        FactLine("Maintenance", f"{window.target} until {utc_text(window.until_ms)}, by {window.by}")
        for window in status.windows
    )
    if status.held_because:
        facts.append(FactLine("Held", status.held_because, is_bad=True))
    return [*facts, *(FactLine("Refused", problem, is_bad=True) for problem in status.problems)]


def _check(status: ServiceStatus, kind: RunKind, now_ms: int) -> CheckLine:
    last = status.last.get(kind)
    verdict = "" if last is None else last.verdict or last.state.value
    return CheckLine(
        name=kind.value + _paused(status.paused_kinds.get(kind)),
        next=_when(status.next_run_ms.get(kind, 0), now_ms) or When(why_no_next_run(status, kind)),
        last_success=_when(status.last_success_ms.get(kind, 0), now_ms) or When("never"),
        verdict=verdict,
        is_bad=verdict not in _GOOD_VERDICTS,
    )


def _when(at_ms: int, now_ms: int) -> When | None:
    text = utc_text(at_ms)
    if not text:
        return None
    return When(text, f"{duration(now_ms - at_ms)} ago" if at_ms <= now_ms else f"in {duration(at_ms - now_ms)}")


def _paused(pause: KindPause | None) -> str:
    if pause is None:
        return ""
    until = utc_text(pause.until_ms)
    return f" (paused until {until})" if until else " (paused)"


def _backlog(status: ServiceStatus, now_ms: int) -> Sequence[StatusBacklogLine]:
    backlog = status.backlog
    lines = [
        StatusBacklogLine(
            severity.label.replace("_", " "),
            part.ledgers,
            size(part.bytes_estimate),
            _when(part.oldest_ms, now_ms) or When(),
        )
        for severity, part in sorted(backlog.severities.items())
    ]
    if backlog.healthy.ledgers:
        lines.append(StatusBacklogLine("healthy again", backlog.healthy.ledgers))
    if backlog.unreadable:
        lines.append(StatusBacklogLine("unreadable", backlog.unreadable))
    return lines


def _run(run: RunRecord, now_ms: int) -> StatusRunLine:
    progress = "" if run.state.is_final else f": {run.phase} {run.done}/{run.total or '?'}"
    return StatusRunLine(
        run_id=run.run_id,
        quoted_id=quote(run.run_id, safe=""),
        kind=run.kind_text,
        state=f"{run.state.value}{progress}",
        started=_when(run.started_ms, now_ms) or When(),
        took=duration((run.finished_ms or now_ms) - run.started_ms) if run.started_ms else "",
        started_by=run.started_by,
        verdict=run.verdict,
        is_bad=run.state is RunState.FAILED or run.verdict not in _GOOD_VERDICTS,
        has_report=bool(run.report),
        detail=run.detail,
    )
