"""The mass-loss brake (S12, I24, R35): a run marks nothing if no healthy cluster could produce its input. Pure.

The invariant: nothing is marked while more bookies are missing than a cluster loses at once, or if a cluster had many
ledgers and now seems to have none. If all registrations are missing because of a ZooKeeper outage, marks on every
ledger would make replicators copy healthy data, and the ledgers with real losses would have to wait. A run with such
input reports the reason and leaves the decision to an operator.

The bookie check evaluates the brake before the scan, with all bookies that have a cookie. It evaluates the brake again
between the scan and the first mark, with the bookies named by metadata as well: metadata may still name a
decommissioned bookie. It counts unless every copy on it was accepted as lost. The second evaluation uses the same list
as the check, so bookies that disappear after it cannot cause marks. The service also evaluates the brake each time it
observes the bookies, and starts no audit for lost bookies while the brake holds.

The brake keeps no state, so a crash has no consequences. Each run decides from its own input, and the first run after
the bookies have returned marks as usual. Only the last complete report comes from an earlier run: without it, the
number of ledgers is not compared.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from bookie.runtime.human import agreeing, counted

MANY_LEDGERS: Final = 100
"""A cluster with this many ledgers does not lose its last ledger between two runs by normal use."""


def held_because(
    known: Set[str], registered: Set[str], ledgers: int, earlier_ledgers: int | None, missing_share_max: float
) -> str | None:
    """Return the reason why nothing may be published, or None.

    Args:
        known: bookies with a cookie, registered bookies, and bookies named in some ledger's metadata, except those
            without a cookie of which every copy was accepted as lost.
        registered: bookies registered now.
        ledgers: ledgers listed by this run.
        earlier_ledgers: ledgers in the last complete report of the same cluster; None: there is no such report.
        missing_share_max: largest allowed share of missing bookies in ``known``, 0 to 1.
    """
    missing = known - registered
    if known and not registered:
        none = f"none of {counted(len(known), 'known bookie')} is registered"
        return f"{none}; check ZooKeeper and the bookies before anything else"
    if known and len(missing) / len(known) > missing_share_max:
        are = agreeing(len(missing), "is", "are")
        return (
            f"{len(missing)} of {counted(len(known), 'known bookie')} {are} not registered, more than the limit of "
            f"{missing_share_max:.0%}; bring {agreeing(len(missing), 'it', 'them')} back, or raise the limit "
            f"(--missing-share-max) if {agreeing(len(missing), 'it is', 'they are')} lost permanently"
        )
    if ledgers == 0 and earlier_ledgers is not None and earlier_ledgers >= MANY_LEDGERS:
        return f"no ledger is listed, but the last complete report has {earlier_ledgers}; check the metadata root"
    return None
