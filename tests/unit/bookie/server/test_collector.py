"""The collector on in-memory twins: what it deletes and keeps; it never deletes a needed entry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bookie.metadata.bookies.collections import HeldCollections
from bookie.metadata.layout import lock_path, locks_path
from bookie.metadata.port import Check, Node
from bookie.metadata.port import Operation as Change
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.locks import HeldLock
from bookie.metadata.tasks.reservations import Reservation, Reservations
from bookie.model.availability import EntryRuns
from bookie.model.holdings import holds_all
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.fault_points import inject_faults
from bookie.server.upkeep.collector import Collector, CollectorReport, CollectorSettings
from bookie.server.upkeep.collector_verdict import CollectorVerdict, is_mass_deletion, verdict
from bookie.storage.disks.memory import Operation, yield_control
from bookie.storage.entry_logs.entry_log import log_path
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, ListReply, Status
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import MemoryCluster, open_bookie
from tests.worlds.machine import SMALL, entry
from tests.worlds.virtual_time import in_virtual_time, run_virtual

US, BK1, BK2 = BookieId("us:3181"), BookieId("bk1:3181"), BookieId("bk2:3181")
L5, L6 = LedgerId(5), LedgerId(6)
KEY = b"key"
OPEN = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (US, BK1)),))
OURS = OPEN.closed(EntryId(9), 100)
MOVED = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BK2, BK1)),)).closed(EntryId(9), 100)
SETTINGS = CollectorSettings(interval_s=600, confirm_after_s=30, suspects_per_s=10)


class CollectorWorld(MemoryCluster):
    """The storage of one bookie, the session of the bookie, and a second session for the test."""

    async def open(self, settings: CollectorSettings = SETTINGS, disks: StorageSettings = SMALL) -> CollectorWorld:
        await self.found()
        self.bookie_session = self.session()
        self.reservations = Reservations(self.store, self.cluster.root)
        bookie = await open_bookie(self.clock, settings=disks)
        self.journal, self.disk, self.storage = bookie.journal, bookie.ledgers, bookie.storage
        self.collector = Collector(
            self.bookie_session, self.cluster, self.storage, US, self.clock, random.Random(3), settings
        )
        return self

    async def add(self, ledger_id: LedgerId, *entry_ids: int, is_recovery: bool = False) -> Status:
        entries = [entry(ledger_id, entry_id, b"x" * 20) for entry_id in entry_ids]
        return (await self.storage.add(AddBatch(ledger_id, KEY, entries, is_recovery))).status

    async def held(self, ledger_id: LedgerId) -> list[int]:
        return list((await self.storage.list_entries(ledger_id)).entries)

    async def set(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        current = await self.ledgers.current(ledger_id)
        if current is None:
            await self.ledgers.create(ledger_id, metadata)
        else:
            await self.ledgers.write(ledger_id, metadata, current.version)


async def ledger(world: CollectorWorld, ledger_id: LedgerId, metadata: LedgerMetadata | None) -> None:
    if metadata is not None:
        await world.set(ledger_id, metadata)
    async with asyncio.timeout(60):
        while await world.add(ledger_id, *range(10)) is not Status.OK:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, CollectorVerdict.DELETED),
        (OPEN, CollectorVerdict.KEEP),
        (OURS, CollectorVerdict.KEEP),
        (MOVED, CollectorVerdict.SURPLUS),
    ],
)
def test_only_deleted_ledgers_and_closed_ones_of_other_bookies_can_be_collected(
    metadata: LedgerMetadata | None, expected: CollectorVerdict
) -> None:
    assert verdict(metadata, US) is expected


def test_an_open_ledger_of_other_bookies_is_kept() -> None:
    assert verdict(LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BK2, BK1)),)), US) is CollectorVerdict.KEEP


def test_a_few_ledgers_can_all_be_collected_but_not_many() -> None:
    assert not is_mass_deletion(100, 100, ratio_max=0.5, known_min=100)
    assert is_mass_deletion(101, 200, ratio_max=0.5, known_min=100)
    assert not is_mass_deletion(100, 200, ratio_max=0.5, known_min=100)


@in_virtual_time
async def test_a_ledger_is_complete_with_every_entry_of_every_position() -> None:
    world = await CollectorWorld().open()
    striped = LedgerMetadata(3, 2, 2, (Fragment(EntryId(0), (US, BK1, BK2)), Fragment(EntryId(4), (BK1, US, BK2))))
    closed = striped.closed(EntryId(7), 1)
    expected = [0, 2, 3, 4, 6, 7]
    await world.add(L5, *expected)
    assert holds_all(closed, US, (await world.storage.list_entries(L5)).entries)
    for missing in expected:
        await world.add(L6, *(number for number in expected if number != missing))
        assert not holds_all(closed, US, (await world.storage.list_entries(L6)).entries)
        assert await world.storage.collect(L6, world.storage.mark(L6))
        world = await CollectorWorld().open()


def test_fragments_beyond_the_end_of_a_ledger_are_empty() -> None:
    fragments = tuple(Fragment(EntryId(first), (US, BK1)) for first in (0, 4, 10, 20))
    closed = LedgerMetadata(2, 2, 2, fragments).closed(EntryId(5), 1)
    assert holds_all(closed, US, EntryRuns.of(range(6)))
    assert not holds_all(closed, US, EntryRuns.of(range(5)))


@in_virtual_time
async def test_deleted_and_surplus_ledgers_are_collected_and_stay_fenced() -> None:
    world = await CollectorWorld().open()
    for number, metadata in enumerate([OPEN, OURS, MOVED, None]):
        await ledger(world, LedgerId(number), metadata)
    report = await world.collector.run_pass()
    assert (report.known, report.suspects, report.collected_surplus, report.collected_deleted) == (4, 2, 1, 1)
    assert (report.stopped, report.kept, report.unknown) == ("", 0, 0)
    assert [bool(await world.held(LedgerId(number))) for number in range(4)] == [True, True, False, False]
    assert await world.storage.ledger_ids() == [0, 1]
    assert await world.add(LedgerId(2), 11) is await world.add(LedgerId(3), 11) is Status.FENCED
    assert await world.reservations.read(LedgerId(2)) is None
    assert await world.tasks.locks.locked() == frozenset()
    assert (await world.collector.run_pass()).known == 2


@in_virtual_time
async def test_the_space_is_freed() -> None:
    world = await CollectorWorld().open()
    for number in range(4):
        await ledger(world, LedgerId(number), OURS if number == 3 else None)
    await world.storage.checkpoint()
    used = world.disk.used_bytes()
    report = await world.collector.run_pass()
    assert report.compacted is not None
    assert report.compacted.removed_logs >= 1
    assert world.disk.used_bytes() < used / 2
    reply = await world.storage.read(LedgerId(3), [EntryId(number) for number in range(10)])
    assert [result.status for result in reply.results] == [Status.OK] * 10


@in_virtual_time
async def test_a_minor_collection_compacts_logs_below_half_and_a_major_one_those_below_four_fifths() -> None:
    world = await CollectorWorld().open(disks=StorageSettings())
    for number, live in enumerate((9, 10, 15, 17)):  # the live entries of the 20 in each entry log
        await ledger_of(world, LedgerId(number), OURS, live)
        await ledger_of(world, LedgerId(100 + number), None, 20 - live)
        await world.storage.checkpoint()
    minor = await world.collector.run_pass()
    assert (minor.is_major, minor.collected, await world.disk.names("entries")) == (False, 4, names(2, 3, 4, 5))
    major = await world.collector.run_pass(is_major=True)
    assert (major.is_major, major.collected, await world.disk.names("entries")) == (True, 0, names(4, 5, 6, 7))
    copied = [report.compacted.copied_bytes if report.compacted else 0 for report in (minor, major)]
    assert [count // len(entry(0, 0, b"x" * 20)) for count in copied] == [9, 10 + 15]
    for number, live in enumerate((9, 10, 15, 17)):
        reply = await world.storage.read(LedgerId(number), [EntryId(each) for each in range(live)])
        assert {result.status for result in reply.results} == {Status.OK}
    again = await world.collector.run_pass(is_major=True)
    assert again.compacted is not None
    assert again.compacted.removed_logs == 0


async def ledger_of(world: CollectorWorld, ledger_id: LedgerId, metadata: LedgerMetadata | None, count: int) -> None:
    if metadata is not None:
        await world.set(ledger_id, metadata)
    assert await world.add(ledger_id, *range(count)) is Status.OK


@in_virtual_time
async def test_an_entry_log_that_cannot_be_opened_does_not_prevent_compaction_of_others() -> None:
    world = await CollectorWorld().open(disks=StorageSettings())
    for number in range(3):
        await ledger_of(world, LedgerId(number), OURS, 5)
        await ledger_of(world, LedgerId(100 + number), None, 20)
        await world.storage.checkpoint()

    async def unreadable(operation: Operation, path: str) -> None:
        if (operation, path) == (Operation.OPEN, log_path(2)):
            raise DiskError("structure needs cleaning")

    world.disk.before = unreadable
    for removed_logs in (2, 0):
        report = await world.collector.run_pass()
        assert report.compacted is not None
        assert (report.stopped, report.compacted.removed_logs, report.compacted.kept_damaged) == ("", removed_logs, 1)
    assert await world.disk.names("entries") == names(2, 4, 5)
    world.disk.before = yield_control
    report = await world.collector.run_pass()
    assert report.compacted is not None
    assert (report.compacted.removed_logs, report.compacted.kept_damaged) == (1, 0)
    for number in range(3):
        reply = await world.storage.read(LedgerId(number), [EntryId(each) for each in range(5)])
        assert {result.status for result in reply.results} == {Status.OK}


@in_virtual_time
async def test_a_compaction_that_fails_is_reported_as_a_pass_that_ended_early(caplog: pytest.LogCaptureFixture) -> None:
    world = await CollectorWorld().open(disks=StorageSettings())
    await ledger_of(world, L5, OURS, 5)
    await ledger_of(world, L6, None, 20)
    await world.storage.checkpoint()

    async def full(operation: Operation, path: str) -> None:
        if operation is Operation.CREATE:
            raise DiskFullError("no space left")

    world.disk.before = full
    report = await world.collector.run_pass()
    assert (report.collected, report.compacted, report.stopped) == (1, None, "compaction: no space left")
    assert [found.levelname for found in caplog.records if found.message == "collector pass"] == ["WARNING"]


def names(*log_ids: int) -> list[str]:
    return [log_path(log_id).partition("/")[2] for log_id in log_ids]


@in_virtual_time
async def test_reserved_copies_are_kept_while_their_worker_holds_the_lock() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    await world.reservations.reserve(L5, "t", [Reservation(EntryId(0), 0, US, "uuid")])
    await world.tasks.marking.mark(L5, [BK2])
    held = await world.tasks.locks.lock(L5, "worker")
    assert held is not None
    report = await world.collector.run_pass()
    assert (report.locked, report.collected) == (1, 0)
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_an_unfinished_copy_is_kept_while_the_ledger_is_marked() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    reserved = await world.reservations.reserve(L5, "t", [Reservation(EntryId(0), 0, US, "uuid", EntryId(5))])
    await world.tasks.marking.mark(L5, [BK2])
    assert (await world.collector.run_pass()).collected == 0
    assert await world.reservations.read(L5) == reserved
    assert await world.tasks.locks.locked() == frozenset()
    held = await world.tasks.locks.lock(L5, "worker")
    assert held is not None
    assert await world.tasks.locks.complete(held)
    assert (await world.collector.run_pass()).collected == 1
    assert await world.reservations.read(L5) is None


@in_virtual_time
async def test_a_reservation_of_a_dead_worker_expires_and_can_no_longer_be_installed() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    reserved = await world.reservations.reserve(L5, "t", [Reservation(EntryId(0), 0, US, "uuid")])
    assert (await world.collector.run_pass()).collected == 1
    assert await world.reservations.read(L5) is None
    with pytest.raises(Exception, match="not as it was"):
        await world.ledgers.write(L5, OURS, 0, checks=[Check(reserved.path, reserved.version)])


@in_virtual_time
async def test_reservations_for_other_bookies_are_kept() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    reserved = await world.reservations.reserve(L5, "t", [Reservation(EntryId(0), 0, BK2, "uuid")])
    assert (await world.collector.run_pass()).collected == 1
    assert await world.reservations.read(L5) == reserved


@in_virtual_time
async def test_a_copy_that_continues_without_a_lock_or_reservation_is_kept() -> None:
    """Apache's ``recover`` copies like this, and names the bookie only after its last add."""
    world = await CollectorWorld().open()
    await ledger_of(world, L5, MOVED, 1)

    async def copy() -> None:
        for entry_id in range(1, 10):
            await asyncio.sleep(SETTINGS.confirm_after_s - 5)
            assert await world.add(L5, entry_id, is_recovery=True) is Status.OK
        await world.ledgers.write(L5, OURS, 0)

    copying = asyncio.ensure_future(copy())
    while not copying.done():
        report = await world.collector.run_pass()
        assert (report.kept, report.collected) == (1, 0)
    await copying
    assert len(await world.held(L5)) == 10


