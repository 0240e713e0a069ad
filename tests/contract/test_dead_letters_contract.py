"""Decisions about dead letters, on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult, DeadLetters
from auditor.safety.lost_entries import lost_fragments
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import lock_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION, MetadataStore, Operation
from bookie.metadata.tasks import decisions as decisions_module
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.availability import RunGroup
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from tests.contract.conftest import Backend
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import service_info
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import Bookies

L7, L8 = LedgerId(7), LedgerId(8)
WHY = "both disks were destroyed"
ME = "me@host"
TEN = (RunGroup(0, 0, 10, 0),)
LOST_AB = LostFragment(EntryId(0), EntryId(9), (0, 1), names("a b"), entries=TEN)


@dataclass(slots=True)
class World:
    """A cluster with ledgers, marks and dead letters; c, d and e are registered."""

    store: MetadataStore
    cluster: Cluster
    ports: ClientPorts
    parked: ParkedTasks
    decisions: Decisions
    letters: DeadLetters

    @property
    def tasks(self) -> UnderReplication:
        return self.ports.tasks

    async def ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        await self.ports.ledgers.create(ledger_id, metadata)

    async def park(self, ledger_id: LedgerId, missing: str, reason: ParkReason = ParkReason.NO_LIVE_COPY) -> None:
        await self.tasks.marking.mark(ledger_id, names(missing))
        task = await self.tasks.read(ledger_id)
        assert task is not None
        await self.parked.park(
            ParkedTask(
                ledger_id=ledger_id,
                reason=reason,
                detail="evidence",
                since_ms=EPOCH_MS,
                bookies_seen=frozenset(),
                task_version=task.version,
            )
        )

    async def register(self, *bookies: str) -> None:
        for name in bookies:
            await self.ports.registrations.register(
                BookieId(name), service_info(name), is_read_only=False, takeover_deadline_s=5
            )

    async def state(self, ledger_id: LedgerId) -> tuple[bool, bool, bool]:
        """Return whether the ledger has a task, a parked record and a lock."""
        task, parked = await self.tasks.read(ledger_id), await self.parked.get(ledger_id)
        return task is not None, parked is not None, ledger_id in await self.tasks.locks.locked()


UNTOUCHED = (True, True, False)
CLOSED = (False, False, False)


def made(store: MetadataStore, cluster: Cluster, clock: ManualClock) -> World:
    ports = ClientPorts(
        ledgers=LedgerStore(store, cluster, random.Random(1)),
        registrations=Registrations(store, cluster),
        tasks=UnderReplication(store, cluster, clock),
        transport=MemoryTransport(Bookies(), MemoryNetwork()),
        clock=clock,
        rng=random.Random(1),
    )
    parked, decisions = ParkedTasks(store, cluster.root), Decisions(store, cluster.root)
    return World(store, cluster, ports, parked, decisions, DeadLetters(ports, store, parked, decisions, ME))


@pytest.fixture
async def world(store: MetadataStore, cluster: Cluster) -> World:
    world = made(store, cluster, ManualClock())
    await world.tasks.initialize()
    await world.register("c", "d", "e")
    await world.ledger(L7, make_metadata((0, "a b"), (10, "c d"), quorum=(2, 2), last=19))
    return world


async def test_an_accepted_loss_closes_the_task_and_records_who_accepted_it(world: World) -> None:
    await world.park(L7, "a b")
    path = world.ports.ledgers.path(L7)
    before = await world.store.get(path)
    assert await world.letters.check_accept(L7) == DeadLetterResult(L7, DeadLetterOutcome.ACCEPTED, lost=(LOST_AB,))
    assert await world.state(L7) == UNTOUCHED
    assert await world.letters.accept(L7, WHY) == DeadLetterResult(L7, DeadLetterOutcome.ACCEPTED, lost=(LOST_AB,))
    assert await world.state(L7) == CLOSED
    signed = Decision(L7, DecisionKind.LOSS_ACCEPTED, ME, EPOCH_MS, WHY, ParkReason.NO_LIVE_COPY, (LOST_AB,))
    assert await world.decisions.accepted() == [signed]
    assert await world.store.get(path) == before


async def test_accepting_again_changes_nothing(world: World) -> None:
    await world.park(L7, "a b")
    await world.letters.accept(L7, WHY)
    signed = await world.decisions.get(L7)
    for result in (await world.letters.check_accept(L7), await world.letters.accept(L7, "another reason")):
        assert (result.outcome, result.lost) == (DeadLetterOutcome.ALREADY_ACCEPTED, (LOST_AB,))
        assert WHY in result.detail
    assert await world.decisions.get(L7) == signed


async def test_a_ledger_parked_again_is_accepted_with_all_its_current_losses(world: World) -> None:
    await world.ledger(L8, make_metadata((0, "a b"), (10, "a f"), quorum=(2, 2), last=19))
    await world.register("f")
    await world.park(L8, "a b")
    assert (await world.letters.accept(L8, WHY)).outcome is DeadLetterOutcome.ACCEPTED_TASK_STAYS
    await world.ports.registrations.unregister(BookieId("f"))
    await world.park(L8, "f")
    result = await world.letters.accept(L8, "the third disk as well")
    assert result.outcome is DeadLetterOutcome.ACCEPTED
    assert result.lost == (
        LOST_AB,
        LostFragment(EntryId(10), EntryId(19), (0, 1), names("a f"), entries=(RunGroup(10, 10, 10, 0),)),
    )
    assert (await world.decisions.accepted())[0].reason == "the third disk as well"


async def test_the_task_is_kept_for_entries_that_can_be_repaired(world: World) -> None:
    await world.ledger(L8, make_metadata((0, "a b"), (10, "c a"), quorum=(2, 2), last=19))
    await world.park(L8, "a b")
    result = await world.letters.accept(L8, WHY)
    assert (result.outcome, result.lost) == (DeadLetterOutcome.ACCEPTED_TASK_STAYS, (LOST_AB,))
    assert "1 position of the ledger lacks copies of other entries" in result.detail
    assert await world.state(L8) == (True, False, False)  # not parked: a worker makes the other copies
    assert len(await world.decisions.accepted()) == 1


async def test_a_ledger_that_is_not_a_dead_letter_is_refused(world: World) -> None:
    actions = (world.letters.check_accept, world.letters.check_drop)
    changes = (lambda i: world.letters.accept(i, WHY), lambda i: world.letters.drop(i, ""))
    for ledger_id in (L8, L7):  # one is not marked, the other is marked but not parked
        for act in (*actions, *changes):
            result = await act(ledger_id)
            assert result.outcome is DeadLetterOutcome.REFUSED
            assert "not a dead letter" in result.detail
        await world.tasks.marking.mark(L7, names("a b"))
    assert (await world.state(L7), await world.decisions.list()) == ((True, False, False), [])


@pytest.mark.parametrize(
    ("metadata", "missing", "words"),
    [
        (make_metadata((0, "a c"), quorum=(2, 2), last=9), "a", "may hold it (c)"),
        (make_metadata((0, "a b"), quorum=(2, 2), last=9), "a", "no audit has reported b"),
        (make_metadata((0, "a b"), quorum=(2, 2)), "a b", "bkheal ledger recover 8"),
        (make_metadata((0, "c d"), quorum=(2, 2), last=9), "c d", "may hold it (c, d)"),
        (make_metadata((0, "a b"), quorum=(2, 2), last=-1), "a b", "not certain that anything is lost"),
    ],
)
async def test_a_loss_is_not_accepted_if_a_copy_may_still_exist(
    world: World, metadata: LedgerMetadata, missing: str, words: str
) -> None:
    await world.ledger(L8, metadata)
    await world.park(L8, missing)
    for result in (await world.letters.check_accept(L8), await world.letters.accept(L8, WHY)):
        assert result.outcome is DeadLetterOutcome.REFUSED
        assert words in result.detail
    assert (await world.state(L8), await world.decisions.list()) == (UNTOUCHED, [])


async def test_no_loss_is_accepted_during_an_outage(world: World) -> None:
    await world.park(L7, "a b")
    cookies = CookieStore(world.store, world.cluster)
    for name in ("p", "q", "r", "s"):
        await cookies.create(Cookie(BookieId(name), ("/j",), ("/l",), world.cluster.instance_id))
    result = await world.letters.accept(L7, WHY)
    assert result.outcome is DeadLetterOutcome.REFUSED
    assert "4 of 7 bookies are missing" in result.detail
    assert await world.state(L7) == UNTOUCHED


async def test_a_deleted_ledger_is_dropped_and_not_accepted(world: World) -> None:
    await world.park(L8, "a b")
    result = await world.letters.accept(L8, WHY)
    assert result.outcome is DeadLetterOutcome.REFUSED
    assert "bkheal dead-letters drop 8" in result.detail
    assert (await world.letters.drop(L8, "")).outcome is DeadLetterOutcome.DROPPED
    assert await world.state(L8) == CLOSED


async def test_unreadable_metadata_and_tasks_are_not_changed(world: World) -> None:
    await world.park(L7, "a b")
    await world.store.set(world.ports.ledgers.path(L7), b"nonsense", ANY_VERSION)
    result = await world.letters.accept(L7, WHY)
    assert (result.outcome, "cannot be read" in result.detail) == (DeadLetterOutcome.REFUSED, True)
    assert await world.state(L7) == UNTOUCHED
    await world.store.set(task_path(world.cluster.root, L7), b"\xff", ANY_VERSION)
    refused = await world.letters.accept(L7, WHY)
    assert (refused.outcome, "was left as it is" in refused.detail) == (DeadLetterOutcome.REFUSED, True)
    results = (
        await world.letters.check_accept(L7),
        await world.letters.check_drop(L7),
        await world.letters.drop(L7, ""),
    )
    assert results == (refused, refused, refused)


async def test_the_lock_of_a_worker_is_respected(world: World, backend: Backend) -> None:
    await world.park(L7, "a b")
    worker = made(await backend.open(), world.cluster, ManualClock())
    held = await worker.tasks.locks.lock(L7, "worker")
    assert held is not None
    for result in (await world.letters.accept(L7, WHY), await world.letters.drop(L7, "")):
        assert result.outcome is DeadLetterOutcome.LOCKED
    assert await world.state(L7) == (True, True, True)
    await worker.tasks.locks.release(held.lock)
    assert (await world.letters.drop(L7, "")).outcome is DeadLetterOutcome.DROPPED


async def test_a_concurrent_mark_keeps_the_task(
    world: World, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.park(L7, "a b")
    auditor = made(await backend.open(), world.cluster, ManualClock())
    original = world.decisions.writing

    strangers = iter(names("x y"))

    async def marked_meanwhile(decision: Decision) -> Operation:
        await auditor.tasks.marking.mark(L7, [next(strangers)])
        return await original(decision)

    monkeypatch.setattr(world.decisions, "writing", marked_meanwhile)
    for result in (await world.letters.accept(L7, WHY), await world.letters.drop(L7, "")):
        assert result.outcome is DeadLetterOutcome.CHANGED
        assert (await world.state(L7), await world.decisions.list()) == (UNTOUCHED, [])


async def test_a_concurrent_change_of_the_ledger_keeps_the_task(
    world: World, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.park(L7, "a b")
    other = made(await backend.open(), world.cluster, ManualClock())
    original = world.decisions.writing

    async def changed_meanwhile(decision: Decision) -> Operation:
        node = await other.store.get(other.ports.ledgers.path(L7))
        await other.store.set(other.ports.ledgers.path(L7), node.data, node.stat.version)
        return await original(decision)

    monkeypatch.setattr(world.decisions, "writing", changed_meanwhile)
    assert (await world.letters.accept(L7, WHY)).outcome is DeadLetterOutcome.CHANGED
    assert (await world.state(L7), await world.decisions.list()) == (UNTOUCHED, [])


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("situation", ["all is lost", "a part is lost", "a loss was accepted"])
async def test_nothing_is_decided_after_the_lock_was_lost(
    world: World, backend: Backend, monkeypatch: pytest.MonkeyPatch, situation: str, is_taken: bool
) -> None:
    """Apache's workers delete the locks of other workers, and their collectors acquire them."""
    await world.ledger(L8, make_metadata((0, "a b"), (10, "c a"), quorum=(2, 2), last=19))
    ledger_id = L8 if situation == "a part is lost" else L7
    await world.park(ledger_id, "a b")
    if situation == "a loss was accepted":
        await world.letters.accept(ledger_id, WHY)
    state, decided = await world.state(ledger_id), await world.decisions.list()
    theirs, path = await backend.open(), lock_path(world.cluster.root, ledger_id)
    original = world.decisions.writing

    async def lose_the_lock(decision: Decision) -> Operation:
        await theirs.delete(path)
        if is_taken:
            await theirs.create(path, b"", is_ephemeral=True)
        return await original(decision)

    monkeypatch.setattr(world.decisions, "writing", lose_the_lock)
    decide = world.letters.drop if situation == "a loss was accepted" else world.letters.accept
    assert (await decide(ledger_id, "another reason")).outcome is DeadLetterOutcome.CHANGED
    assert await world.decisions.list() == decided
    assert await world.state(ledger_id) == (*state[:2], is_taken)


