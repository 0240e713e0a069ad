"""Withdrawal in a run: in limited steps, after the gate; the run is not affected if the store fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

import pytest

from bookie.metadata.port import AccessDeniedError, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.model.errors import ConflictError
from bookie.model.ids import LedgerId
from bookie.model.run import Ended, RunState
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.marking.withdrawal import LedgerIdSet, WithdrawalStep, withdraw_ended
from spark_jobs.runs.port import Gate, OpenGate, RunStoppedError


class Marks:
    """Marks of deleted ledgers; a step reads two of them."""

    def __init__(self, count: int, before_step: Callable[[], None] = lambda: None) -> None:
        self.left = list(map(LedgerId, range(count)))
        self._before_step = before_step

    def withdraw_step(self, after: LedgerId | None, count_max: int, found: Container[LedgerId]) -> WithdrawalStep:
        self._before_step()
        looked_at = [each for each in self.left if (after is None or each > after) and each not in found][:2]
        gone = looked_at[:count_max]
        next_after = looked_at[-1] if looked_at and looked_at[-1] != self.left[-1] else None
        self.left = [each for each in self.left if each not in gone]
        return WithdrawalStep(Counter({Ended.LEDGER_DELETED: len(gone)}), next_after)


def run(marks: Marks, gate: Gate | None = None, count_max: int = 100) -> dict[str, int]:
    return dict(withdraw_ended(marks, gate or OpenGate(), count_max))


def test_every_part_of_the_marks_is_checked() -> None:
    marks = Marks(7)
    assert (run(marks), marks.left) == ({"ledger_deleted": 7}, [])


def test_a_run_withdraws_a_bounded_number_and_the_next_run_the_rest() -> None:
    marks = Marks(7)
    assert (run(marks, count_max=5), marks.left) == ({"ledger_deleted": 5}, [5, 6])
    assert (run(marks, count_max=5), marks.left) == ({"ledger_deleted": 2}, [])


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("no answer"),
        WriteOutcomeUnknownError("answer lost"),
        AccessDeniedError("refused"),
        ConflictError("it changes all the time"),
    ],
)
def test_a_failing_store_ends_the_withdrawal_with_the_number_so_far(error: Exception) -> None:
    steps = 0

    def fail() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise error

    assert run(Marks(7, fail)) == {"ledger_deleted": 4}


def test_a_stopped_run_withdraws_no_further_part() -> None:
    gate = RunGate()
    marks = Marks(7, lambda: gate.stop(Stop("enough", RunState.CANCELLED)))
    with pytest.raises(RunStoppedError, match="enough"):
        run(marks, gate)
    assert marks.left == [2, 3, 4, 5, 6]


def test_the_ids_of_ledgers_with_findings_are_collected_in_passing() -> None:
    ids = [LedgerId(number) for number in (5, 1, 1 << 62, 3)]
    found = LedgerIdSet()
    assert LedgerId(5) not in found
    passed = [each.ledger_id for each in found.added(LedgerWithFindings(ledger_id, ()) for ledger_id in ids)]
    assert passed == ids
    assert [each for each in (0, 1, 2, 3, 4, 5, 6, 1 << 62, (1 << 63) - 1) if each in found] == [1, 3, 5, 1 << 62]
    early = LedgerIdSet()
    early.add(map(LedgerId, (1, 2, 4)))
    assert (early.count_outside(found), early.count_outside(LedgerIdSet()), LedgerIdSet().count_outside(found)) == (
        2,
        3,
        0,
    )