async def _repair(world: CollectorWorld) -> bool:
    """Do what a worker does after the loss of its lock: reserve, list, copy the missing entries, install."""
    current = await world.ledgers.current(L5)
    if current is None:
        return False
    reserved = await world.reservations.reserve(L5, "worker", [Reservation(EntryId(0), 0, US, "uuid")])
    missing = set(range(10)) - set(await world.held(L5))
    if missing and await world.add(L5, *sorted(missing), is_recovery=True) is not Status.OK:
        return False
    if len(await world.held(L5)) < 10:
        return False
    try:
        await world.ledgers.write(L5, OURS, current.version, checks=[Check(reserved.path, reserved.version)])
    except Exception:  # noqa: BLE001 (any refusal is fine)
        return False
    return True


async def _is_phantom_after_repair_at(request_number: int) -> bool:
    """Repair during a pass, and return whether the metadata names a missing copy."""
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    await world.storage.checkpoint()
    requests, was_installed = 0, False

    async def at_request(operation: str, path: str) -> Fault | None:
        nonlocal requests, was_installed
        requests += 1
        if requests == request_number:
            world.bookie_session.fault_hook = None
            was_installed = await _repair(world)
        return None

    world.bookie_session.fault_hook = at_request
    await world.collector.run_pass()
    return was_installed and len(await world.held(L5)) < 10


