"""The worker after an operator accepted the loss of entries: it copies everything else (R148)."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult, DeadLetters
from bookie.metadata.layout import lock_path
from bookie.metadata.store.memory import Fault
from bookie.metadata.tasks.decisions import Decision, Decisions
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.wire.port import Status
from replicator.knowledge.evidence import BookieAnswer, UnreadableEntry
from replicator.plan.steps import CopyPosition
from replicator.repair import accepted_loss
from replicator.repair.execution import Execution
from replicator.repair.install import Installer
from replicator.repair.lease import Lease
from replicator.telemetry.events import Ending
from spark_jobs.checks.replicas.asking import Asker
from spark_jobs.checks.replicas.expected import settled_metadata
from spark_jobs.checks.replicas.task import accepted_entries, is_accepted
from tests.unit.replicator.worker.test_drain_worker import drain
from tests.unit.replicator.worker.test_worker_moves import heal as heal_placement
from tests.unit.replicator.worker.test_worker_moves import write_topology
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names, should_hold
from tests.worlds.repair import RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time

COUNT = 30
STRIPED = make_metadata((0, "a b c"), quorum=(2, 2), last=COUNT - 1, length=10 * COUNT)
"""Entry 1 is on b and c. Entry 2 is on c and a. Entry 3 is on a and b."""
PACKETS = make_packets(LEDGER, COUNT)


async def stored(world: RepairWorld, lacking: dict[str, set[int]], metadata: LedgerMetadata = STRIPED) -> None:
    """Create the ledger, without the entries that bookies lack."""
    await world.ledgers.create(LEDGER, metadata)
    for bookie in sorted(metadata.members()):
        kept = {entry: data for entry, data in PACKETS.items() if entry not in lacking.get(bookie, ())}
        await world.bookies.put(bookie, LEDGER, [kept[each] for each in should_hold(metadata, bookie, kept)])


def decisions_of(world: RepairWorld) -> Decisions:
    return Decisions(world.store, world.cluster.root)


async def accept(world: RepairWorld) -> DeadLetterResult:
    ports = world.ports(world.store).client()
    letters = DeadLetters(ports, world.store, world.parked, decisions_of(world), "me@host")
    return await letters.accept(LEDGER, "the disks were destroyed")


async def decision_of(world: RepairWorld) -> Decision:
    decision = await decisions_of(world).get(LEDGER)
    assert decision is not None
    return decision


async def parked_for(world: RepairWorld) -> ParkReason | None:
    parked = await world.parked.get(LEDGER)
    return None if parked is None else parked.reason


async def is_reported(world: RepairWorld) -> bool:
    """Return whether the replicas check has a finding that is not accepted."""

    async def registered() -> AbstractSet[BookieId]:
        return (await world.registrations.list()).registered

    lost = {each.ledger_id: each.lost for each in await decisions_of(world).accepted()}
    decisions, entries = decisions_of(world), accepted_entries(lost)
    asker = Asker(world.bookies.transport, world.ledgers, registered, world.clock, entries, decisions.get)
    settled = settled_metadata(LEDGER, await world.metadata(LEDGER))
    found = (await asker.ask_all([settled], await registered())).found
    return any(not is_accepted(each, lost.get(LEDGER, ())) for _, findings in found for each in findings)


async def assert_only(world: RepairWorld, lost: set[int]) -> None:
    """Check that each member holds all its entries except ``lost``."""
    metadata = await world.metadata(LEDGER)
    for bookie in sorted(metadata.members()):
        held = set(await world.bookies.nodes[bookie].holds(LEDGER))
        assert set(should_hold(metadata, bookie, PACKETS)) - held <= lost, bookie


async def b_is_lost_and_c_lacks_an_entry(world: RepairWorld) -> None:
    await stored(world, {"c": {1}})
    await world.lose("b")
    await world.heal()
    assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_a_position_is_copied_without_the_accepted_entries() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        result = await accept(world)
        assert result.outcome is DeadLetterOutcome.ACCEPTED_TASK_STAYS
        assert [loss.lost_entries for loss in result.lost] == [EntryRuns.of([1])]
        assert await parked_for(world) is None
        again = await accept(world)
        assert (again.outcome, "no loss after this decision" in again.detail) == (
            DeadLetterOutcome.ALREADY_ACCEPTED,
            True,
        )
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a t c")
        await assert_only(world, {1})
        assert await world.is_clean()
        (loss,) = (await decision_of(world)).lost
        assert (loss.positions, loss.bookies, loss.lost_entries) == ((), (), EntryRuns.of([1]))
        assert [(each.position, each.bookie, each.entries) for each in loss.denials] == [(1, "t", 1), (2, "c", 1)]
        assert not await is_reported(world)


@in_virtual_time
async def test_a_mark_for_accepted_entries_is_completed_without_a_copy() -> None:
    async with a_world("a b c t u") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        version = world.version(LEDGER)
        await world.tasks.marking.mark(LEDGER, names("c t"))
        (result,) = (await world.heal()).results
        assert (result.entries, world.version(LEDGER)) == (0, version)
        assert result.ending in (Ending.NOTHING_MISSING, Ending.REPAIRED)
        assert await world.is_clean()


@in_virtual_time
async def test_the_next_lost_bookie_of_the_ledger_is_replaced_as_well() -> None:
    async with a_world("a b c t u v") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        (target,) = (await world.metadata(LEDGER)).members() - frozenset(names("a c"))
        for lost in (target, BookieId("c")):
            await world.lose(lost)
            assert (await world.heal()).endings() == [Ending.REPAIRED]
            await assert_only(world, {1})
            assert await world.is_clean()
            assert not await is_reported(world)
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert [each.bookie for each in (await decision_of(world)).lost[0].denials] == list(members[1:])


@in_virtual_time
async def test_a_draining_bookie_is_replaced_without_the_accepted_entries() -> None:
    async with a_world("a b c t u") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        (target,) = (await world.metadata(LEDGER)).members() - frozenset(names("a c"))
        await drain(world, target, LEDGER)
        assert Ending.REPAIRED in (await world.heal()).endings()
        assert target not in (await world.metadata(LEDGER)).members()
        await assert_only(world, {1})
        assert await world.is_clean()
        assert not await is_reported(world)


@in_virtual_time
async def test_a_copy_is_moved_for_better_placement_without_the_accepted_entries() -> None:
    async with a_world("a b c t x") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        members = (await world.metadata(LEDGER)).members()
        spare = "x" if "t" in members else "t"
        await write_topology(world, dict.fromkeys(map(str, members), "/r1") | {"a": "/r3", spare: "/r2"})
        await world.tasks.marking.mark(LEDGER, ())
        (result,) = (await heal_placement(world)).results
        assert result.moved_copies
        assert spare in (await world.metadata(LEDGER)).members()
        await assert_only(world, {1})
        assert await world.is_clean()
        assert not await is_reported(world)


@in_virtual_time
async def test_two_lost_bookies_are_replaced_and_the_entries_only_on_them_are_left_out() -> None:
    async with a_world("a b c t u v") as world:
        await stored(world, {})
        await world.lose("a", "b")
        await world.heal()
        assert await parked_for(world) is ParkReason.NO_LIVE_COPY
        result = await accept(world)
        assert [loss.lost_entries for loss in result.lost] == [EntryRuns.of(range(0, COUNT, 3))]
        assert [loss.shared for loss in result.lost] == [(0, 1)]
        recorder = await world.heal()
        assert recorder.endings() == [Ending.REPAIRED]
        await assert_only(world, set(range(0, COUNT, 3)))
        assert await world.is_clean()
        assert (await decision_of(world)).bookies == ()
        assert not await is_reported(world)


@in_virtual_time
async def test_a_position_with_only_accepted_entries_keeps_its_bookie() -> None:
    async with a_world("a b c t u v") as world:
        metadata = make_metadata((0, "a b c"), (10, "a b c"), quorum=(3, 2), last=COUNT - 1, length=10 * COUNT)
        await stored(world, {"a": set(range(10)), "c": set(range(10))}, metadata)
        await world.lose("b")
        await world.tasks.marking.mark(LEDGER, names("a c"))
        await world.heal()
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES
        assert (await accept(world)).outcome is DeadLetterOutcome.ACCEPTED
        assert await world.is_clean()
        members = [fragment.members for fragment in (await world.metadata(LEDGER)).fragments]
        assert members[0] == names("a b c")
        assert "b" not in members[1]
        assert {(0, 1, "b")} == (await decision_of(world)).copies
        assert not await is_reported(world)


@in_virtual_time
async def test_a_bookie_that_denied_every_accepted_entry_is_replaced_if_it_is_lost_later() -> None:
    """The record does not name it as lost. So its position would be reported by every audit, and never repaired."""
    async with a_world("a b c t u v") as world:
        metadata = make_metadata((0, "a b c"), quorum=(3, 2), last=COUNT - 1, length=10 * COUNT)
        await stored(world, {"c": set(range(COUNT))}, metadata)
        await world.lose("a", "b")
        await world.tasks.marking.mark(LEDGER, names("c"))
        await world.heal()
        assert (await accept(world)).outcome is DeadLetterOutcome.ACCEPTED
        await world.lose("a", "b", "c")
        await world.heal()
        members = (await world.metadata(LEDGER)).last_fragment.members
        copies = {(0, position, bookie) for position, bookie in enumerate(members)}
        registered = (await world.registrations.list()).registered
        assert {copy for copy in copies if copy[2] not in registered} == (await decision_of(world)).copies
        assert members[:2] == names("a b")
        assert await world.is_clean()
        assert not await is_reported(world)


@in_virtual_time
async def test_a_whole_loss_in_one_fragment_does_not_keep_the_task_after_the_other_copies() -> None:
    async with a_world("a b c d t u v") as world:
        metadata = make_metadata((0, "a b"), (10, "c a"), quorum=(2, 2), last=COUNT - 1, length=10 * COUNT)
        await stored(world, {}, metadata)
        await world.lose("a", "b")
        await world.heal()
        assert await parked_for(world) is ParkReason.NO_LIVE_COPY
        assert (await accept(world)).outcome is DeadLetterOutcome.ACCEPTED
        assert await world.is_clean()
        first, second = (fragment.members for fragment in (await world.metadata(LEDGER)).fragments)
        assert (first, "a" in second) == (names("a b"), False)


@in_virtual_time
async def test_an_entry_that_was_not_accepted_is_never_left_out() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        world.bookies["c"].results[EntryId(4)] = answers(Status.NO_ENTRY)
        await world.heal()
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.LIMBO, Status.UNAUTHORIZED, Status.TIMEOUT])
def test_an_accepted_entry_is_not_left_out_while_a_bookie_may_have_it(status: Status) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c t") as world:
            await b_is_lost_and_c_lacks_an_entry(world)
            await accept(world)
            world.bookies["c"].results[EntryId(1)] = answers(status)
            await world.heal()
            assert await parked_for(world) is not None
            assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")

    check()


@in_virtual_time
async def test_a_source_that_has_an_accepted_entry_gives_it() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
        assert (await world.heal()).endings() == [Ending.REPAIRED]
        await assert_only(world, set())
        assert await world.is_clean()
        assert (await decision_of(world)).lost == () or not await is_reported(world)


@pytest.mark.parametrize("is_pulling", [False, True])
def test_an_accepted_entry_that_was_found_and_is_lost_again_is_not_left_out(is_pulling: bool) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c t u") as world:
            await b_is_lost_and_c_lacks_an_entry(world)
            await accept(world)
            await world.heal(is_pulling=is_pulling)
            (target,) = (await world.metadata(LEDGER)).members() - frozenset(names("a c"))
            await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
            assert await is_reported(world)
            if is_pulling:
                world.copying = {target}
                await world.kill(target)
                await world.register(target)
            await world.tasks.marking.mark(LEDGER, [target])
            await world.heal(is_pulling=is_pulling)
            await assert_only(world, set())
            assert await world.is_clean()
            assert (await decision_of(world)).lost == ()
            world.bookies["c"].results[EntryId(1)] = answers(Status.NO_ENTRY)
            await world.lose(target)
            await world.heal(is_pulling=is_pulling)
            assert target in (await world.metadata(LEDGER)).members()
            assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES

    check()


@pytest.mark.parametrize("changes_max", [0, 10])
def test_if_some_accepted_entries_are_found_the_others_stay_accepted_within_a_bound(
    changes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c t u") as world:
            await stored(world, {"c": {1, 4}})
            await world.lose("b")
            await world.heal()
            await accept(world)
            await world.heal()
            (target,) = (await world.metadata(LEDGER)).members() - frozenset(names("a c"))
            await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
            await world.tasks.marking.mark(LEDGER, [target])
            await world.heal()
            await assert_only(world, {4} if changes_max else {1, 4})
            assert await world.is_clean() is bool(changes_max)
            lost = [loss.lost_entries for loss in (await decision_of(world)).lost]
            assert lost == ([EntryRuns.of([4])] if changes_max else [])
            assert await is_reported(world) is not bool(changes_max)

    monkeypatch.setattr(accepted_loss, "RECORD_CHANGES_MAX", changes_max)
    check()


@in_virtual_time
async def test_an_ensemble_that_another_program_changed_after_the_acceptance_permits_nothing() -> None:
    """Such a program copies every entry, so the accepted one was found, although the record still names it."""
    async with a_world("a b c t x") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        members = (await world.metadata(LEDGER)).last_fragment.members
        (target,) = frozenset(members) - frozenset(names("a c"))
        (spare,) = frozenset(names("t x")) - {target}
        ledger = await world.ledgers.read(LEDGER)
        changed = ledger.metadata.with_members({0: (members[0], target, spare)})
        await world.ledgers.write(LEDGER, changed, ledger.version)
        kept = [PACKETS[each] for each in should_hold(changed, spare, PACKETS) if each != 1]
        await world.bookies.put(spare, LEDGER, kept)
        assert await is_reported(world)
        await world.lose(target)
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == changed.last_fragment.members
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_a_new_ledger_with_the_id_of_a_deleted_one_has_no_accepted_loss() -> None:
    async with a_world("a b c t u") as world:
        await stored(world, {"c": {1}}, replace(STRIPED, ctime_ms=1))
        await world.lose("b")
        await world.heal()
        await accept(world)
        await world.heal()
        members = (await world.metadata(LEDGER)).last_fragment.members
        await world.ledgers.delete(LEDGER)
        again = make_metadata((0, " ".join(members)), quorum=(2, 2), last=COUNT - 1, length=10 * COUNT)
        await world.ledgers.create(LEDGER, replace(again, ctime_ms=2))
        assert await is_reported(world)
        await world.lose(members[1])
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == members
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_members_that_lack_an_accepted_entry_get_it_if_it_is_found_during_another_copy() -> None:
    async with a_world("a b c t u") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
        await drain(world, BookieId("c"), LEDGER)
        await world.heal()
        assert "c" not in (await world.metadata(LEDGER)).members()
        await assert_only(world, set())
        assert await world.is_clean()
        assert (await decision_of(world)).lost == ()
        assert not await is_reported(world)


@in_virtual_time
async def test_they_get_it_even_if_the_answer_to_the_change_of_the_record_is_lost() -> None:
    """The record then names them no more, so they must be in the task before."""
    async with a_world("a b c t u") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
        await drain(world, BookieId("c"), LEDGER)
        running, lost = world.worker(), list[str]()

        async def lose_answer(operation: str, path: str) -> Fault | None:
            lock = lock_path(world.cluster.root, LEDGER)
            if operation == "multi" and path == lock and not lost and await world.store.stat(lock) is not None:
                lost.append(path)
                return Fault.LOSE_ANSWER
            return None

        running.store.fault_hook = lose_answer
        world.bookies["t"].read_status = Status.TIMEOUT  # it does not show that it lacks the entry
        await running.worker.run()
        world.bookies["t"].read_status = None
        await world.heal()
        assert lost
        await assert_only(world, set())
        assert await world.is_clean()


@in_virtual_time
async def test_a_lost_bookie_that_returns_before_the_copy_gives_its_copy() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.register("b")
        await world.tasks.marking.mark(LEDGER, names("c"))
        await world.heal()
        await assert_only(world, set())
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")


@pytest.mark.parametrize("returning", ["a", "b"])
def test_a_bookie_that_returns_right_before_the_installation_ends_it(returning: str) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c t u v") as world:
            await stored(world, {})
            await world.lose("a", "b")
            await world.heal()
            await accept(world)
            await world.tasks.marking.mark(LEDGER, names("c"))
            running = world.worker()
            original = Installer.install

            async def back(self: Installer, *arguments: object) -> object:
                if returning not in (await world.registrations.list()).registered:
                    await world.register(returning)
                return await original(self, *arguments)  # type: ignore[arg-type]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Installer, "install", back)
                await running.worker.run()
            metadata = await world.metadata(LEDGER)
            assert returning in metadata.members()
            for entry in range(0, COUNT, 3):
                assert entry in await world.bookies.nodes[BookieId(returning)].holds(LEDGER)

    check()


@in_virtual_time
async def test_a_withdrawn_acceptance_refuses_the_installation() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        original = Installer.install

        async def withdrawn(self: Installer, *arguments: object) -> object:
            await decisions_of(world).forget(LEDGER)
            return await original(self, *arguments)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Installer, "install", withdrawn)
            await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_an_acceptance_withdrawn_at_the_last_moment_keeps_the_task() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.heal()
        await world.tasks.marking.mark(LEDGER, names("c t"))
        original = Lease.complete

        async def withdrawn(self: Lease, *arguments: Any, **named: Any) -> bool:
            await decisions_of(world).forget(LEDGER)
            return await original(self, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lease, "complete", withdrawn)
            await world.heal()
        assert await world.task(LEDGER) is not None
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_a_record_without_entry_ids_permits_no_copy() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        decision = await decision_of(world)
        (loss,) = decision.lost
        old = replace(decision, lost=(replace(loss, entries=(), shared=()),))
        await world.store.multi([await decisions_of(world).writing(old)])
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")
        assert await parked_for(world) is ParkReason.UNREADABLE_ENTRIES


@in_virtual_time
async def test_a_damaged_only_copy_is_left_out_after_its_acceptance() -> None:
    async with a_world("a b c t") as world:
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        await world.bookies.put("c", LEDGER, [PACKETS[EntryId(1)]])
        world.bookies["c"].results[EntryId(1)] = flipped
        assert Ending.REPAIRED in (await world.heal()).endings()
        assert "t" in (await world.metadata(LEDGER)).members()
        await assert_only(world, {1})


@in_virtual_time
async def test_bookies_without_lists_are_read_back_without_the_accepted_entries() -> None:
    async with a_world("a b c t u") as world:
        for name in world.bookies.nodes:
            world.bookies[name].has_no_lists = True
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        assert Ending.REPAIRED in (await world.heal()).endings()
        await assert_only(world, {1})
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_lacks_another_entry_is_not_installed() -> None:
    async with a_world("a b c t") as world:
        world.bookies["t"].has_no_lists = True
        await b_is_lost_and_c_lacks_an_entry(world)
        await accept(world)
        world.bookies["t"].results[EntryId(3)] = answers(Status.NO_ENTRY)
        await world.heal()
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b c")


def test_without_a_digest_a_copy_that_does_not_verify_is_no_proof() -> None:
    answers_of_both = BookieAnswer(BookieId("c"), Status.CORRUPT), BookieAnswer(BookieId("a"), Status.NO_ENTRY)
    damaged = UnreadableEntry(EntryId(1), answers_of_both)
    assert damaged.proves_loss(DigestType.CRC32C)
    assert not damaged.proves_loss(DigestType.DUMMY)
    assert not damaged.proves_loss(None)


@in_virtual_time
async def test_a_target_that_has_an_accepted_entry_gives_it() -> None:
    """A bookie that was a member earlier may have a copy that no metadata names."""
    async with a_world("a b c t u") as world:
        await stored(world, {})
        await world.lose("a", "b")
        await world.heal()
        for name in ("t", "u"):
            await world.bookies.put(name, LEDGER, [PACKETS[EntryId(3)]])
        await accept(world)
        await world.heal()
        await assert_only(world, set(range(0, COUNT, 3)) - {3})
        assert (await decision_of(world)).lost[0].lost_entries == EntryRuns.of(
            entry for entry in range(0, COUNT, 3) if entry != 3
        )
        assert await world.is_clean()
        assert not await is_reported(world)


@pytest.mark.parametrize("holder", ["t", "u"])
def test_a_target_that_has_an_accepted_entry_is_the_source_of_the_other_one(holder: str) -> None:
    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c t u") as world:
            await stored(world, {})
            await world.lose("a", "b")
            await world.heal()
            await world.bookies.put(holder, LEDGER, [PACKETS[EntryId(3)]])
            await accept(world)
            await world.heal()
            await assert_only(world, set(range(0, COUNT, 3)) - {3})
            assert await world.is_clean()
            assert not await is_reported(world)

    check()


@in_virtual_time
async def test_an_entry_found_on_a_later_target_is_copied_to_the_members_without_it() -> None:
    async with a_world("a b c t u") as world:
        await stored(world, {})
        await world.lose("a", "b")
        await world.heal()
        await world.bookies.put("u", LEDGER, [PACKETS[EntryId(3)]])
        await accept(world)
        await world.unregister("u")
        await world.heal()
        assert await parked_for(world) is ParkReason.NO_CANDIDATE_BOOKIE
        await world.register("u")
        await world.heal()
        assert {"t", "u"} <= (await world.metadata(LEDGER)).members()
        await assert_only(world, set(range(0, COUNT, 3)) - {3})
        assert await world.is_clean()
        assert not await is_reported(world)


@in_virtual_time
async def test_members_without_a_found_entry_are_marked_before_the_record_names_it_no_more() -> None:
    """Otherwise nothing would show that they lack it if the worker died then."""
    async with a_world("a b c t u") as world:
        await stored(world, {})
        await world.lose("a", "b")
        await world.heal()
        await world.bookies.put("u", LEDGER, [PACKETS[EntryId(3)]])
        await accept(world)
        await world.unregister("u")
        await world.heal()
        await world.register("u")
        running, named = world.worker(), list[tuple[BookieId, ...]]()

        async def note(operation: str, path: str) -> None:
            if operation == "multi" and path == world.ledgers.path(LEDGER):
                task = await world.task(LEDGER)
                named.append(() if task is None else task.missing)

        running.store.fault_hook = note
        await running.worker.run()
        assert "t" in named[0]


@in_virtual_time
async def test_an_entry_that_an_interrupted_copy_left_on_a_target_is_not_lost() -> None:
    """The target lists it, and the record of the progress of an earlier turn includes it."""
    async with a_world("a b c t u") as world:
        await stored(world, {})
        await world.lose("a", "b")
        await world.heal()
        for name in ("t", "u"):
            await world.bookies.put(name, LEDGER, [PACKETS[EntryId(3)]] if name == "t" else [])
        await accept(world)
        with pytest.MonkeyPatch.context() as patch:
            held = EntryRuns.of([3])

            async def already(self: Execution, copying: Any, step: CopyPosition, *rest: Any) -> EntryRuns:
                return held if step.target == "t" else EntryRuns()

            patch.setattr(Execution, "_entries_already_held", already)
            await world.heal()
        await assert_only(world, set(range(0, COUNT, 3)) - {3})
        assert await world.is_clean()
        assert not await is_reported(world)


@pytest.mark.parametrize("seed", range(16))
def test_every_entry_with_a_copy_has_all_its_copies_after_an_acceptance(seed: int) -> None:
    """Random ensembles, lost bookies and missing entries; every entry with a copy on a registered bookie is kept."""
    rng = random.Random(seed)
    size = rng.randint(2, 4)
    quorum = rng.randint(1 if size == 2 else 2, size)
    members = rng.sample("abcde", size)
    others = rng.sample("abcde", size)
    fragments = [
        (0, " ".join(members)),
        *([(rng.randint(1, COUNT - 1), " ".join(others))] if rng.random() < 0.5 else []),
    ]
    metadata = make_metadata(*fragments, quorum=(quorum, 1), last=COUNT - 1, length=10 * COUNT)
    gone = rng.sample(members, rng.randint(0, min(2, size)))
    missing = {
        name: set(rng.sample(range(COUNT), rng.choice((0, 1, 3, COUNT // 2)))) for name in "abcde" if name not in gone
    }

    @in_virtual_time
    async def check() -> None:
        async with a_world("a b c d e t u v w") as world:
            await stored(world, missing, metadata)
            kept = {
                entry
                for bookie in sorted(metadata.members() - set(gone))
                for entry in await world.bookies.nodes[BookieId(bookie)].holds(LEDGER)
            }
            if gone:
                await world.kill(*gone)
            await world.tasks.marking.mark(LEDGER, sorted(metadata.members()))
            for _ in range(4):
                await world.heal()
                if await world.is_clean():
                    break
                result = await accept(world)
                assert result.outcome in (DeadLetterOutcome.ACCEPTED, DeadLetterOutcome.ACCEPTED_TASK_STAYS), result
            assert await world.is_clean()
            after = await world.metadata(LEDGER)
            stripe = after.stripe
            for entry in range(COUNT):
                ensemble = after.fragments[after.fragment_index(EntryId(entry))].members
                held = [
                    entry in await world.bookies.nodes[ensemble[position]].holds(LEDGER)
                    for position in stripe.write_set(entry)
                    if ensemble[position] not in gone
                ]
                if entry in kept:
                    assert held == [True] * quorum, (entry, ensemble)
                else:
                    assert not any(held)
            assert not await is_reported(world)

    check()
