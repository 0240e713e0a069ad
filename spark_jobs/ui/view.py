"""The content of the tab's page as plain values for its template, with names and numbers as words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.run import RunKind, RunRecord, RunState
from bookie.model.times import utc_text
from bookie.runtime.human import duration, size
from spark_jobs.pages import marked_text
from spark_jobs.ui.port import BacklogRow, Fact, KindRow, RunView, TabState
from spark_jobs.ui.routes import API_PATH, RUNS_PATH, TAB_PATH
from spark_jobs.ui.rules import safe_link
from spark_jobs.ui.settings import TabSettings

_DETAIL_MAX: Final = 240
_CHECK_DESCRIPTIONS: Final = {
    RunKind.BOOKIES.value: "all ledger metadata against the registered bookies",
    RunKind.PLACEMENT.value: "all ensembles against the rack, zone and region policy",
    RunKind.REPLICAS.value: "every entry, asked of each bookie that should hold it",
    RunKind.REFERENCES.value: "all ledgers against what Pulsar refers to",
    RunKind.EVERYTHING.value: "bookies, placement, the metadata itself and what bookies hold, with one reading",
}
_GOOD_VERDICTS: Final = ("", "clean")


@dataclass(frozen=True, slots=True)
class PageInput:
    """All values that a page depends on."""

    state: TabState | None
    settings: TabSettings
    now_ms: int
    base: str = ""
    """Prefix of links; see ``rules.safe_base``."""
    trouble: str = ""
    """Why the state is old or missing."""
    no_buttons: str = ""
    """Why this person sees no buttons; empty: the person sees them."""
    token: str = ""
    last_request: str = ""
    """The last request through this tab, and its answer."""


@dataclass(frozen=True, slots=True)
class Button:
    """A button for a run."""

    action: str
    """Path to which the button posts."""
    label: str


@dataclass(frozen=True, slots=True)
class KindLine:
    """A line for a kind of audit."""

    kind: str
    is_startable: bool
    why_not: str
    asks: str
    last_success: str
    last_distance: str
    """How long ago that was; empty: never, or not known."""
    next: str
    next_distance: str
    """How long it is until then; empty: the time is not known."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    words: str
    percent: int


@dataclass(frozen=True, slots=True)
class RunLine:
    """A line for a run."""

    run_id: str
    link: str
    """Target of a link to the report; empty: no link."""
    kind: str
    state: str
    progress: Progress | None
    """None: the run has ended."""
    buttons: Sequence[Button]
    verdict: str
    is_bad: bool
    detail: str
    started: str
    took: str
    started_by: str


@dataclass(frozen=True, slots=True)
class BacklogLine:
    """Marked ledgers of one severity."""

    severity: str
    name: str
    ledgers: int
    size: str
    oldest: str


@dataclass(frozen=True, slots=True)
class TabView:
    """The values of the page."""

    refresh_s: int
    home: str
    """Path of the tab."""
    start: str
    """Path to which the request for a new run is posted."""
    token: str
    trouble: str
    last_request: str
    no_buttons: str
    has_state: bool
    facts: Sequence[Fact]
    kinds: Sequence[KindLine]
    runs: Sequence[RunLine]
    backlog: Sequence[BacklogLine]
    marked: str
    """The number of marked ledgers, and what becomes of them; empty: no ledger is marked."""
    why_not_counted: str
    has_parked: bool


def page_view(given: PageInput) -> TabView:
    """Return the values of the page."""
    state = given.state or TabState(0)
    is_active = any(not run.record.state.is_final for run in state.runs)
    settings = given.settings
    api = given.base + API_PATH
    return TabView(
        refresh_s=settings.refresh_active_s if is_active or given.trouble else settings.refresh_idle_s,
        home=given.base + TAB_PATH,
        start=api + RUNS_PATH,
        token=given.token,
        trouble=given.trouble,
        last_request=given.last_request,
        no_buttons=given.no_buttons,
        has_state=given.state is not None,
        facts=(*state.facts, Fact("As of", utc_text(state.taken_ms))),
        kinds=[_kind_line(row, given.now_ms) for row in state.kinds],
        runs=[_run_line(run, given.now_ms, api) for run in state.runs[: settings.runs_shown]],
        backlog=[_backlog_line(row, given.now_ms) for row in state.backlog],
        marked=marked_text(sum(row.ledgers for row in state.backlog), state.in_progress, state.parked),
        why_not_counted=state.why_not_counted,
        has_parked=bool(state.parked),
    )


def _kind_line(row: KindRow, now_ms: int) -> KindLine:
    last_ms, next_ms = row.last_success_ms, row.next_ms
    return KindLine(
        kind=row.kind,
        is_startable=row.is_startable,
        why_not=row.why_not or "not now",
        asks=_CHECK_DESCRIPTIONS.get(row.kind, ""),
        last_success=utc_text(last_ms) or "never",
        last_distance=f"{duration(now_ms - last_ms)} ago" if last_ms else "",
        next=utc_text(next_ms) or row.why_no_next,
        next_distance=f"in {duration(next_ms - now_ms)}" if next_ms else "",
    )


def _run_line(run: RunView, now_ms: int, api: str) -> RunLine:
    record = run.record
    end_ms = record.finished_ms or now_ms
    return RunLine(
        run_id=record.run_id,
        link=safe_link(run.report_url),
        kind=record.kind_text,
        state=record.state.value,
        progress=None if record.state.is_final else _progress(record, now_ms),
        buttons=_buttons(record, f"{api}{RUNS_PATH}/{record.run_id}"),
        verdict=record.verdict,
        is_bad=record.state is RunState.FAILED or record.verdict not in _GOOD_VERDICTS,
        detail=record.detail[:_DETAIL_MAX] + ("…" if len(record.detail) > _DETAIL_MAX else ""),
        started=utc_text(record.started_ms),
        took=duration(end_ms - record.started_ms) if record.started_ms else "",
        started_by=record.started_by,
    )


def _progress(record: RunRecord, now_ms: int) -> Progress:
    count = f"{record.done}/{record.total}" if record.total else ""
    left_ms = (record.eta_ms or 0) - now_ms
    eta = f", about {duration(left_ms)} left" if left_ms > 0 else ""
    percent = min(100, 100 * record.done // record.total) if record.total > 0 else 0
    return Progress(f"{record.phase} {count}{eta}", percent)


def _buttons(record: RunRecord, path: str) -> Sequence[Button]:
    if record.state.is_final:
        return ()
    cancel = Button(f"{path}/cancel", "Cancel")
    if record.state is RunState.WAITING:
        return (cancel,)
    is_paused = record.state is RunState.PAUSED
    return (Button(f"{path}/resume", "Resume") if is_paused else Button(f"{path}/pause", "Pause"), cancel)


def _backlog_line(row: BacklogRow, now_ms: int) -> BacklogLine:
    return BacklogLine(
        severity=row.severity,
        name=row.severity.replace("_", " "),
        ledgers=row.ledgers,
        size=size(row.bytes_estimate),
        oldest=duration(now_ms - row.oldest_ms) + " ago" if row.oldest_ms else "",
    )