async def _is_phantom_after_race(seed: int) -> bool:
    """Repair during two passes, with random delays, and return whether the metadata names a missing copy."""
    rng = random.Random(seed)
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    if rng.random() < 0.5:
        await world.storage.checkpoint()

    async def slowly(operation: str, path: str) -> Fault | None:
        for _ in range(rng.choice((0, 1, 5, 20))):
            await asyncio.sleep(0)
        return None

    world.bookie_session.fault_hook = world.store.fault_hook = slowly

    async def later(work: Callable[[], Awaitable[object]], *waits_s: float) -> object:
        await asyncio.sleep(rng.choice(waits_s) + rng.choice((0, 0.099, 0.1, 0.101)))
        return await work()

    passes = [later(world.collector.run_pass, 0) for _ in range(2)]
    repair = later(lambda: _repair(world), 0, SETTINGS.confirm_after_s)
    was_installed, *_ = await asyncio.gather(repair, *passes)
    return bool(was_installed) and len(await world.held(L5)) < 10


def test_a_repair_that_loses_its_lock_at_any_moment_never_installs_a_collected_copy() -> None:
    assert not any(run_virtual(_is_phantom_after_repair_at(number)) for number in range(40))


def test_repairs_and_passes_in_any_order_never_install_a_collected_copy() -> None:
    assert not any(run_virtual(_is_phantom_after_race(seed)) for seed in range(150))


