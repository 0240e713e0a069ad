"""The reservation of one ledger's repair: made before the first byte is copied, given back before the task goes (S16).

While it exists, no collector of bkheal deletes the new copies, and the write that names the targets checks that it
exists. There is one at most per ledger, and it belongs to the holder of the ledger's lock, who replaces or removes what
a dead worker left. Removing that before a task is completed also stops a worker that lost the lock without noticing:
the write it may still have under way is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.reservations import LedgerReservations, Reservation, UnreadableReservationError
from bookie.model.errors import BkhealError
from bookie.model.ids import LedgerId
from replicator.plan.steps import CopyPosition, Step
from replicator.ports import RepairPorts
from replicator.repair.lease import Lease, LeaseLostError

_log = logging.getLogger(__name__)

_TOKEN_BITS: Final = 96
_RELEASE_ATTEMPTS: Final = 2


class ReservationHolder:
    """Used by one turn of one task."""

    def __init__(self, ports: RepairPorts, lease: Lease) -> None:
        self._ports = ports
        self._lease = lease
        self._ledger_id: LedgerId = lease.held.task.ledger_id
        self._is_clear = False
        """Whether neither this process nor an earlier one can have reserved anything for this ledger."""
        self.current: LedgerReservations | None = None

    async def reserve(self, ledger: Versioned, steps: Sequence[tuple[Step, str]]) -> None:
        """Reserve every step that changes the metadata, each with its target's incarnation; durable on return.

        Raises:
            LeaseLostError: the lock is not ours any more; what is reserved is another's.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        wanted = tuple(
            Reservation(
                ledger.metadata.fragments[step.fragment_index].first_entry_id, step.position, step.target, incarnation
            )
            for step, incarnation in steps
            if not (isinstance(step, CopyPosition) and step.is_in_place)
        )
        if not wanted or (self.current is not None and self.current.reservations == wanted):
            return
        await self._lease.ensure_ours()
        self.current, self._is_clear = None, False
        self.current = await self._ports.reservations.reserve(self._ledger_id, self._token(), wanted)

    def lost(self) -> None:
        """The reservation turned out not to stand any more."""
        self.current = None

    async def release(self) -> None:
        """Prevent any further reservation for the ledger by this worker or by a former holder of the lock.

        Raises:
            LeaseLostError: the lock is not ours any more, and we have reserved nothing.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        if self._is_clear:
            return
        reserved = self.current or await self._left_behind()
        if reserved is not None:
            await self._ports.reservations.release(reserved)
        self.current, self._is_clear = None, True

    async def release_quietly(self) -> None:
        """``release`` as well as it goes: what stays is replaced or removed by the next holder of the lock."""
        for _ in range(_RELEASE_ATTEMPTS):
            if self._lease.is_session_over:
                return
            try:
                await self.release()
            except LeaseLostError:
                return
            except BkhealError as error:
                _log.info("reservation stays for now", extra={"ledger_id": self._ledger_id, "error": str(error)})
            else:
                return

    async def _left_behind(self) -> LedgerReservations | None:
        await self._lease.ensure_ours()
        try:
            return await self._ports.reservations.read(self._ledger_id)
        except UnreadableReservationError as error:
            _log.warning("damaged reservation is removed", extra={"ledger_id": self._ledger_id, "error": str(error)})
            return await self._ports.reservations.reserve(self._ledger_id, self._token(), ())

    def _token(self) -> str:
        return f"{self._ports.rng.getrandbits(_TOKEN_BITS):024x}"
