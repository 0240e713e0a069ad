"""Large and badly damaged ledgers with default settings: what is read, copied concurrently, and written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
from typing_extensions import override

from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import AddBatch, AddReply, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import Read
from replicator.copying.copy_run import LANES_MAX
from replicator.repair import execution
from replicator.repair.execution import FRAGMENTS_AT_ONCE
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world, answers
from tests.worlds.virtual_time import in_virtual_time, until

MIB = 1 << 20


class Watching(Transport):
    """Count the concurrent requests of copies."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.reads: Counter[BookieId] = Counter()
        self.adds: Counter[BookieId] = Counter()
        self.reads_max: Counter[BookieId] = Counter()
        self.adds_max: Counter[BookieId] = Counter()
        self.chunks_max = 0
        """For all bookies together."""
        self.sources_max = 0
        """The number of bookies that are read at the same time."""
        self.served: Counter[EntryId] = Counter()
        """How often each entry was read, from all bookies together."""
        self.served_bytes = 0
        self.entries: list[tuple[LedgerId, int]] = []
        """The first entries of the adds, in the order in which they were sent."""

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        self.entries.append((batch.ledger_id, int.from_bytes(batch.entries[0][8:16], "big")))
        self.adds[bookie] += 1
        self._note(self.adds, self.adds_max)
        try:
            return await self._inner.add(bookie, batch, timeout_s)
        finally:
            self.adds[bookie] -= 1

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        is_read = isinstance(request, Read)
        if not is_read:
            return await self._inner.ask(bookie, request, timeout_s)
        self.reads[bookie] += 1
        self._note(self.reads, self.reads_max)
        try:
            reply = await self._inner.ask(bookie, request, timeout_s)
        finally:
            self.reads[bookie] -= 1
        self._note_served(reply)
        return reply

    def _note_served(self, reply: object) -> None:
        packets = [result.packet for result in reply.results if result.packet] if isinstance(reply, ReadReply) else []
        self.served.update(EntryId(int.from_bytes(packet[8:16], "big")) for packet in packets)
        self.served_bytes += sum(map(len, packets))

    def _note(self, now: Counter[BookieId], most: Counter[BookieId]) -> None:
        for bookie, count in now.items():
            most[bookie] = max(most[bookie], count)
        self.chunks_max = max(self.chunks_max, self.reads.total() + self.adds.total())
        self.sources_max = max(self.sources_max, sum(1 for count in self.reads.values() if count))

    @override
    async def close(self) -> None:
        await self._inner.close()


def watched(world: RepairWorld, latency_s: float, bookies: str = "") -> Watching:
    """Delay requests to these bookies (to all if empty), and record the requests to all bookies."""
    for bookie in names(bookies) or world.bookies.nodes:
        world.bookies.transport.faults(bookie).delay_s = latency_s
    watching = Watching(world.bookies.transport)
    world.bookies.transport = watching  # type: ignore[assignment]
    return watching


def sent_to(world: RepairWorld, targets: Iterable[str]) -> int:
    return sum(len(batch.entries) for name in targets for batch in world.bookies[name].adds)


@pytest.mark.parametrize(
    ("members", "quorum", "lost"),
    [("a b c", (3, 2), "b c"), ("a b c d e", (3, 2), "b d"), ("a b c d", (4, 2), "b c d")],
)
@in_virtual_time
async def test_entries_that_several_lost_positions_store_are_read_once(
    members: str, quorum: tuple[int, int], lost: str
) -> None:
    async with a_world(f"{members} t u v") as world:
        metadata = make_metadata((0, members), quorum=quorum, last=1999)
        packets = await world.ledger(LEDGER, metadata, 2000, payload_bytes=1000)
        await world.lose(*lost.split())
        watching = watched(world, 0.001)
        (result,) = (await world.heal()).results
        await world.assert_whole(LEDGER, packets)
        stripe = metadata.stripe
        positions = [members.split().index(name) for name in lost.split()]
        lacking = {i for i in packets if any(stripe.stores(position, i) for position in positions)}
        assert watching.served == Counter(dict.fromkeys(lacking, 1))
        assert watching.served_bytes == sum(len(packets[entry_id]) for entry_id in lacking)
        assert result.entries == sum(stripe.count(position, 0, 1999) for position in positions)
        assert await world.is_clean()


@in_virtual_time
async def test_one_position_is_copied_in_ranges_from_several_sources_and_installed_in_one_write() -> None:
    async with a_world("a b c t") as world:
        metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=7999)
        packets = await world.ledger(LEDGER, metadata, 8000, payload_bytes=1000)
        await world.lose("c")
        watching = watched(world, 0.02)
        await world.heal()
        assert watching.sources_max == 2
        assert watching.reads_max.total() == LANES_MAX
        assert watching.adds_max[BookieId("t")] > 1
        assert watching.chunks_max == LANES_MAX
        assert world.version(LEDGER) == 1
        await world.assert_whole(LEDGER, packets, "t")


