"""A copy of several lost positions: each entry is read once, and each target gets exactly its position."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import pytest

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import BATCH_BYTES_MAX, Status
from replicator.copying.copier import Copier
from replicator.copying.outcome import CopyOutcome
from replicator.copying.pace import CopyPace
from replicator.copying.receiver import NOTHING_HELD, NoteProgress, PositionCopy
from replicator.copying.target import BUSY_S_MAX
from replicator.copying.throttle import ByteBudget
from replicator.plan.steps import Cause, CopyPosition
from tests.worlds.ledgers import make_metadata, make_packets, names, should_hold
from tests.worlds.repair import Bookies, answers, flipped
from tests.worlds.virtual_time import in_virtual_time

LEDGER = LedgerId(42)
MIB = 1 << 20


@dataclass
class Scene:
    """A ledger whose members with capital letters are lost; the target of the copy for B is bt."""

    bookies: Bookies
    ledger: Versioned
    packets: dict[EntryId, bytes]
    copier: Copier
    steps: list[CopyPosition]

    def copies(self, held: Mapping[str, EntryRuns] | None = None) -> list[PositionCopy]:
        return [PositionCopy(step, (held or {}).get(step.target, NOTHING_HELD)) for step in self.steps]

    async def copy(self, **held: EntryRuns) -> dict[str, CopyOutcome]:
        outcomes = await self.copier.copy(self.ledger, self.copies(held), always)
        return {step.target: outcome for step, outcome in zip(self.steps, outcomes, strict=True)}

    def expected(self, step: CopyPosition) -> list[EntryId]:
        return should_hold(self.ledger.metadata, step.old, self.packets)

    def reads(self) -> Counter[EntryId]:
        """Return how often each entry was requested, from all bookies together."""
        return Counter(
            entry_id for node in self.bookies.nodes.values() for ids in node.tampering.reads for entry_id in ids
        )

    async def assert_has_its_position(self, target: str) -> None:
        step = next(step for step in self.steps if step.target == target)
        assert await self.bookies.nodes[BookieId(target)].holds(LEDGER) == self.expected(step)
        stored = {packet for batch in self.bookies[target].adds for packet in batch.entries}
        assert stored == {self.packets[entry_id] for entry_id in self.expected(step)}


async def always() -> bool:
    return True


@asynccontextmanager
async def scene(
    members: str, quorum: int, count: int = 100, payload_bytes: int = 10, bytes_per_second: int = 0
) -> AsyncIterator[Scene]:
    ensemble = names(members.lower())
    lost = [position for position, name in enumerate(members.split()) if name.isupper()]
    bookies = Bookies()
    await bookies.start([*ensemble, *(f"{ensemble[position]}t" for position in lost)])
    metadata = make_metadata((0, members.lower()), quorum=(quorum, quorum), last=count - 1)
    ledger = Versioned(LEDGER, metadata, 1)
    packets = make_packets(LEDGER, count, payload_bytes=payload_bytes)
    await bookies.fill(ledger, packets)
    sources = tuple(None if position in lost else name for position, name in enumerate(ensemble))
    steps = [
        CopyPosition(
            fragment_index=0,
            position=position,
            old=ensemble[position],
            target=BookieId(f"{ensemble[position]}t"),
            cause=Cause.UNREGISTERED,
            first=EntryId(0),
            last=EntryId(count - 1),
            write_quorum=quorum,
            sources=sources,
        )
        for position in lost
    ]
    copier = Copier(bookies.transport, bookies.clock, CopyPace(bookies.clock, bytes_per_second), ByteBudget(64 * MIB))
    try:
        yield Scene(bookies, ledger, packets, copier, steps)
    finally:
        await bookies.close()


@pytest.mark.parametrize(
    ("members", "quorum"), [("a B C", 3), ("A b C D", 4), ("a B c D e", 3), ("a B C d e", 3), ("a B c D e f", 2)]
)
@in_virtual_time
async def test_each_entry_is_read_once_and_each_target_receives_exactly_its_position(members: str, quorum: int) -> None:
    async with scene(members, quorum, count=3000) as at:
        outcomes = await at.copy()
        lacking = {entry_id for step in at.steps for entry_id in at.expected(step)}
        assert at.reads() == Counter(dict.fromkeys(lacking, 1))
        for step in at.steps:
            assert outcomes[step.target].is_complete
            assert outcomes[step.target].entries == len(at.expected(step))
            await at.assert_has_its_position(step.target)
        assert at.copier.budget.held_bytes == 0


@in_virtual_time
async def test_entries_on_one_target_are_read_for_the_other_target_only() -> None:
    async with scene("a B C", 3) as at:
        outcomes = await at.copy(bt=EntryRuns(((0, 59),)), ct=EntryRuns(((40, 79),)))
        assert set(at.reads()) == {*range(40), *range(60, 100)}
        assert set(at.reads().values()) == {1}
        assert {name: outcome.entries for name, outcome in outcomes.items()} == {"bt": 40, "ct": 60}


@pytest.mark.parametrize("status", [Status.READ_ONLY, Status.WRONG_INCARNATION, Status.IO_ERROR])
@in_virtual_time
async def test_a_target_that_refuses_does_not_stop_the_other_one(status: Status) -> None:
    async with scene("a b C D", 4, count=5000) as at:
        at.bookies["ct"].add_replies = [Status.OK] + [status] * 100
        outcomes = await at.copy()
        assert outcomes["dt"].is_complete
        failure = outcomes["ct"].target_failure
        assert failure is not None
        assert (failure.bookie, failure.status) == ("ct", status)
        assert set(at.reads().values()) == {1}
        await at.assert_has_its_position("dt")
        assert len(at.bookies["ct"].adds) < 10


@in_virtual_time
async def test_nothing_more_is_read_for_a_target_that_has_refused() -> None:
    async with scene("A b C d e f", 2, count=30_000) as at:
        at.bookies["at"].add_replies = [Status.IO_ERROR] * 1000
        outcomes = await at.copy()
        assert outcomes["ct"].is_complete
        read_for_nothing = set(at.reads()) - set(at.expected(at.steps[1]))
        assert len(read_for_nothing) < 8000


@in_virtual_time
async def test_a_target_that_stays_busy_delays_the_other_one_by_a_minute_at_most() -> None:
    async with scene("a B C", 3, count=9000, payload_bytes=1000) as at:
        at.bookies["bt"].add_replies = [Status.TOO_MANY_REQUESTS] * 1000
        started_s = at.bookies.clock.monotonic_s()
        outcomes = await at.copy()
        assert at.bookies.clock.monotonic_s() - started_s < BUSY_S_MAX + 10
        assert outcomes["bt"].target_failure is not None
        assert outcomes["ct"].is_complete
        await at.assert_has_its_position("ct")


@in_virtual_time
async def test_an_entry_that_no_bookie_serves_ends_only_the_copies_that_need_it() -> None:
    async with scene("a B c D e", 3, count=3000) as at:
        lacked = next(i for i in at.expected(at.steps[0]) if i > 1500 and i not in set(at.expected(at.steps[1])))
        for name in "ace":
            at.bookies[name].results[lacked] = answers(Status.NO_ENTRY)
        outcomes = await at.copy()
        assert outcomes["bt"].is_permanent_failure
        (entry,) = outcomes["bt"].unreadable
        assert entry.entry_id == lacked
        assert {answer.status for answer in entry.answers} == {Status.NO_ENTRY}
        assert outcomes["dt"].is_complete
        await at.assert_has_its_position("dt")


@in_virtual_time
async def test_an_entry_that_no_bookie_serves_is_evidence_for_both_targets_that_need_it() -> None:
    async with scene("a B C", 3) as at:
        at.bookies["a"].results[EntryId(50)] = answers(Status.CORRUPT)
        outcomes = await at.copy()
        for name in ("bt", "ct"):
            assert outcomes[name].is_permanent_failure
            (entry,) = outcomes[name].unreadable
            assert (entry.entry_id, [(answer.bookie, answer.status) for answer in entry.answers]) == (
                50,
                [("a", Status.CORRUPT)],
            )


@in_virtual_time
async def test_a_missing_answer_is_retried_and_is_not_absence_for_any_target() -> None:
    async with scene("a B C", 3) as at:
        at.bookies["a"].results[EntryId(50)] = answers(Status.TOO_MANY_REQUESTS)
        outcomes = await at.copy()
        for name in ("bt", "ct"):
            assert outcomes[name].unreadable_count == 1
            assert not outcomes[name].is_permanent_failure


@in_virtual_time
async def test_a_member_filled_in_place_is_read_last_for_its_missing_entries_and_is_no_own_evidence() -> None:
    async with scene("a B C", 3) as at:
        in_place = replace(at.steps[0], cause=Cause.INCOMPLETE, target=BookieId("b"))
        at.steps = [in_place, replace(at.steps[1], sources=(*names("a b"), None))]
        at.bookies["a"].results[EntryId(7)] = answers(Status.NO_ENTRY)
        at.bookies["b"].results[EntryId(7)] = answers(Status.TIMEOUT)
        outcomes = await at.copy(b=EntryRuns(((20, 99),)))
        assert [answer.bookie for answer in outcomes["b"].unreadable[0].answers] == ["a"]
        assert outcomes["b"].is_permanent_failure
        answered = [entry for entry in outcomes["ct"].unreadable if entry.entry_id == 7]
        assert {answer.bookie for entry in answered for answer in entry.answers} == {"a", "b"}
        assert not outcomes["ct"].is_permanent_failure
        assert {entry_id for ids in at.bookies["b"].reads for entry_id in ids} & set(range(20)) == {7}


@in_virtual_time
async def test_a_damaged_copy_is_reported_once_for_all_targets() -> None:
    async with scene("a b C D", 4) as at:
        for name in "ab":
            at.bookies[name].results[EntryId(3 if name == "a" else 4)] = flipped
        outcomes = await at.copy()
        assert all(outcome.is_complete for outcome in outcomes.values())
        (met,) = {outcome.corrupt for outcome in outcomes.values()}
        assert {(copy.bookie, copy.entry_id) for copy in met} <= {("a", 3), ("b", 4)}
        assert len(met) == 1
        assert set(at.reads().values()) == {1, 2}


@in_virtual_time
async def test_progress_of_a_target_ends_before_the_first_entry_that_it_lacks() -> None:
    async with scene("a b C D", 4, count=9000, payload_bytes=1000) as at:
        at.bookies["ct"].add_replies = [Status.OK] * 3 + [Status.IO_ERROR] * 100
        noted: dict[str, list[tuple[int, int]]] = {"ct": [], "dt": []}

        def note_of(name: str) -> NoteProgress:
            async def note(end: EntryId, size_bytes: int) -> None:
                held = await at.bookies.nodes[BookieId(name)].holds(LEDGER)
                assert held[:end] == list(range(end))
                noted[name].append((end, size_bytes))

            return note

        copies = [PositionCopy(step, note_progress=note_of(step.target)) for step in at.steps]
        outcomes = await at.copier.copy(at.ledger, copies, always)
        assert noted["dt"][-1][0] == 9000
        assert 0 < noted["ct"][-1][0] < 9000
        for name, outcome in zip(("ct", "dt"), outcomes, strict=True):
            assert sum(size for _, size in noted[name]) == outcome.bytes
            assert [end for end, _ in noted[name]] == sorted(end for end, _ in noted[name])


@in_virtual_time
async def test_every_attempt_for_every_target_counts_against_the_rate() -> None:
    async with scene("a B C", 3, count=400, payload_bytes=1000, bytes_per_second=100_000) as at:
        at.bookies["bt"].add_replies = [Status.TOO_MANY_REQUESTS] * 5
        started_s = at.bookies.clock.monotonic_s()
        outcomes = await at.copy()
        took_s = at.bookies.clock.monotonic_s() - started_s
        sent = sum(len(packet) for name in ("bt", "ct") for batch in at.bookies[name].adds for packet in batch.entries)
        assert sent > 4 * outcomes["bt"].bytes
        assert sent <= 100_000 * (took_s + 0.25) + outcomes["bt"].bytes


@in_virtual_time
async def test_memory_is_held_until_the_slower_target_has_answered() -> None:
    async with scene("a B C", 3, count=10, payload_bytes=1000) as at:
        at.bookies.transport.faults(BookieId("bt")).delay_s = 5.0
        copying = asyncio.ensure_future(at.copy())
        await asyncio.sleep(4.0)
        assert len(at.bookies["ct"].adds) == 1
        assert at.copier.budget.held_bytes == sum(map(len, at.packets.values()))
        await copying
        assert at.copier.budget.held_bytes == 0


@in_virtual_time
async def test_large_entries_for_several_targets_stay_within_the_budget() -> None:
    async with scene("a B C", 3, count=40, payload_bytes=700_000) as at:
        outcomes = await at.copy()
        assert all(outcome.is_complete for outcome in outcomes.values())
        assert set(at.reads()) == set(at.packets)
        for name in ("bt", "ct"):
            assert all(sum(map(len, batch.entries[:-1])) < BATCH_BYTES_MAX for batch in at.bookies[name].adds)


@in_virtual_time
async def test_a_copy_that_must_stop_does_so_for_all_targets() -> None:
    async with scene("a B C", 3, count=20_000) as at:
        asked = 0

        async def may_continue() -> bool:
            nonlocal asked
            asked += 1
            return asked <= 3

        outcomes = await at.copier.copy(at.ledger, at.copies(), may_continue)
        assert all(outcome.is_interrupted for outcome in outcomes)
        assert sum(at.reads().values()) <= 3 * 1024


TEMPORARY = (Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.IO_ERROR)
FINAL = (Status.NO_ENTRY, Status.CORRUPT, Status.LIMBO)


def disturb(at: Scene, rng: random.Random) -> None:
    """Make some sources lack some entries, and make some targets busy, unresponsive or full."""
    for name in at.ledger.metadata.members():
        for entry_id in rng.sample(sorted(at.packets), rng.choice((0, 0, 3, 20))):
            at.bookies[name].results[entry_id] = answers(rng.choice(TEMPORARY + FINAL))
    for step in at.steps:
        statuses = rng.choice(((Status.OK,), (Status.TOO_MANY_REQUESTS, Status.OK), (Status.OK, Status.IO_ERROR)))
        at.bookies[step.target].add_replies = [rng.choice(statuses) for _ in range(rng.randrange(12))]


@pytest.mark.parametrize("seed", range(40))
@in_virtual_time
async def test_under_random_faults_each_outcome_is_true_and_no_progress_passes_a_gap(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(3, 6)
    lost = rng.sample(range(size), rng.randint(2, size - 1))
    members = " ".join(name.upper() if position in lost else name for position, name in enumerate("abcdef"[:size]))
    async with scene(members, rng.randint(2, size), count=rng.choice((20, 300)), payload_bytes=20_000) as at:
        disturb(at, rng)
        held = {step.target: EntryRuns.of(at.expected(step)[: rng.choice((0, 5))]) for step in at.steps}
        for step in at.steps:
            await at.bookies.put(step.target, LEDGER, [at.packets[i] for i in held[step.target]])

        async def note_of(step: CopyPosition, end: EntryId, size_bytes: int) -> None:
            stored = set(await at.bookies.nodes[step.target].holds(LEDGER))
            assert stored >= {entry_id for entry_id in at.expected(step) if entry_id < end}

        copies = [PositionCopy(s, held[s.target], note_progress=partial(note_of, s)) for s in at.steps]
        outcomes = await at.copier.copy(at.ledger, copies, always)
        for step, outcome in zip(at.steps, outcomes, strict=True):
            stored, wanted = await at.bookies.nodes[step.target].holds(LEDGER), at.expected(step)
            assert set(stored) <= set(wanted)
            assert (stored == wanted) or not outcome.is_complete
            holders = [set(step.holders(start)) for start in range(size)]
            for entry in outcome.unreadable:
                assert entry.entry_id in wanted
                assert {answer.bookie for answer in entry.answers} == holders[entry.entry_id % size]
            if not outcome.is_complete:
                assert outcome.target_failure or outcome.unreadable_count
        assert at.copier.budget.held_bytes == 0
