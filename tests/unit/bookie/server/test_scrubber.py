"""The background scrub finds damage, keeps its rate, and continues after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import encode_record
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server.metrics import DAMAGED, SCRUB_FINISHED, SCRUBBED_BYTES, SCRUBBED_ENTRIES, bookie_metrics
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.upkeep.scrubber import PROGRESS_FILE, START_S, Scrubber, ScrubPhase, ScrubProgress
from bookie.storage import scrubbing
from bookie.storage.disks.memory import MemoryDisk, Operation
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, log_path
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import ListEntries, Read
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, add, collect
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import open_bookie
from tests.worlds.entries import raw_entry
from tests.worlds.virtual_time import in_virtual_time

SIZE = len(raw_entry(1, 0))
WEEK_S = 604_800.0


@dataclass
class World:
    clock: VirtualClock
    disk: MemoryDisk
    storage: LedgerStorage
    service: BookieService
    metrics: MetricSet

    def scrubber(self, bytes_per_s: float = 1e9) -> Scrubber:
        return Scrubber(
            self.storage,
            self.disk,
            BookieId("us:3181"),
            self.metrics,
            self.clock,
            interval_s=WEEK_S,
            bytes_per_s=bytes_per_s,
            service=self.service,
        )

    def value(self, name: str) -> float:
        found = self.metrics.registry.get_sample_value(name)
        assert found is not None
        return found

    def damage(self, *records: int) -> None:
        for record in records:
            offset = HEADER_SIZE + record * (RECORD_HEADER_SIZE + SIZE) + RECORD_HEADER_SIZE + 35
            self.disk.flip_bit(log_path(1), offset * 8)


async def world() -> World:
    clock = VirtualClock()
    bookie = await open_bookie(clock, settings=StorageSettings())
    await add(bookie.storage, L1, *range(10))
    await add(bookie.storage, L2, *range(10))
    await bookie.storage.checkpoint()
    return World(clock, bookie.ledgers, bookie.storage, bookie.service, bookie_metrics("1"))


@in_virtual_time
async def test_a_pass_verifies_everything_and_counts_damage() -> None:
    at = await world()
    at.damage(3, 15)
    ended = await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
    assert (ended.damaged, ended.after) == (2, None)
    assert (at.value(SCRUBBED_ENTRIES), at.value(SCRUBBED_BYTES)) == (20, 20 * SIZE)
    assert at.value(DAMAGED) == 2
    assert at.value(SCRUB_FINISHED) == ended.finished_ms / 1000 > 0
    reply = await at.storage.read(L1, [EntryId(3)])
    assert reply.results[0].status is Status.CORRUPT  # still reported as damaged, and never absent


@pytest.mark.parametrize("page_keys", [1, 7, 20])
def test_a_pass_verifies_everything_however_many_entries_there_are(
    page_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "_PAGE_KEYS", page_keys)

    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        at.damage(3, 19)
        ended = await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
        assert (ended.entries, ended.damaged, ended.after) == (20, 2, None)

    scenario()


@in_virtual_time
async def test_a_pass_without_damage_clears_the_report_of_the_last_one() -> None:
    at = await world()
    at.damage(3)
    await at.scrubber().run_pass(ScrubProgress(0))
    at.damage(3)  # undamaged again
    await at.scrubber().run_pass(ScrubProgress(0))
    assert at.value(DAMAGED) == 0


def test_passes_are_a_week_apart_even_after_a_restart() -> None:
    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        running = asyncio.ensure_future(at.scrubber().run())
        await asyncio.sleep(WEEK_S - 100)
        assert at.value(SCRUBBED_ENTRIES) == 20
        running.cancel()
        running = asyncio.ensure_future(at.scrubber().run())
        await asyncio.sleep(2 * START_S)
        assert at.value(SCRUBBED_ENTRIES) == 20
        await asyncio.sleep(2 * START_S)
        assert at.value(SCRUBBED_ENTRIES) == 40
        running.cancel()

    scenario()


@in_virtual_time
async def test_a_pass_that_began_with_the_clock_years_ahead_does_not_delay_the_next_one() -> None:
    at = await world()
    begun_ms = at.clock.epoch_ms() + 5 * 52 * int(WEEK_S) * 1000
    await at.disk.replace(PROGRESS_FILE, encode_record(ScrubProgress(begun_ms, finished_ms=begun_ms + 60_000)))
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(2 * START_S)
    assert at.value(SCRUBBED_ENTRIES) == 20
    assert at.value(SCRUB_FINISHED) <= at.clock.epoch_ms() / 1000
    await asyncio.sleep(WEEK_S - 2 * START_S)
    assert at.value(SCRUBBED_ENTRIES) == 20
    await asyncio.sleep(2 * START_S)
    assert at.value(SCRUBBED_ENTRIES) == 40
    running.cancel()


def test_a_pass_keeps_its_pace_and_resumes_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "_STEP_BYTES", SIZE)

    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        slow = SIZE / 50  # one entry in 50 s
        running = asyncio.ensure_future(at.scrubber(slow).run())
        await asyncio.sleep(START_S + 501)
        assert 10 <= at.value(SCRUBBED_ENTRIES) <= 12
        running.cancel()
        before = at.value(SCRUBBED_ENTRIES)
        running = asyncio.ensure_future(at.scrubber(slow).run())
        await asyncio.sleep(2000)
        assert 20 <= at.value(SCRUBBED_ENTRIES) <= 23  # at most a minute was repeated
        assert at.value(SCRUBBED_ENTRIES) - before < 14
        assert at.value(SCRUB_FINISHED) > 0
        running.cancel()

    scenario()


@pytest.mark.parametrize("content", [b"", b"rubbish", b'{"format":9,"begun_ms":1}', b'{"begun_ms":"x"}'])
def test_an_unreadable_progress_record_starts_a_new_pass(content: bytes) -> None:
    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        await at.disk.replace(PROGRESS_FILE, content)
        running = asyncio.ensure_future(at.scrubber().run())
        await asyncio.sleep(START_S + 5)
        assert at.value(SCRUBBED_ENTRIES) == 20
        running.cancel()

    scenario()


@in_virtual_time
async def test_a_progress_record_on_a_bad_sector_starts_a_new_pass() -> None:
    at = await world()
    await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
    at.disk.bad_sectors = {(PROGRESS_FILE, 0)}
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(START_S + 5)
    assert at.value(SCRUBBED_ENTRIES) == 40
    running.cancel()


@in_virtual_time
async def test_too_many_open_files_do_not_start_a_new_pass() -> None:
    at = await world()
    await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            raise DiskFullError("too many open files")

    at.disk.before = before
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(3 * START_S)
    assert at.value(SCRUBBED_ENTRIES) == 20
    running.cancel()


@in_virtual_time
async def test_a_disk_that_fails_briefly_interrupts_the_scrubs_without_ending_them() -> None:
    at = await world()
    is_failing = True

    async def fail(operation: Operation, path: str) -> None:
        await asyncio.sleep(0)
        if is_failing and operation is Operation.REPLACE:
            raise DiskError("replace")

    at.disk.before = fail
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(START_S + 5)
    assert at.value(SCRUB_FINISHED) == 0
    is_failing = False
    await asyncio.sleep(120)
    assert at.value(SCRUB_FINISHED) > 0
    assert not running.done()
    running.cancel()


@in_virtual_time
async def test_a_full_disk_does_not_interrupt_a_pass() -> None:
    at = await world()

    async def fail(operation: Operation, path: str) -> None:
        await asyncio.sleep(0)
        if operation is Operation.REPLACE:
            raise DiskFullError("replace")

    at.disk.before = fail
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(WEEK_S / 2)
    assert at.value(SCRUB_FINISHED) > 0
    assert at.value(SCRUBBED_ENTRIES) == 20
    running.cancel()


def test_entries_that_are_moved_or_deleted_during_a_pass_are_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "_STEP_BYTES", SIZE)

    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        running = asyncio.ensure_future(at.scrubber(SIZE / 50).run())
        await asyncio.sleep(START_S + 120)
        await collect(at.storage, L2)
        assert (await at.storage.add(AddBatch(L1, KEY, [raw_entry(1, 9)]))).status is Status.OK
        await at.storage.checkpoint()
        assert (await at.storage.compact()).removed_logs
        await asyncio.sleep(2000)
        assert at.value(SCRUB_FINISHED) > 0
        assert at.value(DAMAGED) == 0
        running.cancel()

    scenario()


def test_progress_has_a_position_or_none() -> None:
    assert ScrubProgress(1).after is None
    assert ScrubProgress(1, LedgerId(2), EntryId(3)).after == (2, 3)


@in_virtual_time
async def test_known_damage_is_kept_over_restarts_until_it_is_repaired() -> None:
    at = await world()
    at.damage(3)
    await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
    assert at.service.damaged.ledgers(10) == [(L1, [EntryId(3)])]
    at.service = BookieService(at.storage, at.disk, BookieIdentity("uuid", "1"))
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(START_S + 1)
    assert at.service.damaged.ledgers(10) == [(L1, [EntryId(3)])]
    running.cancel()
    at.damage(3)  # undamaged again: the record of the earlier process does not count
    at.service = BookieService(at.storage, at.disk, BookieIdentity("uuid", "1"))
    running = asyncio.ensure_future(at.scrubber().run())
    await asyncio.sleep(START_S + 1)
    assert at.service.damaged.count == 0
    running.cancel()


@in_virtual_time
async def test_an_entry_that_the_disk_cannot_read_is_known_damage_after_a_scrub() -> None:
    at = await world()
    offset = HEADER_SIZE + 3 * (RECORD_HEADER_SIZE + SIZE) + RECORD_HEADER_SIZE
    at.disk.bad_sectors = {(log_path(1), offset)}
    assert (await at.service.answer("", Read(L1, [EntryId(3)]))).results[0].status is Status.IO_ERROR
    assert at.service.damaged.count == 0, "the error may be temporary"
    await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
    assert at.service.damaged.ledgers(10) == [(L1, [EntryId(3)])]
    listed = await at.service.answer("", ListEntries(L1))
    assert (listed.status, 3 in listed.entries) == (Status.CORRUPT, False)
    at.disk.bad_sectors = set()
    await at.service.answer("", Read(L1, [EntryId(3)]))
    assert at.service.damaged.count == 0


@in_virtual_time
async def test_too_many_open_files_interrupt_a_pass_and_are_no_damage() -> None:
    at = await world()

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.OPEN:
            raise DiskFullError("too many open files")

    at.disk.before = before
    with pytest.raises(DiskFullError):
        await at.scrubber().run_pass(ScrubProgress(at.clock.epoch_ms()))
    assert (at.value(DAMAGED), at.service.damaged.count) == (0, 0)


def test_an_operator_can_pause_resume_and_start_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "_STEP_BYTES", SIZE)

    @in_virtual_time
    async def scenario() -> None:
        at = await world()
        scrubber = at.scrubber(SIZE / 50)  # one entry in 50 s

        def phase() -> ScrubPhase:
            return scrubber.phase

        running = asyncio.ensure_future(scrubber.run())
        await asyncio.sleep(START_S + 501)
        scrubber.stop()
        await asyncio.sleep(1)
        assert phase() is ScrubPhase.STOPPED
        assert scrubber.progress is not None
        assert scrubber.progress.after is not None
        verified = at.value(SCRUBBED_ENTRIES)
        await asyncio.sleep(5000)
        assert at.value(SCRUBBED_ENTRIES) == verified
        scrubber.start()
        await asyncio.sleep(1000)
        assert at.value(SCRUBBED_ENTRIES) == 20  # it continued where it had stopped
        assert scrubber.progress.finished_ms > 0
        scrubber.start()
        await asyncio.sleep(501)
        assert phase() is ScrubPhase.RUNNING
        verified = at.value(SCRUBBED_ENTRIES)
        scrubber.start()  # a running pass continues
        scrubber.start(from_beginning=True)
        await asyncio.sleep(1500)
        assert at.value(SCRUBBED_ENTRIES) == verified + 20
        assert phase() is ScrubPhase.WAITING
        running.cancel()

    scenario()
