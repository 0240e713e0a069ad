"""Read-only while a disk is nearly full, and back: what is notified first, and what is still accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.tasks import cancel
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.disk_watch import DiskWatch
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation, yield_control
from bookie.storage.port import DiskError, StalledDiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.cluster import VERSION, MemoryCluster, open_bookie
from tests.worlds.machine import entry
from tests.worlds.virtual_time import VirtualTimeLoop, in_virtual_time

US = BookieId("us:3181")
THRESHOLD = 100_000


class DiskWatchWorld(MemoryCluster):
    """A registered bookie that watches its disks."""

    async def open(self, threshold: int = THRESHOLD) -> DiskWatchWorld:
        await self.found()
        bookie = await open_bookie(self.clock, settings=StorageSettings(flush_retry_s=1.0))
        self.journal, self.ledger_disk, self.service = bookie.journal, bookie.ledgers, bookie.service
        self.storage, self.index = bookie.storage, bookie.index
        info = service_info("h", 1, "uuid")
        self.keeper = RegistrationKeeper(self.store, self.registrations, US, info, self.clock, takeover_deadline_s=5)
        await self.keeper.start(is_read_only=False)
        self.watch_disks(threshold)
        return self

    async def open_with_two_journals(self) -> MemoryDisk:
        """Open a bookie with journals in ``/j1`` and ``/j2``, and return the disk of the second one."""
        await self.open(threshold=0)
        await self.storage.close()
        second = MemoryDisk()
        self.storage = await LedgerStorage.open(
            MemoryDisk(), MemoryDisk(), MemoryIndex(), StorageSettings(), self.clock, more_journals=[second]
        )
        self.service = BookieService(self.storage, self.ledger_disk, BookieIdentity("uuid", VERSION))
        self.watch_disks(0, Path("/j1"), Path("/j2"))
        return second

    def watch_disks(self, threshold: int, *journal_paths: Path) -> None:
        self.watch = DiskWatch(
            (self.journal, self.ledger_disk),
            self.storage,
            self.service,
            self.keeper,
            self.clock,
            read_only_below_bytes=threshold,
            journal_paths=journal_paths,
        )

    def leave_free(self, size: int) -> None:
        self.ledger_disk.capacity_bytes = self.ledger_disk.used_bytes() + size

    async def check(self, free: int) -> tuple[bool, Status, Status]:
        """Return whether the bookie is registered as read-only, and the answers to a plain add and a recovery add."""
        self.leave_free(free)
        await self.watch.check()
        is_read_only = US in (await self.registrations.list()).read_only
        return is_read_only, await self.add(is_recovery=False), await self.add(is_recovery=True)

    async def add(self, *, is_recovery: bool) -> Status:
        batch = AddBatch(LedgerId(1), b"key", [entry(1, 1, b"")], is_recovery)
        return (await self.service.add("", batch)).status


@in_virtual_time
async def test_adds_are_refused_and_accepted_again_step_by_step() -> None:
    world = await DiskWatchWorld().open()
    ok, refused = Status.OK, Status.READ_ONLY
    assert await world.check(THRESHOLD) == (False, ok, ok)
    assert await world.check(THRESHOLD - 1) == (True, refused, ok)
    assert await world.check(int(THRESHOLD * 0.4)) == (True, refused, ok)
    assert await world.check(int(THRESHOLD * 0.4) - 1) == (True, refused, refused)
    assert await world.check(int(THRESHOLD * 0.45)) == (True, refused, refused)
    assert await world.check(int(THRESHOLD * 0.5)) == (True, refused, ok)
    assert await world.check(int(THRESHOLD * 1.24)) == (True, refused, ok)
    assert await world.check(int(THRESHOLD * 1.25)) == (False, ok, ok)


@in_virtual_time
async def test_the_log_says_why_a_bookie_becomes_read_only(caplog: pytest.LogCaptureFixture) -> None:
    world = await DiskWatchWorld().open()
    await world.check(THRESHOLD - 1)
    await world.check(2 * THRESHOLD)
    changes = [
        (record.__dict__["reasons"], record.__dict__["free_bytes"])
        for record in caplog.records
        if record.levelname == "WARNING" and "reasons" in record.__dict__
    ]
    assert changes == [("disk-space", THRESHOLD - 1), ("", 2 * THRESHOLD)]


@in_virtual_time
async def test_plain_adds_are_accepted_while_the_bookie_is_registered_as_writable() -> None:
    world = await DiskWatchWorld().open()
    answers: list[tuple[bool, Status]] = []

    async def add(operation: str, path: str) -> Fault | None:
        if operation in ("create", "delete", "multi") and path.startswith(f"{world.cluster.root}/available"):
            is_announced = path.startswith(f"{world.cluster.root}/available/readonly")
            answers.append((is_announced, await world.add(is_recovery=False)))
        return None

    world.store.fault_hook = add
    await world.check(THRESHOLD - 1)
    await world.check(THRESHOLD * 2)
    assert {is_announced for is_announced, _ in answers} == {True, False}
    assert {status for _, status in answers} == {Status.OK}


@in_virtual_time
async def test_a_disk_whose_free_space_stays_unknown_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await DiskWatchWorld().open()

    async def room() -> int:
        raise DiskError("no such directory")

    with monkeypatch.context() as patched:
        patched.setattr(world.ledger_disk, "room", room)
        for _ in range(3):
            await world.watch.check()
            await asyncio.sleep(1)
    for _ in range(2):
        await world.watch.check()
    logged = [record.message for record in caplog.records if record.message.startswith("free space")]
    assert logged == ["free space is unknown", "free space is known again"]


@in_virtual_time
async def test_a_full_disk_makes_the_bookie_read_only_without_flapping() -> None:
    world = await DiskWatchWorld().open(threshold=0)
    await world.add(is_recovery=False)
    world.journal.capacity_bytes = world.journal.used_bytes() + 3
    assert await world.add(is_recovery=True) is Status.READ_ONLY
    await world.watch.check()
    assert US in (await world.registrations.list()).read_only
    world.journal.capacity_bytes = 1 << 40
    await world.clock.sleep(5)
    assert await world.add(is_recovery=True) is Status.OK
    assert (await world.check(1 << 20))[:2] == (True, Status.READ_ONLY)
    await world.clock.sleep(60)
    assert await world.check(1 << 20) == (False, Status.OK, Status.OK)


class HangingSync:
    """A disk that hangs on every sync until ``answers`` is set."""

    def __init__(self, world: DiskWatchWorld) -> None:
        self.answers = asyncio.Event()
        world.journal.before = self.before

    async def before(self, operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            await self.answers.wait()


async def watched_for(world: DiskWatchWorld, seconds: float) -> bool:
    """Run the watch for this time, and return whether the bookie is then registered as read-only."""
    watching = asyncio.create_task(world.watch.run())
    await world.clock.sleep(seconds)
    await cancel(watching)
    return US in (await world.registrations.list()).read_only


@in_virtual_time
async def test_a_hanging_journal_disk_makes_the_bookie_read_only_until_it_answers() -> None:
    world = await DiskWatchWorld().open(threshold=0)
    disk = HangingSync(world)
    adding = asyncio.create_task(world.add(is_recovery=False))
    assert not await watched_for(world, 14)
    assert await watched_for(world, 11)
    disk.answers.set()
    assert await adding is Status.OK
    assert not await watched_for(world, 6)
    assert await world.add(is_recovery=False) is Status.OK


@in_virtual_time
async def test_a_journal_disk_that_hangs_for_a_minute_stops_the_bookie(caplog: pytest.LogCaptureFixture) -> None:
    world = await DiskWatchWorld().open(threshold=0)
    HangingSync(world)
    adding = asyncio.create_task(world.add(is_recovery=False))
    await watched_for(world, 71)
    assert isinstance(await world.storage.fatal, StalledDiskError)
    assert await adding is Status.IO_ERROR
    await world.watch.check()
    assert sum(record.levelname == "CRITICAL" for record in caplog.records) == 1, "the end is logged repeatedly"


@in_virtual_time
async def test_a_bookie_that_was_suspended_for_a_minute_reports_no_stalled_disk() -> None:
    world = await DiskWatchWorld().open(threshold=0)
    sync = HangingSync(world)
    adding = asyncio.create_task(world.add(is_recovery=False))
    await watched_for(world, 6)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(600)
    await world.watch.check()
    assert not world.storage.fatal.done()
    assert world.watch.reasons == ()
    sync.answers.set()
    assert await adding is Status.OK


@pytest.mark.parametrize("hanging", [Operation.SYNC, Operation.REPLACE])
@in_virtual_time
async def test_a_hanging_journal_is_named_even_if_only_a_checkpoint_waits_for_it(hanging: Operation) -> None:
    world = DiskWatchWorld()
    second = await world.open_with_two_journals()

    async def before(operation: Operation, path: str) -> None:
        if operation is hanging:
            await asyncio.Event().wait()

    assert (await world.service.add("", AddBatch(LedgerId(1), b"key", [entry(1, 0, b"")]))).status is Status.OK
    second.before = before
    if hanging is Operation.SYNC:
        waiting = [asyncio.create_task(world.add(is_recovery=False))]
    else:
        waiting = []
        checkpoint = asyncio.create_task(world.storage.checkpoint())
    assert await watched_for(world, 25)
    assert world.watch.reasons == ("stalled-disk",)
    assert world.watch.journal_problem(0) == ""
    assert world.watch.journal_problem(1) != ""
    await watched_for(world, 46)
    fatal = await world.storage.fatal
    assert isinstance(fatal, StalledDiskError)
    assert "/j2" in str(fatal)
    assert [await each for each in waiting] == [Status.IO_ERROR] * len(waiting)
    if hanging is Operation.REPLACE:
        await cancel(checkpoint)


@pytest.mark.parametrize("hanging", [Operation.SYNC, Operation.SYNC_DIRECTORY, Operation.INDEX_WRITE])
@in_virtual_time
async def test_a_hanging_ledger_disk_makes_the_bookie_read_only_and_stops_it(hanging: Operation) -> None:
    world = await DiskWatchWorld().open(threshold=0)

    async def before(operation: Operation, path: str) -> None:
        if operation is hanging:
            await asyncio.Event().wait()

    assert await world.add(is_recovery=False) is Status.OK
    world.ledger_disk.before = world.index.before = before
    checkpoint = asyncio.create_task(world.storage.checkpoint())
    assert await watched_for(world, 25)
    assert world.watch.reasons == ("stalled-disk",)
    assert world.watch.journal_problem(0) == ""
    assert world.watch.ledger_problem != ""
    await watched_for(world, 46)
    fatal = await world.storage.fatal
    assert isinstance(fatal, StalledDiskError)
    assert "the first ledger directory" in str(fatal)
    await cancel(checkpoint)


@in_virtual_time
async def test_a_ledger_disk_that_hangs_while_nothing_is_added_stops_the_bookie() -> None:
    world = await DiskWatchWorld().open(threshold=0)

    async def hang(operation: Operation, path: str) -> None:
        await asyncio.Event().wait()

    world.ledger_disk.before = hang
    assert await watched_for(world, 55)
    assert world.watch.ledger_problem != ""
    await watched_for(world, 100)
    assert isinstance(await world.storage.fatal, StalledDiskError)


@in_virtual_time
async def test_a_ledger_disk_that_can_only_be_read_is_logged_once_and_stays_in_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await DiskWatchWorld().open(threshold=0)

    async def fail(operation: Operation, path: str) -> None:
        raise DiskError("read-only file system")

    world.ledger_disk.before = fail
    assert not await watched_for(world, 200)
    assert not world.storage.fatal.done()
    logged = [vars(record)["error"] for record in caplog.records if "cannot be written" in record.message]
    assert logged == ["read-only file system"]


@in_virtual_time
async def test_a_disk_that_is_slow_but_writes_is_not_stalled() -> None:
    world = await DiskWatchWorld().open(threshold=0)

    async def slow(operation: Operation, path: str) -> None:
        await world.clock.sleep(4)

    world.journal.before = slow

    async def adds() -> None:
        while True:
            assert await world.add(is_recovery=False) is Status.OK

    adding = asyncio.create_task(adds())
    assert not await watched_for(world, 120)
    assert not world.storage.fatal.done()
    world.journal.before = yield_control
    await cancel(adding)


@in_virtual_time
async def test_with_a_threshold_of_zero_the_bookie_stays_writable() -> None:
    world = await DiskWatchWorld().open(threshold=0)
    assert await world.check(1000) == (False, Status.OK, Status.OK)
