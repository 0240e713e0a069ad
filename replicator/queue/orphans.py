"""Delete records of ledgers without a task.

They remain if a worker died between the completion of a task and the deletion of its records, or if a worker of Apache,
which does not know these records, completed the task. Parked records are deleted immediately, and so are reservations,
because a write based on a deleted reservation is refused. A doubt is kept while its ledger is open, because the list of
tasks may then be minutes old, and a worker with a newer list may have recorded the doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Final

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.nodes import read_each_permitted
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import LedgerId
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

_LOGGED_MAX: Final = 1000
"""The most records that cannot be deleted for which the log has a line, one line for each."""
_RESERVATION_SEARCH_INTERVAL_S: Final = 600.0
"""The time between two searches for reservations without a task."""


class OrphanRecords:
    """Deletes the records that remain without a task, for one worker."""

    def __init__(self, ports: RepairPorts) -> None:
        self._ports = ports
        self._reserved_due_s = ports.clock.monotonic_s() + _RESERVATION_SEARCH_INTERVAL_S
        self._logged: set[tuple[str, LedgerId]] = set()
        """The records that cannot be deleted and have been logged, by kind and ledger; at most ``_LOGGED_MAX``."""

    async def reserved(self) -> AbstractSet[LedgerId]:
        """Return the ledgers with reservations; empty if recently listed, because leftovers are rare and harmless."""
        now_s = self._ports.clock.monotonic_s()
        if now_s < self._reserved_due_s:
            return frozenset()
        reserved = await self._ports.reservations.ledgers()
        await self._ports.parked.forget_lists()
        self._reserved_due_s = now_s + _RESERVATION_SEARCH_INTERVAL_S
        return reserved

    async def forget(
        self,
        *,
        parked: AbstractSet[LedgerId],
        failed: AbstractSet[LedgerId],
        reserved: AbstractSet[LedgerId],
        doubted: AbstractSet[LedgerId],
    ) -> None:
        """Delete the records of these ledgers, which have no task. A record that cannot be deleted remains.

        A ledger may have been marked again after the tasks were listed, and a worker may have written a new record. A
        lost parked record costs one attempt. A lost doubt may cost an acknowledged entry, so doubts stay until the
        ledger is closed or deleted; after that they are never needed and never written.
        """
        for ledger_id in sorted(parked):
            await self._delete("parked", ledger_id, self._ports.parked.unpark)
        for ledger_id in sorted(failed):
            await self._delete("failures", ledger_id, self._ports.failures.forget)
        for ledger_id in sorted(reserved):
            await self._delete("reservations", ledger_id, self._ports.reservations.discard)
        if not doubted:
            return
        ledger_ids = sorted(doubted)
        ledgers = await read_each_permitted(self._ports.ledgers.read_many, ledger_ids)
        for ledger_id, ledger in zip(ledger_ids, ledgers, strict=True):
            if ledger is None or (isinstance(ledger, Versioned) and ledger.metadata.is_closed):
                await self._delete("doubts", ledger_id, self._ports.doubts.forget)

    async def _delete(self, kind: str, ledger_id: LedgerId, delete: Callable[[LedgerId], Awaitable[object]]) -> None:
        """Delete a record if possible. A node with children and a damaged reservation cannot be deleted, and remain."""
        try:
            await delete(ledger_id)
        except (ConflictError, PermanentError) as error:
            if (kind, ledger_id) not in self._logged and len(self._logged) < _LOGGED_MAX:
                self._logged.add((kind, ledger_id))
                extra = {"kind": kind, "ledger_id": ledger_id, "error": str(error)}
                _log.warning("record of a ledger without a task remains", extra=extra)