@in_virtual_time
async def test_fragments_of_one_ledger_are_copied_concurrently_within_the_limits() -> None:
    async with a_world("a b c d t") as world:
        starts = range(0, 6000, 600)
        parts = [(start, "a b c" if index % 2 else "a c d") for index, start in enumerate(starts)]
        packets = await world.ledger(LEDGER, make_metadata(*parts, quorum=(3, 2), last=5999), 6000, payload_bytes=1000)
        await world.lose("c")
        watching = watched(world, 0.05)
        started_s = world.clock.monotonic_s()
        await world.heal()
        took_s = world.clock.monotonic_s() - started_s
        assert watching.chunks_max == FRAGMENTS_AT_ONCE  # each fragment has one chunk
        assert took_s < 2.0  # one after another, the copies would take 20 round trips
        assert world.version(LEDGER) == 1
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_large_ledger_is_installed_in_parts_while_other_fragments_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "INSTALL_BYTES", 6 * MIB)
    async with a_world("a b t") as world:
        starts = range(0, 400, 20)
        metadata = make_metadata(*((start, "a b") for start in starts), quorum=(2, 2), last=399)
        packets = await world.ledger(LEDGER, metadata, 400, payload_bytes=40_000)
        await world.lose("b")
        world.bookies.transport.faults(BookieId("a")).delay_s = 0.05
        watching = watched(world, 0.007, "t")
        running = world.worker()
        writes: list[int] = []

        async def note(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LEDGER):
                writes.append(watching.reads.total() + watching.adds.total())
            return None

        running.store.fault_hook = note
        await running.worker.run()
        assert 2 <= len(writes) <= 4  # 16 MB in parts of 6 MiB
        assert writes[0] > 0
        assert world.version(LEDGER) == len(writes)
        await world.assert_whole(LEDGER, packets, "t")
        assert watching.served == Counter(dict.fromkeys(packets, 1))
        assert await world.is_clean()


@in_virtual_time
async def test_one_bookie_receives_no_more_concurrent_chunks_than_configured() -> None:
    async with a_world("a b c t") as world:
        for number in range(1, 9):
            metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=1499)
            await world.ledger(number, metadata, 1500, payload_bytes=800)
            await world.tasks.marking.mark(LedgerId(number), names("c"))
        await world.kill("c")
        watching = watched(world, 0.02)
        await world.heal(copies_per_bookie=3)
        assert watching.adds_max[BookieId("t")] == 3
        assert watching.chunks_max == 3
        assert await world.is_clean()


@in_virtual_time
async def test_copies_wait_for_their_target_rather_than_choose_another_one() -> None:
    """The less urgent ledger waits for its target, although another bookie is idle."""
    async with a_world("a b c t u") as world:
        targets = {}
        for number in range(1, 9):
            packets = await world.ledger(number, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
            await world.tasks.marking.mark(LedgerId(number), names("c"))
            targets[number] = packets
        await world.kill("c")
        world.bookies.transport.faults(BookieId("t")).delay_s = 5.0
        recorder = await world.heal(copies_per_bookie=1)
        assert {result.ending.value for result in recorder.results} == {"repaired"}
        assert sum(sent_to(world, [name]) for name in ("t", "u")) == 8 * 100
        for number, packets in targets.items():
            await world.assert_whole(number, packets)


@in_virtual_time
async def test_a_ledger_with_one_copy_left_overtakes_others_at_a_busy_target() -> None:
    async with a_world("a b c t") as world:
        for number in range(1, 9):
            await world.ledger(number, make_metadata((0, "a b c"), quorum=(3, 2), last=1199), 1200, payload_bytes=1000)
            await world.tasks.marking.mark(LedgerId(number), names("c"))
        await world.ledger(99, make_metadata((0, "a c"), quorum=(2, 2), last=99), 100)
        await world.kill("c")
        watching = watched(world, 0.5)
        running = world.worker(copies_per_bookie=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(running.worker.run())
            await until(lambda: _has_sent(watching, 3))
            await world.tasks.marking.mark(LedgerId(99), names("c"))
        order = [ledger_id for ledger_id, _ in watching.entries]
        assert order.index(LedgerId(99)) < len(order) / 2
        assert await world.is_clean()


async def _has_sent(watching: Watching, count: int) -> bool:
    return len(watching.entries) >= count


@in_virtual_time
async def test_a_worker_that_dies_while_copying_two_positions_loses_only_a_part_of_each() -> None:
    async with a_world("a b c t u") as world:
        count = 600
        metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=count - 1, length=count * 50_000)
        packets = await world.ledger(LEDGER, metadata, count, payload_bytes=50_000)
        await world.lose("b", "c")
        watching = watched(world, 0.001)
        running = world.worker(once=False, bytes_per_second=MIB)
        async with world.running(running):

            async def is_half_sent() -> bool:
                return sent_to(world, ["t", "u"]) >= count

            await until(is_half_sent)
            reserved = await world.reservations.read(LEDGER)
            assert reserved is not None
            ends = {each.target: each.end_entry_id for each in reserved.reservations}
            assert set(ends) == set(names("t u"))
            assert all(end > 0 for end in ends.values())
            await running.store.close()
            running.worker.stop()
        await world.heal(seed=7)
        await world.assert_whole(LEDGER, packets, "t", "u")
        window = 10 * MIB // 50_000
        assert sent_to(world, ["t", "u"]) <= 1.2 * 2 * count + window
        assert watching.served.total() <= 1.2 * count + window
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_refuses_is_replaced_and_the_other_one_keeps_its_copies() -> None:
    async with a_world("a b c t u v") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=2999), 3000)
        await world.lose("b", "c")
        world.bookies["t"].add_replies = [Status.IO_ERROR] * 1000
        await world.heal()
        members = (await world.metadata(LEDGER)).members()
        assert members == set(names("a u v"))
        assert sent_to(world, ["u", "v"]) == 2 * 3000
        await world.assert_whole(LEDGER, packets, "u", "v")
        assert await world.is_clean()


@in_virtual_time
async def test_an_entry_without_a_copy_parks_its_positions_and_the_others_are_repaired() -> None:
    async with a_world("a b c d e t u") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c d e"), quorum=(3, 2), last=99), 100)
        for name in "acde":  # entry 4 is on e, a and b
            world.bookies[name].results[EntryId(4)] = answers(Status.NO_ENTRY)
        await world.lose("b", "d")
        (result,) = (await world.heal()).results
        assert result.reason is not None
        assert result.reason.value == "unreadable_entries"
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert members[1] == "b"
        assert members[3] in names("t u")
