"""The HTML pages: one for a run, and the index of all runs. Self-contained, without scripts and without a network.

Everything is escaped; ids and texts come from bookies, metadata and older files. The policy in each page allows only
its own style sheet, by its hash. So even a mistake in escaping cannot run or load anything.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup

from bookie.model.severity import Severity
from bookie.model.times import utc_text
from bookie.model.topology import Topology
from bookie.runtime.human import agreeing, duration, size
from spark_jobs.pages import page_environment, style_hash
from spark_jobs.report.diff import has_checked
from spark_jobs.report.page.severities import ledgers_found
from spark_jobs.report.page.view import page_view
from spark_jobs.report.page.words import KIND_NAMES, MEANINGS, SEVERITY_NAMES, Headline, headline
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables.run_tables import TrendPoint
from spark_jobs.report.text import number, numbered, plain, signed, some

_TEMPLATES: Final = files("spark_jobs.report.page").joinpath("html")
_SHAPES: Final = {
    severity: "oct"
    if severity <= Severity.NO_LIVE_COPY
    else "tri"
    if severity is Severity.CRITICAL
    else "dia"
    if severity <= Severity.BELOW_WRITE_QUORUM
    else "dot"
    for severity in Severity
}


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A run in the index."""

    summary: RunSummary
    kind: str
    headline: Headline
    took: str
    found: int
    is_checked: bool


def render_report(
    run: RunSummary, previous: RunSummary | None, trend: Sequence[TrendPoint], topology: Topology | None
) -> bytes:
    """Return the page of a run; the arguments are those of ``page_view``."""
    return _render("report.html", run=run, page=page_view(run, previous, trend, topology))


def render_index(runs: Sequence[RunSummary]) -> bytes:
    """Return the index of runs, with the runs given newest first."""
    rows = [
        IndexRow(
            run,
            KIND_NAMES[run.kind],
            headline(run),
            duration(max(run.finished_ms - run.started_ms, 0)),
            ledgers_found(run),
            has_checked(run),
        )
        for run in runs
    ]
    clusters = {run.cluster.instance_id for run in runs}
    newest = {(row.summary.cluster.instance_id, row.kind): row for row in reversed(rows)}
    ordered = sorted(newest.values(), key=lambda row: row.summary.run_id, reverse=True)
    return _render("index.html", runs=rows, newest=ordered, has_clusters=len(clusters) > 1)


def _render(name: str, **values: Any) -> bytes:
    css = _TEMPLATES.joinpath("report.css").read_text(encoding="utf-8")
    text = (
        _environment()
        .get_template(name)
        .render(
            **values,
            css=Markup(css),  # noqa: S704 - our own file
            css_hash=style_hash(css),
            version=version("bkheal"),
            names=SEVERITY_NAMES,
            meanings=MEANINGS,
            shapes=_SHAPES,
        )
    )
    return text.lstrip().encode()


@functools.cache
def _environment() -> Environment:
    environment = page_environment(_TEMPLATES, plain)
    environment.filters |= {
        "number": number,
        "numbered": numbered,
        "agreeing": agreeing,
        "signed": signed,
        "size": size,
        "when": utc_text,
        "some": some,
    }
    return environment
