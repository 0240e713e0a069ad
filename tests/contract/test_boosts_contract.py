"""Boosted ledgers: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import ANY_VERSION, MetadataStore
from bookie.metadata.tasks import boosts as boosts_module
from bookie.metadata.tasks.boosts import Boost, Boosts, TooManyBoostsError
from bookie.model.ids import LedgerId
from tests.contract.conftest import Backend


def boost(ledger_id: int, since_ms: int = 1000, until_ms: int = 2000) -> Boost:
    return Boost(LedgerId(ledger_id), "me@host", since_ms, until_ms)


@pytest.fixture
def boosts(store: MetadataStore, base: str) -> Boosts:
    return Boosts(store, base)


async def test_a_boost_is_valid_until_its_end_and_then_removed(boosts: Boosts, store: MetadataStore) -> None:
    assert await boosts.active(0) == []
    await boosts.start(boost(7))
    await boosts.start(boost(8, until_ms=5000))
    assert await boosts.active(1999) == [boost(7), boost(8, until_ms=5000)]
    assert await boosts.active(2000) == [boost(8, until_ms=5000)]
    assert await store.stat(boosts.path(LedgerId(7))) is None


async def test_a_boost_outlives_its_session_and_can_be_extended(
    boosts: Boosts, backend: Backend, store: MetadataStore, base: str
) -> None:
    await boosts.start(boost(7))
    await backend.expire(store)
    await boosts.start(boost(7, 1500, 9000))
    other = Boosts(await backend.open(), base)
    assert await other.active(3000) == [boost(7, 1500, 9000)]
    await other.stop(LedgerId(7))
    await other.stop(LedgerId(7))
    assert await boosts.active(0) == []


async def test_the_number_of_boosts_is_bounded_and_ended_ones_make_room(
    boosts: Boosts, backend: Backend, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosts_module, "BOOSTS_MAX", 2)
    others = [Boosts(await backend.open(), base) for _ in range(4)]
    results = await asyncio.gather(
        *(each.start(boost(number)) for number, each in enumerate(others)), return_exceptions=True
    )
    assert sum(isinstance(result, TooManyBoostsError) for result in results) == 2
    first, second = await boosts.active(1000)
    await boosts.start(boost(first.ledger_id, until_ms=5000))  # it has a boost already
    with pytest.raises(TooManyBoostsError, match="2 ledgers are boosted"):
        await boosts.start(boost(9))
    await boosts.start(boost(9, since_ms=3000, until_ms=4000))
    assert {each.ledger_id for each in await boosts.active(3000)} == {first.ledger_id, 9}
    assert second.ledger_id != 9


async def test_a_damaged_boost_is_ignored(boosts: Boosts, store: MetadataStore) -> None:
    await boosts.start(boost(7))
    await store.set(boosts.path(LedgerId(7)), b"nonsense", ANY_VERSION)
    assert await boosts.active(1000) == []
    await boosts.start(boost(7))
    assert await boosts.active(1000) == [boost(7)]
