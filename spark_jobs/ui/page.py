"""The tab's page as text: pure. Every value is escaped; classes are those of Spark's own pages.

There is no script, since Spark's content security policy allows none without a nonce: buttons are forms, and the page
is loaded again by a ``meta`` element, which browsers honour in a body too (Spark writes the head).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.run import RunKind, RunRecord, RunState
from bookie.model.times import utc_text
from bookie.runtime.human import duration, size
from spark_jobs.ui.port import BacklogRow, Fact, KindRow, RunView, TabState
from spark_jobs.ui.rules import safe_link
from spark_jobs.ui.settings import TabSettings

TAB_PATH: Final = "/auditor/"
API_PATH: Final = "/auditor/api"
_TABLE: Final = "table table-bordered table-sm table-striped"
_DETAIL_MAX: Final = 240
_ASKS: Final = {
    RunKind.BOOKIES.value: "all ledger metadata against the registered bookies",
    RunKind.PLACEMENT.value: "all ensembles against the rack, zone and region policy",
    RunKind.REPLICAS.value: "every entry, asked of each bookie that should hold it",
}
_GOOD_VERDICTS: Final = ("", "clean")
_BAD: Final = ' class="text-danger font-weight-bold fw-bold"'
"""Bold in Bootstrap 4 (Spark 4.1) and 5."""
_RUN_COLUMNS: Final = ("Run", "Audit", "State", "Verdict", "Started", "Duration", "Asked by")


@dataclass(frozen=True, slots=True)
class PageView:
    """All that a page depends on."""

    state: TabState | None
    settings: TabSettings
    now_ms: int
    base: str = ""
    """What links begin with; see ``rules.safe_base``."""
    trouble: str = ""
    """Why the state is old or missing."""
    no_buttons: str = ""
    """Why this person gets no buttons; empty: they get them."""
    token: str = ""
    last_request: str = ""
    """The last request through this tab, and its answer."""


def render_page(view: PageView) -> str:
    """The content below the navigation bar. Encodable as UTF-8 for any values."""
    return "\n".join(_parts(view)).encode(errors="replace").decode()


def render_notice(title: str, text: str, base: str) -> str:
    """A whole small page for an answer to a button that did nothing."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<link rel="stylesheet" href="{_text(base)}/static/bootstrap.min.css"></head><body class="container p-4">'
        f'<h3>{_text(title)}</h3><p>{_text(text)}</p><p><a href="{_text(base + TAB_PATH)}">Back to the tab</a></p>'
        "</body></html>"
    )


def _parts(view: PageView) -> Iterator[str]:
    state = view.state or TabState(0)
    is_active = any(not run.record.state.is_final for run in state.runs)
    seconds = view.settings.refresh_active_s if is_active or view.trouble else view.settings.refresh_idle_s
    yield f'<meta http-equiv="refresh" content="{seconds}; url={_text(view.base + TAB_PATH)}">'
    if view.trouble:
        yield f'<div class="alert alert-warning" id="auditor-trouble">{_text(view.trouble)}</div>'
    if view.last_request:
        yield f'<div class="alert alert-info" id="auditor-last-request">Last request: {_text(view.last_request)}</div>'
    if view.state is None:
        return
    yield _facts(state)
    yield "<h4>Audits</h4>"
    yield _table("auditor-kinds", ("Audit", "", "Checks", "Last complete", "Next"), _kind_rows(view, state))
    if view.no_buttons:
        yield f'<p class="text-muted" id="auditor-no-buttons">{_text(view.no_buttons)}</p>'
    yield "<h4>Runs</h4>"
    rows = (_run_row(view, run) for run in state.runs[: view.settings.runs_shown])
    yield _table("auditor-runs", _RUN_COLUMNS, rows)
    yield f"<h4>Waiting for repair ({sum(row.ledgers for row in state.backlog)} ledgers)</h4>"
    if state.backlog:
        rows = (_backlog_row(row, view.now_ms) for row in state.backlog)
        yield _table("auditor-backlog", ("Severity", "Ledgers", "Bytes, about", "Oldest mark"), rows)
    else:
        yield '<p id="auditor-backlog">No ledger is marked.</p>'


def _facts(state: TabState) -> str:
    facts = [*state.facts, Fact("As of", utc_text(state.taken_ms))]
    items = "".join(
        f"<li><strong>{_text(fact.label)}:</strong> <span{_BAD if fact.is_bad else ''}>{_text(fact.value)}</span></li>"
        for fact in facts
    )
    return f'<ul class="list-unstyled" id="auditor-facts">{items}</ul>'


