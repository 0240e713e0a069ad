"""Ensemble change: replace the bookies a writer gave up, from last add confirmed + 1 on (formats 7.6, DESIGN 6).

Nothing is acknowledged while it runs (the caller holds ``state.is_changing``). Further failures during the change are
handled in another round. The new fragment replaces the last one where that holds no confirmed entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from bookie.client.cas import update_metadata
from bookie.client.errors import LedgerFencedError, NotEnoughBookiesError
from bookie.client.placement import choose_replacement
from bookie.client.ports import ClientPorts
from bookie.client.writer_state import WriterState
from bookie.metadata.ledgers import Versioned
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState

_log: Final = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
"""Pause after the store did not answer; ten rounds outlast a ZooKeeper leader election of a second or two."""


class EnsembleChange:
    """One change of one writer, run to its end."""

    def __init__(
        self, ports: ClientPorts, state: WriterState[asyncio.Future[EntryId]], failed_at_s: Mapping[BookieId, float]
    ) -> None:
        """Prepare a change.

        Args:
            ports: see ``ClientPorts``.
            state: the writer's; its lanes tell which positions failed.
            failed_at_s: when each bookie failed this writer last, by the clock's ``monotonic_s``.
        """
        self._ports = ports
        self._state = state
        self._failed_at_s = failed_at_s
        self._sent: list[Fragment] = []
        """What this change asked the store to write: a last fragment found there that is one of them is ours."""

    async def run(self, ledger: Versioned) -> Versioned:
        """Replace every failed position and return the metadata as stored.

        Raises:
            NotEnoughBookiesError: no bookie is left to take a position.
            LedgerFencedError: the ledger is not this writer's any more.
            TransientError, OutcomeUnknownError: the metadata store did not answer within the rounds allowed.
            NoSuchLedgerError: the ledger was deleted.
        """
        last_error: TransientError | OutcomeUnknownError | None = None
        for _ in range(self._ports.settings.ensemble_change_attempts_max):
            try:
                ledger = await self._round(ledger)
            except (NotEnoughBookiesError, LedgerFencedError):
                raise
            except (TransientError, OutcomeUnknownError) as error:
                last_error = error
                await self._ports.clock.sleep(_RETRY_S)
                continue
            if not self._state.failed_positions():
                return ledger
            last_error = None
        raise last_error or NotEnoughBookiesError(
            f"ledger {ledger.ledger_id}: bookies kept failing during "
            f"{self._ports.settings.ensemble_change_attempts_max} ensemble changes in a row"
        )

    async def _round(self, ledger: Versioned) -> Versioned:
        before = ledger.metadata.last_fragment
        wanted = Fragment(EntryId(self._state.last_add_confirmed + 1), await self._new_members(ledger))
        self._sent.append(wanted)

        def decide(metadata: LedgerMetadata) -> LedgerMetadata | None:
            is_open = metadata.state is LedgerState.OPEN
            if is_open and metadata.last_fragment in self._sent:
                return None  # the answer to an earlier round's write was lost
            if not is_open or metadata.last_fragment != before:
                raise LedgerFencedError(
                    f"ledger {ledger.ledger_id} is {metadata.state.name} or was changed by another client; "
                    "entries not acknowledged yet may or may not be part of it"
                )
            return metadata.with_last_fragment(wanted.first_entry_id, wanted.members)

        return self._install(await update_metadata(self._ports.ledgers, ledger, decide))

    def _install(self, stored: Versioned) -> Versioned:
        fragment = stored.metadata.last_fragment
        extra = {"ledger_id": stored.ledger_id, "first_entry_id": fragment.first_entry_id}
        _log.info("ensemble changed", extra=extra)
        self._sent.clear()
        self._state.replace(fragment.members)
        return stored

    async def _new_members(self, ledger: Versioned) -> tuple[BookieId, ...]:
        """The last ensemble with as many failed positions replaced as there are bookies for; at least one."""
        writable = (await self._ports.registrations.list()).writable
        members = [lane.bookie for lane in self._state.lanes]
        excluded = self._quarantined()
        replaced = 0
        for position in self._state.failed_positions():
            bookie = choose_replacement(members, writable, excluded, self._ports.rng)
            if bookie is not None:
                members[position] = bookie
                replaced += 1
        if not replaced:
            raise NotEnoughBookiesError(
                f"ledger {ledger.ledger_id}: no writable bookie is left to replace "
                f"{', '.join(self._state.lanes[p].bookie for p in self._state.failed_positions())} "
                f"({len(writable)} registered, all in the ensemble or failed); start another bookie"
            )
        return tuple(members)

    def _quarantined(self) -> set[BookieId]:
        since_s = self._ports.clock.monotonic_s() - self._ports.settings.failed_bookie_quarantine_s
        return {bookie for bookie, failed_at_s in self._failed_at_s.items() if failed_at_s > since_s}