def test_the_race_tests_detect_a_listing_that_does_not_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: listing does not clear the mark."""
    list_entries = LedgerStorage.list_entries

    async def without_pin(self: LedgerStorage, ledger_id: LedgerId) -> ListReply:
        marks = dict(self._marks)
        reply = await list_entries(self, ledger_id)
        self._marks.update(marks)
        return reply

    async def race() -> bool:
        """The repair happens between the proof and the deletion."""
        world = await CollectorWorld().open()
        await ledger(world, L5, MOVED)
        with inject_faults(lambda name: name == "collector.slow_to_delete"):
            collecting = asyncio.ensure_future(world.collector.run_pass())
            await asyncio.sleep(SETTINGS.confirm_after_s + 2)
            was_installed = await _repair(world)
            await collecting
        return was_installed and len(await world.held(L5)) < 10

    assert not run_virtual(race())
    monkeypatch.setattr(LedgerStorage, "list_entries", without_pin)
    assert run_virtual(race())


def test_the_race_tests_detect_a_collector_that_ignores_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: only the metadata decides, and a reservation made before the mark does not count."""

    async def metadata_alone(self: Collector, ledger_id: LedgerId) -> bool:
        current = await self._ledgers.current(ledger_id)
        return current is not None and verdict(current.metadata, US) is CollectorVerdict.SURPLUS

    monkeypatch.setattr(Collector, "_is_proved_surplus", metadata_alone)

    async def race(pause: int) -> bool:
        """The repair lists before the mark is set, and installs after the copy was collected."""
        world = await CollectorWorld().open()
        await ledger(world, L5, MOVED)
        installs = asyncio.Event()

        async def wait_before_install(operation: str, path: str) -> Fault | None:
            if operation == "multi" and "/0000/" in path:
                await installs.wait()
            return None

        world.store.fault_hook = wait_before_install
        repairing = asyncio.ensure_future(_repair(world))
        await asyncio.sleep(pause)
        await world.collector.run_pass()
        installs.set()
        return await repairing and len(await world.held(L5)) < 10

    assert any(run_virtual(race(pause)) for pause in (1, 5))
    monkeypatch.undo()
    assert not any(run_virtual(race(pause)) for pause in (1, 5))


@in_virtual_time
async def test_a_copy_that_is_installed_after_the_metadata_was_read_is_kept() -> None:
    """The worker has lost its lock, but it listed the copy before the pass."""
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    reserved = await world.reservations.reserve(L5, "worker", [Reservation(EntryId(0), 0, US, "uuid")])

    async def install(operation: str, path: str) -> Fault | None:
        if (operation, path) == ("get", world.reservations.path(L5)):
            world.bookie_session.fault_hook = None
            await world.ledgers.write(L5, OURS, 0, checks=[Check(reserved.path, reserved.version)])
            await world.store.multi(world.reservations.deletes(reserved))
        return None

    world.bookie_session.fault_hook = install
    report = await world.collector.run_pass()
    assert (report.suspects, report.collected, report.kept) == (1, 0, 1)
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_a_copy_that_is_listed_before_the_proof_is_answered_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    multi, listed = world.bookie_session.multi, 0

    async def slowly(changes: Sequence[Change]) -> None:
        nonlocal listed
        await multi(changes)
        if Check(world.ledgers.path(L5), 0) in changes:
            await world.reservations.reserve(L5, "worker", [Reservation(EntryId(0), 0, US, "uuid")])
            listed = len(await world.held(L5))

    monkeypatch.setattr(world.bookie_session, "multi", slowly)
    report = await world.collector.run_pass()
    assert listed == 10
    assert (report.collected, report.kept) == (0, 1)
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_a_ledger_that_a_stale_server_does_not_have_yet_is_kept() -> None:
    """The ledger is missing at the first check, and present at the second."""
    world = await CollectorWorld().open()
    await ledger(world, L5, None)

    async def create_soon() -> None:
        await asyncio.sleep(15)
        await world.ledgers.create(L5, OPEN)

    soon = asyncio.ensure_future(create_soon())
    report = await world.collector.run_pass()
    await soon
    assert (report.collected, report.kept) == (0, 1)
    assert len(await world.held(L5)) == 10


