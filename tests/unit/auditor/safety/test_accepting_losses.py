"""Accepted losses: entries that registered bookies deny, lost answers, and too many entries for one record."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult, DeadLetters
from auditor.safety.lost_entries import lost_fragments
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, Denial, LostFragment
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.model.availability import EntryRuns, RunGroup
from bookie.model.ids import BookieId, EntryId
from bookie.model.schedule import Stripe
from bookie.wire.port import ListReply, Status
from bookie.wire.security import SecurityFiles
from spark_jobs.checks.replicas.asking import Answers, Asker
from spark_jobs.checks.replicas.expected import settled_metadata
from spark_jobs.checks.replicas.task import TaskSettings, accepted_entries, answer_rows, is_accepted
from spark_jobs.checks.replicas.verdict import FragmentFinding
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names, should_hold
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time

METADATA = make_metadata((0, "a b c"), quorum=(2, 2), last=9, length=100)
"""Entry 1 is on b and c, entry 2 on c and a."""


async def parked(world: RepairWorld, lacking: dict[str, set[int]], named: str) -> None:
    """Create a ledger whose bookies lack some entries, with a task that a worker parked."""
    created = await world.ledgers.create(LEDGER, METADATA)
    packets = make_packets(created.ledger_id, 10)
    for bookie in sorted(METADATA.members()):
        kept = {entry: data for entry, data in packets.items() if entry not in lacking.get(bookie, ())}
        await world.bookies.put(bookie, LEDGER, [kept[each] for each in should_hold(METADATA, bookie, kept)])
    await world.tasks.marking.mark(LEDGER, names(named))
    task = await world.task(LEDGER)
    assert task is not None
    await world.parked.park(
        ParkedTask(
            ledger_id=LEDGER,
            reason=ParkReason.UNREADABLE_ENTRIES,
            detail="",
            since_ms=1,
            bookies_seen=frozenset(),
            task_version=task.version,
        )
    )


async def accept(world: RepairWorld) -> DeadLetterResult:
    decisions = Decisions(world.store, world.cluster.root)
    letters = DeadLetters(world.ports(world.store).client(), world.store, world.parked, decisions, "me@host")
    return await letters.accept(LEDGER, "the disks were replaced")


async def audited(world: RepairWorld, accepted: DeadLetterResult | None = None) -> tuple[FragmentFinding, ...]:
    """Return the findings of the replicas check after a loss was accepted."""

    async def registered() -> AbstractSet[BookieId]:
        return (await world.registrations.list()).registered

    lost = {} if accepted is None else {LEDGER: accepted.lost}
    asker = Asker(world.bookies.transport, world.ledgers, registered, world.clock, accepted_entries(lost))
    found = (await asker.ask_all([settled_metadata(LEDGER, METADATA)], await registered())).found
    return tuple(finding for _, findings in found for finding in findings)


@in_virtual_time
async def test_an_entry_that_every_bookie_lacks_can_be_accepted_as_the_audit_found_it() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}}, "b c")
        result = await accept(world)
        denials = (Denial(1, BookieId("b"), 1), Denial(2, BookieId("c"), 1))
        lost = LostFragment(EntryId(0), EntryId(9), (), (), denials, entries=(RunGroup(1, 1, 1, 0),))
        assert result == DeadLetterResult(LEDGER, DeadLetterOutcome.ACCEPTED, lost=(lost,))
        assert await world.is_clean()
        (finding,) = await audited(world, result)
        assert is_accepted(finding, result.lost)
        (finding,) = await audited(world)
        assert not is_accepted(finding, ())


@in_virtual_time
async def test_a_loss_on_the_same_bookies_in_another_fragment_is_not_accepted() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}}, "b c")
        result = await accept(world)
        for entries in ((RunGroup(2, 2, 1, 0),), ()):  # a record without ids accepts positions
            (lost,) = result.lost
            elsewhere = replace(lost, first_entry_id=EntryId(10), last_entry_id=EntryId(19), entries=entries)
            (finding,) = await audited(world, replace(result, lost=(elsewhere,)))
            assert not is_accepted(finding, [elsewhere])
            (finding,) = await audited(world)
            assert is_accepted(finding, [replace(lost, entries=())])


@in_virtual_time
async def test_a_record_without_ids_accepts_nothing_of_another_ledger_with_the_same_id() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}}, "b c")
        result = await accept(world)
        lost = tuple(replace(part, entries=()) for part in result.lost)
        (finding,) = await audited(world)
        for ctime_ms, kind in ((1000, "LOSS_ACCEPTED"), (2000, "MISSING_ENTRIES")):
            decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", lost=lost, ledger_ctime_ms=1000)
            settings = TaskSettings(
                "zk://nowhere/ledgers", 1, frozenset(), SecurityFiles(), accepted={LEDGER: decision}
            )
            ledger = settled_metadata(LEDGER, replace(METADATA, ctime_ms=ctime_ms))
            rows = answer_rows(Answers([(ledger, (finding,))]), settings).to_pylist()
            assert [row["kind"] for row in rows[:-1]] == [kind]


@pytest.mark.parametrize(
    "more", [{"b": {1, 4}, "c": {1, 4}}, {"b": {1}, "c": {1}, "a": {3}}, {"b": {1, 0}, "c": {1}}, {"b": {1}}]
)
def test_only_accepted_entries_are_accepted_by_an_audit(more: dict[str, set[int]]) -> None:
    """Also, an accepted entry that some bookie has is not lost: its missing copies can be made."""

    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c") as world:
            await parked(world, more, "b c")
            denials = (Denial(1, BookieId("b"), 9), Denial(2, BookieId("c"), 9))
            lost = LostFragment(EntryId(0), EntryId(9), (), (), denials, entries=(RunGroup(1, 1, 1, 0),))
            (finding,) = await audited(world, DeadLetterResult(LEDGER, DeadLetterOutcome.ACCEPTED, lost=(lost,)))
            assert not is_accepted(finding, [lost])

    check()


@pytest.mark.parametrize("more", [{"b": {1, 4}, "c": {1, 4}}, {"b": {1}, "c": {1}, "a": {3}}])
def test_a_growing_loss_is_not_accepted(more: dict[str, set[int]]) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c") as world:
            await parked(world, more, "b c")
            (finding,) = await audited(world)
            denials = (Denial(1, BookieId("b"), 1), Denial(2, BookieId("c"), 1))
            assert not is_accepted(finding, [LostFragment(EntryId(0), EntryId(9), (), (), denials)])

    check()


@in_virtual_time
async def test_a_lost_bookie_and_one_that_lacks_entries_are_accepted_together() -> None:
    async with a_world("a b c d e") as world:
        await parked(world, {"c": {1}}, "b c")
        await world.kill("b")
        result = await accept(world)
        (lost,) = result.lost
        assert (lost.positions, lost.bookies, lost.denials) == ((1,), names("b"), (Denial(2, BookieId("c"), 1),))
        assert (lost.lost_entries, lost.shared) == (EntryRuns.of([1]), (1,))
        assert result.outcome is DeadLetterOutcome.ACCEPTED_TASK_STAYS  # for the other entries of b
        (finding,) = await audited(world, result)
        assert is_accepted(finding, result.lost)


@in_virtual_time
async def test_an_entry_that_one_bookie_holds_is_not_lost() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}}, "b")
        result = await accept(world)
        assert (result.outcome, "may hold it" in result.detail) == (DeadLetterOutcome.REFUSED, True)


@in_virtual_time
async def test_only_a_list_that_lacks_the_entry_is_proof_of_absence() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}}, "b c")
        for reply in (ListReply(Status.LIMBO), ListReply(Status.IO_ERROR, detail="a disk"), ListReply(Status.FENCED)):
            world.bookies["c"].list_replies = [reply]
            result = await accept(world)
            assert result.outcome is DeadLetterOutcome.REFUSED, reply
            assert "bookie c is registered and did not list its entries" in result.detail
        world.bookies.stop_listening("c")
        assert (await accept(world)).outcome is DeadLetterOutcome.REFUSED
        assert await world.task(LEDGER) is not None


@in_virtual_time
async def test_a_bookie_without_lists_is_read_entry_by_entry() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}}, "b c")
        world.bookies["c"].has_no_lists = True
        assert (await accept(world)).outcome is DeadLetterOutcome.ACCEPTED


@in_virtual_time
async def test_the_task_is_kept_for_a_bookie_that_lacks_entries_of_others() -> None:
    async with a_world("a b c") as world:
        await parked(world, {"b": {1}, "c": {1}, "a": {3}}, "a b c")
        result = await accept(world)
        assert (result.outcome, "1 position of the ledger lacks" in result.detail) == (
            DeadLetterOutcome.ACCEPTED_TASK_STAYS,
            True,
        )
        assert await world.task(LEDGER) is not None


@st.composite
def _denied(draw: st.DrawFn) -> set[int]:
    """Entries at regular distances; up to eight are added or removed."""
    period, size, shift = draw(st.integers(1, 6)), draw(st.integers(0, 6)), draw(st.integers(0, 5))
    regular = {entry for entry in range(draw(st.integers(0, 40))) if (entry + shift) % period < size}
    return regular ^ draw(st.sets(st.integers(0, 39), max_size=8))


@given(
    gone=st.sets(st.sampled_from("abcd"), max_size=3),
    lacking=st.dictionaries(st.sampled_from("abcd"), _denied(), max_size=4),
    first=st.integers(0, 16),
    quorum=st.integers(1, 4),
)
def test_lost_positions_are_those_of_entries_without_a_copy(
    gone: set[str], lacking: dict[str, set[int]], first: int, quorum: int
) -> None:
    metadata = make_metadata((0, "a b c d"), *([(first, "b a d c")] if first else []), quorum=(quorum, 1), last=39)
    held = {
        BookieId(bookie): EntryRuns.of(entry for entry in range(40) if entry not in lacking[bookie])
        for bookie in lacking
        if bookie not in gone
    }
    expected: dict[int, set[int]] = {}
    entries: set[int] = set()
    for entry in range(40):
        fragment = metadata.fragments[metadata.fragment_index(EntryId(entry))]
        where = metadata.stripe.write_set(entry)
        copies = [
            position
            for position in where
            if fragment.members[position] not in gone and entry not in (lacking.get(fragment.members[position], set()))
        ]
        if not copies:
            expected.setdefault(fragment.first_entry_id, set()).update(where)
            entries.add(entry)
    found = lost_fragments(metadata, names(" ".join(sorted(gone))), held)
    assert {
        part.first_entry_id: {*part.positions, *(denial.position for denial in part.denials)} for part in found
    } == expected
    assert entries == {entry for part in found for entry in part.lost_entries}
    for part in found:
        others = set(range(part.first_entry_id, part.last_entry_id + 1)) - entries
        stored = {position for entry in others for position in metadata.stripe.write_set(entry)}
        assert part.shared == tuple(position for position in part.positions if position in stored)
        members = metadata.fragments[metadata.fragment_index(part.first_entry_id)].members
        assert part.bookies == tuple(members[position] for position in part.positions)
        assert gone.issuperset(part.bookies)
        assert gone.isdisjoint(denial.bookie for denial in part.denials)


def test_the_cost_of_a_striped_ledger_does_not_grow_with_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = make_metadata((0, "a b c"), quorum=(2, 2), last=29_999)
    entry, steps, real = EntryRuns.of([15_000]), 0, RunGroup.runs

    def counted(group: RunGroup) -> Iterator[tuple[int, int]]:
        nonlocal steps
        for run in real(group):
            steps += 1
            yield run

    held = {BookieId(bookie): Stripe(3, 2).runs(place, 0, 29_999).without(entry) for place, bookie in enumerate("abc")}
    monkeypatch.setattr(RunGroup, "runs", counted)
    (lost,) = lost_fragments(metadata, frozenset(), held)
    assert lost.denials == (Denial(0, BookieId("a"), 1), Denial(1, BookieId("b"), 1))
    assert steps < 50


@pytest.mark.parametrize("fault", list(Fault))
def test_a_lost_reply_is_resolved_and_a_failed_request_changes_nothing(fault: Fault) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("c d e") as world:
            await world.ledgers.create(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=9))
            await world.tasks.marking.mark(LEDGER, names("a b"))
            await world.parked.park(
                ParkedTask(
                    ledger_id=LEDGER,
                    reason=ParkReason.NO_LIVE_COPY,
                    detail="",
                    since_ms=1,
                    bookies_seen=frozenset(),
                    task_version=0,
                )
            )
            faults = [fault]

            async def lose(operation: str, path: str) -> Fault | None:
                return faults.pop() if operation == "multi" and faults else None

            store = world.session(lose)
            decisions, parked = Decisions(store, world.cluster.root), ParkedTasks(store, world.cluster.root)
            letters = DeadLetters(world.ports(store).client(), store, parked, decisions, "me@host")
            if fault is Fault.FAIL_BEFORE:
                with pytest.raises(StoreUnavailableError):
                    await letters.accept(LEDGER, "fire")
                assert (await decisions.list(), await world.tasks.locks.locked()) == ([], frozenset())
                assert await world.task(LEDGER) is not None
            result = await letters.accept(LEDGER, "fire")
            assert (result.outcome, faults) == (DeadLetterOutcome.ACCEPTED, [])
            assert await world.is_clean()
            assert [decision.ledger_id for decision in await decisions.accepted()] == [LEDGER]

    check()


def test_a_record_too_large_for_a_node_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.metadata.tasks.decisions.NODE_DATA_MAX", 500)

    @in_virtual_time
    async def check() -> None:
        async with a_world("c d e") as world:
            fragments = [(10 * number, "a b") for number in range(5)]
            await world.ledgers.create(LEDGER, make_metadata(*fragments, quorum=(2, 2), last=49))
            await world.tasks.marking.mark(LEDGER, names("a b"))
            await world.parked.park(
                ParkedTask(
                    ledger_id=LEDGER,
                    reason=ParkReason.NO_LIVE_COPY,
                    detail="",
                    since_ms=1,
                    bookies_seen=frozenset(),
                    task_version=0,
                )
            )
            result = await accept(world)
            assert (result.outcome, "5 fragments are too many" in result.detail) == (DeadLetterOutcome.REFUSED, True)
            assert await world.task(LEDGER) is not None

    check()
