"""Add what repair needs to the list of registered bookies: Pulsar's bookie groups, and the draining bookies.

The groups are those of the current topology. The drains are read only if they can matter. A drain marks ledgers as if
its bookie were missing: it names the bookie in the field of the task that all clients read. So if a task names no
registered bookie, or no step replaces one, no drain concerns it.
"""

from __future__ import annotations

from collections.abc import Collection

from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import Check
from bookie.model.ids import BookieId
from replicator.ports import RepairPorts


async def with_draining(
    ports: RepairPorts, bookies: Bookies, named: Collection[BookieId]
) -> tuple[Bookies, tuple[Check, ...]]:
    """Add groups and draining bookies to ``bookies``; also return checks that fail if a drain begins or ends.

    Args:
        ports: the ports of repair.
        bookies: the registered bookies as listed.
        named: bookies to be replaced; if none of them is registered, no drains are read.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    bookies = bookies.with_groups(ports.placement.topology.groups)
    if bookies.registered.isdisjoint(named):
        return bookies, ()
    draining = await Drains(ports.store, ports.cluster.root).draining()
    checks = () if draining.check is None else (draining.check,)
    return bookies.with_draining(draining.bookies), checks
