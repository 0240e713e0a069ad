"""Reservations, and ledger changes depending on them, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import (
    LedgerStore,
    MetadataConflictError,
    NoSuchLedgerError,
    PreconditionFailedError,
)
from bookie.metadata.port import ANY_VERSION, Check, MetadataStore, MultiFailedError
from bookie.metadata.tasks.reservations import (
    Reservation,
    ReservationRefusedError,
    Reservations,
    UnreadableReservationError,
)
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata

L7 = LedgerId(7)
BK1, BK2 = BookieId("bk1:3181"), BookieId("bk2:3181")
TO_BK1 = Reservation(EntryId(0), 1, BK1, "uuid-1")
TO_BK2 = Reservation(EntryId(5), 0, BK2, "uuid-2")
OPEN = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BK1,)),))


@pytest.fixture
def reservations(store: MetadataStore, cluster: Cluster) -> Reservations:
    return Reservations(store, cluster.root)


@pytest.fixture
def ledgers(store: MetadataStore, cluster: Cluster) -> LedgerStore:
    return LedgerStore(store, cluster, random.Random(2))


async def is_valid(store: MetadataStore, path: str, version: int) -> bool:
    """Return whether a transaction with a check of the reservation succeeds."""
    try:
        await store.multi([Check(path, version)])
    except MultiFailedError:
        return False
    return True


async def test_a_reservation_can_be_read_until_it_is_released(store: MetadataStore, reservations: Reservations) -> None:
    assert await reservations.read(L7) is None
    reserved = await reservations.reserve(L7, "a", [TO_BK1, TO_BK2])
    assert reserved.reservations == (TO_BK1, TO_BK2)
    assert await reservations.read(L7) == reserved
    assert reserved.names(BK1)
    assert not reserved.names(BookieId("bk3:3181"))
    assert await is_valid(store, reserved.path, reserved.version)
    assert await reservations.release(reserved)
    assert await reservations.read(L7) is None
    assert await store.stat(reservations.path(L7)) is None
    assert not await is_valid(store, reserved.path, reserved.version)
    assert not await reservations.release(reserved)


async def test_reserving_again_with_the_same_token_is_a_retry(store: MetadataStore, reservations: Reservations) -> None:
    first = await reservations.reserve(L7, "a", [TO_BK1])
    assert await reservations.reserve(L7, "a", [TO_BK1]) == first
    more = await reservations.reserve(L7, "a", [TO_BK1, TO_BK2])
    assert await reservations.read(L7) == more
    assert await reservations.release(more)


async def test_a_new_reservation_replaces_the_previous_one(store: MetadataStore, reservations: Reservations) -> None:
    old = await reservations.reserve(L7, "a", [TO_BK1])
    new = await reservations.reserve(L7, "b", [TO_BK2])
    assert await reservations.read(L7) == new
    assert not await is_valid(store, old.path, old.version)
    assert not await reservations.release(old)
    assert await is_valid(store, new.path, new.version)


async def test_first_reservation_of_a_ledger_replaces_none(store: MetadataStore, reservations: Reservations) -> None:
    there = await reservations.reserve(L7, "a", [TO_BK1], is_first=True)
    with pytest.raises(ReservationRefusedError):
        await reservations.reserve(L7, "b", [TO_BK2], is_first=True)
    assert await reservations.read(L7) == there
    assert await is_valid(store, there.path, there.version)


@pytest.mark.parametrize("is_first", [True, False])
async def test_nothing_is_reserved_if_a_condition_does_not_hold(
    store: MetadataStore, cluster: Cluster, reservations: Reservations, *, is_first: bool
) -> None:
    condition = f"{cluster.root}/condition"
    await store.create(condition)
    with pytest.raises(ReservationRefusedError):
        await reservations.reserve(L7, "a", [TO_BK1], is_first=is_first, checks=[Check(condition, 1)])
    assert await reservations.read(L7) is None
    reserved = await reservations.reserve(L7, "a", [TO_BK1], is_first=is_first, checks=[Check(condition, 0)])
    with pytest.raises(ReservationRefusedError):
        await reservations.reserve(L7, "b", [TO_BK2], checks=[Check(condition, 1)])
    assert await reservations.read(L7) == reserved
    assert await is_valid(store, reserved.path, reserved.version)


async def test_progress_of_an_earlier_reservation_does_not_replace_a_later_one(
    store: MetadataStore, reservations: Reservations
) -> None:
    old = await reservations.reserve(L7, "a", [TO_BK1])
    new = await reservations.reserve(L7, "b", [TO_BK2])
    assert not await reservations.note_progress(old, [replace(TO_BK1, end_entry_id=EntryId(3))])
    assert await reservations.read(L7) == new
    assert await reservations.note_progress(new, [replace(TO_BK2, end_entry_id=EntryId(9))])
    assert await is_valid(store, new.path, new.version)
    read = await reservations.read(L7)
    assert read is not None
    assert read.names(BK2)
    assert read.has_progress(BK2)


async def test_later_reservation_is_never_taken_for_an_earlier_one(
    store: MetadataStore, reservations: Reservations
) -> None:
    old = await reservations.reserve(L7, "a", [TO_BK1])
    assert await reservations.release(await reservations.reserve(L7, "b", [TO_BK2]))
    new = await reservations.reserve(L7, "c", [TO_BK2])
    assert (await store.get(reservations.path(L7))).stat.version == 0  # so versions do not distinguish the two
    assert not await is_valid(store, old.path, old.version)
    assert not await reservations.release(old)
    assert await reservations.release(new)


async def test_one_of_many_concurrent_reservations_wins(store: MetadataStore, reservations: Reservations) -> None:
    made = await asyncio.gather(
        *(reservations.reserve(L7, f"t{i}", [TO_BK1]) for i in range(4)), return_exceptions=True
    )
    read = await reservations.read(L7)
    standing = [one for one in made if not isinstance(one, BaseException) and await is_valid(store, one.path, 0)]
    assert standing == [read]


async def test_a_damaged_reservation_is_an_error_for_readers_and_the_next_one_replaces_it(
    store: MetadataStore, reservations: Reservations
) -> None:
    old = await reservations.reserve(L7, "a", [TO_BK1])
    await store.set(reservations.path(L7), b"rubbish", ANY_VERSION)
    with pytest.raises(UnreadableReservationError, match=reservations.path(L7)):
        await reservations.read(L7)
    new = await reservations.reserve(L7, "b", [TO_BK2])
    assert await reservations.read(L7) == new
    assert not await is_valid(store, old.path, old.version)


async def test_clusters_in_one_store_have_separate_reservations(
    store: MetadataStore, reservations: Reservations, base: str
) -> None:
    await reservations.reserve(L7, "a", [TO_BK1])
    assert await Reservations(store, f"{base}/other").read(L7) is None


async def test_a_ledger_is_written_only_while_its_reservation_exists(
    ledgers: LedgerStore, reservations: Reservations
) -> None:
    created = await ledgers.create(L7, OPEN)
    reserved = await reservations.reserve(L7, "a", [TO_BK1])
    checks = [Check(reserved.path, reserved.version)]
    written = await ledgers.write(L7, created.metadata.closed(EntryId(3), 30), 0, checks=checks)
    assert written.version == 1
    assert await ledgers.current(L7) == written
    with pytest.raises(MetadataConflictError):
        await ledgers.write(L7, OPEN, 0, checks=checks)
    await reservations.release(reserved)
    with pytest.raises(PreconditionFailedError, match="a") as failed:
        await ledgers.write(L7, OPEN, 1, checks=checks)
    assert failed.value.path == reserved.path
    assert await ledgers.current(L7) == written


async def test_the_current_reservation_is_none_without_a_ledger(
    ledgers: LedgerStore, reservations: Reservations
) -> None:
    assert await ledgers.current(L7) is None
    reserved = await reservations.reserve(L7, "a", [TO_BK1])
    with pytest.raises(NoSuchLedgerError):
        await ledgers.write(L7, OPEN, 0, checks=[Check(reserved.path, reserved.version)])
