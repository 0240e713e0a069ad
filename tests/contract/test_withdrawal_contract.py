"""Withdrawal of marks whose reason has ended, on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION, MetadataStore
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTask, FailedTasks
from bookie.metadata.tasks.locks import HeldTask
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.reservations import Reservation, Reservations
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.run import Ended
from spark_jobs.runs.marking.withdrawal import Withdrawal, WithdrawalStep
from tests.contract.conftest import Backend
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.ledgers import make_metadata, name_set, names

L7, L8, L9 = LedgerId(7), LedgerId(8), LedgerId(70_000)
X = BookieId("x")
HEALTHY = make_metadata((0, "a b"), (10, "c d"), quorum=(2, 2), last=19)
NONE = WithdrawalStep()


@dataclass(slots=True)
class World:
    """A cluster with the bookies a to e; x and y no longer exist."""

    store: MetadataStore
    cluster: Cluster
    tasks: UnderReplication
    withdrawal: Withdrawal
    ledgers: LedgerStore
    others: UnderReplication
    """The same tasks in the session of another process."""

    async def marked(self, ledger_id: LedgerId, missing: str, metadata: LedgerMetadata | None = None) -> None:
        """Mark a ledger; without ``metadata`` it is a deleted one."""
        if metadata is not None:
            await self.ledgers.create(ledger_id, metadata)
        await self.tasks.marking.mark(ledger_id, names(missing))

    async def parked(self, ledger_id: LedgerId) -> None:
        parked = ParkedTask(
            ledger_id=ledger_id,
            reason=ParkReason.NO_LIVE_COPY,
            detail="evidence",
            since_ms=EPOCH_MS,
            bookies_seen=frozenset(),
            task_version=0,
        )
        await ParkedTasks(self.store, self.cluster.root).park(parked)

    async def state(self) -> tuple[list[int], list[int]]:
        """Return the ledgers with a mark, and those with a lock."""
        return [task.ledger_id for task in await self.tasks.list()], sorted(await self.tasks.locks.locked())

    async def run(self, count_max: int = 100) -> WithdrawalStep:
        return await self.withdrawal.step(None, count_max)


@pytest.fixture
async def world(store: MetadataStore, cluster: Cluster, backend: Backend) -> World:
    async def staying() -> frozenset[BookieId]:
        return name_set("a b c d e")

    tasks = UnderReplication(store, cluster, ManualClock())
    await tasks.initialize()
    others = UnderReplication(await backend.open(), cluster, ManualClock())
    ledgers = LedgerStore(store, cluster, random.Random(1))
    return World(store, cluster, tasks, Withdrawal(store, cluster, tasks, staying), ledgers, others)


async def test_marks_of_deleted_ledgers_and_replaced_bookies_are_removed_completely(world: World) -> None:
    await world.marked(L7, "x", HEALTHY)
    await world.marked(L8, "a")
    await world.marked(L9, "")  # a mark for a better place, of a deleted ledger
    assert await world.run() == WithdrawalStep({Ended.REPLACED: 1, Ended.LEDGER_DELETED: 2})
    assert await world.state() == ([], [])
    assert (await world.tasks.top()).names == ()  # type: ignore[union-attr]
    assert await world.run() == NONE


async def test_a_mark_of_a_ledger_with_findings_is_kept_without_a_check(world: World) -> None:
    for ledger_id in (L7, L8, L9):
        await world.marked(ledger_id, "x", HEALTHY)
    assert await world.withdrawal.step(None, 100, {L7, L9}) == WithdrawalStep({Ended.REPLACED: 1})
    assert await world.state() == ([L7, L9], [])


@pytest.mark.parametrize(
    ("missing", "metadata"),
    [
        pytest.param("x", make_metadata((0, "a b"), (10, "c x"), quorum=(2, 2), last=19), id="still named"),
        pytest.param(
            "x", make_metadata((0, "x b"), (10, "c d"), quorum=(2, 2)), id="still named by an earlier fragment"
        ),
        pytest.param("x a", HEALTHY, id="one of two is replaced and the other is registered again"),
        pytest.param("x", make_metadata((0, "a y"), quorum=(2, 2), last=9), id="another member is not registered"),
        pytest.param("", HEALTHY, id="a better place is requested"),
    ],
)
async def test_a_mark_is_kept_without_proof_that_its_reason_has_ended(
    world: World, missing: str, metadata: LedgerMetadata
) -> None:
    await world.marked(L7, missing, metadata)
    assert await world.run() == NONE
    assert await world.state() == ([L7], [])


async def test_unreadable_marks_and_marks_of_unreadable_ledgers_are_kept(world: World) -> None:
    await world.marked(L7, "x", HEALTHY)
    await world.marked(L8, "x", HEALTHY)
    await world.store.set(world.ledgers.path(L7), b"damage", ANY_VERSION)
    await damage(world, L8)
    assert await world.run() == NONE
    assert await world.tasks.ids() == [L7, L8]


async def damage(world: World, ledger_id: LedgerId) -> None:
    await world.store.set(task_path(world.cluster.root, ledger_id), b"damage", ANY_VERSION)


async def test_a_ledger_that_may_not_be_read_does_not_prevent_the_withdrawal_of_other_marks(
    world: World, backend: Backend
) -> None:
    await world.marked(L7, "x", HEALTHY)
    await world.marked(L8, "x")
    backend.deny(world.ledgers.path(L7))
    assert await world.run() == WithdrawalStep({Ended.LEDGER_DELETED: 1})
    assert await world.state() == ([L7], [])


async def test_a_mark_locked_by_another_process_is_kept(world: World) -> None:
    await world.marked(L7, "x", HEALTHY)
    await world.marked(L8, "x")
    for ledger_id in (L7, L8):
        assert await world.others.locks.lock(ledger_id, "worker") is not None
    assert await world.run() == NONE
    assert await world.state() == ([L7, L8], [L7, L8])


async def reserve(world: World) -> None:
    reservations = Reservations(world.store, world.cluster.root)
    await reservations.ensure_parent()
    await reservations.reserve(L7, "token", [Reservation(EntryId(0), 0, BookieId("e"), "i1")])


async def fail(world: World) -> None:
    await FailedTasks(world.store, world.cluster.root).note(FailedTask(L7, 1, 60.0, "token"))


async def doubt(world: World) -> None:
    await DoubtedMembers(world.store, world.cluster.root).add(L7, names("a"))


@pytest.mark.parametrize("record", [reserve, fail, doubt, lambda world: world.parked(L7)])
async def test_a_task_that_a_worker_has_begun_or_parked_is_left_to_workers(
    world: World, record: Callable[[World], Awaitable[None]]
) -> None:
    await world.marked(L7, "x", HEALTHY)
    await record(world)
    assert await world.run() == NONE
    assert await world.state() == ([L7], [])


async def test_a_dead_letter_of_a_deleted_ledger_is_removed_with_its_record(world: World) -> None:
    await world.marked(L7, "x y")
    await world.parked(L7)
    await world.parked(L8)
    assert await world.run() == WithdrawalStep({Ended.LEDGER_DELETED: 1})
    assert [parked.ledger_id for parked in await ParkedTasks(world.store, world.cluster.root).list()] == [L8]


async def test_a_mark_is_kept_if_it_or_its_ledger_changes_at_the_last_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the proof and the deletion, another auditor marks the ledger again, and a writer changes its ensemble."""
    await world.marked(L7, "x", HEALTHY)
    changing = make_metadata((0, "a b"), quorum=(2, 2))
    await world.marked(L8, "x", changing)
    real = world.tasks.locks.complete

    async def interfere(held: HeldTask, *args: Any, **options: Any) -> bool:
        if held.task.ledger_id == L7:
            await world.others.marking.mark(L7, names("y"))
        else:
            await world.ledgers.write(L8, make_metadata((0, "a x"), quorum=(2, 2)), 0)
        return await real(held, *args, **options)

    monkeypatch.setattr(world.tasks.locks, "complete", interfere)
    assert await world.run() == NONE
    assert await world.state() == ([L7, L8], [])
    task = await world.tasks.read(L7)
    assert task is not None
    assert task.missing == names("x y")


async def test_a_mark_is_kept_if_the_locked_ledger_names_the_bookie_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.marked(L7, "x", make_metadata((0, "a b"), quorum=(2, 2)))
    real = world.tasks.locks.lock

    async def lock(*args: Any) -> HeldTask | None:
        await world.ledgers.write(L7, make_metadata((0, "a x"), quorum=(2, 2)), 0)
        return await real(*args)

    monkeypatch.setattr(world.tasks.locks, "lock", lock)
    assert await world.run() == NONE
    assert await world.state() == ([L7], [])


async def test_a_step_withdraws_a_bounded_number_of_marks_and_the_next_one_the_rest(world: World) -> None:
    for number in range(5):
        await world.marked(LedgerId(number), "x")
    assert await world.run(count_max=3) == WithdrawalStep({Ended.LEDGER_DELETED: 3})
    assert (await world.state())[0] == [3, 4]
    assert await world.run(count_max=3) == WithdrawalStep({Ended.LEDGER_DELETED: 2})


async def test_nothing_is_withdrawn_while_recovery_is_disabled(world: World) -> None:
    await world.marked(L7, "x")
    await world.tasks.switches.disable()
    assert await world.run() == NONE
    assert await world.state() == ([L7], [])
