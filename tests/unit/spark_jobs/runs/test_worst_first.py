"""The ledgers that wait for the end of a check in chunks (R73): pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bookie.metadata.ledgers.serde import encode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.marking.repaired_since import unrepaired
from spark_jobs.runs.marking.worst_first import WaitingLedgers, place_of
from tests.worlds.ledgers import make_metadata, names

GONE = names("gone")


def ledger(ledger_id: int, rank: int) -> LedgerWithFindings:
    return LedgerWithFindings(LedgerId(ledger_id), tuple(GONE), (), 10, rank)


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_ledgers_of_all_chunks_wait_and_the_others_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    ledgers = [ledger(number, rng.randrange(4)) for number in range(rng.randrange(60))]
    waiting = WaitingLedgers(10)
    for start in range(0, len(ledgers), 7):
        waiting.add(ledgers[start : start + 7])
        assert len(waiting) < 20
    expected = sorted(ledgers, key=place_of)
    assert [marking[0] for marking, _ in waiting.in_order()] == [each.ledger_id for each in expected[:10]]
    assert waiting.left == max(0, len(ledgers) - 10)
    first = place_of(expected[10]) if len(expected) > 10 else None
    assert waiting.first_not_marked(None) == first
    if expected:
        assert waiting.first_not_marked(expected[0].ledger_id) == place_of(expected[0])


def test_ledgers_with_one_copy_left_do_not_wait_while_there_is_room() -> None:
    waiting = WaitingLedgers(2)
    critical = [ledger(number, Severity.CRITICAL) for number in range(3)]
    without_copies = ledger(9, Severity.NO_LIVE_COPY)
    waiting.add(critical)
    assert [waiting.is_urgent(each) for each in (critical[0], without_copies)] == [True, False]
    waiting.note_marked([(each.ledger_id, each.missing) for each in critical[:2]])
    assert (waiting.marked, waiting.is_urgent(critical[2])) == ({0, 1}, False)
    waiting.add([without_copies])
    assert [marking[0] for marking, _ in waiting.in_order()] == [9, 2]


def test_a_chunk_that_is_read_again_replaces_its_ledgers() -> None:
    waiting = WaitingLedgers()
    waiting.add([ledger(1, 2), ledger(2, 3)])
    waiting.add([ledger(1, 4), ledger(2, 3)])
    assert [marking[0] for marking, _ in waiting.in_order()] == [2, 1]


def test_ledgers_that_were_deleted_or_repaired_while_they_waited_are_left_out() -> None:
    class Cluster:
        def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
            return [ledger_id == 4 for ledger_id, _ in batch]

        def ledger_data(self, ids: Sequence[LedgerId]) -> Sequence[bytes | str | None]:
            members = {LedgerId(1): "gone a", LedgerId(2): "a b"}
            made = {each: encode(make_metadata((0, names), quorum=(2, 2), last=9)) for each, names in members.items()}
            return [made.get(each) for each in ids]

    due = [((LedgerId(number), (BookieId("gone"),)), 1) for number in (1, 2, 3, 4)]
    assert [marking[0] for marking, _ in unrepaired(due, Cluster(), 3)] == [1, 4]
