"""Notes of drains: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bookie.metadata.bookies.drains import DRAINS_PER_REQUEST_MAX, Drain, DrainListing, Drains, DrainsChangedError
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, MetadataStore, MultiFailedError
from bookie.model.ids import BookieId
from bookie.runtime.tasks import guarded
from tests.contract.conftest import Backend

WithDeadline = Callable[[Awaitable[Any]], Awaitable[Any]]
A, B = BookieId("bk1:3181"), BookieId("bk2:3181")
FIRST = Drain(A, "me@host", 1000)


@pytest.fixture
def drains(store: MetadataStore, base: str) -> Drains:
    return Drains(store, base)


async def test_a_drain_is_recorded_once_and_withdrawn_once(drains: Drains, backend: Backend, base: str) -> None:
    assert await drains.read() == {}
    assert await drains.start(FIRST)
    other = Drains(await backend.open(), base)
    assert not await other.start(Drain(A, "you@host", 2000))
    assert await other.start(Drain(B, "you@host", 2000))
    assert await drains.read() == {A: FIRST, B: Drain(B, "you@host", 2000)}
    assert await other.stop(A)
    assert not await drains.stop(A)
    assert list(await drains.read()) == [B]


async def test_a_drain_outlives_the_session_that_recorded_it(
    drains: Drains, backend: Backend, store: MetadataStore
) -> None:
    await drains.start(FIRST)
    await backend.expire(store)
    assert await drains.read() == {A: FIRST}


async def test_a_decision_fails_if_a_drain_has_begun_or_ended_since(drains: Drains, store: MetadataStore) -> None:
    assert (await drains.draining()).check is None
    await drains.start(FIRST)
    seen = await drains.draining()
    assert seen.bookies == {A}
    assert seen.check is not None
    await store.multi([seen.check])
    await drains.stop(A)
    with pytest.raises(MultiFailedError):
        await store.multi([seen.check])
    between = await drains.draining()
    await drains.start(FIRST)
    assert between.check is not None
    with pytest.raises(MultiFailedError):
        await store.multi([between.check])


async def test_drains_begin_together_and_only_if_no_other_began_or_ended_since_a_listing(
    drains: Drains, backend: Backend, base: str
) -> None:
    other = Drains(await backend.open(), base)
    second, never = Drain(B, "you@host", 2000), await drains.current()
    assert never == DrainListing()
    assert await other.start(FIRST, seen=never)
    with pytest.raises(DrainsChangedError):
        await drains.start(second, seen=never)
    seen = await drains.current()
    assert seen.bookies == {A}
    assert not await drains.start(Drain(A, "you@host", 2000), seen=seen)
    assert await drains.start(FIRST, second, seen=seen)
    assert await other.read() == {A: FIRST, B: second}
    both = await drains.current()
    await other.stop(A)
    for asked in ([FIRST], [second], [FIRST, second]):
        with pytest.raises(DrainsChangedError):
            await drains.start(*asked, seen=both)
    assert await drains.read() == {B: second}


async def test_as_many_drains_as_allowed_begin_in_one_step(drains: Drains) -> None:
    many = [
        Drain(BookieId(f"bookie-{number}.{'n' * 200}:3181"), "me@host", 1) for number in range(DRAINS_PER_REQUEST_MAX)
    ]
    assert await drains.start(*many[:1])
    assert await drains.start(*many, seen=await drains.current())
    assert len(await drains.read()) == DRAINS_PER_REQUEST_MAX


async def test_a_waiting_process_notices_the_first_drain_and_every_change(
    drains: Drains, backend: Backend, base: str, with_deadline: WithDeadline
) -> None:
    watching = Drains(await backend.open(), base)
    seen = await watching.see()
    waiting = guarded("waiting", watching.wait_changed(seen))
    await drains.start(FIRST)
    seen = await with_deadline(waiting)
    while not seen.bookies:  # the first change was the creation of the parent
        seen = await with_deadline(watching.wait_changed(seen))
    assert seen.bookies == {A}
    waiting = guarded("waiting", watching.wait_changed(seen))
    await drains.stop(A)
    assert (await with_deadline(waiting)).bookies == frozenset()


async def test_a_damaged_record_counts_as_a_drain(drains: Drains, store: MetadataStore, base: str) -> None:
    await drains.start(FIRST)
    await store.set(f"{own_path('drains', base)}/{A}", b"nonsense", ANY_VERSION)
    assert await drains.read() == {A: Drain(A)}
    assert (await drains.draining()).bookies == {A}
