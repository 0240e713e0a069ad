"""The services that maintain the cluster in a history: an auditor, replication workers, and collectors of bookies.

An audit here uses the real parts: the real verdict (``fragment_health``), the real brake, the real publisher. A
separate property test checks that Spark computes the same verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from auditor.safety.dead_letters import DeadLetters
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies, Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore, Versioned
from bookie.metadata.own_state import own_path
from bookie.metadata.store.combining import CombiningStore
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.metadata.tasks.decisions import Copies, Decisions
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTasks
from bookie.metadata.tasks.parked import ParkedTasks, ParkReason
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.standby import StandbyWorkers
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import health_of
from bookie.wire.circuits import Circuits, CircuitTransport
from replicator.knowledge.evidence import CorruptCopy
from replicator.plan.moves import plan_moves
from replicator.ports import RepairPorts
from replicator.telemetry.events import QueueState, TaskResult
from replicator.worker import Worker
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.noted_damage import mark_recorded_damage
from spark_jobs.runs.marking.publish import Publisher
from tests.simulation.nodes import SimClient
from tests.simulation.world import SimWorld

AUDIT_S: Final = 2.0
_LOST: Final = (ParkReason.NO_LIVE_COPY, ParkReason.UNREADABLE_ENTRIES)
"""The reasons of parked ledgers for which an operator may accept a loss."""


async def audit_repeatedly(world: SimWorld, client: SimClient) -> None:
    """Audit repeatedly until the end of the history."""
    while True:
        try:
            await audit(world, client)
        except (BkhealError, TimeoutError) as error:
            world.trace.event(client.process.name, f"audit failed: {type(error).__name__}")
        await asyncio.sleep(AUDIT_S * world.variation.scale * (0.5 + client.rng.random()))


async def audit(world: SimWorld, client: SimClient) -> int:
    """Run one audit: read the metadata, then list the bookies (R2). Return the number of marked ledgers."""
    ports = client.ports
    ids = [ledger_id async for ledger_id in ports.ledgers.ids()]
    ledgers = [found for found in await ports.ledgers.read_many(ids) if isinstance(found, Versioned)]
    bookies = await ports.registrations.list()
    drained = (await Drains(client.store, world.cluster.root).draining()).bookies
    members = frozenset(member for ledger in ledgers for member in ledger.metadata.members())
    known = members | bookies.registered | await ports.registrations.known()
    reason = held_because(known, bookies.registered, len(ledgers), None, MISSING_SHARE_MAX)
    if reason is not None:
        world.trace.event(client.process.name, f"audit held: {reason}")
        return 0
    accepted = await _accepted(world, client, bookies.registered)
    markings = [
        (ledger.ledger_id, missing)
        for ledger in ledgers
        if (missing := wanted(ledger, bookies.registered, drained, accepted.get(ledger.ledger_id, frozenset())))
    ]
    if world.cell.stat(own_path("damage", world.cluster.root)) is not None:  # without damage, no request is needed
        await mark_recorded_damage(
            DamageNotes(client.store, world.cluster.root), ports.ledgers, Publisher(ports.tasks).mark
        )
    if world.marks_misplaced:
        await _mark_misplaced(world, client, ledgers, bookies)
    if not markings:
        return 0
    world.about_to_mark(client.process.name, known, bookies.registered)
    await Publisher(ports.tasks).mark(markings)
    world.trace.event(client.process.name, f"marked {[ledger_id for ledger_id, _ in markings]}")
    return len(markings)


async def _mark_misplaced(world: SimWorld, client: SimClient, ledgers: Sequence[Versioned], bookies: Bookies) -> None:
    """Mark the closed ledgers with copies that can be placed better, unless such a mark is parked."""
    parked = {parked.ledger_id for parked in await ParkedTasks(client.store, world.cluster.root).list()}
    misplaced = [
        ledger.ledger_id
        for ledger in ledgers
        if ledger.ledger_id not in parked and ledger.metadata.is_closed and is_movable(world, ledger, bookies)
    ]
    if misplaced:
        await Publisher(client.ports.tasks).mark([(ledger_id, ()) for ledger_id in misplaced])
        world.trace.event(client.process.name, f"marked {misplaced} for better placement")


def is_movable(world: SimWorld, ledger: Versioned, bookies: Bookies) -> bool:
    """Whether the ledger lacks no copy, and its copies can be placed better."""
    is_whole = ledger.metadata.members() <= bookies.registered
    return is_whole and bool(plan_moves(ledger, bookies, world.placement()).steps)


async def _accepted(world: SimWorld, client: SimClient, registered: frozenset[BookieId]) -> dict[LedgerId, Copies]:
    """Return the copies with a valid accepted loss. Without any record of one, no request is needed."""
    if world.cell.stat(own_path("decisions", world.cluster.root)) is None:
        return {}
    found = await Decisions(client.store, world.cluster.root).accepted()
    return {decision.ledger_id: decision.copies for decision in found if decision.is_valid(registered)}


async def accept_losses(world: SimWorld, client: SimClient) -> None:
    """Be an operator who accepts each loss of disks that were destroyed, until the end of the history."""
    parked = ParkedTasks(client.store, world.cluster.root)
    decisions = Decisions(client.store, world.cluster.root)
    letters = DeadLetters(client.ports, client.store, parked, decisions, client.process.name)
    while True:
        await asyncio.sleep(AUDIT_S * world.variation.scale * (0.5 + client.rng.random()))
        try:
            for each in await parked.list():
                gone = world.truth.metadata[each.ledger_id].members() - world.truth.registered()
                if each.reason in _LOST and gone and gone <= world.truth.destroyed:
                    result = await letters.accept(each.ledger_id, "the disks were destroyed")
                    world.trace.event(client.process.name, f"{each.ledger_id}: {result.outcome} {result.detail[:160]}")
        except (BkhealError, TimeoutError) as error:
            world.trace.event(client.process.name, f"accepts nothing: {type(error).__name__}")


def wanted(
    ledger: Versioned,
    registered: frozenset[BookieId],
    drained: frozenset[BookieId],
    accepted: Copies = frozenset(),
) -> tuple[BookieId, ...]:
    """Return the bookies to name in the mark of a ledger: its lost ones and its drained ones."""
    leaving = drained & ledger.metadata.members() if ledger.metadata.is_closed else frozenset()
    return tuple(sorted({*lost(ledger, registered, accepted), *leaving}))


def lost(ledger: Versioned, registered: frozenset[BookieId], accepted: Copies = frozenset()) -> tuple[BookieId, ...]:
    """Return the unregistered bookies of a ledger, by the verdict on each of its fragments."""
    metadata = ledger.metadata
    missing: set[BookieId] = set()
    for index, fragment in enumerate(metadata.fragments):
        health = health_of(metadata, index, registered)
        copies = {(fragment.first_entry_id, at, fragment.members[at]) for at in health.missing_positions}
        if not copies <= accepted:
            missing.update(bookie for _, _, bookie in copies)
    return tuple(sorted(missing))


class Events:
    """The events of a worker, for the trace."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self._world = world
        self._name = name

    def task_ended(self, result: TaskResult) -> None:
        self._world.trace.event(self._name, f"task {result.ledger_id} {result.ending.name} {result.detail[:160]}")

    def tasks_listed(self, queue_state: QueueState) -> None:
        pass

    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        self._world.trace.event(self._name, f"corrupt copy of {ledger_id}/{copy.entry_id} on {copy.bookie}")


def worker(world: SimWorld, client: SimClient) -> Worker:
    """A replication worker on a client's ports."""
    ports, circuits = client.ports, Circuits()
    store = CombiningStore(client.store)
    repair = RepairPorts(
        store=store,
        cluster=world.cluster,
        ledgers=LedgerStore(store, world.cluster, ports.rng),
        registrations=Registrations(store, world.cluster),
        tasks=UnderReplication(store, world.cluster, ports.clock),
        parked=ParkedTasks(store, world.cluster.root),
        doubts=DoubtedMembers(store, world.cluster.root),
        transport=CircuitTransport(ports.transport, circuits, ports.clock),
        clock=ports.clock,
        rng=ports.rng,
        reservations=Reservations(store, world.cluster.root),
        standby=StandbyWorkers(store, world.cluster.root),
        failures=FailedTasks(store, world.cluster.root),
        placement=world.placement(),
        circuits=circuits,
    )
    made = Worker(
        repair,
        world.variation.replicator(world.bytes_per_second),
        Events(world, client.process.name),
        client.process.name,
    )
    world.repairs.watch(made, client)
    return made
