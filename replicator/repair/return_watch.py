"""End the copies of a round soon after a lost bookie that they replace has registered again (R55).

The next round asks the bookie for its entries, and continues the copy if the bookie lacks more entries than the target.
A return ends the round even if the bookie has left again since then.

Source: docs/failure-model.md#R55.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bookie.model.errors import PermanentError, TransientError
from bookie.model.ids import BookieId, LedgerId
from replicator.knowledge.recent import Recent
from replicator.knowledge.returns import Returns
from replicator.plan.steps import Cause, CopyPosition
from replicator.repair.lease import Lease

_log = logging.getLogger(__name__)


class ReturnWatch:
    """The lost bookies that returned during the copies of one round."""

    def __init__(self, lease: Lease, recent: Recent, returns: Returns) -> None:
        """Start without returns."""
        self._lease = lease
        self._recent = recent
        self._returns = returns
        self._returned: set[BookieId] = set()

    @property
    def has_ended_round(self) -> bool:
        """Whether a return ended a copy, so that another round must ask the bookies for their entries."""
        return bool(self._returned)

    async def may_copy_chunk(self, steps: Sequence[CopyPosition]) -> bool:
        """Whether the next chunk of ``steps`` may start: the worker may continue, and no lost bookie of them is back.

        Raises:
            StoreUnavailableError: see ``Lease.may_continue``.
        """
        if not await self._lease.may_continue():
            return False
        for lost in {step.old for step in steps if step.cause is Cause.UNREGISTERED}:
            if await self._is_registered_again(lost):
                self._returned.add(lost)
        return self._returned.isdisjoint(step.old for step in steps)

    async def _is_registered_again(self, bookie: BookieId) -> bool:
        """Whether a lost bookie is registered again, according to the list that all turns share; False if unknown."""
        try:
            return bookie in (await self._recent.bookies()).registered
        except (TransientError, PermanentError) as error:
            _log.info("copy continues without a list of bookies", extra={"error": str(error)})
            return False

    def count_returns(self, ledger_id: LedgerId) -> None:
        """Count the returns for all turns, which find flapping bookies with them."""
        for bookie in sorted(self._returned):
            self._returns.note(bookie)
            _log.info(
                "a lost bookie has returned, its copy is stopped", extra={"ledger_id": ledger_id, "bookie_id": bookie}
            )
