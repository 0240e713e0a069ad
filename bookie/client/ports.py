"""What the ledger client needs of the world, in one value that cores are handed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bookie.client.settings import ClientSettings
from bookie.metadata.ledgers import LedgerStore
from bookie.metadata.registration import Registrations
from bookie.metadata.underreplication import UnderReplication
from bookie.runtime.clock import Clock
from bookie.wire.port import Transport


@dataclass(frozen=True, slots=True)
class ClientPorts:
    """Ports and bounds of one client; shared by all its writers and readers."""

    ledgers: LedgerStore
    registrations: Registrations
    tasks: UnderReplication
    transport: Transport
    clock: Clock
    rng: random.Random
    settings: ClientSettings = field(default_factory=ClientSettings)
