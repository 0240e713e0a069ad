"""Turns of one task, for tests of their parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bookie.model.metadata import LedgerMetadata
from replicator.knowledge.holdings import HoldingsReader
from replicator.ports import RepairPorts
from replicator.repair.lease import Lease, other_node_paths
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.turn_findings import TurnFindings
from tests.worlds.ledgers import LEDGER, names
from tests.worlds.repair import RepairWorld, a_world


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """A turn that has locked ``LEDGER``."""

    world: RepairWorld
    ports: RepairPorts
    lease: Lease
    holdings: HoldingsReader
    reservation: ReservationHolder
    found: TurnFindings


@asynccontextmanager
async def a_turn(bookies: str, metadata: LedgerMetadata, missing: str) -> AsyncIterator[LockedTurn]:
    """Lock a ledger in a cluster of ``bookies``, without entries, that is marked as missing ``missing``."""
    async with a_world(bookies) as world:
        await world.ledgers.create(LEDGER, metadata)
        await world.tasks.marking.mark(LEDGER, names(missing))
        yield await locked(world)


async def locked(world: RepairWorld) -> LockedTurn:
    ports = world.ports(world.store)
    held = await ports.tasks.locks.lock(LEDGER, "worker", other_node_paths(ports, LEDGER))
    assert held is not None
    lease = Lease(ports, held, world.store.session.epoch)
    holdings = HoldingsReader(ports.transport, ports.clock)
    return LockedTurn(world, ports, lease, holdings, ReservationHolder(ports, lease), TurnFindings())
