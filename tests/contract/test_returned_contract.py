"""Bookies that return repeatedly: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import pytest

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.returned import (
    FLAPPING_DELAY_S_MAX,
    FLAPPING_WINDOW_S,
    EndedLoss,
    ReturnedBookies,
    is_flapping,
)
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId

A, B = BookieId("bk1:3181"), BookieId("bk2:3181")
HOUR_MS = 3_600_000
KEPT_MS = (FLAPPING_WINDOW_S + FLAPPING_DELAY_S_MAX) * 1000


@pytest.fixture
def returned(store: MetadataStore, base: str) -> ReturnedBookies:
    return ReturnedBookies(store, base)


async def test_only_the_newest_losses_are_kept_and_recording_one_twice_changes_nothing(
    returned: ReturnedBookies,
) -> None:
    losses = [EndedLoss(number * HOUR_MS, number * HOUR_MS + 1000) for number in range(1, 4)]
    for loss in (*losses, losses[-1]):
        await returned.note(A, loss)
    assert await returned.of([A, B]) == {A: tuple(losses[1:])}


async def test_obsolete_records_are_removed(returned: ReturnedBookies) -> None:
    await returned.note(A, EndedLoss(0, 1000))
    await returned.note(B, EndedLoss(HOUR_MS, 2 * HOUR_MS))
    await returned.remove_old(1000 + KEPT_MS)
    assert set(await returned.of([A, B])) == {A, B}
    await returned.remove_old(1001 + KEPT_MS)
    assert set(await returned.of([A, B])) == {B}


async def test_only_a_loss_that_was_marked_is_recorded_when_it_ends(
    returned: ReturnedBookies, store: MetadataStore, base: str
) -> None:
    down = FirstSeenDown(store, base)
    await down.reconcile({A, B}, 1000, registered=set())
    await down.note_audited(A, 1000, 2000)
    await down.reconcile(set(), 3000, registered={A, B})
    await down.reconcile(set(), 4000, registered={A, B})
    assert await returned.of([A, B]) == {A: (EndedLoss(1000, 3000),)}


@pytest.mark.parametrize(
    ("returned_h", "since_h", "expected"),
    [((1, 2), 3, True), ((1,), 3, False), ((), 3, False), ((1, 2), 7, True), ((1, 2), 8, False), ((5, 6), 3, False)],
)
def test_two_returns_within_six_hours_are_flapping(returned_h: tuple[int, ...], since_h: int, expected: bool) -> None:
    losses = [EndedLoss(0, hour * HOUR_MS) for hour in returned_h]
    assert is_flapping(losses, since_h * HOUR_MS) is expected
