"""Read-only while a disk fills up, and back: who hears of it first, and what is still accepted meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.model.ids import BookieId, LedgerId
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.disk_watch import DiskWatch
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.unit.bookie.storage.test_store_crash import entry
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time

US = BookieId("us:3181")
THRESHOLD = 100_000


@dataclass
class World:
    journal: MemoryDisk = field(default_factory=MemoryDisk)
    ledgers: MemoryDisk = field(default_factory=lambda: MemoryDisk(capacity_bytes=1_000_000))

    async def open(self, threshold: int = THRESHOLD) -> World:
        store, clock = MemoryStore(MemoryCell()), VirtualClock()
        await format_cluster(store, "/ledgers", rng=random.Random(1))
        cluster = await open_cluster(store, "/ledgers")
        settings = StorageSettings(flush_retry_s=1.0)
        self.storage = await LedgerStorage.open(self.journal, self.ledgers, MemoryIndex(), settings, clock)
        self.service = BookieService(self.storage, self.ledgers, BookieIdentity("uuid", "1"))
        self.registrations = Registrations(store, cluster)
        info = service_info("h", 1, "uuid")
        self.keeper = RegistrationKeeper(store, self.registrations, US, info, clock, takeover_deadline_s=5)
        await self.keeper.start(is_read_only=False)
        self.watch = DiskWatch(
            (self.journal, self.ledgers),
            self.storage,
            self.service,
            self.keeper,
            clock,
            read_only_below_bytes=threshold,
        )
        return self

    def leave_free(self, size: int) -> None:
        self.ledgers.capacity_bytes = self.ledgers.used_bytes() + size

    async def look(self, free: int) -> tuple[bool, Status, Status]:
        """Registered as read-only?, what a plain add is answered, and one of recovery."""
        self.leave_free(free)
        await self.watch.look()
        is_read_only = US in (await self.registrations.list()).read_only
        return is_read_only, await self.add(is_recovery=False), await self.add(is_recovery=True)

    async def add(self, *, is_recovery: bool) -> Status:
        batch = AddBatch(LedgerId(1), b"key", [entry(1, 1, b"")], is_recovery)
        return (await self.service.add("", batch)).status


@in_virtual_time
async def test_the_ladder_down_and_up_again() -> None:
    world = await World().open()
    ok, refused = Status.OK, Status.READ_ONLY
    assert await world.look(THRESHOLD) == (False, ok, ok)
    assert await world.look(THRESHOLD - 1) == (True, refused, ok)
    assert await world.look(int(THRESHOLD * 0.4)) == (True, refused, ok)
    assert await world.look(int(THRESHOLD * 0.4) - 1) == (True, refused, refused)
    assert await world.look(int(THRESHOLD * 0.45)) == (True, refused, refused)
    assert await world.look(int(THRESHOLD * 0.5)) == (True, refused, ok)
    assert await world.look(int(THRESHOLD * 1.24)) == (True, refused, ok)
    assert await world.look(int(THRESHOLD * 1.25)) == (False, ok, ok)


@in_virtual_time
async def test_a_disk_that_says_it_is_full_makes_read_only_and_does_not_flap() -> None:
    world = await World().open(threshold=0)
    await world.add(is_recovery=False)
    world.journal.capacity_bytes = world.journal.used_bytes() + 3
    assert await world.add(is_recovery=True) is Status.READ_ONLY
    await world.watch.look()
    assert US in (await world.registrations.list()).read_only
    world.journal.capacity_bytes = 1 << 40
    clock = VirtualClock()
    await clock.sleep(5)
    assert await world.add(is_recovery=True) is Status.OK
    assert (await world.look(1 << 20))[:2] == (True, Status.READ_ONLY)
    await clock.sleep(60)
    assert await world.look(1 << 20) == (False, Status.OK, Status.OK)


@in_virtual_time
async def test_zero_is_never() -> None:
    world = await World().open(threshold=0)
    assert await world.look(1000) == (False, Status.OK, Status.OK)
