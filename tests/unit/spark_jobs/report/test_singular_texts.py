"""Texts about one ledger, one entry or one bookie use the singular."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from bookie.model.run import RunKind
from spark_jobs.report.console import table
from spark_jobs.report.counts import DriverMarksCounts, ImageCounts, PublishOutcome, SnapshotCounts
from spark_jobs.report.page.render import render_report
from spark_jobs.report.summary import RunSummary
from tests.worlds import report as world

PLURAL = re.compile(
    r"(?<![\d,.:/-])1 (?:(?:more|damaged|metadata|known) )*(?:ledgers|entries|bookies|marks|fragments|copies|racks|"
    r"nodes|references|answers|ensembles|rows|lists)\b[^\"<]{0,40}|"
    r"(?<!of )\b1 (?:ledger|fragment|bookie) (?:are|have|were|come|do)\b"
)


def ones(value: Any) -> Any:
    """Return a copy with every number replaced by 1."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: ones(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
        return type(value)(**fields)
    if isinstance(value, tuple):
        return tuple(map(ones, value))
    if isinstance(value, dict):
        return {name: ones(each) for name, each in value.items()}
    return 1 if type(value) is int else value


FULL = dataclasses.replace(
    world.EVERYTHING,
    driver_marks=DriverMarksCounts(7, 5, 1, 2),
    image=ImageCounts(marked=5, carried=5, carried_from_ms=1),
    waiting=world.WAITING.waiting,
    replicas=world.REPLICAS.replicas,
    references=world.REFERENCES.references,
    impact=world.MANY.impact,
)
SUMMARIES = [ones(each) for each in (world.UNDER_REPLICATED, world.WAITING, world.REPLICAS, world.REFERENCES, FULL)]


@pytest.mark.parametrize("summary", SUMMARIES, ids=[f"{each.kind.value}, {each.verdict.value}" for each in SUMMARIES])
@pytest.mark.parametrize("outcome", list(PublishOutcome))
def test_texts_of_a_run_with_counts_of_one_are_in_the_singular(summary: RunSummary, outcome: PublishOutcome) -> None:
    """Headings and table cells have no noun next to the number."""
    published = dataclasses.replace(summary.published, outcome=outcome, damage_marked=1, repaired_early=1)
    shown = dataclasses.replace(summary, published=published, snapshot=SnapshotCounts("snapshot", 1, 1, 1, 1))
    texts = [table(shown), *(render(dataclasses.replace(shown, kind=kind)) for kind in RunKind)]
    assert [found.group() for text in texts for found in PLURAL.finditer(text)] == []


def render(summary: RunSummary) -> str:
    return render_report(summary, None, [], None).decode()
