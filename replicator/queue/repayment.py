"""Mark ledgers with placement debts for better placement as soon as there is a better place.

The invariant: a debt ends only if its ledger was deleted, or adheres to the policy and has no task. A repair records a
debt before the metadata names the bad place (R57). So while a ledger has a task, it may adhere now and violate the
policy soon. The tasks are read after the debts and before the metadata. If there is then no task, the repair that
recorded the debt has ended, and the metadata is not older than its end.

Marking is idempotent, and the mark is an ordinary one: its worker plans again from current metadata (R1), and makes the
possible moves.

Only watching standby workers search (``queue.standby``), so the number of other workers does not matter. A search reads
all debts (their number is bounded) and the metadata of their ledgers. A search follows each change of the writable
bookies or of the topology, but at most once in ``PAUSE_S``. Without changes it is made once in ``ROUND_S``, for debts
that end in another way. Ledgers of the same shape are planned once.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.nodes import in_steps, read_each_permitted
from bookie.metadata.tasks.debts import PlacementDebt
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.waiting import run_cooperatively
from replicator.knowledge.absence import Absences
from replicator.knowledge.moving import why_not_moved
from replicator.plan.moves import has_entries, is_adhering, planning_moves
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

PAUSE_S: Final = 60.0
"""The shortest time between two searches, however often registrations change."""
ROUND_S: Final = 600.0
"""The time between two searches if nothing changes."""
_AT_ONCE: Final = 500
"""The number of ledgers that are read at a time."""
_DEBTS_JUDGED_PER_STEP: Final = 20
"""The number of ledgers that are judged between two turns of the event loop."""

_Shape = tuple[object, ...]


class Repayment:
    """Searches for repayable placement debts, for one worker."""

    def __init__(self, ports: RepairPorts, absences: Absences) -> None:
        self._ports = ports
        self._absences = absences
        self._seen: tuple[frozenset[BookieId], str] | None = None
        """The writable bookies and the topology at the last search."""
        self._looked_s = 0.0
        self.count = 0
        """The number of debts after the last search."""

    def forget(self) -> None:
        """Forget the last search, because other workers search from now on."""
        self._seen, self.count = None, 0

    async def mark_movable(self) -> int:
        """Mark ledgers with movable copies; return their number. Return immediately if no search is due.

        Raises:
            StoreUnavailableError: the store does not answer; the next search starts from the beginning.
            WriteOutcomeUnknownError: some marks may have been written.
        """
        judge = self._ports.placement.judge()
        if not judge.has_topology:
            return 0
        bookies = (await self._ports.recent.bookies()).with_groups(judge.topology.groups)
        situation = bookies.writable, judge.fingerprint
        since_s = self._ports.clock.monotonic_s() - self._looked_s
        if self._seen is not None and since_s < (ROUND_S if situation == self._seen else PAUSE_S):
            return 0
        count = 0
        self.count = await self._ports.debts.count()
        if self.count and not await why_not_moved(self._ports, self._absences, bookies):
            count = await self._count_repayable(bookies)
            self.count = await self._ports.debts.count()
        self._seen, self._looked_s = situation, self._ports.clock.monotonic_s()
        if count:
            _log.info("ledgers with placement debts are marked, as there are better places", extra={"ledgers": count})
        return count

    async def _count_repayable(self, bookies: Bookies) -> int:
        count = 0
        known: dict[_Shape, bool] = {}
        async for debts in in_steps(await self._ports.debts.list(), _AT_ONCE):
            better = await self._better(debts, bookies, known)
            try:
                count += await self._ports.tasks.marking.mark_many((ledger_id, ()) for ledger_id in better)
            except ConflictError as error:  # the next search marks them
                _log.info("ledgers with placement debts are not marked", extra={"error": str(error)})
        return count

    async def _better(
        self, debts: Sequence[PlacementDebt], bookies: Bookies, known: dict[_Shape, bool]
    ) -> list[LedgerId]:
        """Return ledgers with movable copies; end debts of ledgers that are deleted, or well placed without a task."""
        ports, better = self._ports, []
        ids = [debt.ledger_id for debt in debts]
        tasks = await ports.tasks.read_many(ids)
        ledgers = await read_each_permitted(ports.ledgers.read_many, ids)
        for number, (debt, task, ledger) in enumerate(zip(debts, tasks, ledgers, strict=True), start=1):
            if number % _DEBTS_JUDGED_PER_STEP == 0:
                await asyncio.sleep(0)
            if ledger is None or (isinstance(ledger, Versioned) and self._is_paid(ledger)):
                if ledger is None or task is None:
                    await ports.debts.end_if_unchanged(debt)
            elif isinstance(ledger, Versioned):
                shape = _shape(ledger.metadata)
                if shape not in known:
                    plan = await run_cooperatively(planning_moves(ledger, bookies, ports.placement, steps_max=1))
                    known[shape] = bool(plan.steps)
                if known[shape]:
                    better.append(debt.ledger_id)
        return better

    def _is_paid(self, ledger: Versioned) -> bool:
        return is_adhering(ledger.metadata, self._ports.placement.judge())


def _shape(metadata: LedgerMetadata) -> _Shape:
    """Return the properties that decide whether a ledger has moves. A wrong result costs one unnecessary turn."""
    members = (fragment.members for at, fragment in enumerate(metadata.fragments) if has_entries(metadata, at))
    return frozenset(members), metadata.write_quorum, metadata.custom, metadata.is_closed
