"""Which unregistered members of a ledger count as lost, in addition to those named by its task.

An auditor names a bookie in a task after the lost-bookie delay. An unregistered member not named by any task may be
restarting, and replacing it would copy all of its data. It counts as lost in two cases. Either it has no cookie, so no
bookie will return under its id; this counts only if every registered bookie has one, because a partial restore of the
store may lack cookies. Or its delay, counted from an auditor's first sight of its absence, has passed, and no
maintenance window names it (R71). Until then it is awaited: its position stays unchanged, nothing is read from it, and
the task can end without it, because the auditor marks the ledger afterwards. In an open ledger, the task stays while
the awaited member may have entries that a registered one lacks (``frontier``). If an auditor names a bookie earlier,
because the ledger has one copy left (R70), the worker follows.

An absence counts for nothing while more bookies are missing than a cluster loses at once (S12), or soon after this
process was disconnected from the store: bookies register again only after they have noticed the end of their sessions.

These facts are read once for all turns and kept for a short time, at most until a bookie registers or disappears. A
missing cookie is always read again.

Source: R39, docs/failure-model.md#R39.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindows, Window
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from replicator.knowledge.recent import BOOKIES_AGE_S, Shared
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

SETTLE_S: Final = 60.0
"""Wait after an outage of the store, and after the start: usually longer than a bookie's session and its return."""


@dataclass(frozen=True, slots=True)
class _Facts:
    known: frozenset[BookieId]
    """Bookies with a cookie."""
    delay_s: int | None
    """None if unreadable."""
    noted: Mapping[BookieId, Down]
    windows: Sequence[Window] = ()
    """The maintenance windows last read."""

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
        """Ignore absences for ``SETTLE_S``: registrations of live bookies may have ended."""
        self._settled_at_s = self._ports.clock.monotonic_s() + SETTLE_S
        self._facts.forget()

    def note_bookies_changed(self) -> None:
        """Read everything again after a bookie registered or disappeared."""
        self._facts.forget()

    async def lost(self, bookies: Bookies, unregistered: Collection[BookieId]) -> frozenset[BookieId]:
        """Return the bookies of ``unregistered`` to be treated as lost although no task names them.

        Raises:
            StoreUnavailableError: no answer.
        """
        if not unregistered:
            return frozenset()
        facts = self._facts.kept()
        if facts is None or not facts.known.issuperset(unregistered):  # a bookie may have joined since
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
            StoreUnavailableError: no answer.
        """
        facts = self._facts.kept() or await self._facts.fresh()
        return len(facts.known - bookies.registered) > MISSING_SHARE_MAX * len(facts.known)

    async def _read(self) -> _Facts:
        """Read the cookies first: a bookie has one before it registers. The bookies were listed before this call."""
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


def unnamed_absent(metadata: LedgerMetadata, named: Collection[BookieId], bookies: Bookies) -> frozenset[BookieId]:
    """Return the members neither registered nor named by the ledger's task."""
    return metadata.members() - bookies.registered - set(named)


def awaiting(bookies: Bookies, absent: frozenset[BookieId], lost: frozenset[BookieId]) -> Bookies:
    """Return ``bookies`` with every member of ``absent`` as awaited, except those in ``lost``."""
    awaited = absent - lost
    return replace(bookies, awaited=awaited) if awaited else bookies