@pytest.mark.parametrize("touch", ["add", "list", "fence"])
def test_a_request_between_the_two_checks_keeps_a_deleted_ledger(touch: str) -> None:
    @in_virtual_time
    async def scenario() -> None:
        world = await CollectorWorld().open()
        await ledger(world, L5, None)

        async def come() -> None:
            await asyncio.sleep(15)
            match touch:
                case "add":
                    await world.add(L5, 3, is_recovery=True)
                case "list":
                    await world.storage.list_entries(L5)
                case "fence":
                    await world.storage.fence(L5, KEY)

        coming = asyncio.ensure_future(come())
        report = await world.collector.run_pass()
        await coming
        assert (report.collected, report.kept) == (0, 1)
        assert (await world.collector.run_pass()).collected == 1

    scenario()


@in_virtual_time
async def test_implausibly_many_suspects_are_not_collected() -> None:
    world = await CollectorWorld().open(CollectorSettings(confirm_after_s=30, known_min=5))
    for number in range(6):
        await ledger(world, LedgerId(number), OURS if number < 2 else None)
    report = await world.collector.run_pass()
    assert (report.suspects, report.collected) == (4, 0)
    assert "check the metadata" in report.stopped
    assert len(await world.storage.ledger_ids()) == 6


def test_a_large_deletion_proceeds_once_an_operator_allows_it() -> None:
    @in_virtual_time
    async def scenario() -> None:
        world = await CollectorWorld().open(CollectorSettings())
        records = HeldCollections(world.store, world.cluster.root)
        for number in range(201):
            await ledger(world, LedgerId(number), OURS if number < 100 else None)

        async def seen() -> tuple[int, int, int]:
            report = await world.collector.run_pass()
            return report.held, report.collected, len(await records.all())

        assert await seen() == await seen() == (101, 0, 1)
        now_ms = world.clock.epoch_ms()
        await records.allow(US, "ops", now_ms, now_ms + 3_600_000, 100)
        assert await seen() == (101, 0, 1)  # the operator allowed fewer
        await records.allow(US, "ops", now_ms - 7_200_000, now_ms - 3_600_000)
        assert await seen() == (101, 0, 1)  # the permission has ended
        await records.allow(US, "ops", now_ms, now_ms + 3_600_000)
        assert await seen() == (0, 101, 1)
        assert await seen() == (0, 0, 0)
        assert len(await world.storage.ledger_ids()) == 100

    scenario()


@in_virtual_time
async def test_the_record_of_a_held_collection_ends_after_a_restart_with_few_ledgers() -> None:
    """If the record remained, a permission in it would also apply to the next implausible collection."""
    settings = CollectorSettings(confirm_after_s=30, known_min=5)
    world = await CollectorWorld().open(settings)
    records = HeldCollections(world.store, world.cluster.root)
    for number in range(6):
        await ledger(world, LedgerId(number), OURS if number < 2 else None)
    await world.collector.run_pass()
    now_ms = world.clock.epoch_ms()
    await records.allow(US, "ops", now_ms, now_ms + 3_600_000)
    assert (await world.collector.run_pass()).collected == 4
    assert len(await records.all()) == 1
    restarted = Collector(
        world.bookie_session, world.cluster, world.storage, US, world.clock, random.Random(3), settings
    )
    assert (await restarted.run_pass()).stopped == ""
    assert await records.all() == []


@in_virtual_time
async def test_an_allowed_collection_still_checks_each_ledger() -> None:
    world = await CollectorWorld().open(CollectorSettings(confirm_after_s=30, known_min=5))
    records = HeldCollections(world.store, world.cluster.root)
    for number in range(6):
        await ledger(world, LedgerId(number), None)
    await world.collector.run_pass()
    now_ms = world.clock.epoch_ms()
    await records.allow(US, "ops", now_ms, now_ms + 3_600_000)

    async def restore() -> None:
        await asyncio.sleep(15)
        for number in range(3):
            await world.set(LedgerId(number), OURS)

    restoring = asyncio.ensure_future(restore())
    report = await world.collector.run_pass()
    await restoring
    assert (report.collected, report.kept) == (3, 3)
    assert await world.storage.ledger_ids() == [0, 1, 2]


