"""The ledger writer: a bounded pipeline of appends, ensemble change on failure, close.

This module admits entries in order to the ``pipeline``, which sends them, and closes the ledger. One writer owns the
last fragment of a ledger; a conflict there means that another client has taken over, and is never retried (S4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from bookie.client.cas import newest, update_metadata
from bookie.client.errors import (
    AddOutcomeUnknownError,
    CloseOutcomeUnknownError,
    EntryTooLargeError,
    InvalidEntryIdError,
    LedgerFencedError,
    WriterClosedError,
)
from bookie.client.marks import mark_incomplete
from bookie.client.options import NO_OPTIONS, WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.writer.explicit_lac import ExplicitLac
from bookie.client.writer.own_ids import ExplicitIdQueue
from bookie.client.writer.pipeline import Pipeline, Waiter
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import Digest, master_key
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.packet import ENTRY_PAYLOAD_MAX, pack
from bookie.runtime.fault_points import fault_point

__all__ = ["LedgerWriter", "WriterOptions"]

_log: Final = logging.getLogger(__name__)

_ENTRIES_PER_TURN: Final = 128
"""Number of admissions after which the event loop runs other tasks, so that a burst is sent while it is admitted."""


class LedgerWriter:
    """Appends entries to one open ledger. Create it with ``BookKeeper.create_ledger``; use as an async context."""

    def __init__(
        self,
        ports: ClientPorts,
        ledger: Versioned,
        digest: Digest,
        password: bytes,
        *,
        options: WriterOptions = NO_OPTIONS,
        incarnations: Mapping[BookieId, str] | None = None,
    ) -> None:
        """Write a ledger that was just created; needs a running loop.

        Args:
            ports: see ``ClientPorts``.
            ledger: the metadata as created.
            digest: the ledger's digest, keyed with the password.
            password: the ledger's password.
            options: see ``WriterOptions``.
            incarnations: the members' disks as looked up before the ledger was created
                (``Registrations.incarnations``). If a member is missing here, any disks registered under its name
                accept its adds.
        """
        key = master_key(password)
        self._ports = ports
        self._digest = digest
        self._ledger_id = ledger.ledger_id
        self._pipeline = Pipeline(ports, ledger, key, options, incarnations or {})
        self._state = self._pipeline.state
        self._own_ids: ExplicitIdQueue | None = None
        if options.has_own_entry_ids:
            self._own_ids = ExplicitIdQueue(self._pipeline, ports.settings, self._admit)
            self._pipeline.on_failure = self._own_ids.drop
        self._explicit_lac: ExplicitLac | None = None
        if options.explicit_lac_interval_s is not None:
            self._explicit_lac = ExplicitLac(ports, self._pipeline, digest, key, options.explicit_lac_interval_s)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closing = asyncio.Lock()
        self._is_closed = False
        self._is_abandoned = False

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written."""
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._pipeline.ledger.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """Last entry acknowledged to the application; -1 before the first."""
        return self._state.last_add_confirmed

    async def append(self, payload: bytes) -> EntryId:
        """Append an entry and return its id once ``Qa`` bookies hold it durably.

        Raises:
            EntryTooLargeError: more than ``ENTRY_PAYLOAD_MAX`` bytes.
            InvalidEntryIdError: the application numbers the entries: use ``append_at``.
            WriterClosedError: the writer was closed.
            LedgerFencedError: another client took the ledger over; the entry may or may not be part of it.
            LedgerDeletedError: the ledger was deleted.
            AddQuorumTimeoutError: it took longer than was allowed; the entry may or may not be part of the ledger.
            AddOutcomeUnknownError: the writer failed; the entry may or may not be part of the ledger.
        """
        return await (await self.submit(payload))

    async def append_at(self, entry_id: EntryId, payload: bytes) -> EntryId:
        """Append an entry with an id chosen by the caller, and return after it and all before it are durable.

        Raises:
            InvalidEntryIdError: not an entry id, or the writer numbers the entries itself.
            DuplicateEntryIdError: the id was submitted before.
            EntryIdTooFarError: too much would wait for missing lower ids. None of these three errors changes anything.
            BkhealError: see ``append``.
        """
        return await (await self.submit_at(entry_id, payload))

    async def submit(self, payload: bytes) -> asyncio.Future[EntryId]:
        """Wait for room, admit an entry to the pipeline, and return a future of the result of ``append``.

        Entries get their ids in the order of the calls.
        """
        if len(payload) > ENTRY_PAYLOAD_MAX:
            raise self._too_large_error(payload)
        if self._own_ids is not None:
            raise InvalidEntryIdError("the application numbers the entries of this writer: give an id (append_at)")
        if self._waiting or not self._pipeline.has_room:
            await self._wait_turn()
        if self._is_closed or self._pipeline.error is not None:
            raise self._refusal()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._admit(payload, waiter)
        if not self._state.next_entry_id % _ENTRIES_PER_TURN:
            await asyncio.sleep(0)
        return waiter

    async def submit_at(self, entry_id: EntryId, payload: bytes) -> asyncio.Future[EntryId]:
        """Accept an entry with an id chosen by the caller and return a future of the result of ``append_at``.

        The call waits for room in the pipeline, unless a lower id is missing.
        """
        if self._own_ids is None:
            raise InvalidEntryIdError("this writer numbers the entries itself: create it with has_own_entry_ids")
        if len(payload) > ENTRY_PAYLOAD_MAX:
            raise self._too_large_error(payload)
        if self._is_closed or self._pipeline.error is not None:
            raise self._refusal()
        waiter = await self._own_ids.put(entry_id, payload)
        if not self._state.next_entry_id % _ENTRIES_PER_TURN:
            await asyncio.sleep(0)
        return waiter

    async def settle(self) -> None:
        """Wait until every admitted entry is on all members of its write set that were not given up.

        Raises:
            TimeoutError: not within ``close_timeout_s``.
            AddOutcomeUnknownError: the writer failed.
        """
        async with asyncio.timeout(self._ports.settings.close_timeout_s):
            await self._pipeline.wait_drained()
        if self._pipeline.error is not None:
            raise self._pipeline.outcome_unknown_error()

    async def close(self) -> LedgerMetadata:
        """Close the ledger at the last acknowledged entry and return its final metadata. Idempotent.

        The call first waits, with a deadline, for outstanding copies. Bookies that lack copies after that are marked
        for repair. A failed or cancelled call may be repeated, and continues where it stopped.

        Raises:
            CloseOutcomeUnknownError: another client recovers the ledger or closed it at another entry.
            NoSuchLedgerError: the ledger was deleted.
            WriterClosedError: the ledger was abandoned.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer from the metadata store, or the task of the
                ledger kept changing; close again.
            MetadataConflictError: the metadata kept changing; close again.
        """
        if self._is_abandoned:
            raise WriterClosedError(f"ledger {self.ledger_id} was abandoned by its writer; recover it to close it")
        self._is_closed = True
        async with self._closing:
            await self._finish()
            pipeline = self._pipeline
            if isinstance(pipeline.error, LedgerFencedError):  # the metadata here is older than the fence
                pipeline.ledger = await newest(self._ports.ledgers, pipeline.ledger)
            incomplete = sorted(self._state.incomplete)
            # Before the close, because after it no other process has this information, and again after it, because a
            # worker may have completed the task while the ledger was open.
            await mark_incomplete(self._ports, self.ledger_id, incomplete)
            pipeline.ledger = await update_metadata(self._ports.ledgers, pipeline.ledger, self._closed_metadata)
            await mark_incomplete(self._ports, self.ledger_id, incomplete)
            self._state.incomplete.difference_update(incomplete)
            return pipeline.ledger.metadata

    async def abandon(self) -> None:
        """Stop writing without closing: the ledger stays open until a recovery."""
        self._is_closed = self._is_abandoned = True
        self._pipeline.fail(AddOutcomeUnknownError("it was abandoned"))
        await self._stop()

    async def stop(self) -> None:
        """Stop writing, and everything in the background. The ledger stays open, and ``close`` may be called."""
        self._is_closed = True
        self._pipeline.fail(AddOutcomeUnknownError("it was stopped"))
        await self._stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BkhealError as close_error:
            if error is None:
                raise
            extra = {"ledger_id": self.ledger_id, "reason": str(close_error)}  # the error of the body is raised
            _log.warning("ledger left open", extra=extra)
        except BaseException:  # a cancellation: nothing runs in the background after the block
            await self.stop()
            raise

    async def _wait_turn(self) -> None:
        """Wait for room, after the earlier waiters."""
        self._waiting += 1
        try:
            async with self._turn:
                await self._pipeline.wait_room()
        finally:
            self._waiting -= 1

    def _admit(self, payload: bytes, waiter: Waiter) -> None:
        state, size = self._state, len(payload)
        length = state.next_length + size
        packet = pack(self._digest, self._ledger_id, state.next_entry_id, state.last_add_confirmed, length, payload)
        self._pipeline.admit(packet, size, waiter)

    def _refusal(self) -> BkhealError:
        if self._is_closed:
            return WriterClosedError(f"the writer of ledger {self.ledger_id} is closed")
        return self._pipeline.outcome_unknown_error()

    @staticmethod
    def _too_large_error(payload: bytes) -> EntryTooLargeError:
        return EntryTooLargeError(f"entry of {len(payload)} bytes, the largest is {ENTRY_PAYLOAD_MAX}")

    async def _finish(self) -> None:
        """Finish the pipeline: no entry is acknowledged after this returns."""
        deadline = self._ports.settings.close_timeout_s
        try:
            async with asyncio.timeout(0 if fault_point("writer.early_close") else deadline):
                if self._own_ids is not None:
                    await self._own_ids.wait_admitted()
                    self._own_ids.drop()
                await self._pipeline.wait_drained()
        except TimeoutError:
            why = f"not every copy was acknowledged within {deadline:g} s of closing"
            self._pipeline.fail(AddOutcomeUnknownError(why))
        await self._stop()

    async def _stop(self) -> None:
        if self._explicit_lac is not None:
            await self._explicit_lac.stop()
        await self._pipeline.stop()

    def _closed_metadata(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        last, length = self._state.last_add_confirmed, self._state.confirmed_length
        if metadata.state is LedgerState.OPEN and not isinstance(self._pipeline.error, LedgerFencedError):
            return metadata.closed(last, length)
        if metadata.is_closed and (metadata.last_entry_id, metadata.length) == (last, length):
            return None
        raise self._close_in_doubt()

    def _close_in_doubt(self) -> CloseOutcomeUnknownError:
        doubt = CloseOutcomeUnknownError(
            f"ledger {self.ledger_id} is being recovered, or was closed, by another client; "
            f"this writer's last acknowledged entry is {self.last_add_confirmed}; read the ledger to see its end"
        )
        doubt.__cause__ = self._pipeline.error
        return doubt
