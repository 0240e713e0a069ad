"""What repair adds to the registrations of bookies: Pulsar's groups, and the draining members.

Groups are those of the current topology. Drains are read only if they can matter: a drain marks the ledgers of its
bookie in the field read by all clients, as if the bookie were missing. If a task names no registered bookie, or no step
replaces one, no drain can concern it, and the store is not asked.
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
    """Add groups and draining bookies to ``bookies``; also return checks against drains begun or ended since.

    Args:
        ports: the ports of repair.
        bookies: the registered bookies as listed.
        named: bookies to be replaced; if none of them is registered, no drains are read.

    Raises:
        StoreUnavailableError: no answer.
    """
    bookies = bookies.with_groups(ports.placement.topology.groups)
    if bookies.registered.isdisjoint(named):
        return bookies, ()
    draining = await Drains(ports.store, ports.cluster.root).draining()
    checks = () if draining.check is None else (draining.check,)
    return bookies.with_draining(draining.bookies), checks