@pytest.mark.parametrize("fault", Fault)
def test_without_an_answer_whether_a_collection_is_allowed_everything_is_kept(fault: Fault) -> None:
    @in_virtual_time
    async def scenario() -> None:
        world = await CollectorWorld().open(CollectorSettings(confirm_after_s=30, known_min=5))
        records = HeldCollections(world.store, world.cluster.root)
        for number in range(6):
            await ledger(world, LedgerId(number), None)
        await world.collector.run_pass()
        now_ms = world.clock.epoch_ms()
        await records.allow(US, "ops", now_ms, now_ms + 3_600_000)

        async def fail(operation: str, path: str) -> Fault | None:
            return fault if path.startswith("/bkheal/collections") else None

        world.bookie_session.fault_hook = fail
        report = await world.collector.run_pass()
        assert (report.held, report.collected) == (6, 0)
        assert len(await world.storage.ledger_ids()) == 6

    scenario()


@in_virtual_time
async def test_a_reformatted_root_deletes_nothing() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, None)
    await world.store.set("/ledgers/INSTANCEID", b"another", -1)
    report = await world.collector.run_pass()
    assert "another cluster" in report.stopped
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_unreadable_metadata_and_reservations_keep_the_data() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    await ledger(world, L6, MOVED)
    await world.store.set(world.ledgers.path(L5), b"rubbish", -1)
    await world.reservations.reserve(L6, "t", [])
    await world.store.set(world.reservations.path(L6), b"rubbish", -1)
    report = await world.collector.run_pass()
    assert (report.collected, report.unknown) == (0, 2)
    assert len(await world.held(L5)) == len(await world.held(L6)) == 10


@in_virtual_time
async def test_a_denied_ledger_is_kept_and_does_not_protect_the_others() -> None:
    world = await CollectorWorld().open()
    for number in range(20):
        await ledger(world, LedgerId(number), None if number % 5 else MOVED)
    await ledger(world, LedgerId(20), OURS)
    await world.storage.set_limbo([LedgerId(20)])
    for number in (5, 10):
        world.cell.deny(world.ledgers.path(LedgerId(number)))
    report = await world.collector.run_pass()
    assert (report.collected, report.unknown, report.limbo_cleared, report.stopped) == (18, 2, 1, "")
    assert await world.storage.ledger_ids() == [5, 10, 20]


@in_virtual_time
async def test_denied_locks_keep_only_moved_ledgers() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    world.cell.deny(locks_path(world.cluster.root))
    for number in (10, 11):
        await ledger(world, LedgerId(number), None)
        report = await world.collector.run_pass()
        assert (report.collected, report.unknown, report.stopped) == (1, 1, "")
    assert await world.storage.ledger_ids() == [L5]


@pytest.mark.parametrize("fault", Fault)
def test_after_one_failed_request_the_next_pass_completes_the_collection(fault: Fault) -> None:
    @in_virtual_time
    async def scenario() -> None:
        for at in range(40):
            world = await CollectorWorld().open()
            await ledger(world, L5, MOVED)
            await ledger(world, L6, None)
            await ledger(world, LedgerId(7), OURS)
            requests = 0

            async def fail_one(operation: str, path: str, at: int = at) -> Fault | None:
                nonlocal requests
                requests += 1
                return fault if requests - 1 == at else None

            world.bookie_session.fault_hook = fail_one
            await world.collector.run_pass()
            assert world.storage._marks == {}, f"request {at}"
            world.bookie_session.fault_hook = None
            for _ in range(2):
                await world.collector.run_pass()
            assert await world.storage.ledger_ids() == [7], f"request {at}"
            assert await world.tasks.locks.locked() == frozenset()

    scenario()


@in_virtual_time
async def test_the_end_of_the_session_ends_the_pass() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, None)

    async def expire() -> None:
        await asyncio.sleep(15)
        world.bookie_session.expire()
        await asyncio.sleep(1)
        world.bookie_session.resume()

    expiring = asyncio.ensure_future(expire())
    report = await world.collector.run_pass()
    await expiring
    assert "session" in report.stopped
    assert len(await world.held(L5)) == 10
    assert (await world.collector.run_pass()).collected == 1


