"""Publishing: batches, the disable switch, and a store that stops answering. The real core and the in-memory store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie.metadata.port import AccessDeniedError, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.tasks.decisions import Decision, DecisionKind, LostFragment
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId, EntryId, LedgerId
from spark_jobs.options.marking import RunLimits
from spark_jobs.report.counts import FindingSums, PublishOutcome, PublishResult
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds.bookie_run import BookieRun
from spark_jobs.runs.marking.accepted import AcceptedLosses
from spark_jobs.runs.marking.limits import DueLedger, MarkLimiter
from spark_jobs.runs.marking.publish import Marking, publish
from spark_jobs.runs.marking.withdrawal import LedgerIdSet
from spark_jobs.runs.port import OpenGate
from spark_jobs.runs.spark_failures import MetadataReadAgainError
from spark_jobs.settings import AuditSettings


def marking(number: int) -> Marking:
    return LedgerId(number), (BookieId("gone:3181"),)


class Tasks:
    """A stand-in for the under-replication tree that records its calls, and fails or is disabled after some batches."""

    def __init__(self, batches_max: int | None = None, error: Exception | None = None) -> None:
        self.marked: dict[LedgerId, tuple[BookieId, ...]] = {}
        self._batches_left = batches_max
        self._error = error

    def mark(self, batch: Sequence[Marking]) -> int | None:
        if self._batches_left is not None:
            if self._batches_left == 0:
                if self._error is not None:
                    raise self._error
                return None
            self._batches_left -= 1
        changed = sum(self.marked.get(ledger_id) != missing for ledger_id, missing in batch)
        self.marked.update(dict(batch))
        return changed


def test_everything_is_marked_in_order() -> None:
    tasks = Tasks()
    published = publish((marking(number) for number in (5, 3, 9)), tasks, 2)
    assert published == PublishResult(PublishOutcome.PUBLISHED, 3, 3)
    assert list(tasks.marked) == [5, 3, 9]


def test_publishing_again_changes_nothing() -> None:
    tasks = Tasks()
    publish([marking(1), marking(2)], tasks)
    assert publish([marking(1), marking(2)], tasks) == PublishResult(PublishOutcome.PUBLISHED, 2, 0)


def test_without_findings_nothing_is_published() -> None:
    assert publish([], Tasks()) == PublishResult(PublishOutcome.NOTHING_TO_PUBLISH, 0, 0)


def test_disabling_stops_before_the_next_batch_and_only_written_marks_are_logged() -> None:
    tasks = Tasks(batches_max=1)
    noted: list[Marking] = []
    published = publish([marking(number) for number in range(5)], tasks, 2, note=noted.extend)
    assert published == PublishResult(PublishOutcome.DISABLED, 2, 2)
    assert list(tasks.marked) == [0, 1]
    assert noted == [marking(0), marking(1)]


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("no answer"),
        WriteOutcomeUnknownError("answer lost"),
        ConflictError("it changes all the time"),
    ],
)
def test_a_store_that_stops_answering_ends_the_publication_with_the_marks_so_far(error: Exception) -> None:
    published = publish([marking(number) for number in range(5)], Tasks(2, error), 2)
    assert published == PublishResult(PublishOutcome.INTERRUPTED, 4, 4)


def test_a_store_that_stops_answering_about_existing_marks_ends_it_as_well() -> None:
    class Marks:
        answers = 2

        def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
            if not self.answers:
                raise StoreUnavailableError("no answer")
            self.answers -= 1
            return [False] * len(batch)

    limiter = MarkLimiter(RunLimits(marks_max=9), Marks(), batch_size=2)
    due = limiter.admitted((marking(number), 1) for number in range(9))
    assert publish(due, Tasks(), 2) == PublishResult(PublishOutcome.INTERRUPTED, 4, 4)


class NoMarks:
    """A stand-in for a tree of tasks without marks."""

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        return [False] * len(batch)


def limited_publish(limiter: MarkLimiter, tasks: Tasks, count: int = 9, error: Exception | None = None) -> None:
    def due() -> Iterator[DueLedger]:
        yield from ((marking(number), 1) for number in range(count))
        if error is not None:
            raise error

    with suppress(MetadataReadAgainError):
        publish(limiter.admitted(due()), tasks, 2, count=limiter.count)


@pytest.mark.parametrize("limits", [RunLimits(marks_max=5), RunLimits(bytes_max=5)])
def test_a_reading_that_ends_before_its_ledgers_are_marked_leaves_the_limit_to_the_next_one(limits: RunLimits) -> None:
    tasks, limiter = Tasks(), MarkLimiter(limits, NoMarks(), batch_size=1)
    limited_publish(limiter, tasks, 3, MetadataReadAgainError())
    assert list(tasks.marked) == [0, 1]
    limited_publish(limiter, tasks)
    assert list(tasks.marked) == [0, 1, 2]  # the stand-in has no marks, so the first two are new again


def test_ledgers_that_were_not_marked_because_repair_is_disabled_do_not_count() -> None:
    limiter = MarkLimiter(RunLimits(marks_max=2), NoMarks(), batch_size=1)
    limited_publish(limiter, Tasks(batches_max=0))
    tasks = Tasks()
    limited_publish(limiter, tasks)
    assert list(tasks.marked) == [0, 1]


def test_ledgers_that_may_be_marked_count() -> None:
    limiter = MarkLimiter(RunLimits(marks_max=2), NoMarks(), batch_size=1)
    limited_publish(limiter, Tasks(0, WriteOutcomeUnknownError("answer lost")))
    tasks = Tasks()
    limited_publish(limiter, tasks)
    assert not tasks.marked


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("no answer"),
        WriteOutcomeUnknownError("answer lost"),
        ConflictError("it changes all the time"),
        AccessDeniedError("its ACL does not allow this"),
    ],
)
def test_accepted_losses_that_cannot_be_withdrawn_do_not_fail_a_run(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their ledgers are marked nevertheless. The findings are not reported yet at that time."""

    class Cluster(Tasks):
        def withdraw_accepted(self, decisions: Sequence[Decision]) -> None:
            raise error

    lost = LostFragment(EntryId(0), EntryId(9), (0,), (BookieId("back:3181"),))
    decision = Decision(LedgerId(7), DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", None, (lost,))
    cluster = Cluster()
    context = SimpleNamespace(
        settings=AuditSettings("zk://h/ledgers", tmp_path),
        cluster=cluster,
        tasks=lambda phase, **_: nullcontext(),
        gate=OpenGate(),
        note_marks=lambda batch: None,
        progress=lambda event: None,
    )
    monkeypatch.setattr("spark_jobs.runs.kinds.bookie_run.to_mark", lambda ledgers: iter(()))
    judged = SimpleNamespace(ledgers=None, sums=FindingSums(), losses=AcceptedLosses((), (decision,)))
    run = BookieRun(cast(RunContext, context))
    published = run._publish(cast(Any, judged), MarkLimiter(RunLimits(), cast(Any, cluster)), LedgerIdSet())
    assert (published.outcome, cluster.marked) == (PublishOutcome.PUBLISHED, {7: (BookieId("back:3181"),)})


def test_at_most_one_batch_is_prefetched() -> None:
    taken = []

    def markings() -> object:
        for number in range(10):
            taken.append(number)
            yield marking(number)

    publish(markings(), Tasks(batches_max=0), 3)  # type: ignore[arg-type]
    assert taken == [0, 1, 2]