async def test_a_dropped_dead_letter_is_removed_recorded_and_may_be_marked_again(world: World) -> None:
    await world.park(L7, "a b")
    assert await world.letters.check_drop(L7) == DeadLetterResult(L7, DeadLetterOutcome.DROPPED)
    assert await world.letters.drop(L7, "to be deleted") == DeadLetterResult(L7, DeadLetterOutcome.DROPPED)
    assert await world.state(L7) == CLOSED
    noted = Decision(L7, DecisionKind.DROPPED, ME, EPOCH_MS, "to be deleted", ParkReason.NO_LIVE_COPY)
    assert (await world.decisions.list(), await world.decisions.accepted()) == ([noted], [])
    again = await world.letters.drop(L7, "")
    assert (again.outcome, await world.letters.check_drop(L7)) == (DeadLetterOutcome.ALREADY_DROPPED, again)
    assert (await world.letters.accept(L7, WHY)).outcome is DeadLetterOutcome.REFUSED
    await world.park(L7, "a b")
    assert (await world.letters.accept(L7, WHY)).outcome is DeadLetterOutcome.ACCEPTED


async def test_dropping_a_dead_letter_withdraws_its_accepted_loss(world: World) -> None:
    await world.park(L7, "a b")
    await world.letters.accept(L7, WHY)
    assert (await world.letters.check_drop(L7)).outcome is DeadLetterOutcome.WITHDRAWN
    assert (await world.letters.drop(L7, "a disk was found")).outcome is DeadLetterOutcome.WITHDRAWN
    assert (await world.decisions.accepted(), await world.state(L7)) == ([], CLOSED)
    assert (await world.letters.drop(L7, "")).outcome is DeadLetterOutcome.ALREADY_DROPPED


