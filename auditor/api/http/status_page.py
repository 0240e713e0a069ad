"""The plain page at ``/status``: no script, nothing loaded, everything escaped. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final
from urllib.parse import quote

from auditor.api.control import ServiceStatus, why_no_next_run
from bookie.model.run import RunKind, RunRecord
from bookie.model.times import rfc3339_if_known

_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;"
    "padding:0 1rem}table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:left;padding:.2rem .8rem "
    ".2rem 0;border-bottom:1px solid #8884;vertical-align:top}.bad{font-weight:bold;color:#c22}"
)
_LINKS: Final = (
    '<p><a href="reports/">Reports</a> &middot; <a href="api/v1/status">JSON</a> &middot; '
    '<a href="metrics">Metrics</a> &middot; <a href="openapi.json">API</a></p>'
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page and the policy to send it with."""

    html: str
    policy: str


def status_page(status: ServiceStatus, runs: Sequence[RunRecord]) -> Page:
    """The page for people."""
    body = "".join(
        [
            f"<h1>Auditor of {escape(status.metadata_uri)}</h1>",
            _pairs(_facts(status)),
            "<h2>Checks</h2>",
            _table(("Check", "Next", "Last success", "Last verdict"), (_check(status, kind) for kind in RunKind)),
            "<h2>Marked for repair</h2>",
            _table(("Severity", "Ledgers", "Oldest mark"), _backlog(status)),
            "<h2>Runs</h2>",
            _table(("Run", "Kind", "State", "Asked by", "Progress", "Verdict", "Detail"), map(_run, runs)),
            _LINKS,
        ]
    )
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>bkheal auditor</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )
    return Page(html, f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'")


def _facts(status: ServiceStatus) -> list[tuple[str, str]]:
    role = "leads" if status.is_leader else f"follows {status.leader or 'nobody known'}"
    lost = ", ".join(lost.bookie_id for lost in status.lost)
    facts = [
        ("This process", f"{escape(status.process)} {escape(role)}, version {escape(status.version)}"),
        ("Metadata store", "connected" if status.is_store_connected else _bad("no connection")),
        ("Recovery", "enabled" if status.is_recovery_enabled else _bad("disabled")),
        ("Lost-bookie delay", f"{status.lost_bookie_delay_s} s"),
        ("Bookies", f"{len(status.writable)} writable, {len(status.read_only)} read-only, {len(status.lost)} lost"),
    ]
    if lost:
        facts.append(("Lost", _bad(lost)))
    if status.held_because:
        facts.append(("Held", _bad(status.held_because)))
    facts += [("Refused", _bad(problem)) for problem in status.problems]
    return facts


def _check(status: ServiceStatus, kind: RunKind) -> tuple[str, ...]:
    last = status.last.get(kind)
    upcoming = rfc3339_if_known(status.next_run_ms.get(kind, 0)) or why_no_next_run(status, kind)
    success = rfc3339_if_known(status.last_success_ms.get(kind, 0)) or "never"
    verdict = "" if last is None else last.verdict or last.state.value
    paused = " (paused)" if kind in status.paused_kinds else ""
    return (escape(kind.value + paused), escape(upcoming), success, escape(verdict))


def _backlog(status: ServiceStatus) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (severity.name.lower().replace("_", " "), str(part.ledgers), rfc3339_if_known(part.oldest_ms) or "")
        for severity, part in sorted(status.backlog.severities.items())
    ]
    rows.append(("healthy again", str(status.backlog.healthy.ledgers), ""))
    rows.append(("unreadable", str(status.backlog.unreadable), ""))
    return rows


def _run(run: RunRecord) -> tuple[str, ...]:
    progress = f"{run.phase} {run.done}/{run.total or '?'}" if not run.state.is_final else ""
    link = f'<a href="api/v1/runs/{quote(run.run_id, safe="")}">{escape(run.run_id)}</a>'
    verdict = escape(run.verdict)
    if run.report:
        verdict = f'<a href="reports/{quote(run.run_id, safe="")}/">{verdict or "report"}</a>'
    texts = (run.kind.value, run.state.value, f"{run.owner} ({run.cause.value})", progress)
    return (link, *map(escape, texts), verdict, escape(run.detail))


def _bad(text: str) -> str:
    return f'<span class="bad">{escape(text)}</span>'


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows) + "</table>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
