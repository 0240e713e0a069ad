"""The ports that repair needs, in one value."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bookie.client.placement.placement import Placement
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.metadata.tasks.debts import PlacementDebts
from bookie.metadata.tasks.decisions import Decisions
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTasks
from bookie.metadata.tasks.moves import MovedLedgers
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.standby import StandbyWorkers
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.runtime.clock import Clock
from bookie.wire.circuits import Circuits
from bookie.wire.port import Transport
from replicator.knowledge.recent import Recent


@dataclass(frozen=True, slots=True)
class RepairPorts:
    """The ports shared by all repairs of a process. Locks belong to the session of ``store``."""

    store: MetadataStore
    cluster: Cluster
    ledgers: LedgerStore
    registrations: Registrations
    tasks: UnderReplication
    parked: ParkedTasks
    doubts: DoubtedMembers
    reservations: Reservations
    standby: StandbyWorkers
    failures: FailedTasks
    transport: Transport
    clock: Clock
    rng: random.Random
    placement: Placement = field(default_factory=Placement)
    circuits: Circuits = field(default_factory=Circuits)
    """The circuit breakers of ``transport``, if it is a ``CircuitTransport``."""
    recent: Recent = field(init=False)
    """Recent answers of the cluster, shared by all turns."""
    moves: MovedLedgers = field(init=False)
    debts: PlacementDebts = field(init=False)
    damage_notes: DamageNotes = field(init=False)
    decisions: Decisions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "recent", Recent(self.registrations, self.tasks.switches, self.clock))
        object.__setattr__(self, "moves", MovedLedgers(self.store, self.cluster.root))
        object.__setattr__(self, "damage_notes", DamageNotes(self.store, self.cluster.root))
        object.__setattr__(self, "decisions", Decisions(self.store, self.cluster.root))
        object.__setattr__(self, "debts", PlacementDebts(self.store, self.cluster.root))

    def client(self) -> ClientPorts:
        """Return the same ports for the ledger client, used to recover ledgers."""
        return ClientPorts(
            ledgers=self.ledgers,
            registrations=self.registrations,
            tasks=self.tasks,
            transport=self.transport,
            clock=self.clock,
            rng=self.rng,
            placement=self.placement,
        )
