"""Records of accepted losses: ids of entries, records without them, and their change by copies."""

from __future__ import annotations

import json

import pytest

from bookie.metadata.port import NODE_DATA_MAX
from bookie.metadata.tasks.decisions import (
    LOST_GROUPS_MAX,
    AcceptedCopy,
    Decision,
    DecisionKind,
    Decisions,
    Denial,
    LostFragment,
)
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns, RunGroup
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import encode_record
from bookie.model.schedule import Stripe
from tests.worlds.cluster import ROOT, MemoryCluster
from tests.worlds.ledgers import names
from tests.worlds.virtual_time import in_virtual_time

LEDGER = LedgerId(7)
STRIPE = Stripe(3, 2)
T = BookieId("t")
DENIED_BY_C = (Denial(2, BookieId("c"), 2),)
LOSS = LostFragment(EntryId(0), EntryId(9), (1,), names("b"), DENIED_BY_C, entries=(RunGroup(1, 4, 1, 3),), shared=(1,))
"""Entries 1 and 4, which are on b and c."""


def decided(*lost: LostFragment) -> Decision:
    return Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", ParkReason.UNREADABLE_ENTRIES, lost)


async def read_back(cluster: MemoryCluster, data: bytes) -> Decision | None:
    decisions = Decisions(cluster.store, ROOT)
    await cluster.store.multi([await decisions.writing(decided(LOSS))])
    await cluster.store.set(decisions.path(LEDGER), data, -1)
    return await decisions.get(LEDGER)


@in_virtual_time
async def test_a_record_keeps_the_entry_ids_and_one_without_them_accepts_whole_positions() -> None:
    cluster = MemoryCluster()
    await cluster.found(seed=0)
    decisions = Decisions(cluster.store, ROOT)
    await cluster.store.multi([await decisions.writing(decided(LOSS))])
    assert await decisions.get(LEDGER) == decided(LOSS)
    assert decided(LOSS).copies == frozenset()
    fields = json.loads((await cluster.store.get(decisions.path(LEDGER))).data)
    for part in fields["lost"]:
        del part["entries"], part["shared"]
    old = await read_back(cluster, json.dumps(fields).encode())
    assert old is not None
    assert (old.lost[0].lost_entries, old.copies) == (EntryRuns(), {(0, 1, "b")})
    assert old.lost[0].covers([2], names("c"), 2)
    assert not LOSS.covers([2], names("c"), 2)
    await cluster.close()


@pytest.mark.parametrize(
    "groups",
    [[[1, 4, 0, 3]], [[1, 5, 1, 3]], [[4, 4, 1, 0], [1, 1, 1, 0]], [[9, 9, 2, 0]], [[-1, -1, 1, 0]], [[1, 4, 3, 3]]],
)
def test_a_record_with_impossible_entries_accepts_nothing(groups: list[list[int]]) -> None:
    @in_virtual_time
    async def check() -> None:
        cluster = MemoryCluster()
        await cluster.found(seed=0)
        fields = {"verdict": "loss_accepted", "by": "ops", "at_ms": 1, "reason": "fire"}
        part = {"first_entry_id": 0, "last_entry_id": 9, "positions": [1], "bookies": ["b"], "entries": groups}
        assert await read_back(cluster, json.dumps({**fields, "lost": [part]}).encode()) is None
        await cluster.close()

    check()


def test_a_copy_names_its_target_in_the_record() -> None:
    left_out = EntryRuns.of([1, 4])
    (lost,) = decided(LOSS).after_copies(STRIPE, [AcceptedCopy(EntryId(0), 1, T, left_out)]).lost
    assert (lost.positions, lost.bookies, lost.shared, lost.lost_entries) == ((), (), (), left_out)
    assert lost.denials == (Denial(1, T, 2), *DENIED_BY_C)


def test_an_entry_that_a_copy_found_is_not_accepted_any_more() -> None:
    (lost,) = decided(LOSS).after_copies(STRIPE, [AcceptedCopy(EntryId(0), 1, T, EntryRuns.of([4]))]).lost
    assert (lost.lost_entries, lost.denials) == (EntryRuns.of([4]), (Denial(1, T, 1), *DENIED_BY_C))
    assert decided(LOSS).after_copies(STRIPE, [AcceptedCopy(EntryId(0), 1, T, EntryRuns())]).lost == ()


def test_the_acceptance_of_a_fragment_ends_if_its_record_would_have_too_many_groups() -> None:
    every_third = RunGroup(1, 1 + 3 * 6 * LOST_GROUPS_MAX, 1, 3)
    loss = LostFragment(EntryId(0), EntryId(every_third.last), (1,), names("b"), entries=(every_third,), shared=(1,))

    def after(left_out: EntryRuns) -> tuple[LostFragment, ...]:
        return decided(loss).after_copies(STRIPE, [AcceptedCopy(EntryId(0), 1, T, left_out)]).lost

    regular = EntryRuns.of(range(1, every_third.last + 1, 6))
    assert [part.lost_entries for part in after(regular)] == [regular]
    assert after(EntryRuns.of(entry for entry in loss.lost_entries if entry % 18 in (1, 4))) == ()


def test_a_record_with_room_for_ids_fits_into_a_node_after_all_copies() -> None:
    wide, at_most = 50, 500
    bookies, targets = (names(" ".join(f"{kind}{number}:1" for number in range(wide))) for kind in "bt")

    def decision(fragments: int) -> Decision:
        return decided(
            *(
                LostFragment(
                    EntryId(first),
                    EntryId(first + 999),
                    tuple(range(wide)),
                    bookies,
                    entries=(RunGroup(first, first, 1, 0),),
                    shared=tuple(range(wide)),
                )
                for first in range(0, 1000 * fragments, 1000)
            )
        )

    largest = max(number for number in range(1, at_most, 50) if decision(number).has_room_for_ids)
    lost: list[LostFragment] = []
    for fragment in decision(largest).lost:
        first = fragment.first_entry_id
        copies = (AcceptedCopy(first, at, target, EntryRuns.of([first])) for at, target in enumerate(targets))
        lost += decided(fragment).after_copies(Stripe(wide, wide), copies).lost
    assert len(encode_record(decided(*lost), without=["ledger_id"])) <= NODE_DATA_MAX