@in_virtual_time
async def test_a_session_that_ends_during_the_second_check_keeps_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new server is not the one of the ``sync``, and may be older than the first check."""
    world = await CollectorWorld().open()
    await ledger(world, L5, None)
    sync, looks = world.bookie_session.sync, 0

    async def then_expire(path: str) -> None:
        nonlocal looks
        await sync(path)
        looks += path == world.ledgers.path(L5)
        if looks == 2:
            world.bookie_session.expire()
            world.bookie_session.resume()

    monkeypatch.setattr(world.bookie_session, "sync", then_expire)
    report = await world.collector.run_pass()
    assert (looks, report.collected, "session" in report.stopped) == (2, 0, True)
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_the_lock_of_a_worker_does_not_prove_anything_after_the_end_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector's lock ended with the session, and the next owner's lock looks the same."""
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    get, locks = world.bookie_session.get, list[HeldLock | None]()

    async def then_expire(path: str) -> Node:
        found = await get(path)
        if path == world.ledgers.path(L5) and not locks:
            world.bookie_session.expire()
            locks.append(await world.tasks.locks.lock_unmarked(L5, "worker"))
            await world.reservations.reserve(L5, "worker", [Reservation(EntryId(0), 0, US, "uuid")])
            world.bookie_session.resume()
        return found

    monkeypatch.setattr(world.bookie_session, "get", then_expire)
    report = await world.collector.run_pass()
    assert (len(locks), None in locks) == (1, False)
    assert (report.collected, "session" in report.stopped) == (0, True)
    assert len(await world.held(L5)) == 10
    assert await world.tasks.locks.locked() == {L5}
    assert await world.reservations.read(L5) is not None


@in_virtual_time
async def test_a_session_that_ends_after_the_proof_keeps_the_ledger() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)

    async def expire() -> None:
        while not await world.tasks.locks.locked():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        world.bookie_session.expire()
        world.bookie_session.resume()

    with inject_faults(lambda name: name == "collector.slow_to_delete"):
        report, _ = await asyncio.gather(world.collector.run_pass(), expire())
    assert (report.suspects, report.collected, "session" in report.stopped) == (1, 0, True)
    assert len(await world.held(L5)) == 10


