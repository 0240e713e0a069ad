"""Which unregistered members of a ledger count as lost, beside those that its task names.

An auditor names a bookie in a task after the delay for lost bookies. A member that no task names is perhaps restarting,
and replacing it would copy everything that it stores. It counts as lost in two cases: it has no cookie, so no bookie
will return under its id; or its delay is over, counted from when an auditor first saw it down. Until then it is
awaited: its position stays as it is, nothing is read from it, and the task can end without it, because the auditor
marks the ledger after the delay.

Nothing is concluded from an absence while more bookies are missing than a cluster loses at once (S12), or soon after
this process was without the store: bookies register again only after they have noticed the end of their sessions.

Source: R39, docs/failure-model.md#R39.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

SETTLE_S: Final = 60.0
"""After an outage of the store, and after the start: longer than a bookie's session and its return usually take."""


class Absences:
    """Decides for all repairs of one process."""

    def __init__(self, ports: RepairPorts) -> None:
        self._ports = ports
        self._down = FirstSeenDown(ports.store, ports.cluster.root)
        self._settled_at_s = 0.0
        self.note_outage()

    def note_outage(self) -> None:
        """Conclude nothing from absences for ``SETTLE_S``: registrations may have ended although the bookies live."""
        self._settled_at_s = self._ports.clock.monotonic_s() + SETTLE_S

    async def lost(self, bookies: Bookies, unregistered: Collection[BookieId]) -> frozenset[BookieId]:
        """Return those of the ``unregistered`` bookies that count as lost although no task names them.

        Raises:
            StoreUnavailableError: no answer.
        """
        if not unregistered:
            return frozenset()
        known = await self._ports.registrations.known()
        missing = known - bookies.registered
        never_return = frozenset(unregistered) - known
        is_unsettled = self._ports.clock.monotonic_s() < self._settled_at_s
        if is_unsettled or len(missing) > MISSING_SHARE_MAX * len(known):
            return never_return
        try:
            delay_s = await self._ports.tasks.switches.lost_bookie_delay_s()
        except InvalidDelayError as error:
            _log.warning("the delay for lost bookies cannot be read, so none is over", extra={"error": str(error)})
            return never_return
        noted, now_ms = await self._down.read(), self._ports.clock.epoch_ms()
        overdue = (bookie for bookie, down in noted.items() if down.due_ms(delay_s) <= now_ms)
        return never_return | missing.intersection(overdue, unregistered)


def unnamed_absent(metadata: LedgerMetadata, named: Collection[BookieId], bookies: Bookies) -> frozenset[BookieId]:
    """Return the members that are neither registered nor named by the ledger's task."""
    return metadata.members() - bookies.registered - set(named)


def awaiting(bookies: Bookies, absent: frozenset[BookieId], lost: frozenset[BookieId]) -> Bookies:
    """Return ``bookies`` with those of ``absent`` that do not count as ``lost`` as awaited."""
    awaited = absent - lost
    return replace(bookies, awaited=awaited) if awaited else bookies
