"""Workers whose targets read entries directly from their sources (R48)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bookie.metadata.bookies.registration import Endpoint, ServiceInfo
from bookie.metadata.bookies.service_info import PROPERTY_CAN_COPY
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Status
from replicator.copying import pull as module
from replicator.copying.copy_run import LANES_MAX
from replicator.copying.pull import NO_PATH_S, Pulls
from replicator.copying.throttle import BURST_S
from replicator.telemetry.events import Ending, WorkerLoad
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import PORT, service_info
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import Recorder, RepairWorld, flipped
from tests.worlds.virtual_time import in_virtual_time

MEMBERS = "a b c"
TARGET = "t"
PAYLOAD_BYTES = 5000
ENTRIES = 1000
"""Five chunks, so that several lanes pull."""


@dataclass
class WorkerResult:
    """The result of one worker."""

    recorder: Recorder
    load: WorkerLoad


@dataclass
class Scene:
    """A ledger on a b c whose member b is lost; t is the only possible target."""

    world: RepairWorld
    packets: dict[EntryId, bytes]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.packets.values()))

    async def heal(self, **settings: Any) -> WorkerResult:
        running = self.world.worker(**{"is_pulling": True, **settings})
        await running.worker.run()
        return WorkerResult(running.recorder, running.worker.load())

    async def assert_repaired(self, healed: WorkerResult) -> None:
        """Check that the ledger has all copies and that each entry was acknowledged once."""
        assert healed.recorder.endings()[-1] is Ending.REPAIRED
        await self.world.assert_whole(LEDGER, self.packets, TARGET)
        assert await self.world.is_clean()

    def sources_asked(self) -> set[BookieId]:
        return {copy.source for copy in self.world.bookies[TARGET].copies}


@asynccontextmanager
async def scene(
    *,
    copying: str = "a b c t",
    digest_type: DigestType = DigestType.CRC32C,
    count: int = ENTRIES,
    payload_bytes: int = PAYLOAD_BYTES,
) -> AsyncIterator[Scene]:
    world = RepairWorld()
    world.copying = set(copying.split())
    await world.start(f"{MEMBERS} {TARGET}")
    length = count * payload_bytes
    metadata = make_metadata((0, MEMBERS), quorum=(3, 2), last=count - 1, digest_type=digest_type, length=length)
    packets = await world.ledger(LEDGER, metadata, count, payload_bytes=payload_bytes)
    await world.lose("b")
    try:
        yield Scene(world, packets)
    finally:
        await world.close()


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
@in_virtual_time
async def test_a_ledger_is_repaired_by_pulls_and_no_entry_passes_through_the_worker(digest_type: DigestType) -> None:
    async with scene(digest_type=digest_type) as at:
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert healed.load.copied_bytes == healed.load.pulled_bytes == at.size_bytes
        assert healed.load.copied_entries == ENTRIES
        assert not at.world.bookies[TARGET].adds
        assert at.sources_asked() == {"a", "c"}
        assert {copy.incarnation for copy in at.world.bookies[TARGET].copies} == {"1"}
        assert sum(len(read) for source in "ac" for read in at.world.bookies[source].reads) == ENTRIES


@in_virtual_time
async def test_a_striped_ledger_is_pulled_from_all_holders_of_a_part() -> None:
    world = RepairWorld()
    world.copying = {TARGET}
    await world.start("a b c d e t")
    metadata = make_metadata((0, "a b c d e"), quorum=(2, 2), last=99, length=100 * PAYLOAD_BYTES)
    packets = await world.ledger(LEDGER, metadata, 100, payload_bytes=PAYLOAD_BYTES)
    await world.lose("b")
    at = Scene(world, packets)
    healed = await at.heal()
    await at.assert_repaired(healed)
    assert at.sources_asked() == {"a", "c"}
    assert healed.load.pulled_bytes == healed.load.copied_bytes > 0
    await world.close()


@in_virtual_time
async def test_a_worker_without_pulls_transfers_every_copy_itself() -> None:
    async with scene() as at:
        running = at.world.worker()
        await running.worker.run()
        healed = WorkerResult(running.recorder, running.worker.load())
        await at.assert_repaired(healed)
        assert not at.world.bookies[TARGET].copies
        assert (healed.load.copied_bytes, healed.load.pulled_bytes) == (at.size_bytes, 0)


@in_virtual_time
async def test_a_target_that_does_not_support_pulls_is_never_requested_to_copy() -> None:
    async with scene(copying="a b c") as at:
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert not at.world.bookies[TARGET].copies
        assert (healed.load.copied_bytes, healed.load.pulled_bytes) == (at.size_bytes, 0)


@in_virtual_time
async def test_entries_that_only_apaches_bookies_hold_pass_through_the_worker() -> None:
    async with scene() as at:
        for name in "ac":
            await at.world.registrations.unregister(BookieId(name))
            info = ServiceInfo((Endpoint("bookie", name, PORT, "bookie-rpc"),))
            await at.world.registrations.register(BookieId(name), info, is_read_only=False, takeover_deadline_s=1)
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert not at.world.bookies[TARGET].copies


@in_virtual_time
async def test_entries_without_a_digest_pass_through_the_worker_which_compares_their_copies() -> None:
    async with scene(digest_type=DigestType.DUMMY) as at:
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert not at.world.bookies[TARGET].copies


@in_virtual_time
async def test_a_ledger_of_unknown_length_is_pulled_once_the_size_of_its_entries_is_known() -> None:
    async with scene(count=6 * BATCH_ENTRIES_MAX, payload_bytes=50) as at:
        found = await at.world.ledgers.read(LEDGER)
        await at.world.ledgers.write(LEDGER, replace(found.metadata, length=0), found.version)
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert 0 < healed.load.pulled_bytes < healed.load.copied_bytes == at.size_bytes


@in_virtual_time
async def test_damaged_copies_are_found_by_the_worker_and_replaced() -> None:
    async with scene() as at:
        damaged = {("a" if entry_id % 2 else "c", EntryId(entry_id)) for entry_id in range(100, 110)}
        for source, entry_id in damaged:
            packet = at.packets[entry_id]
            await at.world.bookies.put(source, LEDGER, [packet[:-1] + bytes([packet[-1] ^ 1])])
        healed = await at.heal()
        found = {(copy.bookie, copy.entry_id) for copy in healed.recorder.corrupt}
        assert healed.recorder.endings() == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert len(found) == 5  # those of the bookie from which the target would have pulled this chunk
        assert found < damaged
        assert healed.recorder.results[0].replaced_copies == 5
        for bookie, entry_id in ((TARGET, entry_id) for _, entry_id in damaged):
            reply = await at.world.bookies.nodes[BookieId(bookie)].storage.read(LEDGER, [entry_id])
            assert reply.results[0].packet == at.packets[entry_id]
        through_worker = sum(len(at.packets[entry_id]) for _, entry_id in found)
        assert healed.load.pulled_bytes == healed.load.copied_bytes - through_worker  # good copies are pulled directly


@pytest.mark.parametrize("copying", ["a b c t", ""])
@in_virtual_time
async def test_an_entry_without_a_good_copy_parks_the_ledger_with_the_same_evidence(copying: str) -> None:
    async with scene(copying=copying, count=100) as at:
        for source in "ac":
            at.world.bookies[source].results[EntryId(50)] = flipped
        healed = await at.heal()
        [result] = healed.recorder.results
        assert (result.ending, result.reason) == (Ending.PARKED, ParkReason.UNREADABLE_ENTRIES)
        assert {(copy.bookie, copy.entry_id) for copy in healed.recorder.corrupt} == {("a", 50), ("c", 50)}
        assert "a=CORRUPT" in result.detail
        assert "c=CORRUPT" in result.detail


@in_virtual_time
async def test_a_source_that_does_not_answer_the_target_is_skipped_and_its_entries_are_not_absent() -> None:
    async with scene() as at:
        at.world.bookies.between.faults(BookieId("c")).is_request_lost = True
        started_s = at.world.clock.monotonic_s()
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert at.world.clock.monotonic_s() - started_s < 10
        assert not healed.recorder.corrupt
        asked = [copy.source for copy in at.world.bookies[TARGET].copies]
        assert 1 <= asked.count(BookieId("c")) <= LANES_MAX  # one by each lane in progress
        assert healed.load.pulled_bytes == healed.load.copied_bytes == at.size_bytes


@in_virtual_time
async def test_if_bookies_cannot_reach_each_other_the_worker_transfers_everything() -> None:
    async with scene() as at:
        for source in "ac":
            at.world.bookies.between.faults(BookieId(source)).is_unreachable = True
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert (healed.load.copied_bytes, healed.load.pulled_bytes) == (at.size_bytes, 0)


@pytest.mark.parametrize("status", [Status.BAD_REQUEST, Status.IO_ERROR, Status.SHUTTING_DOWN])
@in_virtual_time
async def test_a_target_that_fails_to_pull_receives_the_rest_from_the_worker(status: Status) -> None:
    """An older bookie answers BAD_REQUEST, although its registration announces pulls."""
    async with scene() as at:
        at.world.bookies[TARGET].copy_replies = [Status.OK, status]
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert healed.recorder.endings() == [Ending.REPAIRED]
        assert 0 < healed.load.pulled_bytes < healed.load.copied_bytes == at.size_bytes


@in_virtual_time
async def test_a_target_that_does_not_answer_a_pull_is_filled_by_adds() -> None:
    async with scene(count=100) as at:
        faults = at.world.bookies.transport.faults(BookieId(TARGET))

        async def lose_replies() -> None:
            faults.is_reply_lost = True

        async def answer_again() -> None:
            faults.is_reply_lost = False

        at.world.bookies[TARGET].before_copy, at.world.bookies[TARGET].before_add = lose_replies, answer_again
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert healed.load.pulled_bytes == 0


@in_virtual_time
async def test_the_worker_waits_for_a_busy_target_and_then_lets_it_pull() -> None:
    async with scene(count=100) as at:
        at.world.bookies[TARGET].copy_replies = [Status.TOO_MANY_REQUESTS] * 3
        started_s = at.world.clock.monotonic_s()
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert at.world.clock.monotonic_s() - started_s > 1
        assert healed.load.pulled_bytes == at.size_bytes


@in_virtual_time
async def test_a_bookie_of_the_same_name_on_other_disks_receives_nothing() -> None:
    async with scene(count=100) as at:

        async def replace_disks() -> None:
            await at.world.bookies.start([TARGET], incarnation="2")

        at.world.bookies[TARGET].before_copy = replace_disks
        at.world.bookies[TARGET].copy_replies = [Status.WRONG_INCARNATION]  # the answer of the old process when it ends
        healed = await at.heal()
        assert Ending.REPAIRED not in healed.recorder.endings()
        assert "t" not in (await at.world.metadata(LEDGER)).members()
        assert await at.world.bookies.nodes[BookieId(TARGET)].holds(LEDGER) == []


@in_virtual_time
async def test_a_source_that_dies_during_a_pull_loses_no_entry() -> None:
    async with scene() as at:

        async def die() -> None:
            at.world.bookies.stop_listening("c")

        at.world.bookies[TARGET].before_copy = die
        healed = await at.heal()
        await at.assert_repaired(healed)
        assert healed.load.copied_bytes == at.size_bytes


@in_virtual_time
async def test_disabled_repair_stops_before_the_next_pull() -> None:
    async with scene() as at:

        async def disable() -> None:
            await at.world.tasks.switches.disable()

        at.world.bookies[TARGET].before_copy = disable
        healed = await at.heal()
        assert Ending.REPAIRED not in healed.recorder.endings()
        assert len(at.world.bookies[TARGET].copies) <= LANES_MAX  # one by each lane in progress
        assert not at.world.bookies[TARGET].adds


@in_virtual_time
async def test_pulls_respect_the_rate_of_the_process() -> None:
    async with scene() as at:
        started_s = at.world.clock.monotonic_s()
        healed = await at.heal(bytes_per_second=BATCH_BYTES_MAX)
        took_s = at.world.clock.monotonic_s() - started_s
        await at.assert_repaired(healed)
        assert healed.load.pulled_bytes == at.size_bytes
        in_a_chunk = BATCH_BYTES_MAX
        assert healed.load.pulled_bytes <= BATCH_BYTES_MAX * (took_s + BURST_S) + in_a_chunk


@in_virtual_time
async def test_an_unconnected_pair_is_retried_after_a_minute_and_pairs_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAIRS_MAX", 2)
    clock = VirtualClock()

    async def look_up(bookie: BookieId) -> ServiceInfo | None:
        return None if bookie == "gone" else service_info(bookie, can_copy=bookie == TARGET)

    pulls, target, (a, b, c) = Pulls(look_up, clock), BookieId(TARGET), names("a b c")
    assert [await pulls.can(target, holder) for holder in (a, b, c)] == [True] * 3
    pulls.note_unresponsive(target, a)
    assert [await pulls.can(target, holder) for holder in (a, b, c)] == [False, True, True]
    await clock.sleep(NO_PATH_S)
    assert await pulls.can(target, a)
    for holder in (a, b, c):
        pulls.note_unresponsive(target, holder)
    assert [await pulls.can(target, holder) for holder in (a, b, c)] == [True, False, False]
    assert not await pulls.can(target, BookieId("gone"))
    assert not await pulls.can(a, b)


async def test_a_pull_is_refused_if_the_store_does_not_answer() -> None:
    async def look_up(bookie: BookieId) -> ServiceInfo | None:
        raise StoreUnavailableError("no answer")

    assert not await Pulls(look_up, VirtualClock()).can(BookieId("t"), BookieId("a"))


@pytest.mark.parametrize("value", ["", "false", "yes"])
async def test_only_the_value_true_offers_pulls(value: str) -> None:
    reported = ServiceInfo((Endpoint("bookie", "t", PORT, "bookie-grpc"),), ((PROPERTY_CAN_COPY, value),))
    assert not reported.can_copy
