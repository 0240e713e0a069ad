"""Decide whether copies may be moved for better placement now, if a mark requests it.

A move needs a topology to judge placement. It copies entries although no bookie lacks any, so it waits while more
bookies are missing than a cluster loses at once (S12): a place may appear better only because the others are missing.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from bookie.metadata.bookies.registration import Bookies
from replicator.knowledge.absence import Absences
from replicator.ports import RepairPorts


async def why_not_moved(ports: RepairPorts, absences: Absences, bookies: Bookies) -> str:
    """Return why no copy may be moved now; empty if copies may be moved.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    if not ports.placement.judge().has_topology:
        return "no topology is configured, so placement cannot be judged"
    if await absences.is_mass_loss(bookies):
        return "too many bookies are missing to move copies for placement"
    return ""
