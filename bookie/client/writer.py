"""The ledger writer: a bounded pipeline of appends, ensemble change on failure, close.

Entries under way are the ``pipeline``'s; this module admits them in order and seals the ledger. One writer owns a
ledger's last fragment; a conflict there means that another client has taken over, and is never retried (S4).

Not here: fencing others out (recovery), delayed ensemble change, explicit LAC.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final

from bookie.client.cas import update_metadata
from bookie.client.errors import (
    AddOutcomeUnknownError,
    CloseOutcomeUnknownError,
    EntryTooLargeError,
    LedgerFencedError,
    WriterClosedError,
)
from bookie.client.pipeline import Pipeline
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers import Versioned
from bookie.model.digest import Digest, master_key
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.packet import ENTRY_PAYLOAD_MAX, pack

_log: Final = logging.getLogger(__name__)

_TURN_ENTRIES: Final = 128
"""Admissions after which the loop gets a turn, so that a burst is sent while it is still being admitted."""


class LedgerWriter:
    """Appends entries to one open ledger. Create it with ``BookKeeper.create_ledger``; use as an async context."""

    def __init__(self, ports: ClientPorts, ledger: Versioned, digest: Digest, password: bytes) -> None:
        self._ports = ports
        self._digest = digest
        self._pipeline = Pipeline(ports, ledger, master_key(password))
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closing = asyncio.Lock()
        self._is_closed = False
        self._is_abandoned = False

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written."""
        return self._pipeline.ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._pipeline.ledger.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """Last entry acknowledged to the application; -1 before the first."""
        return self._pipeline.state.last_add_confirmed

    async def append(self, payload: bytes) -> EntryId:
        """Append an entry and return its id once ``Qa`` bookies hold it durably.

        Raises:
            EntryTooLargeError: more than ``ENTRY_PAYLOAD_MAX`` bytes.
            WriterClosedError: the writer was closed.
            LedgerFencedError: another client took the ledger over; the entry may or may not be part of it.
            AddOutcomeUnknownError: the writer failed; the entry may or may not be part of the ledger.
        """
        return await (await self.submit(payload))

    async def submit(self, payload: bytes) -> asyncio.Future[EntryId]:
        """Admit an entry to the pipeline, waiting for room, and return a future of what ``append`` returns.

        Entries get their ids in the order of the calls.
        """
        if len(payload) > ENTRY_PAYLOAD_MAX:
            raise EntryTooLargeError(f"entry of {len(payload)} bytes, the largest is {ENTRY_PAYLOAD_MAX}")
        if self._waiting or not self._pipeline.has_room:
            await self._wait_turn()
        if self._is_closed:
            raise WriterClosedError(f"the writer of ledger {self.ledger_id} is closed")
        if self._pipeline.error is not None:
            raise self._pipeline.in_doubt()
        waiter = self._admit(payload)
        if not self._pipeline.state.next_entry_id % _TURN_ENTRIES:
            await asyncio.sleep(0)
        return waiter

    async def settle(self) -> None:
        """Wait until every admitted entry is on its whole write set, as far as its members are alive.

        Raises:
            TimeoutError: not within ``close_timeout_s``.
            AddOutcomeUnknownError: the writer failed.
        """
        async with asyncio.timeout(self._ports.settings.close_timeout_s):
            await self._pipeline.wait_drained()
        if self._pipeline.error is not None:
            raise self._pipeline.in_doubt()

    async def close(self) -> LedgerMetadata:
        """Seal the ledger at the last acknowledged entry and return its final metadata. Idempotent.

        Waits first, with a deadline, for copies still on their way; bookies that stay short are marked for repair.
        A call that fails or is cancelled may be repeated, and goes on where it ended.

        Raises:
            CloseOutcomeUnknownError: another client recovers the ledger or closed it at another entry.
            WriterClosedError: the ledger was abandoned.
        """
        if self._is_abandoned:
            raise WriterClosedError(f"ledger {self.ledger_id} was abandoned by its writer; recover it to close it")
        self._is_closed = True
        async with self._closing:
            await self._finish()
            pipeline = self._pipeline
            if isinstance(pipeline.error, LedgerFencedError):
                raise self._close_in_doubt() from pipeline.error
            pipeline.ledger = await update_metadata(self._ports.ledgers, pipeline.ledger, self._sealed)
            await self._mark_short()
            return pipeline.ledger.metadata

    async def abandon(self) -> None:
        """Stop writing without closing: the ledger stays open until somebody recovers it."""
        self._is_closed = self._is_abandoned = True
        self._pipeline.fail(AddOutcomeUnknownError("it was abandoned"))
        await self._pipeline.stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except BkhealError as close_error:  # the body's own error is the one to report
            _log.warning("ledger left open", extra={"ledger_id": self.ledger_id, "reason": str(close_error)})

    async def _wait_turn(self) -> None:
        """Wait for room, behind those who wait already."""
        self._waiting += 1
        try:
            async with self._turn:
                await self._pipeline.wait_room()
        finally:
            self._waiting -= 1

    def _admit(self, payload: bytes) -> asyncio.Future[EntryId]:
        ledger_id, state = self._pipeline.ledger.ledger_id, self._pipeline.state
        length = state.next_length + len(payload)
        packet = pack(self._digest, ledger_id, state.next_entry_id, state.last_add_confirmed, length, payload)
        return self._pipeline.admit(packet, len(payload))

    async def _finish(self) -> None:
        """Bring the pipeline to its end: nothing is acknowledged any more once this returns."""
        deadline = self._ports.settings.close_timeout_s
        try:
            async with asyncio.timeout(deadline):
                await self._pipeline.wait_drained()
        except TimeoutError:
            why = f"not every copy was acknowledged within {deadline:g} s of closing"
            self._pipeline.fail(AddOutcomeUnknownError(why))
        await self._pipeline.stop()

    async def _mark_short(self) -> None:
        short = self._pipeline.state.short
        if short:
            await self._ports.tasks.mark(self.ledger_id, sorted(short))
            _log.info("ledger closed short of its write quorum", extra={"ledger_id": self.ledger_id})
            short.clear()

    def _sealed(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        last, length = self._pipeline.state.last_add_confirmed, self._pipeline.state.confirmed_length
        if metadata.state is LedgerState.OPEN:
            return metadata.closed(last, length)
        if metadata.is_closed and (metadata.last_entry_id, metadata.length) == (last, length):
            return None
        raise self._close_in_doubt()

    def _close_in_doubt(self) -> CloseOutcomeUnknownError:
        return CloseOutcomeUnknownError(
            f"ledger {self.ledger_id} is being recovered, or was closed, by another client; "
            f"this writer's last acknowledged entry is {self.last_add_confirmed}; read the ledger to see its end"
        )
