"""Copying one position: exactly its entries, verified byte for byte, whatever the bookies do during the copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bookie.client.access import stored_digest
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import StoreUnavailableError
from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import HEADER_SIZE
from bookie.wire.batching import batches
from bookie.wire.circuits import SLOW_S
from bookie.wire.memory import MemoryTransport
from bookie.wire.port import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    READ_BYTES_MAX,
    SMALL_READ_BYTES,
    EntryResult,
    ReadReply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.requests import Read
from replicator.copying import receiver
from replicator.copying.copier import Copier
from replicator.copying.copy_run import LANES_MAX
from replicator.copying.outcome import CopyOutcome, MayContinue, NoteLacking, note_no_lacking
from replicator.copying.pace import CopyPace
from replicator.copying.receiver import NOTHING_HELD, NoteProgress, PositionCopy, entries_without, note_nothing
from replicator.copying.sources import EntrySource, Speculation
from replicator.copying.target import BUSY_S_MAX
from replicator.copying.throttle import ByteBudget
from replicator.knowledge.evidence import BookieAnswer, UnreadableEntry
from replicator.plan.steps import Cause, CopyPosition
from tests.worlds.ledgers import PASSWORD, make_metadata, make_packets, names
from tests.worlds.repair import Bookies, answers, flipped
from tests.worlds.virtual_time import in_virtual_time

LEDGER = LedgerId(42)
MIB = 1 << 20


async def always() -> bool:
    return True


@dataclass
class Scene:
    """A ledger on a b c d e (three copies of each entry) whose position 1 is copied to t."""

    bookies: Bookies
    ledger: Versioned
    packets: dict[EntryId, bytes]
    copier: Copier
    step: CopyPosition

    async def copy(
        self,
        held: EntryRuns = NOTHING_HELD,
        may_continue: MayContinue = always,
        note_progress: NoteProgress = note_nothing,
        note_lacking: NoteLacking = note_no_lacking,
    ) -> CopyOutcome:
        copy = PositionCopy(self.step, held, note_progress=note_progress)
        (outcome,) = await self.copier.copy(self.ledger, [copy], may_continue, note_lacking=note_lacking)
        return outcome

    async def on_target(self) -> dict[EntryId, bytes]:
        storage = self.bookies.nodes[self.step.target].storage
        held = list((await storage.list_entries(LEDGER)).entries)
        stored = {}
        while held:
            reply = await storage.read(LEDGER, held[:1000])
            stored.update({result.entry_id: result.packet for result in reply.results})
            held = held[len(reply.results) :]
        return stored

    def expected(self) -> dict[EntryId, bytes]:
        return {
            i: packet
            for i, packet in self.packets.items()
            if self.step.position in self.ledger.metadata.stripe.write_set(i)
        }


@asynccontextmanager
async def scene(
    members: str = "a b c d e",
    quorum: int = 3,
    count: int = 100,
    payload_bytes: int = 10,
    digest_type: DigestType = DigestType.CRC32C,
    bytes_per_second: int = 0,
    length: int = 0,
) -> AsyncIterator[Scene]:
    bookies = Bookies()
    await bookies.start([*members.split(), "t"])
    metadata = make_metadata(
        (0, members), quorum=(quorum, quorum), last=count - 1, digest_type=digest_type, length=length
    )
    ledger = Versioned(LEDGER, metadata, 1)
    packets = make_packets(LEDGER, count, payload_bytes=payload_bytes, digest_type=digest_type)
    await bookies.fill(ledger, packets)
    ensemble = names(members)
    step = CopyPosition(
        fragment_index=0,
        position=1,
        old=ensemble[1],
        target=BookieId("t"),
        cause=Cause.UNREGISTERED,
        first=EntryId(0),
        last=EntryId(count - 1),
        write_quorum=quorum,
        sources=(ensemble[0], None, *ensemble[2:]),
    )
    copier = Copier(bookies.transport, bookies.clock, CopyPace(bookies.clock, bytes_per_second), ByteBudget(64 * MIB))
    try:
        yield Scene(bookies, ledger, packets, copier, step)
    finally:
        await bookies.close()


@pytest.mark.parametrize("digest_type", DigestType)
@in_virtual_time
async def test_the_target_receives_exactly_the_entries_of_its_position_byte_for_byte(digest_type: DigestType) -> None:
    async with scene(count=3000, digest_type=digest_type) as at:
        outcome = await at.copy()
        assert outcome.is_complete
        assert await at.on_target() == at.expected()
        assert outcome.entries == len(at.expected())
        assert outcome.bytes == sum(map(len, at.expected().values()))


@in_virtual_time
async def test_only_entries_missing_on_the_target_are_copied() -> None:
    async with scene() as at:
        held = EntryRuns.of_runs([(-5, -2), (3, 3), (10, 39), (41, 41), (95, 120), (200, 300)])
        outcome = await at.copy(held)
        expected = {i: packet for i, packet in at.expected().items() if i not in held}
        assert outcome.is_complete
        assert outcome.entries == len(expected)
        assert await at.on_target() == expected


@in_virtual_time
async def test_entries_that_the_target_holds_take_no_time_each() -> None:
    async with scene() as at:
        everything_else = EntryRuns(((0, 1 << 50), ((1 << 50) + 3, 1 << 60)))
        at.step = replace(at.step, last=EntryId(1 << 60))
        assert list(entries_without(at.step, everything_else)) == [(1 << 50) + 1, (1 << 50) + 2]


@in_virtual_time
async def test_held_entries_of_a_striped_ledger_take_no_time_for_each_run() -> None:
    """Position 2 of five holds 0..2, 5..7, and so on: a run for every five entries, of which there are 2^60."""
    async with scene() as at:
        sources: tuple[BookieId | None, ...] = (*names("a b c d"), None)
        step = replace(
            at.step, position=2, write_quorum=3, first=EntryId(0), last=EntryId((1 << 60) + 9), sources=sources
        )
        held = step.stripe.runs(2, 0, 1 << 60)
        last = [entry_id for entry_id in range((1 << 60) + 1, (1 << 60) + 10) if step.stripe.stores(2, entry_id)]
        assert list(entries_without(step, held)) == last


@given(st.integers(2, 6), st.data())
def test_the_entries_to_copy_are_those_of_the_position_without_the_held_ones(size: int, data: st.DataObject) -> None:
    step = CopyPosition(
        fragment_index=0,
        position=data.draw(st.integers(0, size - 1)),
        old=BookieId("x"),
        target=BookieId("t"),
        cause=Cause.UNREGISTERED,
        first=EntryId(data.draw(st.integers(0, 20))),
        last=EntryId(data.draw(st.integers(0, 90))),
        write_quorum=data.draw(st.integers(1, size)),
        sources=(None,) * size,
    )
    period, length = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 5))
    periodic = [(start, start + length - 1) for start in range(data.draw(st.integers(0, 30)), 70, period)]
    held = EntryRuns.of_runs(
        [*periodic, *((each, each) for each in data.draw(st.sets(st.integers(0, 99), max_size=5)))]
    )
    expected = [entry_id for entry_id in step.entries() if entry_id not in held]
    assert list(entries_without(step, held)) == expected


@in_virtual_time
async def test_a_fenced_target_accepts_copies() -> None:
    async with scene() as at:
        await at.bookies.nodes[at.step.target].storage.fence(LEDGER, master_key(PASSWORD))
        assert (await at.copy()).is_complete
        assert await at.on_target() == at.expected()


@in_virtual_time
async def test_the_lost_bookie_is_never_read() -> None:
    async with scene() as at:
        await at.copy()
        assert at.bookies["b"].reads == []


@in_virtual_time
async def test_load_is_distributed_over_the_holders() -> None:
    async with scene(members="a b c", quorum=3, count=20_000) as at:
        assert (await at.copy()).is_complete
        read = {name: sum(map(len, at.bookies[name].reads)) for name in "ac"}
        assert sum(read.values()) == 20_000
        assert min(read.values()) > 8_000


@pytest.mark.parametrize(
    "status", [Status.NO_ENTRY, Status.CORRUPT, Status.LIMBO, Status.IO_ERROR, Status.TOO_MANY_REQUESTS]
)
@in_virtual_time
async def test_the_next_holder_is_read_when_one_fails(status: Status) -> None:
    async with scene() as at:
        for name in "ac":
            at.bookies[name].results = {EntryId(i): answers(status) for i in range(0, 100, 2 if name == "a" else 7)}
        at.bookies["c"].results = {i: t for i, t in at.bookies["c"].results.items() if i % 2}
        outcome = await at.copy()
        assert outcome.is_complete
        assert await at.on_target() == at.expected()


@in_virtual_time
async def test_a_corrupt_copy_is_skipped_and_reported() -> None:
    async with scene(members="a b c", quorum=3) as at:
        for name in "ac":
            at.bookies[name].results[EntryId(0 if name == "a" else 50)] = flipped
        outcome = await at.copy()
        assert outcome.is_complete
        assert await at.on_target() == at.packets
        assert all("digest mismatch" in copy.detail for copy in outcome.corrupt)
        assert {(copy.bookie, copy.entry_id) for copy in outcome.corrupt} <= {("a", 0), ("c", 50)}
        assert len(outcome.corrupt) == 1  # a chunk has one first source, and the other one is asked only afterwards


@in_virtual_time
async def test_another_entry_than_requested_is_corrupt() -> None:
    async with scene(members="a b c", quorum=3) as at:
        for name in "ac":
            at.bookies[name].results[EntryId(5)] = lambda result: EntryResult(
                result.entry_id, Status.OK, at.packets[EntryId(6)]
            )
        outcome = await at.copy()
        (entry,) = outcome.unreadable
        assert entry.entry_id == 5
        assert [answer.status for answer in entry.answers] == [Status.CORRUPT, Status.CORRUPT]
        assert "holds ledger 42 entry 6" in entry.answers[0].detail


@in_virtual_time
async def test_an_entry_missing_on_every_holder_is_evidence_and_not_retried() -> None:
    async with scene() as at:
        for name in "acde":
            at.bookies[name].results[EntryId(5)] = answers(Status.NO_ENTRY if name != "c" else Status.CORRUPT)
        outcome = await at.copy()
        assert not outcome.is_complete
        assert outcome.is_permanent_failure
        (entry,) = outcome.unreadable
        assert {(a.bookie, a.status) for a in entry.answers} <= {
            ("a", Status.NO_ENTRY),
            ("c", Status.CORRUPT),
            ("e", Status.NO_ENTRY),
        }
        assert EntryId(5) not in await at.on_target()


@in_virtual_time
async def test_no_answer_is_not_absence() -> None:
    async with scene(members="a b c", quorum=3) as at:
        at.bookies.stop_listening("a")
        at.bookies["c"].results[EntryId(7)] = answers(Status.NO_ENTRY)
        outcome = await at.copy()
        assert not outcome.is_permanent_failure
        assert [entry.entry_id for entry in outcome.unreadable] == [7]
        assert outcome.unreadable[0].is_final is False


@in_virtual_time
async def test_an_answer_without_results_is_not_absence() -> None:
    async with scene(members="a b c", quorum=3) as at:
        at.bookies["a"].read_status = Status.OK
        at.bookies["c"].results[EntryId(7)] = answers(Status.NO_ENTRY)
        lacking: set[BookieId] = set()

        async def note(holders: Set[BookieId]) -> None:
            lacking.update(holders)

        outcome = await at.copy(note_lacking=note)
        assert not outcome.is_permanent_failure
        assert [entry.entry_id for entry in outcome.unreadable] == [7]
        assert not lacking


@in_virtual_time
async def test_a_holder_that_was_briefly_unavailable_is_retried() -> None:
    async with scene(members="a b", quorum=2) as at:
        at.bookies["a"].read_status = Status.TOO_MANY_REQUESTS

        def recover() -> None:
            at.bookies["a"].read_status = None

        async def may_continue() -> bool:
            asyncio.get_running_loop().call_later(0.3, recover)
            return True

        outcome = await at.copy(may_continue=may_continue)
        assert outcome.is_complete
        assert await at.on_target() == at.expected()


@in_virtual_time
async def test_an_unreachable_holder_costs_one_timeout_and_not_one_per_chunk() -> None:
    async with scene(members="a b c", quorum=3, count=30_000) as at:
        at.bookies.transport.faults(BookieId("a")).is_request_lost = True
        started_s = at.bookies.clock.monotonic_s()
        assert (await at.copy()).is_complete
        assert at.bookies.clock.monotonic_s() - started_s < 40


def speculative(at: Scene, budget: ByteBudget) -> EntrySource:
    return EntrySource(
        at.bookies.transport,
        at.ledger.ledger_id,
        stored_digest(at.ledger),
        speculation=Speculation(at.bookies.clock, budget),
    )


@in_virtual_time
async def test_a_slow_holder_costs_seconds_and_not_its_whole_deadline() -> None:
    async with scene(members="a b c", quorum=3, count=100) as at:
        at.bookies.transport.faults(BookieId("a")).delay_s = 14.0
        started_s = at.bookies.clock.monotonic_s()
        assert (await at.copy()).is_complete
        assert await at.on_target() == at.expected()
        assert at.bookies.clock.monotonic_s() - started_s < 2 * SLOW_S
        assert at.copier.budget.held_bytes == 0


@pytest.mark.parametrize("has_room", [True, False])
@in_virtual_time
async def test_a_speculative_read_needs_space_in_the_budget(has_room: bool) -> None:
    async with scene(members="a b c", quorum=3, count=10) as at:
        at.bookies.transport.faults(BookieId("a")).delay_s = 10.0
        source = speculative(at, ByteBudget(64 * MIB if has_room else 100))
        started_s = at.bookies.clock.monotonic_s()
        fetched = await source.fetch({EntryId(i): names("a c") for i in range(10)})
        assert len(fetched.packets) == 10
        assert (at.bookies.clock.monotonic_s() - started_s < 10) == has_room


@in_virtual_time
async def test_a_damaged_copy_found_by_a_speculative_read_is_reported() -> None:
    async with scene(members="a b c d", quorum=4, count=10) as at:
        at.bookies.transport.faults(BookieId("a")).delay_s = 10.0
        at.bookies["c"].results = {EntryId(3): flipped}
        fetched = await speculative(at, at.copier.budget).fetch({EntryId(i): names("a c d") for i in range(10)})
        assert fetched.packets == at.packets
        assert "a" not in fetched.served_by.values()
        assert [(copy.bookie, copy.entry_id) for copy in fetched.corrupt] == [("c", 3)]


@in_virtual_time
async def test_the_copy_waits_for_entries_that_no_other_holder_serves() -> None:
    async with scene(members="a b c", quorum=3, count=10) as at:
        at.bookies.transport.faults(BookieId("a")).delay_s = 10.0
        at.bookies["c"].results = {EntryId(3): answers(Status.NO_ENTRY)}
        source = speculative(at, at.copier.budget)
        fetched = await source.fetch({EntryId(i): names("a c") for i in range(10)})
        assert {i: fetched.packets[EntryId(i)] for i in range(10)} == {i: at.packets[EntryId(i)] for i in range(10)}
        assert {entry_id for entry_id, bookie in fetched.served_by.items() if bookie == "a"} == {3}
        assert fetched.unresponsive == set(names("a"))


@pytest.mark.parametrize(
    "replies", [[Status.TOO_MANY_REQUESTS] * 5, [Status.TIMEOUT], [Status.UNREACHABLE, Status.UNREACHABLE]]
)
@in_virtual_time
async def test_a_batch_is_sent_to_a_busy_target_again(replies: list[Status]) -> None:
    async with scene() as at:
        at.bookies["t"].add_replies = list(replies)
        assert (await at.copy()).is_complete
        assert await at.on_target() == at.expected()


@pytest.mark.parametrize("status", [Status.UNAUTHORIZED, Status.READ_ONLY, Status.WRONG_INCARNATION, Status.IO_ERROR])
@in_virtual_time
async def test_a_target_that_refuses_ends_the_copy(status: Status) -> None:
    async with scene() as at:
        at.bookies["t"].add_replies = [status] * 100
        outcome = await at.copy()
        assert outcome.target_failure == BookieAnswer(BookieId("t"), status, "as the test wants")
        assert not outcome.is_complete


@in_virtual_time
async def test_an_unreachable_target_ends_the_copy() -> None:
    async with scene() as at:
        at.bookies.stop_listening("t")
        outcome = await at.copy()
        assert outcome.target_failure is not None
        assert outcome.target_failure.status is Status.UNREACHABLE


@in_virtual_time
async def test_a_copy_that_must_stop_does_so_between_chunks() -> None:
    async with scene(members="a b c", quorum=3, count=20_000) as at:
        asked = 0

        async def may_continue() -> bool:
            nonlocal asked
            asked += 1
            return asked <= 3

        outcome = await at.copy(may_continue=may_continue)
        assert outcome.is_interrupted
        assert outcome.entries <= 3 * BATCH_ENTRIES_MAX
        assert sum(len(ids) for name in "ac" for ids in at.bookies[name].reads) <= 3 * BATCH_ENTRIES_MAX


@in_virtual_time
async def test_a_copy_that_must_stop_while_it_waits_for_memory_reads_nothing_afterwards() -> None:
    """R94."""
    async with scene(members="a b c", quorum=3) as at:
        may_go_on = True

        async def may_continue() -> bool:
            return may_go_on

        async with at.copier.budget.hold(at.copier.budget.limit_bytes):
            copying = asyncio.create_task(at.copy(may_continue=may_continue))
            await asyncio.sleep(1)
            may_go_on = False
        outcome = await copying
        assert outcome.is_interrupted
        assert [at.bookies[name].reads for name in "abc"] == [[], [], []]


@in_virtual_time
async def test_a_copy_that_must_stop_while_it_waits_for_an_unresponsive_source_sends_nothing_afterwards() -> None:
    """R94."""
    async with scene(members="a b c", quorum=3) as at:
        at.bookies.transport.faults(BookieId("a")).is_request_lost = True
        stop_s = at.bookies.clock.monotonic_s() + SLOW_S / 2

        async def may_continue() -> bool:
            return at.bookies.clock.monotonic_s() < stop_s

        outcome = await at.copy(may_continue=may_continue)
        assert outcome.is_interrupted
        assert any(at.bookies["c"].reads)
        assert at.bookies["t"].adds == []


@in_virtual_time
async def test_a_copy_that_must_stop_while_it_waits_for_the_rate_sends_nothing_afterwards() -> None:
    """R94."""
    async with scene(members="a b c", quorum=3) as at:
        at.copier.pace.set_rate(100)
        await at.copier.pace.before_add(BookieId("another"), 1000, 0)  # all other adds wait for ten seconds
        stop_s = at.bookies.clock.monotonic_s() + 3

        async def may_continue() -> bool:
            return at.bookies.clock.monotonic_s() < stop_s

        outcome = await at.copy(may_continue=may_continue)
        assert outcome.is_interrupted
        assert outcome.target_failure is None
        assert at.bookies["t"].adds == []


@in_virtual_time
async def test_a_store_error_is_raised_unchanged() -> None:
    async with scene() as at:

        async def may_continue() -> bool:
            raise StoreUnavailableError("no answer")

        with pytest.raises(StoreUnavailableError):
            await at.copy(may_continue=may_continue)
        assert await at.on_target() == {}


@in_virtual_time
async def test_entries_on_the_target_are_not_copied_again() -> None:
    async with scene() as at:
        mine = sorted(at.expected())
        await at.bookies.put("t", LEDGER, [at.packets[i] for i in mine[:40]])
        outcome = await at.copy(EntryRuns.of(mine[:40]))
        assert outcome.is_complete
        assert outcome.entries == len(mine) - 40
        assert await at.on_target() == at.expected()


@in_virtual_time
async def test_large_entries_are_sent_in_bounded_batches() -> None:
    async with scene(members="a b c", quorum=3, count=40, payload_bytes=700_000, length=40) as at:
        assert (await at.copy()).is_complete  # the metadata's length may be too small after Apache's recovery
        assert await at.on_target() == at.packets
        for batch in at.bookies["t"].adds:
            assert sum(map(len, batch.entries[:-1])) < BATCH_BYTES_MAX


@pytest.mark.parametrize("bad", [None, 0, 12, 39])
@in_virtual_time
async def test_all_large_entries_are_read_back(bad: int | None) -> None:
    async with scene(members="a b c", quorum=3, count=40, payload_bytes=700_000) as at:
        if bad is not None:
            at.bookies["a"].results[EntryId(bad)] = answers(Status.NO_ENTRY)
        answer = await at.copier.first_bad_answer(at.ledger, BookieId("a"), sorted(at.packets))
        assert answer == (None if bad is None else BookieAnswer(BookieId("a"), Status.NO_ENTRY))


@in_virtual_time
async def test_the_throttle_bounds_the_bytes_sent() -> None:
    async with scene(members="a b c", quorum=3, count=10_000, payload_bytes=1000, bytes_per_second=MIB) as at:
        started_s = at.bookies.clock.monotonic_s()
        outcome = await at.copy()
        took_s = at.bookies.clock.monotonic_s() - started_s
        assert outcome.bytes / MIB - 1.5 < took_s < outcome.bytes / MIB + 1


@in_virtual_time
async def test_the_whole_budget_is_released_after_a_copy() -> None:
    async with scene(count=3000) as at:
        await at.copy()
        assert at.copier.budget.held_bytes == 0


async def dummy_outcome(bad: dict[str, Status | None]) -> tuple[CopyOutcome, dict[EntryId, bytes], Scene]:
    """Copy with a DUMMY digest. Some holders of entry 3 (a, b, c, d) return altered bytes, others a status."""
    async with scene(members="a b c d", quorum=4, count=10, digest_type=DigestType.DUMMY) as at:
        for name, status in bad.items():
            at.bookies[name].results[EntryId(3)] = flipped if status is None else answers(status)
        return await at.copy(), await at.on_target(), at


@in_virtual_time
async def test_without_a_digest_two_copies_must_agree() -> None:
    outcome, stored, at = await dummy_outcome({"c": None})
    assert outcome.is_complete
    assert stored == at.packets
    assert [(copy.bookie, copy.entry_id) for copy in outcome.corrupt] in ([("c", 3)], [])


@in_virtual_time
async def test_without_a_digest_the_majority_decides() -> None:
    for name in "acd":
        outcome, stored, at = await dummy_outcome({name: None})
        assert outcome.is_complete
        assert stored == at.packets


@in_virtual_time
async def test_without_a_digest_differing_copies_without_a_majority_are_not_used() -> None:
    outcome, stored, _ = await dummy_outcome({"a": None, "d": Status.NO_ENTRY})
    assert outcome.is_permanent_failure
    assert 3 not in stored
    assert "copies differ" in outcome.unreadable[0].answers[0].detail


@in_virtual_time
async def test_without_a_digest_a_single_copy_is_used() -> None:
    outcome, stored, at = await dummy_outcome({"a": Status.NO_ENTRY, "d": Status.NO_ENTRY})
    assert outcome.is_complete
    assert stored == at.packets


@in_virtual_time
async def test_without_a_digest_no_copy_is_used_before_another_one_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second holder serves a few entries at a time, and the first one has an altered copy of a later entry."""
    async with scene(members="a b c d", quorum=4, count=10, digest_type=DigestType.DUMMY) as at:
        at.bookies["a"].results[EntryId(7)] = flipped
        ask = at.bookies.transport.ask

        async def ask_for_few(bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
            reply = await ask(bookie, request, timeout_s)
            if bookie == "c" and isinstance(reply, ReadReply):
                reply = replace(reply, results=reply.results[:3])
            return reply

        monkeypatch.setattr(at.bookies.transport, "ask", ask_for_few)
        source = EntrySource(at.bookies.transport, at.ledger.ledger_id, stored_digest(at.ledger))
        waiting, packets = sorted(at.packets), dict[EntryId, bytes]()
        while waiting:
            fetched = await source.fetch(dict.fromkeys(waiting, names("a c d")))
            assert not fetched.unreadable
            packets |= fetched.packets
            waiting = fetched.rest
        assert packets == at.packets


@in_virtual_time
async def test_copies_that_differ_only_in_the_lac_field_are_equal() -> None:
    def recovered(result: EntryResult) -> EntryResult:
        packet = bytearray(result.packet)
        packet[16:24] = (99).to_bytes(8, "big")
        return EntryResult(result.entry_id, result.status, bytes(packet))

    async with scene(members="a b c", quorum=3, count=10, digest_type=DigestType.DUMMY) as at:
        at.bookies["a"].results = {EntryId(i): recovered for i in range(10)}
        outcome = await at.copy()
        assert outcome.is_complete
        assert outcome.corrupt == ()


def test_batches_are_closed_at_their_bounds() -> None:
    assert [len(batch) for batch in batches([b"x"] * (2 * BATCH_ENTRIES_MAX + 1))] == [1024, 1024, 1]
    assert [len(batch) for batch in batches([bytes(MIB // 2)] * 5)] == [2, 2, 1]
    assert list(batches([])) == []


def test_the_text_of_an_unreadable_entry_contains_all_answers() -> None:
    entry = UnreadableEntry(
        EntryId(7), (BookieAnswer(BookieId("a"), Status.NO_ENTRY), BookieAnswer(BookieId("b"), Status.TIMEOUT))
    )
    assert str(entry) == "entry 7: a=NO_ENTRY, b=TIMEOUT"
    assert not entry.is_final


@in_virtual_time
async def test_repeated_batches_count_against_the_rate() -> None:
    async with scene(members="a b c", quorum=3, count=400, payload_bytes=1000, bytes_per_second=100_000) as at:
        at.bookies["t"].add_replies = [Status.TOO_MANY_REQUESTS] * 5
        started_s = at.bookies.clock.monotonic_s()
        outcome = await at.copy()
        took_s = at.bookies.clock.monotonic_s() - started_s
        sent = sum(len(packet) for batch in at.bookies["t"].adds for packet in batch.entries)
        assert sent > 3 * outcome.bytes
        assert sent <= 100_000 * (took_s + 0.25) + outcome.bytes


@in_virtual_time
async def test_reads_that_lead_to_no_copy_count_against_the_rate() -> None:
    async with scene(members="a b", quorum=2, count=400, payload_bytes=1000, bytes_per_second=100_000) as at:
        at.bookies["t"].add_replies = [Status.IO_ERROR] * 3
        started_s = at.bookies.clock.monotonic_s()
        for _ in range(3):
            assert (await at.copy()).target_failure is not None
        took_s = at.bookies.clock.monotonic_s() - started_s
        read = sum(len(entry_ids) for entry_ids in at.bookies["a"].reads) * 1000
        assert read >= 3 * 300_000
        assert read <= 100_000 * (took_s + 0.25) + 420_000


@in_virtual_time
async def test_a_target_that_stays_busy_for_a_minute_ends_the_copy() -> None:
    async with scene(members="a b c", quorum=3, count=5000, payload_bytes=1000) as at:
        at.bookies["t"].add_replies = [Status.TOO_MANY_REQUESTS] * 1000
        started_s = at.bookies.clock.monotonic_s()
        outcome = await at.copy()
        assert outcome.target_failure is not None
        assert outcome.target_failure.status is Status.TOO_MANY_REQUESTS
        assert BUSY_S_MAX <= at.bookies.clock.monotonic_s() - started_s < BUSY_S_MAX + 10
        assert len(at.bookies["t"].adds) < 30


@in_virtual_time
async def test_a_copy_that_must_stop_does_not_wait_for_a_busy_target_or_report_it_as_failed() -> None:
    async with scene(members="a b c", quorum=3) as at:
        at.bookies["t"].add_replies = [Status.TOO_MANY_REQUESTS] * 1000
        stop_s = at.bookies.clock.monotonic_s() + 3

        async def may_continue() -> bool:
            return at.bookies.clock.monotonic_s() < stop_s

        outcome = await at.copy(may_continue=may_continue)
        assert outcome.is_interrupted
        assert outcome.target_failure is None
        assert at.bookies.clock.monotonic_s() < stop_s + 10


@in_virtual_time
async def test_progress_ends_before_the_first_entry_that_is_not_stored() -> None:
    async with scene(members="a b c", quorum=3, count=9000, payload_bytes=1000) as at:
        at.bookies["a"].results = {EntryId(4000): answers(Status.TIMEOUT)}
        at.bookies["c"].results = {EntryId(4000): answers(Status.TIMEOUT)}
        noted: list[tuple[int, int]] = []

        async def note(end: EntryId, size_bytes: int) -> None:
            stored = await at.on_target()
            assert all(entry_id in stored for entry_id in range(end))
            noted.append((end, size_bytes))

        outcome = await at.copy(note_progress=note)
        assert outcome.unreadable_count == 1
        assert 2000 < noted[-1][0] <= 4000
        assert sum(size_bytes for _, size_bytes in noted) == outcome.bytes
        assert [end for end, _ in noted] == sorted(end for end, _ in noted)


async def test_lanes_wait_for_a_chunk_that_blocks_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "AHEAD_BYTES_MAX", MIB)
    async with scene(members="a b c", quorum=3, count=9000, payload_bytes=1000) as at:
        silent = {EntryId(10): answers(Status.TIMEOUT)}
        at.bookies["a"].results = at.bookies["c"].results = silent
        ahead, copied = [0], 0

        async def note(end: EntryId, size_bytes: int) -> None:
            nonlocal copied
            copied += size_bytes
            ahead.append(copied - sum(len(packet) for entry_id, packet in at.packets.items() if entry_id < end))

        async def may_continue() -> bool:
            asyncio.get_running_loop().call_later(0.3, silent.clear)
            return True

        outcome = await at.copy(note_progress=note, may_continue=may_continue)
        assert outcome.is_complete
        assert await at.on_target() == at.expected()
        assert max(ahead) < MIB + LANES_MAX * BATCH_BYTES_MAX < outcome.bytes


@in_virtual_time
async def test_the_size_limit_of_an_answer_is_that_of_a_small_ledger() -> None:
    digest = digest_for(DigestType.CRC32C, b"")
    transport = Bookies().transport
    small, unknown = (EntrySource(transport, LedgerId(1), digest, length) for length in (1000, None))
    assert small.answer_bytes_max(10) == 1000 + 10 * (HEADER_SIZE + digest.size)
    assert unknown.answer_bytes_max(10) > READ_BYTES_MAX


@in_virtual_time
async def test_only_reads_of_small_ledgers_may_share_a_call() -> None:
    asked: list[bool] = []

    class Recording(MemoryTransport):
        @override
        async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
            asked.append(isinstance(request, Read) and request.is_small)
            return await super().ask(bookie, request, timeout_s)

    bookies, digest = Bookies(), digest_for(DigestType.CRC32C, b"")
    for length in (1000, SMALL_READ_BYTES, None):
        source = EntrySource(Recording(bookies, bookies.network), LedgerId(1), digest, length)
        await source.fetch({EntryId(0): [BookieId("b:1")]})
    assert asked == [True, False, False]
