"""Held collections and permissions: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import pytest

from bookie.metadata.bookies.collections import ALLOWANCE_S_MAX, HeldCollections, NothingHeldError
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId
from tests.contract.conftest import Backend

BK1, BK2 = BookieId("bk1:3181"), BookieId("bk2:3181")
HOUR_MS = 3_600_000


@pytest.fixture
def held(store: MetadataStore, base: str) -> HeldCollections:
    return HeldCollections(store, base)


async def test_a_held_collection_deletes_nothing_until_an_operator_allows_it(
    held: HeldCollections, backend: Backend, base: str
) -> None:
    assert not (await held.hold(BK1, 60, 100, 1000)).allows(1, 1000)
    other = HeldCollections(await backend.open(), base)
    allowed = await other.allow(BK1, "me@host", HOUR_MS, 2 * HOUR_MS)
    assert allowed.allowed_max == 66
    found = await held.hold(BK1, 66, 120, HOUR_MS)
    assert (found.ledgers, found.known, found.since_ms) == (66, 120, 1000)
    assert found.allows(66, HOUR_MS)
    assert not found.allows(67, HOUR_MS)
    assert not found.allows(1, 2 * HOUR_MS)
    assert not found.allows(1, HOUR_MS - 120_000)
    assert await other.all() == [found]


async def test_a_collection_cannot_be_allowed_in_advance(held: HeldCollections, store: MetadataStore) -> None:
    with pytest.raises(NothingHeldError):
        await held.allow(BK1, "me@host", 0, HOUR_MS)
    assert await store.stat(held.path(BK1)) is None


async def test_an_allowance_beyond_the_longest_duration_allows_nothing(held: HeldCollections) -> None:
    await held.hold(BK1, 60, 100, 0)
    allowed = await held.allow(BK1, "me@host", 0, ALLOWANCE_S_MAX * 1000 + 1, 1000)
    assert not allowed.allows(1, 0)


async def test_ending_and_removing_are_idempotent_and_do_not_affect_others(held: HeldCollections) -> None:
    for bookie in (BK1, BK2):
        await held.hold(bookie, 60, 100, 0)
    for _ in range(2):
        await held.end(BK1)
    assert [each.bookie for each in await held.all()] == [BK2]
    for _ in range(2):
        await held.remove(BK2)
    assert await held.all() == []


async def test_a_damaged_record_allows_nothing_and_is_replaced(held: HeldCollections, store: MetadataStore) -> None:
    await held.hold(BK1, 60, 100, 0)
    await held.allow(BK1, "me@host", 0, HOUR_MS)
    await store.set(held.path(BK1), b"rubbish", -1)
    assert await held.all() == []
    with pytest.raises(NothingHeldError):
        await held.allow(BK1, "me@host", 0, HOUR_MS)
    assert not (await held.hold(BK1, 60, 100, 5)).allows(1, 5)
    assert [each.since_ms for each in await held.all()] == [5]
