"""Placement debts and moves: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.nodes import put
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks import debts as debts_module
from bookie.metadata.tasks.debts import FRAGMENTS_MAX, PlacementDebt, PlacementDebts
from bookie.metadata.tasks.moves import MOVES_MAX, SLOT_LEDGERS_MAX, SLOTS, WINDOW_MS, MovedLedgers
from bookie.model.ids import EntryId, LedgerId
from tests.contract.conftest import Backend

LEDGER = LedgerId(7)


@pytest.fixture
def debts(store: MetadataStore, base: str) -> PlacementDebts:
    return PlacementDebts(store, base)


@pytest.fixture
def moved(store: MetadataStore, base: str) -> MovedLedgers:
    return MovedLedgers(store, base)


def debt(ledger_id: int, since_ms: int, *firsts: int, detail: str = "", last_ms: int | None = None) -> PlacementDebt:
    last_ms = since_ms if last_ms is None else last_ms
    return PlacementDebt(LedgerId(ledger_id), since_ms, tuple(map(EntryId, firsts)), detail, last_ms)


async def test_debts_of_a_ledger_are_merged_and_end_together(debts: PlacementDebts) -> None:
    assert (await debts.list(), await debts.count()) == ([], 0)
    assert await debts.add(debt(7, 1000, 5, detail="one rack"))
    assert await debts.add(debt(7, 2000, 0, 5, detail="one zone"))
    assert await debts.add(debt(3, 1500))
    assert await debts.list() == [debt(3, 1500), debt(7, 1000, 0, 5, detail="one zone", last_ms=2000)]
    assert await debts.count() == 2
    found = await debts.read(LEDGER)
    assert found == debt(7, 1000, 0, 5, detail="one zone", last_ms=2000)
    await debts.end_if_unchanged(found)
    await debts.end_if_unchanged(found)
    assert await debts.read(LEDGER) is None
    assert await debts.list() == [debt(3, 1500)]


async def test_a_debt_stays_if_a_copy_was_placed_since_it_was_listed(debts: PlacementDebts) -> None:
    await debts.add(debt(7, 1000, 5))
    (listed,) = await debts.list()
    await debts.add(debt(7, 2000, 5))
    await debts.end_if_unchanged(listed)
    (listed,) = await debts.list()
    assert listed.last_ms == 2000
    await debts.end_if_unchanged(listed)
    await debts.end_if_unchanged(listed)
    assert await debts.list() == []


async def test_debts_outlive_their_session(debts: PlacementDebts, backend: Backend, base: str) -> None:
    await debts.add(debt(7, 1000, 5))
    assert await PlacementDebts(await backend.open(), base).list() == [debt(7, 1000, 5)]


async def test_debts_are_bounded(debts: PlacementDebts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debts_module, "DEBTS_MAX", 2)
    await debts.add(debt(1, 1000, *range(2 * FRAGMENTS_MAX)))
    assert await debts.add(debt(2, 1000))
    assert not await debts.add(debt(3, 1000))
    (_, before) = await debts.list()
    assert await debts.add(debt(2, 2000))
    await debts.end_if_unchanged(before)
    assert [len(each.first_entry_ids) for each in await debts.list()] == [FRAGMENTS_MAX, 0]


async def test_a_damaged_debt_is_listed_and_replaced(debts: PlacementDebts, store: MetadataStore) -> None:
    await put(store, debts.path(LEDGER), b"\0damaged")
    assert await debts.list() == [debt(7, 0)]
    await debts.add(debt(7, 1000, 5))
    assert await debts.list() == [debt(7, 1000, 5)]


async def test_moves_are_counted_within_the_window(moved: MovedLedgers) -> None:
    assert await moved.count(LEDGER, 5000) == 0
    for time_ms in (5000, 5000, 6000):
        await moved.note(LEDGER, time_ms)
    assert await moved.count(LEDGER, 7000) == 2
    assert await moved.count(LedgerId(7 + SLOTS), 7000) == 0
    assert await moved.count(LEDGER, 5000 + WINDOW_MS) == 1
    assert await moved.count(LEDGER, 6000 + WINDOW_MS) == 0
    for time_ms in range(8000, 8010):
        await moved.note(LEDGER, time_ms)
    assert await moved.count(LEDGER, 9000) == MOVES_MAX


async def test_workers_that_record_moves_at_the_same_time_lose_none(
    moved: MovedLedgers, backend: Backend, base: str
) -> None:
    other = MovedLedgers(await backend.open(), base)
    same_slot = [LedgerId(7 + number * SLOTS) for number in range(4)]
    await asyncio.gather(*((moved, other)[number % 2].note(each, 1000) for number, each in enumerate(same_slot)))
    assert [await moved.count(each, 2000) for each in same_slot] == [1, 1, 1, 1]


async def test_a_full_record_drops_the_ledger_with_the_oldest_move(moved: MovedLedgers, store: MetadataStore) -> None:
    for number in range(SLOT_LEDGERS_MAX + 1):
        await moved.note(LedgerId(7 + number * SLOTS), 1000 + number)
    assert await moved.count(LEDGER, 2000) == 0
    assert await moved.count(LedgerId(7 + SLOTS), 2000) == 1
    assert len((await store.get(moved.path(LEDGER))).data) < 32 << 10


async def test_a_damaged_record_of_moves_counts_as_empty(moved: MovedLedgers, store: MetadataStore) -> None:
    await put(store, moved.path(LEDGER), b'{"format": 99}')
    assert await moved.count(LEDGER, 1000) == 0
    await moved.note(LEDGER, 1000)
    assert await moved.count(LEDGER, 1000) == 1
