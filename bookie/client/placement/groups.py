"""Keep a ledger within the bookie groups of its custom metadata, and report ensembles outside of them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, LedgerId
from bookie.model.isolation import allowed_bookies, isolation_of, isolation_problem
from bookie.model.metadata import LedgerMetadata

_log: Final = logging.getLogger(__name__)


def writable_candidates(
    placement: Placement,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    members: Collection[BookieId],
    bookies: Bookies,
) -> frozenset[BookieId]:
    """Return the writable bookies that a ledger may use in addition to its present ``members``.

    Registered members count towards the sufficient number of bookies in a group, draining ones do not. If the groups
    are ignored, this is logged once.
    """
    if not metadata.custom:
        return bookies.writable
    log_ignored_groups(placement, ledger_id, metadata)
    everyone = (bookies.writable | bookies.registered.intersection(members)) - placement.draining
    allowed = allowed_bookies(metadata.custom, placement.topology.groups, everyone, metadata.ensemble_size)
    return bookies.writable & allowed


def log_ignored_groups(placement: Placement, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
    """Log why the groups that a ledger requests are ignored: once if unreadable, once if the topology has no groups."""
    why = isolation_problem(metadata.custom, placement.topology.groups)
    kind = "groups" if placement.topology.groups.names else "no groups"
    if why is not None and kind not in placement.reported:
        placement.reported.add(kind)
        extra = {"ledger_id": ledger_id, "reason": why}
        _log.warning("bookie groups of a ledger are ignored, any bookie may take its copies; logged once", extra=extra)


def log_targets_outside_groups(
    placement: Placement, ledger_id: LedgerId, metadata: LedgerMetadata, targets: Collection[BookieId]
) -> None:
    """Log copies placed by a repair on bookies outside the ledger's primary groups."""
    log_ignored_groups(placement, ledger_id, metadata)
    groups = placement.topology.groups
    if not metadata.custom or not groups.names or isolation_problem(metadata.custom, groups) is not None:
        return
    wish = isolation_of(metadata.custom)
    if wish is None or not wish.primary:
        return
    outside = sorted(set(targets) - groups.among(targets, wish.primary))
    if outside:
        extra = {"ledger_id": ledger_id, "bookies": outside, "groups": str(wish)}
        _log.info("primary bookie groups of a ledger have too few bookies, others take copies", extra=extra)
