"""The changes between two runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.metadata.bookies.registration import BookieState
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.counts import BookieCount, SeverityCount
from spark_jobs.report.diff import BookieChanges, Change, DifferentReportsError, diff
from spark_jobs.report.summary import ClusterName, RunSummary
from tests.worlds import report as world


def of(summary: RunSummary, *, run: str = "", **states: BookieState) -> RunSummary:
    bookies = tuple(BookieCount(name, state, True, 1, 1, 0, 0) for name, state in states.items())
    return replace(summary, run_id=run or summary.run_id, bookies=bookies)


def test_a_run_does_not_differ_from_itself() -> None:
    for summary in (world.CLEAN, world.NO_LIVE_COPY, world.HELD, world.REPLICAS):
        assert diff(summary, summary).is_empty


def test_bookies_are_grouped_by_their_change_of_state() -> None:
    up, read_only, down = BookieState.WRITABLE, BookieState.READ_ONLY, BookieState.UNREGISTERED
    old = of(world.CLEAN, goes=up, returns=down, fills=up, empties=read_only, leaves=down, stays=up, ro_goes=read_only)
    new = of(world.CLEAN, goes=down, returns=read_only, fills=read_only, empties=up, joins=up, stays=up, ro_goes=down)
    assert diff(old, new).bookies == BookieChanges(
        lost=("goes", "ro_goes"),
        returned=("returns",),
        joined=("joins",),
        forgotten=("leaves",),
        turned_read_only=("fills",),
        turned_writable=("empties",),
    )


def test_new_and_resolved_findings_are_listed_by_severity() -> None:
    old = replace(
        world.CLEAN,
        severities=(SeverityCount(Severity.CRITICAL, 3, 3, 0), SeverityCount(Severity.METADATA_ONLY, 4, 4, 0)),
    )
    new = replace(
        world.CLEAN,
        severities=(SeverityCount(Severity.NO_LIVE_COPY, 1, 1, 0), SeverityCount(Severity.METADATA_ONLY, 4, 9, 0)),
        counts=replace(world.CLEAN.counts, ledgers=1300, unreadable=2),
    )
    changes = diff(old, new)
    assert list(changes.severities.items()) == [
        (Severity.NO_LIVE_COPY, Change(0, 1)),
        (Severity.CRITICAL, Change(3, 0)),
        (Severity.METADATA_ONLY, Change(4, 4)),
    ]
    assert (changes.ledgers, changes.unreadable) == (Change(1284, 1300), Change(0, 2))
    assert changes.severities[Severity.CRITICAL].by == -3
    assert changes.to_json()["findings"][1] == {"severity": "critical", "before": 3, "now": 0, "change": -3}
    assert not changes.is_empty


def test_new_ledgers_among_the_worst_are_listed() -> None:
    assert diff(world.UNDER_REPLICATED, world.NO_LIVE_COPY).worst_appeared == (42, 99)


def test_a_run_held_by_the_brake_is_compared_only_by_its_bookies() -> None:
    changes = diff(world.CLEAN, world.HELD)
    assert (changes.ledgers, changes.severities, changes.worst_appeared) == (None, {}, ())
    assert len(changes.bookies.lost) == 7
    assert changes.caveats == ("the brake held the later run, so only bookies are compared",)


def test_numbers_of_an_incomplete_run_come_with_a_caveat() -> None:
    changes = diff(world.INCOMPLETE, world.UNDER_REPLICATED)
    assert "may be too low" in changes.caveats[0]
    assert changes.ledgers is not None


def test_replica_checks_of_different_ledgers_come_with_a_caveat() -> None:
    assert world.REPLICAS.replicas is not None
    sample = replace(world.REPLICAS, replicas=replace(world.REPLICAS.replicas, sample=0.1))
    assert "another range or sample" in diff(world.REPLICAS, sample).caveats[0]
    assert diff(world.REPLICAS, world.REPLICAS).caveats == ()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(world.CLEAN, kind=RunKind.PLACEMENT), "compare two of a kind"),
        (replace(world.CLEAN, cluster=ClusterName("zk://other/ledgers", "other")), "different clusters"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(other: RunSummary, why: str) -> None:
    with pytest.raises(DifferentReportsError, match=why):
        diff(world.CLEAN, other)