@pytest.mark.parametrize("change", ["lock", "reservation"])
def test_a_change_between_the_reads_and_the_proof_keeps_the_ledger(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Apache worker deletes the lock, or a worker without a lock reserves a copy."""

    @in_virtual_time
    async def scenario() -> None:
        world = await CollectorWorld().open()
        await ledger(world, L5, MOVED)
        await world.reservations.reserve(L5, "t", [Reservation(EntryId(0), 0, BK2, "uuid")])
        multi = world.bookie_session.multi

        async def late(changes: Sequence[Change]) -> None:
            if Check(world.ledgers.path(L5), 0) in changes:
                if change == "lock":
                    await world.store.delete(lock_path(world.cluster.root, L5), -1)
                else:
                    await world.reservations.reserve(L5, "later", [Reservation(EntryId(0), 0, US, "uuid")])
            await multi(changes)

        monkeypatch.setattr(world.bookie_session, "multi", late)
        report = await world.collector.run_pass()
        assert (report.suspects, report.collected, report.kept) == (1, 0, 1)
        assert len(await world.held(L5)) == 10

    scenario()


@in_virtual_time
async def test_a_disk_without_space_ends_a_pass_early() -> None:
    """The missing space does not count as a ledger that cannot be judged; a completed pass may have some of these."""
    world = await CollectorWorld().open(disks=StorageSettings())
    await ledger(world, L5, None)

    async def full(operation: Operation, path: str) -> None:
        if operation is Operation.APPEND:
            raise DiskFullError("no space left")

    world.journal.before = full
    report = await world.collector.run_pass()
    assert (report.collected, report.unknown) == (0, 0)
    assert "no space left" in report.stopped


@in_virtual_time
async def test_limbo_continues_if_the_metadata_changed_after_the_bulk_read() -> None:
    world = await CollectorWorld().open()
    half = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (US, BK1)), Fragment(EntryId(5), (BK2, BK1))))
    await world.set(L5, half.closed(EntryId(9), 100))
    await world.storage.set_limbo([L5])
    await world.add(L5, *range(5), is_recovery=True)

    moved: list[str] = []

    async def move_back(operation: str, path: str) -> Fault | None:
        if (operation, path) == ("sync", world.ledgers.path(L5)) and not moved:
            moved.append(path)
            await world.set(L5, OURS)
        return None

    world.bookie_session.fault_hook = move_back
    assert (await world.collector.run_pass()).limbo_cleared == 0
    assert moved
    assert (await world.storage.list_entries(L5)).status is Status.LIMBO


@in_virtual_time
async def test_limbo_ends_once_a_closed_ledger_is_complete() -> None:
    world = await CollectorWorld().open()
    await world.set(L5, OPEN)
    await world.storage.set_limbo([L5, L6])
    assert (await world.collector.run_pass()).limbo_cleared == 0
    await world.set(L5, OURS)
    await world.add(L5, *range(9), is_recovery=True)
    assert (await world.collector.run_pass()).limbo_cleared == 0
    assert (await world.storage.list_entries(L5)).status is Status.LIMBO
    await world.add(L5, 9, is_recovery=True)
    assert (await world.collector.run_pass()).limbo_cleared == 1
    assert (await world.storage.list_entries(L5)).status is Status.OK
    assert await world.storage.limbo_ids() == []  # the other ledger was collected
    assert await world.add(L5, 10) is Status.FENCED


@in_virtual_time
async def test_limbo_ends_while_a_collection_is_held_back() -> None:
    """After the index was rebuilt, most of the present entries may belong to deleted ledgers."""
    world = await CollectorWorld().open(CollectorSettings(confirm_after_s=30, known_min=5))
    for number in range(6):
        await ledger(world, LedgerId(number), OURS if number < 2 else None)
    await world.set(L6, OPEN)
    limbo = [LedgerId(0), L5, L6]
    await world.storage.set_limbo(limbo)
    report = await world.collector.run_pass()
    assert (report.held, report.collected, report.limbo_cleared) == (4, 0, 1)
    assert "check the metadata" in report.stopped
    assert await world.storage.limbo_ids() == limbo[1:]
    assert (await world.storage.list_entries(LedgerId(0))).status is Status.OK
    assert len(await world.held(L5)) == 10


@in_virtual_time
async def test_the_first_pass_waits_one_interval() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, None)
    running = asyncio.ensure_future(world.collector.run())
    await asyncio.sleep(599)
    assert await world.held(L5)
    await asyncio.sleep(120)
    assert await world.storage.ledger_ids() == []
    running.cancel()


def test_report_adds_up() -> None:
    assert CollectorReport(collected_deleted=2, collected_surplus=3).collected == 5


@in_virtual_time
async def test_a_stopped_collector_leaves_no_lock() -> None:
    world = await CollectorWorld().open()
    await ledger(world, L5, MOVED)
    with inject_faults(lambda name: name == "collector.slow_to_delete"):
        collecting = asyncio.ensure_future(world.collector.run_pass())
        await asyncio.sleep(SETTINGS.confirm_after_s + 1)
        assert await world.tasks.locks.locked() == {L5}
        collecting.cancel()
        await asyncio.wait([collecting])
    assert await world.tasks.locks.locked() == frozenset()
    assert len(await world.held(L5)) == 10


@pytest.mark.parametrize("is_lock_answered", [True, False], ids=["release", "lock"])
@in_virtual_time
async def test_a_lock_outlives_an_outage_of_the_store_by_less_than_a_minute(is_lock_answered: bool) -> None:
    """A lock that lives as long as the session would keep all workers off the ledger. Default settings."""
    world = await CollectorWorld().open(CollectorSettings())
    await ledger(world, L5, MOVED)
    await world.tasks.initialize()
    clock, outage_s = VirtualClock(), 45.0
    began_s: list[float] = []

    async def outage(operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0.001)
        is_last_step = operation == ("delete" if is_lock_answered else "multi") and path.endswith("/urL0000000005")
        if is_last_step and not began_s:
            began_s.append(clock.monotonic_s())
            return Fault.LOSE_ANSWER if operation == "multi" else Fault.FAIL_BEFORE
        is_out = began_s and clock.monotonic_s() < began_s[0] + outage_s
        return Fault.FAIL_BEFORE if is_out else None

    world.bookie_session.fault_hook = outage
    passes = asyncio.create_task(world.collector.run())
    async with asyncio.timeout(2 * CollectorSettings().interval_s):
        while not began_s or clock.monotonic_s() < began_s[0] + outage_s - 1:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.5)
    assert await world.tasks.locks.locked() == {L5}, "the lock remains after the outage"
    async with asyncio.timeout(60):
        while await world.tasks.locks.locked():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
    passes.cancel()
    await asyncio.wait([passes])


@in_virtual_time
async def test_a_lock_that_a_worker_now_holds_is_not_requested_again() -> None:
    """The attempt to lock failed, and a worker took the lock before the next attempt."""
    world = await CollectorWorld().open(CollectorSettings())
    await ledger(world, L5, MOVED)
    await world.tasks.initialize()
    asked: list[str] = []
    held: list[HeldLock | None] = []

    async def fail_the_first_attempt(operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0.001)
        if path.endswith("/urL0000000005"):
            asked.append(operation)
            if not held:
                held.append(await world.tasks.locks.lock_unmarked(L5, "worker"))
                return Fault.FAIL_BEFORE
        return None

    world.bookie_session.fault_hook = fail_the_first_attempt
    passes = asyncio.create_task(world.collector.run())
    async with asyncio.timeout(2 * CollectorSettings().interval_s):
        while world.collector.last is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
    count = len(asked)
    assert count > 1
    await asyncio.sleep(600)
    assert await world.tasks.locks.locked() == {L5}
    assert held[0] is not None
    await world.tasks.locks.release(held[0])
    await asyncio.sleep(600)
    assert len(asked) == count
    passes.cancel()
    await asyncio.wait([passes])
