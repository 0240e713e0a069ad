"""The mass-loss brake (S12, R35): input that no cluster would produce while it lives stops the run.

When all registrations vanish because ZooKeeper blinked, marking every ledger would bury the replicators in work that
copies healthy data. So an audit with such input marks nothing, reports this, and leaves the decision to a person. Pure.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

MANY_LEDGERS: Final = 100
"""From here on a cluster does not lose its last ledger between two runs by being used."""


def held_because(
    known: Set[str], registered: Set[str], ledgers: int, earlier_ledgers: int | None, missing_share_max: float
) -> str | None:
    """Return the reason why nothing may be published, or None.

    Args:
        known: bookies that have a cookie, are registered, or are named in some ledger's metadata.
        registered: bookies that are registered now.
        ledgers: ledgers listed by this run.
        earlier_ledgers: ledgers in the last complete report of the same cluster, None without one.
        missing_share_max: largest share of ``known`` that may be missing, 0 to 1.
    """
    missing = known - registered
    if known and not registered:
        return f"none of {len(known)} known bookies is registered; check ZooKeeper and the bookies before anything else"
    if known and len(missing) / len(known) > missing_share_max:
        return (
            f"{len(missing)} of {len(known)} known bookies are not registered, more than the limit of "
            f"{missing_share_max:.0%}; bring them back, or raise the limit if they are lost permanently"
        )
    if ledgers == 0 and earlier_ledgers is not None and earlier_ledgers >= MANY_LEDGERS:
        return f"no ledger is listed, but the last complete report has {earlier_ledgers}; check the metadata root"
    return None
