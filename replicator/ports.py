"""What repair needs of the world, in one value that the cores are handed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers import LedgerStore
from bookie.metadata.own_state import ParkedTasks
from bookie.metadata.port import MetadataStore
from bookie.metadata.registration import Registrations
from bookie.metadata.underreplication import UnderReplication
from bookie.runtime.clock import Clock
from bookie.wire.port import Transport


@dataclass(frozen=True, slots=True)
class RepairPorts:
    """Shared by all repairs of a process. ``store`` is the session that locks belong to."""

    store: MetadataStore
    cluster: Cluster
    ledgers: LedgerStore
    registrations: Registrations
    tasks: UnderReplication
    parked: ParkedTasks
    transport: Transport
    clock: Clock
    rng: random.Random
