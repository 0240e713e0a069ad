"""A bookie stays registered whatever happens to its session, and announces read-only in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import BookieIdInUseError, Bookies, Registrations
from bookie.metadata.bookies.service_info import PROTOCOL_GRPC
from bookie.metadata.layout import bookie_path
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.model.ids import BookieId
from bookie.server.service import BookieService
from bookie.server.upkeep.disk_watch import DiskWatch, should_be_read_only
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.memory import MemoryDisk
from tests.deadlines import STATE_S
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import MemoryCluster, open_bookie

BOOKIE = BookieId("bookie-1")
INFO = service_info("host", 3181, "uuid")
NO_BOOKIES = Bookies(frozenset(), frozenset())
WRITABLE = Bookies(frozenset({BOOKIE}), frozenset())
READ_ONLY = Bookies(frozenset(), frozenset({BOOKIE}))


class KeeperWorld(MemoryCluster):
    """A bookie that keeps itself registered, and another session that observes it."""

    async def start(self) -> None:
        await self.found()
        self.keeper = self.make_keeper(self.store)
        self.watcher = Registrations(self.session(), self.cluster)

    def make_keeper(self, store: MemoryStore, takeover_deadline_s: float = STATE_S) -> RegistrationKeeper:
        clock, registrations = ManualClock(turns=20), Registrations(store, self.cluster)
        return RegistrationKeeper(store, registrations, BOOKIE, INFO, clock, takeover_deadline_s=takeover_deadline_s)

    async def until(self, bookies: Bookies) -> None:
        seen = await self.watcher.list()
        async with asyncio.timeout(STATE_S):
            while seen != bookies:
                seen = await self.watcher.wait_changed(seen)


@pytest.fixture
async def world() -> AsyncIterator[KeeperWorld]:
    world = KeeperWorld()
    await world.start()
    yield world
    world.store.fault_hook = None
    await world.keeper.stop(STATE_S)
    await world.close()


async def test_a_bookie_registers_with_its_endpoint_and_incarnation(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    assert await world.watcher.list() == WRITABLE
    info = await world.watcher.service_info(BOOKIE)
    assert info is not None
    endpoint = info.endpoint(PROTOCOL_GRPC)
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, info.incarnation) == ("host", 3181, "uuid")


async def test_a_new_session_registers_again(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    for _ in range(3):
        world.store.expire()
        await world.until(NO_BOOKIES)
        world.store.resume()
        await world.until(WRITABLE)


async def test_an_interrupted_connection_does_not_change_the_registration(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    before = await world.store.stat(bookie_path("/ledgers", BOOKIE, is_read_only=False))
    world.store.suspend()
    world.store.resume()
    await world.until(WRITABLE)
    assert await world.store.stat(bookie_path("/ledgers", BOOKIE, is_read_only=False)) == before


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_ANSWER])
async def test_registration_is_retried_until_it_succeeds(world: KeeperWorld, fault: Fault) -> None:
    await world.keeper.start(is_read_only=False)
    failures = 5

    async def fail(operation: str, path: str) -> Fault | None:
        nonlocal failures
        failures -= 1
        return fault if failures >= 0 else None

    world.store.fault_hook = fail
    world.store.expire()
    world.store.resume()
    await world.until(WRITABLE)
    assert failures < 0


async def test_a_deleted_registration_is_created_again(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    await world.store.delete(bookie_path("/ledgers", BOOKIE, is_read_only=False))
    await world.until(WRITABLE)


async def test_switching_never_makes_the_bookie_appear_unregistered(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    seen = [await world.watcher.list()]

    async def watch() -> None:
        while True:
            seen.append(await world.watcher.wait_changed(seen[-1]))

    watching = asyncio.create_task(watch())
    for is_read_only in (True, False, True):
        assert await world.keeper.switch(is_read_only=is_read_only, deadline_s=STATE_S)
        assert await world.watcher.list() == (READ_ONLY if is_read_only else WRITABLE)
    watching.cancel()
    assert set(seen) <= {WRITABLE, READ_ONLY}


async def test_a_switch_that_did_not_reach_the_store_is_done_later(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    world.store.expire()
    assert not await world.keeper.switch(is_read_only=True, deadline_s=0.05)
    world.store.resume()
    await world.until(READ_ONLY)


async def test_a_switch_back_during_a_switch_completes_only_once_registered(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    has_begun, may_go = asyncio.Event(), asyncio.Event()

    async def hold(operation: str, path: str) -> None:
        if operation == "delete":
            has_begun.set()
            await may_go.wait()

    world.store.fault_hook = hold
    switch = asyncio.create_task(world.keeper.switch(is_read_only=True, deadline_s=STATE_S))
    await has_begun.wait()
    back = asyncio.create_task(world.keeper.switch(is_read_only=False, deadline_s=STATE_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not back.done()  # the bookie is registered as read-only, or in both ways
    may_go.set()
    assert await back
    assert await world.watcher.list() == WRITABLE
    switch.cancel()
    await asyncio.wait([switch])


async def test_a_switch_back_undoes_a_switch_that_failed_in_the_middle(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    has_failed = asyncio.Event()

    async def fail_one_delete(operation: str, path: str) -> Fault | None:
        if operation != "delete" or has_failed.is_set():
            return None
        has_failed.set()
        return Fault.FAIL_BEFORE

    world.store.fault_hook = fail_one_delete
    switch = asyncio.create_task(world.keeper.switch(is_read_only=True, deadline_s=STATE_S))
    await has_failed.wait()
    assert await world.keeper.switch(is_read_only=False, deadline_s=STATE_S)
    assert await world.watcher.list() == WRITABLE
    switch.cancel()
    await asyncio.wait([switch])


async def test_an_id_in_use_by_another_process_is_refused_at_the_start(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=False)
    second = world.make_keeper(world.session(), takeover_deadline_s=0.05)
    with pytest.raises(BookieIdInUseError):
        await second.start(is_read_only=False)
    await second.stop(STATE_S)
    assert await world.watcher.list() == WRITABLE  # the registration of the other process must stay


async def test_stopping_unregisters_and_never_fails(world: KeeperWorld) -> None:
    await world.keeper.start(is_read_only=True)
    await world.keeper.stop(STATE_S)
    assert await world.watcher.list() == NO_BOOKIES
    world.store.expire()
    await world.keeper.stop(0.05)
    world.store.resume()


@given(st.booleans(), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_read_only_mode_begins_below_the_threshold_and_ends_well_above_it(was: bool, free: int, threshold: int) -> None:
    is_read_only = should_be_read_only(was, free, threshold)
    if free < threshold:
        assert is_read_only
    if free >= threshold * 1.25:
        assert not is_read_only
    if threshold <= free < threshold * 1.25:
        assert is_read_only == was


@dataclass
class Disks:
    journal: MemoryDisk
    ledgers: MemoryDisk
    service: BookieService
    watch: DiskWatch


@pytest.fixture
async def disks(world: KeeperWorld) -> AsyncIterator[Disks]:
    clock = ManualClock(turns=20)
    bookie = await open_bookie(clock)
    both = bookie.journal, bookie.ledgers
    for disk in both:
        disk.capacity_bytes = 10_000
    watch = DiskWatch(both, bookie.storage, bookie.service, world.keeper, clock, read_only_below_bytes=4000)
    await world.keeper.start(is_read_only=False)
    yield Disks(*both, bookie.service, watch)
    await bookie.storage.abort()


@pytest.mark.parametrize(
    "which", [lambda disks: disks.journal, lambda disks: disks.ledgers], ids=["journal", "ledgers"]
)
async def test_either_disk_makes_the_bookie_read_only_and_writable_again(
    world: KeeperWorld, disks: Disks, which: Callable[[Disks], MemoryDisk]
) -> None:
    disk = which(disks)
    for capacity, is_read_only in ((10_000, False), (3_000, True), (4_500, True), (10_000, False)):
        disk.capacity_bytes = capacity + disk.used_bytes()
        await disks.watch.check()
        assert disks.service.is_read_only is is_read_only
        assert await world.watcher.list() == (READ_ONLY if is_read_only else WRITABLE)


async def test_read_only_is_announced_before_adds_are_refused(world: KeeperWorld, disks: Disks) -> None:
    was_refusing_at_announcement = []

    async def note(operation: str, path: str) -> None:
        if operation in ("create", "delete"):
            was_refusing_at_announcement.append(disks.service.is_read_only)

    world.store.fault_hook = note
    for capacity in (0, 100_000):
        disks.ledgers.capacity_bytes = capacity
        await disks.watch.check()
    assert was_refusing_at_announcement
    assert not any(was_refusing_at_announcement)


async def test_a_full_disk_makes_the_bookie_read_only_without_waiting_for_the_store(
    world: KeeperWorld, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.server.upkeep.disk_watch.ANNOUNCE_DEADLINE_S", 0.05)
    world.store.expire()
    disks.ledgers.capacity_bytes = 0
    await disks.watch.check()
    assert disks.service.is_read_only
    world.store.resume()
    await world.until(READ_ONLY)