async def test_a_decision_that_was_replaced_is_not_withdrawn(world: World) -> None:
    await world.park(L7, "a b")
    await world.letters.accept(L7, WHY)
    first = await world.decisions.get(L7)
    await world.park(L7, "a b")
    await world.letters.accept(L7, "another reason")
    second = await world.decisions.get(L7)
    assert first is not None
    assert second is not None
    await world.decisions.withdraw(first)
    assert await world.decisions.accepted() == [second]
    for _ in range(2):
        await world.decisions.withdraw(second)
    assert await world.decisions.list() == []


async def test_records_of_both_kinds_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_module, "DROPPED_MAX", 2)
    monkeypatch.setattr("auditor.safety.dead_letters.ACCEPTED_MAX", 2)
    for number in range(20, 24):
        await world.park(LedgerId(number), "a b")
        await world.letters.drop(LedgerId(number), "")
        assert isinstance(world.ports.clock, ManualClock)
        world.ports.clock.now_s += 1
    assert [decision.ledger_id for decision in await world.decisions.list()] == [22, 23]
    outcomes: list[DeadLetterOutcome] = []
    for number in range(30, 33):
        await world.ledger(LedgerId(number), make_metadata((0, "a b"), quorum=(2, 2), last=9))
        await world.park(LedgerId(number), "a b")
        outcomes.append((await world.letters.accept(LedgerId(number), WHY)).outcome)
    assert outcomes == [DeadLetterOutcome.ACCEPTED, DeadLetterOutcome.ACCEPTED, DeadLetterOutcome.REFUSED]
    await world.store.delete(world.ports.ledgers.path(LedgerId(30)))
    assert (await world.letters.accept(LedgerId(32), WHY)).outcome is DeadLetterOutcome.ACCEPTED
    assert [decision.ledger_id for decision in await world.decisions.accepted()] == [31, 32]


