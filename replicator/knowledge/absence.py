"""Decide which unregistered members of a ledger count as lost, in addition to those that its task names.

An auditor names a bookie in a task after the lost-bookie delay. An unregistered member that no task names may be
restarting, and replacing it would copy all of its data. It counts as lost in two cases:

* It has no cookie, so no bookie will return under its id. This counts only if every registered bookie has a cookie,
  because a partial restore of the store may lack cookies.
* Its delay has passed, counted from when an auditor first saw that it was absent, and no maintenance window names it
  (R71).

Otherwise it is awaited: its position stays unchanged, nothing is read from it, and the task can end without it, because
the auditor marks the ledger again after the delay. In an open ledger, the task stays while the awaited member may have
entries that a registered member lacks (``frontier``). If an auditor names a bookie before the delay has passed, because
the ledger has one copy left (R70), the worker replaces it.

Absences are ignored while more bookies are missing than a cluster loses at once (S12). They are also ignored for some
time after this process was disconnected from the store: the bookies may have lost their sessions as well, and register
again only after they have noticed it.

These facts are read once for all turns and kept for a short time, at most until a bookie registers or disappears. If
a bookie's cookie seems to be missing, the cookies are always read again.

Source: R39, docs/failure-model.md#R39.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from replicator.knowledge.recent import BOOKIES_AGE_S, Shared
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

SETTLE_S: Final = 60.0
"""The time to ignore absences after an outage of the store and after the start. It is usually longer than a bookie's
session plus the time to register again."""


@dataclass(frozen=True, slots=True)
class _Facts:
    known: frozenset[BookieId]
    """The bookies that have a cookie."""
    delay_s: int | None
    """The lost-bookie delay; None if it cannot be decoded."""
    noted: Mapping[BookieId, Down]
    windows: Sequence[MaintenanceWindow] = ()
    """The maintenance windows as last read."""

    def in_maintenance(self, now_ms: int) -> frozenset[BookieId]:
        return frozenset(bookie for window in self.windows if window.is_open(now_ms) for bookie in window.bookies)


class Absences:
    """Decides which absent bookies are lost, for all repairs of one process."""

    def __init__(self, ports: RepairPorts) -> None:
        self._ports = ports
        self._down = FirstSeenDown(ports.store, ports.cluster.root)
        self._windows = MaintenanceWindows(ports.store, ports.cluster.root)
        self._facts = Shared(self._read, ports.clock, BOOKIES_AGE_S)
        self._settled_at_s = 0.0
        self.note_outage()

    def note_outage(self) -> None:
        """Ignore absences for ``SETTLE_S``, because live bookies may have lost their registrations."""
        self._settled_at_s = self._ports.clock.monotonic_s() + SETTLE_S
        self._facts.forget()

    def note_bookies_changed(self) -> None:
        """Read everything again after a bookie registered or disappeared."""
        self._facts.forget()

    async def lost(self, bookies: Bookies, unregistered: Collection[BookieId]) -> frozenset[BookieId]:
        """Return the bookies of ``unregistered`` that count as lost although no task names them.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if not unregistered:
            return frozenset()
        facts = self._facts.kept()
        if facts is None or not facts.known.issuperset(unregistered):  # it may have joined after the read
            facts = await self._facts.fresh()
        known = facts.known
        missing = known - bookies.registered
        is_unsettled = self._ports.clock.monotonic_s() < self._settled_at_s
        if is_unsettled or len(missing) > MISSING_SHARE_MAX * len(known):
            return frozenset()
        are_cookies_complete = frozenset() < bookies.registered <= known
        never_return = frozenset(unregistered) - known if are_cookies_complete else frozenset[BookieId]()
        if facts.delay_s is None:
            return never_return
        delay_s, now_ms = facts.delay_s, self._ports.clock.epoch_ms()
        overdue = (bookie for bookie, down in facts.noted.items() if down.due_ms(delay_s) <= now_ms)
        return never_return | missing.intersection(overdue, unregistered) - facts.in_maintenance(now_ms)

    async def is_mass_loss(self, bookies: Bookies) -> bool:
        """Whether more bookies are missing than a cluster loses at once (S12).

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        facts = self._facts.kept() or await self._facts.fresh()
        return len(facts.known - bookies.registered) > MISSING_SHARE_MAX * len(facts.known)

    async def _read(self) -> _Facts:
        """Read all facts. The caller has listed the bookies before; a bookie has its cookie before it registers."""
        known = await self._ports.registrations.known()
        try:
            delay_s = await self._ports.tasks.switches.lost_bookie_delay_s()
        except InvalidDelayError as error:
            _log.warning(
                "the delay for lost bookies cannot be read, so no bookie is treated as lost",
                extra={"error": str(error)},
            )
            return _Facts(known, None, {})
        windows = await self._windows.open_at(self._ports.clock.epoch_ms())
        return _Facts(known, delay_s, await self._down.read(), windows)


def absent_members_not_in_task(
    metadata: LedgerMetadata, named: Collection[BookieId], bookies: Bookies
) -> frozenset[BookieId]:
    """Return the members that are neither registered nor named by the ledger's task."""
    return metadata.members() - bookies.registered - set(named)


def awaiting(bookies: Bookies, absent: frozenset[BookieId], lost: frozenset[BookieId]) -> Bookies:
    """Return ``bookies`` with the members of ``absent`` as awaited, except those in ``lost``."""
    awaited = absent - lost
    return replace(bookies, awaited=awaited) if awaited else bookies
