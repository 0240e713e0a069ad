"""The ports of the ledger client, in one value that is passed to the cores."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bookie.client.placement.placement import Placement
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.logs.log_store import LogLists
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId
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
    placement: Placement = field(default_factory=Placement)
    logs: LogLists | None = None
    """Needed only by logs."""
    near: Callable[[BookieId], int] | None = None
    """The distance of a bookie from this client, in any unit. Readers ask near replicas first. None: all are equal."""
