"""End the copies of a round soon after their ledger was deleted, because nothing needs them (R170).

The copy of a large ledger may take hours. The ledger is looked up again every ``LOOK_UP_S``, so the number of requests
grows with time and not with the size of the ledger. It may have been deleted, or another ledger may have its id: then
the entries that were read must not be stored. The next round reads the metadata and decides.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from typing import Final

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.errors import PermanentError, TransientError
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

LOOK_UP_S: Final = 10.0
"""The time between two requests, and so about the longest time for which a deleted ledger is copied."""


class LedgerWatch:
    """The ledger of one round while its entries are copied."""

    def __init__(self, ports: RepairPorts, ledger: Versioned) -> None:
        """Start with a ledger that was just read."""
        self._ports = ports
        self._ledger = ledger
        self._asked_s = ports.clock.monotonic_s()
        self.has_ended_round = False
        """Whether the ledger was deleted, so that another round must read the metadata."""

    async def is_same(self) -> bool:
        """Whether the ledger still exists and no other one has its id; True if unknown."""
        now_s = self._ports.clock.monotonic_s()
        if self.has_ended_round or now_s - self._asked_s < LOOK_UP_S:
            return not self.has_ended_round
        self._asked_s = now_s  # other lanes of the copy do not ask as well
        ledger_id = self._ledger.ledger_id
        try:
            stat = await self._ports.store.stat(self._ports.ledgers.path(ledger_id))
        except (TransientError, PermanentError) as error:
            _log.info("copy continues, its ledger cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
            return True
        if stat is None or self._ledger.czxid not in (None, stat.czxid):
            self.has_ended_round = True
            _log.info("ledger was deleted, its copy is stopped", extra={"ledger_id": ledger_id})
        return not self.has_ended_round