async def test_a_damaged_record_accepts_nothing_and_is_replaced(world: World) -> None:
    await world.park(L7, "a b")
    await world.letters.accept(L7, WHY)
    await world.store.set(world.decisions.path(L7), b"nonsense", ANY_VERSION)
    assert (await world.decisions.get(L7), await world.decisions.list()) == (None, [])
    await world.park(L7, "a b")
    assert (await world.letters.accept(L7, WHY)).outcome is DeadLetterOutcome.ACCEPTED
    assert len(await world.decisions.accepted()) == 1


async def test_a_record_that_may_not_be_read_accepts_nothing_and_hides_no_other(world: World, backend: Backend) -> None:
    for ledger_id in (L7, L8):
        if ledger_id == L8:
            await world.ledger(L8, make_metadata((0, "a b"), quorum=(2, 2), last=19))
        await world.park(ledger_id, "a b")
        await world.letters.accept(ledger_id, WHY)
    backend.deny(world.decisions.path(L7))
    assert [decision.ledger_id for decision in await world.decisions.accepted()] == [L8]


def test_only_positions_whose_entries_have_no_copy_are_lost() -> None:
    striped = make_metadata((0, "a b c d"), (8, "a c b d"), quorum=(2, 2), last=15)
    assert lost_fragments(striped, names("a b")) == (
        LostFragment(  # no write set of the second fragment has both
            EntryId(0), EntryId(7), (0, 1), names("a b"), entries=(RunGroup(0, 4, 1, 4),), shared=(0, 1)
        ),
    )
    short = make_metadata((0, "a b c d"), quorum=(2, 2), last=0)
    assert lost_fragments(short, names("b c")) == ()
    cut = make_metadata((0, "a b"), (10, "c d"), quorum=(2, 2), last=5)
    lost = LostFragment(EntryId(0), EntryId(5), (0, 1), names("a b"), entries=(RunGroup(0, 0, 6, 0),))
    assert lost_fragments(cut, names("a b c d")) == (lost,)
