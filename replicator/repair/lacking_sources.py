"""Mark the sources without a good copy of an entry; they are then asked for all their entries (R41, R140).

The invariant: a source that did not serve an entry of a closed ledger, or only a damaged copy, is added to the task
before the entry is sent to a target. The changed task outlives this turn, and its next turn asks these bookies for all
their entries. Sources of an unclosed ledger are recorded, and marked after the ledger is closed.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Set

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)


class LackingSources:
    """The sources that one turn found to lack entries or to have damaged copies."""

    def __init__(self, ports: RepairPorts) -> None:
        """Start without such sources."""
        self._marking = ports.tasks.marking
        self._notes = ports.damage_notes
        self._marked: set[BookieId] = set()
        """The sources that were added to the task or recorded."""

    async def mark(self, ledger: Versioned, sources: Set[BookieId]) -> None:
        """Add those of ``sources`` to the task of the ledger that this turn has not added yet, or record them.

        If the task cannot be changed, or if there are too many records, this is logged, and the copy continues.

        Raises:
            TransientError, OutcomeUnknownError: the store did not answer.
        """
        fresh = sources - self._marked
        if not fresh:
            return
        extra = {"ledger_id": ledger.ledger_id, "bookies": ", ".join(sorted(fresh))}
        if not ledger.metadata.is_closed:
            if not await self._notes.add(ledger.ledger_id, fresh):
                _log.warning("sources without good copies are not recorded: there are too many records", extra=extra)
            self._marked.update(fresh)
            return
        try:
            await self._marking.mark(ledger.ledger_id, sorted(fresh))
        except (ConflictError, UnreadableTaskError) as error:  # others keep changing it, or it cannot be decoded
            _log.warning("sources without good copies are not marked", extra={**extra, "error": str(error)})
        else:
            self._marked.update(fresh)
            _log.info("sources without good copies are marked", extra=extra)
