"""What repair knows of bookies beside their registrations: Pulsar's groups, and which members are to leave for a drain.

Groups are those of the current topology; drains are read only if they can matter.

A drain marks the ledgers of its bookie as lacking that bookie, in the field that all clients read. If a task names no
registered bookie, or no step replaces one, there is no drain to look for, and the store is not asked.
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
        ports: see ``RepairPorts``.
        bookies: as listed.
        named: bookies to be replaced; if none of them is registered, nothing is read.

    Raises:
        StoreUnavailableError: no answer.
    """
    bookies = bookies.with_groups(ports.placement.topology.groups)
    if bookies.registered.isdisjoint(named):
        return bookies, ()
    draining = await Drains(ports.store, ports.cluster.root).draining()
    checks = () if draining.check is None else (draining.check,)
    return bookies.with_draining(draining.bookies), checks
