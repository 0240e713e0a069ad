"""Why findings and tasks differ for one ledger, from a second check, and what earlier reports contain about a loss."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from bookie.metadata.bookies.registration import Bookies, BookieState
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.underreplication import UnreadableTask
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from spark_jobs.connect import Connection
from spark_jobs.report.counts import BookieCount, LedgerCounts, PublishOutcome, PublishResult
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.shadow.reasons import (
    Agreement,
    ClusterAtSecondLook,
    Difference,
    LedgerAtSecondLook,
    Reason,
    present_difference,
)
from spark_jobs.shadow.second_look import Loss, SecondLook, losses
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster

LEDGER = LedgerId(7)


def ids(text: str) -> frozenset[BookieId]:
    return frozenset(map(BookieId, text))


def ledger(members: str) -> Versioned:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, members)))
    return Versioned(LEDGER, LedgerMetadata(len(members), 2, 2, (fragment,)).closed(EntryId(9), 100), 3)


def task(missing: str, ctime_ms: int = 1_000) -> Task:
    return Task(LEDGER, tuple(map(BookieId, missing)), ctime_ms, 0)


def around(
    registered: str = "abc",
    draining: str = "",
    waiting: str = "",
    new: str = "",
    lost_in_run: str = "",
    *,
    is_disabled: bool = False,
    leader: str = "apache:3181",
    registered_ms: int = 500,
) -> ClusterAtSecondLook:
    bookies = Bookies(ids(registered), frozenset()).with_draining(ids(draining))
    since = dict.fromkeys(ids(registered), registered_ms)
    return ClusterAtSecondLook(bookies, since, ids(waiting), ids(new), ids(lost_in_run), is_disabled, leader)


def reason(
    second: tuple[Versioned | Unreadable | None, Task | UnreadableTask | None],
    cluster: ClusterAtSecondLook,
    first: Agreement = Agreement.ONLY_HERE,
) -> tuple[Agreement, Reason] | None:
    found = present_difference(first, LedgerAtSecondLook(LEDGER, *second), cluster)
    return None if found is None else (found.outcome, found.reason)


def test_a_lost_bookie_that_an_auditor_should_have_marked_is_not_explained() -> None:
    assert reason((ledger("abx"), None), around()) == (Agreement.ONLY_HERE, Reason.NOT_MARKED)
    assert reason((ledger("abx"), task("y")), around()) == (Agreement.DIFFER, Reason.NOT_MARKED)
    assert reason((ledger("abx"), task("")), around()) == (Agreement.DIFFER, Reason.NOT_MARKED)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (around(is_disabled=True), Reason.DISABLED),
        (around(waiting="x"), Reason.WITHIN_DELAY),
        (around(leader=""), Reason.NO_AUDITOR),
        (around(new="x"), Reason.NEW_LOSS),
        (around(waiting="x", is_disabled=True), Reason.DISABLED),
        (around(waiting="y"), Reason.NOT_MARKED),
    ],
)
def test_a_condition_that_prevents_marking_explains_a_difference(
    cluster: ClusterAtSecondLook, expected: Reason
) -> None:
    assert reason((ledger("abx"), None), cluster) == (Agreement.ONLY_HERE, expected)


def test_a_difference_is_not_explained_if_the_delay_of_one_of_two_bookies_is_over() -> None:
    assert reason((ledger("axy"), None), around(waiting="x")) == (Agreement.ONLY_HERE, Reason.NOT_MARKED)
    assert reason((ledger("axy"), None), around(waiting="x", new="y")) == (Agreement.ONLY_HERE, Reason.NEW_LOSS)
    assert reason((ledger("axy"), task("y")), around(waiting="x")) == (Agreement.DIFFER, Reason.WITHIN_DELAY)


def test_a_difference_that_has_resolved_itself_is_not_reported() -> None:
    for first in (Agreement.ONLY_HERE, Agreement.DIFFER):
        assert reason((ledger("abx"), task("x")), around(), first) is None  # marked in the meantime
        assert reason((ledger("abx"), task("yx")), around(), first) is None  # a task may name more bookies
    assert reason((None, None), around()) is None  # deleted
    assert reason((ledger("abc"), None), around()) is None  # the bookie returned, or the ledger was repaired
    assert reason((ledger("abc"), None), around(), Agreement.ONLY_THERE) is None  # completed
    assert reason((ledger("abx"), task("x")), around(), Agreement.ONLY_THERE) is None  # lost after the run


def test_a_drain_explains_only_differences_on_our_side() -> None:
    assert reason((ledger("abc"), None), around(draining="c")) == (Agreement.ONLY_HERE, Reason.DRAIN)
    assert reason((ledger("abc"), task("")), around(draining="c")) == (Agreement.DIFFER, Reason.DRAIN)
    assert reason((ledger("abc"), task("c")), around(draining="c"), Agreement.ONLY_THERE) is None
    assert reason((ledger("acx"), task("x")), around(draining="c"), Agreement.DIFFER) is None


@pytest.mark.parametrize(
    ("members", "marked", "registered_ms", "expected"),
    [
        ("abc", task("c"), 2_000, Reason.BOOKIE_RETURNED),
        ("abc", task("c", -1), 500, Reason.BOOKIE_RETURNED),
        ("abc", task("c"), 500, Reason.MISSING_ENTRIES),
        ("abc", task("x"), 500, Reason.HEALED),
        ("abc", task(""), 500, Reason.PLACEMENT_MARK),
    ],
)
def test_a_task_without_a_loss_is_explained(members: str, marked: Task, registered_ms: int, expected: Reason) -> None:
    found = reason((ledger(members), marked), around(registered_ms=registered_ms), Agreement.ONLY_THERE)
    assert found == (Agreement.ONLY_THERE, expected)
    assert expected.is_explained


def test_a_task_of_a_deleted_ledger_is_explained_and_one_of_unreadable_metadata_is_not() -> None:
    there = Agreement.ONLY_THERE
    assert reason((None, task("x")), around(), there) == (there, Reason.LEDGER_DELETED)
    assert reason((Unreadable(LEDGER, "?"), task("x")), around(), there) == (there, Reason.UNREADABLE_METADATA)
    assert not Reason.UNREADABLE_METADATA.is_explained


def test_an_unreadable_task_is_never_agreement() -> None:
    broken = UnreadableTask(LEDGER, "?")
    assert reason((ledger("abx"), broken), around()) == (Agreement.DIFFER, Reason.UNREADABLE_TASK)
    assert reason((ledger("abc"), broken), around()) == (Agreement.ONLY_THERE, Reason.UNREADABLE_TASK)


def test_a_loss_that_the_run_should_have_found_is_not_explained_away() -> None:
    found = reason((ledger("abx"), task("x")), around(lost_in_run="x"), Agreement.ONLY_THERE)
    assert found == (Agreement.ONLY_THERE, Reason.OVERLOOKED)
    assert not Reason.OVERLOOKED.is_explained
    assert reason((ledger("abx"), task("x")), around(lost_in_run="x"), Agreement.ONLY_HERE) is None


def test_a_task_for_an_accepted_loss_is_explained_and_one_for_any_other_loss_is_not() -> None:
    def outcome(
        members: str, named: str | None, *accepted: tuple[int, str], ctime_ms: int | None = None
    ) -> tuple[Agreement, Reason] | None:
        positions, bookies = zip(*accepted, strict=True)
        lost = LostFragment(EntryId(0), EntryId(9), positions, tuple(map(BookieId, bookies)))
        decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "me", 1, "fire", lost=(lost,), ledger_ctime_ms=ctime_ms)
        cluster = replace(around(lost_in_run="xy"), accepted={LEDGER: decision})
        marked = None if named is None else task(named)
        return reason(
            (ledger(members), marked), cluster, Agreement.ONLY_HERE if named is None else Agreement.ONLY_THERE
        )

    assert outcome("xy", "xy", (0, "x"), (1, "y")) == (Agreement.ONLY_THERE, Reason.LOSS_ACCEPTED)
    assert Reason.LOSS_ACCEPTED.is_explained
    assert outcome("xy", None, (0, "x"), (1, "y")) is None
    of_deleted_ledger = outcome("xy", None, (0, "x"), (1, "y"), ctime_ms=5)
    assert of_deleted_ledger == (Agreement.ONLY_HERE, Reason.NOT_MARKED)
    for other in ([(0, "x")], [(1, "x"), (0, "y")]):
        assert outcome("xy", "xy", *other) == (Agreement.ONLY_THERE, Reason.OVERLOOKED)
        assert outcome("xy", None, *other) == (Agreement.ONLY_HERE, Reason.NOT_MARKED)


def test_a_loss_that_no_task_names_is_never_agreement() -> None:
    """Every small combination of states, with each result of the first check."""
    worlds = itertools.product(
        Agreement, ("abx", "axy"), (None, "", "x", "y", "a"), ("", "c"), ("", "x"), (True, False)
    )
    for first, members, named, draining, waiting, is_disabled in worlds:
        cluster = around(draining=draining, waiting=waiting, is_disabled=is_disabled)
        marked = None if named is None else task(named)
        lost = ids(members) - ids("abc")
        found = present_difference(first, LedgerAtSecondLook(LEDGER, ledger(members), marked), cluster)
        assert (found is None) == (marked is not None and lost <= set(marked.missing))


def test_a_difference_names_the_missing_bookies_and_the_mark() -> None:
    found = present_difference(Agreement.DIFFER, LedgerAtSecondLook(LEDGER, ledger("ayx"), task("z")), around())
    assert found == Difference(
        LEDGER, Agreement.DIFFER, Reason.NOT_MARKED, (BookieId("x"), BookieId("y")), (BookieId("z"),), 1_000
    )


def report(number: int, registered: str, *, problem: str = "", instance: str = "i") -> RunSummary:
    """Run ``number`` began at 10 times its number and lasted 5."""
    states = {bookie: BookieState.WRITABLE if bookie in registered else BookieState.UNREGISTERED for bookie in "abx"}
    return RunSummary(
        f"run{number}", ClusterName("zk://h/l", instance), number * 10, number * 10 + 5,
        LedgerCounts(1, 1, 0, 0, 0, 0, 1), (),
        tuple(BookieCount(bookie, state, True, 0, 0, 0, 0) for bookie, state in states.items()), (),
        PublishResult(PublishOutcome.DRY_RUN), problems=(problem,) if problem else (), kind=RunKind.BOOKIES,
    )  # fmt: skip


def test_earlier_reports_show_since_when_a_bookie_is_missing() -> None:
    runs = [report(5, "ab"), report(4, "ab"), report(3, "ab"), report(2, "abx"), report(1, "ab")]
    assert losses(runs, "i") == {"x": Loss(since_ms=35, seen_ms=20)}


def test_reports_of_other_clusters_and_partial_reports_are_ignored() -> None:
    runs = [report(3, "ab"), report(2, "ab", problem="?"), report(1, "abx", instance="other")]
    assert losses(runs, "i") == {"x": Loss(since_ms=35)}
    assert losses([], "i") == {}
    assert losses([report(1, "abx")], "i") == {}


def test_the_second_check_reads_valid_accepted_losses() -> None:
    cluster = CommandCluster()

    async def accept(*bookies: str) -> Connection:
        lost = LostFragment(EntryId(0), EntryId(9), (0, 1), tuple(map(BookieId, bookies)))
        decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "me", 1, "fire", lost=(lost,))
        await cluster.keeper.multi([await Decisions(cluster.keeper, ROOT).writing(decision)])
        return Connection(cluster.keeper, await open_cluster(cluster.keeper, ROOT))

    with asyncio.Runner() as runner:
        runner.run(cluster.fill())
        for bookies, reason_found in (("ab", Reason.LOSS_ACCEPTED), ("ac", Reason.OVERLOOKED)):
            second_look = SecondLook(runner, runner.run(accept(*bookies)), cluster.clock, {}, ids("ab"), 0)
            (second,), seen = second_look.read_state([LEDGER])
            found = present_difference(Agreement.ONLY_THERE, second, seen)
            assert found is not None
            assert found.reason is reason_found, "c is registered, so the second acceptance is not valid"
