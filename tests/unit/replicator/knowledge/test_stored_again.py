"""The number of copies that were stored again on the same bookie."""

from __future__ import annotations

import pytest

from bookie.model.ids import BookieId, LedgerId
from replicator.knowledge import stored_again
from replicator.knowledge.stored_again import STORED_AGAIN_MAX, RestoredCopyCounts


def test_the_oldest_count_is_forgotten_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_again, "COUNTS_MAX", 2)
    counts, bookie = RestoredCopyCounts(), BookieId("b")
    for _ in range(STORED_AGAIN_MAX):
        for number in (1, 2):
            counts.note(LedgerId(number), bookie)
    assert [counts.is_at_bound(LedgerId(number), bookie) for number in (1, 2)] == [True, True]
    assert not counts.is_at_bound(LedgerId(1), BookieId("c"))
    counts.note(LedgerId(3), bookie)
    assert [counts.is_at_bound(LedgerId(number), bookie) for number in (1, 2, 3)] == [False, True, False]