def _kind_rows(view: PageView, state: TabState) -> Iterator[str]:
    for row in state.kinds:
        asks = _ASKS.get(row.kind, "")
        times = _ago(row.last_success_ms, view.now_ms), _next(row, view.now_ms)
        yield _row(_text(row.kind), _start_button(view, row), _text(asks), *times, key=f"kind-{row.kind}")


def _start_button(view: PageView, row: KindRow) -> str:
    if not row.is_startable:
        return f'<span class="text-muted">{_text(row.why_not or "not now")}</span>'
    return _form(view, "/v1/runs", "Run audit", "btn-primary", (("kind", row.kind),))


def _backlog_row(row: BacklogRow, now_ms: int) -> str:
    age = duration(now_ms - row.oldest_ms) + " ago" if row.oldest_ms else ""
    cells = (row.severity.replace("_", " "), row.ledgers, size(row.bytes_estimate), age)
    return _row(*map(_text, cells), key=f"backlog-{row.severity}")


def _run_row(view: PageView, run: RunView) -> str:
    record = run.record
    link = safe_link(run.report_url)
    name = f'<a href="{_text(link)}" rel="noopener">{_text(record.run_id)}</a>' if link else _text(record.run_id)
    end_ms = record.finished_ms or view.now_ms
    taken = duration(end_ms - record.started_ms) if record.started_ms else ""
    asked = f"{record.owner} ({record.cause.value})"
    kind = record.kind.value + (" (dry run)" if record.is_dry_run else "")
    return _row(
        name,
        _text(kind),
        _state_cell(view, record),
        _verdict_cell(record),
        _text(utc_text(record.started_ms)),
        _text(taken),
        _text(asked),
        key=f"run-{record.run_id}",
    )


def _state_cell(view: PageView, record: RunRecord) -> str:
    """State, progress, and buttons: not at the right margin, because Spark lays buttons for scrolling over a page."""
    if record.state.is_final:
        return _text(record.state.value)
    percent = min(100, 100 * record.done // record.total) if record.total > 0 else 0
    count = f"{record.done}/{record.total}" if record.total else ""
    left_ms = (record.eta_ms or 0) - view.now_ms
    eta = f", about {duration(left_ms)} left" if left_ms > 0 else ""
    bar = (
        f'<div class="progress" style="min-width: 12em"><div class="progress-bar" role="progressbar" '
        f'style="width: {percent}%" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100"></div></div>'
    )
    words = f"{record.state.value}: {record.phase} {count}{eta}"
    return f'{_text(words)}{bar}<div class="mt-1">{_run_buttons(view, record)}</div>'


def _verdict_cell(record: RunRecord) -> str:
    is_bad = record.state is RunState.FAILED or record.verdict not in _GOOD_VERDICTS
    verdict = f"<span{_BAD if is_bad else ''}>{_text(record.verdict)}</span>"
    detail = record.detail[:_DETAIL_MAX] + ("…" if len(record.detail) > _DETAIL_MAX else "")
    return f"{verdict}<div><small>{_text(detail)}</small></div>" if detail else verdict


def _run_buttons(view: PageView, record: RunRecord) -> str:
    if record.state.is_final:
        return ""
    hold = ("resume", "Resume") if record.state is RunState.PAUSED else ("pause", "Pause")
    verbs = (hold, ("cancel", "Cancel")) if record.state is not RunState.WAITING else (("cancel", "Cancel"),)
    path = f"/v1/runs/{record.run_id}"
    return " ".join(_form(view, f"{path}/{verb}", label, "btn-secondary") for verb, label in verbs)


def _form(view: PageView, path: str, label: str, style: str, fields: Sequence[tuple[str, str]] = ()) -> str:
    if view.no_buttons:
        return ""
    hidden = "".join(
        f'<input type="hidden" name="{_text(name)}" value="{_text(value)}">'
        for name, value in (("token", view.token), *fields)
    )
    return (
        f'<form method="post" action="{_text(view.base + API_PATH + path)}" style="display: inline">{hidden}'
        f'<button type="submit" class="btn btn-sm {style}">{_text(label)}</button></form>'
    )


def _table(element_id: str, header: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{_text(title)}</th>" for title in header)
    body = "".join(rows)
    return f'<table class="{_TABLE}" id="{element_id}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _row(*cells: str, key: str) -> str:
    return f'<tr id="auditor-{_text(key)}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _ago(epoch_ms: int, now_ms: int) -> str:
    return _text(f"{utc_text(epoch_ms)} ({duration(now_ms - epoch_ms)} ago)") if epoch_ms else "never"


def _next(row: KindRow, now_ms: int) -> str:
    return _text(f"{utc_text(row.next_ms)} (in {duration(row.next_ms - now_ms)})" if row.next_ms else row.why_no_next)


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)
