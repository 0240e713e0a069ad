"""Signs that a member has lost acknowledged entries."""

from __future__ import annotations

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from replicator.knowledge.loss import acknowledged_sample, has_lost_entries
from tests.worlds.ledgers import make_metadata


@pytest.mark.parametrize(
    ("held", "is_lost"),
    [
        ([0, 1, 2, 3], False),
        ([0, 1], False),  # a slow member, which lacks the last entries
        ([], True),
        ([3], True),  # the writer continued after the member had returned
        ([0, 3], True),
    ],
)
def test_a_member_that_lacks_the_beginning_or_has_a_gap_lost_entries(held: list[int], is_lost: bool) -> None:
    sample = [EntryId(each) for each in range(4)]
    assert has_lost_entries(sample, EntryRuns.of(held)) is is_lost


def test_without_acknowledged_entries_no_loss_is_shown() -> None:
    assert not has_lost_entries([], EntryRuns.of([]))


@pytest.mark.parametrize("confirmed", [-1, 0, 5, 99, 10**6])
def test_a_sample_is_small_and_contains_only_acknowledged_entries_of_the_member(confirmed: int) -> None:
    metadata = make_metadata(*((100 * each, "a b c") for each in range(9)), quorum=(2, 2), last=None)
    sample = acknowledged_sample(metadata, BookieId("b"), EntryId(confirmed))
    assert len(sample) <= 64
    assert sample == sorted(set(sample))
    assert all(entry_id <= confirmed and entry_id % 3 in (0, 1) for entry_id in sample)
    assert (not sample) == (confirmed < 0)
    if confirmed >= 0:
        assert sample[0] == 0
        assert confirmed - sample[-1] < 3
