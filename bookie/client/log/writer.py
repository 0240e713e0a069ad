"""The writer of a log: appends entries in order, to as many ledgers as needed.

At a roll-over the old ledger is closed before the new one is listed, and the new one is listed before it is written to.
So an entry is acknowledged only after all entries of the ledgers before its own, and at most one ledger of the log is
open at any time (T13, docs/invariants.md).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from types import TracebackType
from typing import Final

from bookie.client.errors import (
    AddOutcomeUnknownError,
    CloseOutcomeUnknownError,
    EntryTooLargeError,
    LedgerDeletedError,
    LedgerFencedError,
    WriterClosedError,
)
from bookie.client.log.takeover import LogLedgerFactory
from bookie.client.log.trimming import finish_trimming
from bookie.client.log.values import LogDeposedError, LogOptions, LogPosition
from bookie.client.writer.creation import PlannedLedger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.logs.log_list import LogConflictError, LogList
from bookie.metadata.logs.log_store import ListedLog, LogFullError, NoSuchLogError
from bookie.model.errors import BkhealError, OutcomeUnknownError, TransientError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import ENTRY_PAYLOAD_MAX
from bookie.runtime.fault_points import fault_point

_log: Final = logging.getLogger(__name__)

_CONCURRENT_WRITER_ERRORS: Final = (
    LedgerFencedError,
    LedgerDeletedError,
    CloseOutcomeUnknownError,
    NoSuchLedgerError,
    NoSuchLogError,
)
"""The errors of a writer whose ledger was taken over or deleted."""


class LogWriter:
    """Appends entries to a log. Get it from ``Log.write``; use it as an async context.

    A log has one writer at a time: the next call of ``Log.write`` takes the log over and deposes this writer. After the
    first failed append every later one fails too, so the log never contains an entry without those before it.
    """

    def __init__(self, author: LogLedgerFactory, listed: ListedLog, writer: LedgerWriter) -> None:
        self._author = author
        self._listed = listed
        self._turn = asyncio.Lock()
        self._error: BkhealError | None = None
        self._is_closed = False
        self._plan: PlannedLedger | None = None
        """The next ledger, from the moment at which the old one is being closed."""
        self._start(writer)

    @property
    def name(self) -> str:
        """The log's name."""
        return self._listed.name

    @property
    def options(self) -> LogOptions:
        """How this writer creates ledgers."""
        return self._author.options

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written now."""
        return self._writer.ledger_id

    async def append(self, payload: bytes) -> LogPosition:
        """Append an entry and return its position once it is durable on ``Qa`` bookies.

        Raises:
            EntryTooLargeError: more than ``ENTRY_PAYLOAD_MAX`` bytes.
            WriterClosedError: the writer was closed.
            LogDeposedError: another writer took the log over; the entry may or may not be part of it.
            AddOutcomeUnknownError: the writer failed; the entry may or may not be part of the log. Write again.
            LogFullError: the log's list of ledgers is full; truncate it.
            StoreUnavailableError, WriteOutcomeUnknownError, MetadataConflictError, LogConflictError: the log was
                interrupted while rolling over to a new ledger; the entry is not part of the log, and the next append
                continues the roll-over.
        """
        return await (await self.submit(payload))

    async def submit(self, payload: bytes) -> asyncio.Future[LogPosition]:
        """Wait for room, admit an entry, and return a future of the result of ``append``.

        Entries get their positions in the order of the calls, also across a roll-over.
        """
        if len(payload) > ENTRY_PAYLOAD_MAX:
            raise EntryTooLargeError(f"entry of {len(payload)} bytes, the largest is {ENTRY_PAYLOAD_MAX}")
        async with self._turn:
            self._check()
            if self._plan is not None or self._is_due(len(payload)):
                await self._roll_if_possible()
            try:
                added = await self._writer.submit(payload)
            except AddOutcomeUnknownError as error:
                raise self._fail(error) from error
            self._bytes += len(payload)
            self._entries += 1
        placed: asyncio.Future[LogPosition] = asyncio.get_running_loop().create_future()
        added.add_done_callback(functools.partial(self._place, placed, self._writer.ledger_id))
        return placed

    async def roll(self) -> None:
        """Continue in a new ledger, so that truncation can free everything written so far. An empty ledger is kept.

        Raises:
            LogDeposedError, AddOutcomeUnknownError, LogFullError, NotEnoughBookiesError, StoreUnavailableError,
                WriteOutcomeUnknownError, MetadataConflictError, LogConflictError, WriterClosedError: see ``append``.
        """
        async with self._turn:
            self._check()
            if self._plan is not None or self._entries:
                await self._roll()

    async def close(self) -> None:
        """Close the ledger being written. The log can be written again by ``Log.write``. Idempotent.

        Raises:
            LogDeposedError: another writer took the log over, and decides its end.
            StoreUnavailableError, OutcomeUnknownError, MetadataConflictError: close it again, or leave it: the next
                writer closes the ledger.
        """
        async with self._turn:
            if isinstance(self._error, LogDeposedError):
                self._is_closed = True
                raise self._fresh_error(self._error)
            if self._is_closed:
                return
            await self._close_ledger()
            await self._unlist_empty_ledger()
            self._is_closed = True

    async def abandon(self) -> None:
        """Stop at once and leave the ledger open, as a crash would; the next writer of the log closes it."""
        self._is_closed = True
        await self._writer.abandon()

    async def __aenter__(self) -> LogWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BkhealError as close_error:
            if error is None:
                raise
            extra = {"log": self.name, "reason": str(close_error)}  # the error of the body is raised
            _log.warning("the last ledger of a log is left open", extra=extra)
        except BaseException:  # a cancellation: nothing runs in the background after the block
            await self._writer.stop()
            raise

    def _start(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._bytes = 0
        self._entries = 0
        self._started_s = self._author.ports.clock.monotonic_s()
        self._is_overdue_logged = False

    def _check(self) -> None:
        if self._is_closed:
            raise WriterClosedError(f"the writer of log {self.name!r} is closed")
        if self._error is not None:
            raise self._fresh_error(self._error)

    def _is_due(self, payload_bytes: int) -> bool:
        """Whether the next entry belongs in a new ledger."""
        if not self._entries:
            return False
        options = self._author.options
        age_s = self._author.ports.clock.monotonic_s() - self._started_s
        is_due = self._bytes + payload_bytes > options.ledger_bytes_max or age_s >= options.ledger_age_s_max
        if not is_due and not fault_point("log.roll_early"):
            return False
        if self._author.lists.has_room(self._listed):
            return True
        if not self._is_overdue_logged:
            self._is_overdue_logged = True
            _log.warning("a log continues in its last ledger: its list is full, truncate it", extra={"log": self.name})
        return False

    async def _roll_if_possible(self) -> None:
        """Roll over, or continue in the old ledger while no new one can be planned."""
        try:
            await self._roll()
        except (TransientError, OutcomeUnknownError) as error:
            if self._plan is not None or self._error is not None:
                raise
            _log.info("a log rolls over later", extra={"log": self.name, "reason": str(error)})

    async def _roll(self) -> None:
        """Close the ledger, list a new one, and write to it. After a failure the next call continues from there."""
        if self._plan is None:
            self._plan = await self._author.plan(self._listed)
        # The plan is kept after a failure, so the same ledger is listed, and only once. Closing may be repeated.
        await self._close_ledger()
        self._check()
        try:
            self._listed, writer = await self._author.start(self._listed, self._plan, self._check_list_unchanged)
        except (NoSuchLogError, LogFullError, LogDeposedError) as error:
            raise self._fail(error) from error
        except LogConflictError:  # nothing was listed; another client may have created a ledger with the planned id
            self._plan = await self._author.plan(self._listed)
            raise
        self._plan = None
        self._start(writer)

    def _check_list_unchanged(self, now: LogList) -> None:
        if now.is_deleted:
            raise LogDeposedError(f"log {self.name!r} was deleted")
        if now.writer != self._author.token:
            raise LogDeposedError(f"another writer has taken log {self.name!r} over")

    async def _close_ledger(self) -> None:
        """Close the ledger being written, after every entry admitted to it is acknowledged."""
        try:
            metadata = await self._writer.close()
        except (CloseOutcomeUnknownError, AddOutcomeUnknownError, NoSuchLedgerError, WriterClosedError) as error:
            raise self._fail(error) from error
        assert metadata.last_entry_id is not None, "it is closed"
        # There may be more entries than were counted: an append may be cancelled after its entry was admitted.
        if metadata.last_entry_id < self._entries - 1 and self._error is None:
            why = f"ledger {self.ledger_id} was closed after entry {metadata.last_entry_id} of {self._entries}"
            raise self._fail(AddOutcomeUnknownError(f"the writer of log {self.name!r} failed: {why}"))

    async def _unlist_empty_ledger(self) -> None:
        """Remove an empty last ledger from the list. Best effort: otherwise the next takeover does it."""
        if self._entries:
            return
        empty = self._writer.ledger_id

        def decide(now: LogList) -> LogList | None:
            self._check_list_unchanged(now)
            return now.without((empty,), is_truncation=False) if empty in now.ledgers else None

        try:
            self._listed = await self._author.lists.change(self._listed, decide)
            self._listed = await finish_trimming(self._author.ports, self._author.lists, self._listed)
        except BkhealError as error:
            _log.info("an empty ledger stays listed", extra={"log": self.name, "reason": str(error)})

    def _place(self, placed: asyncio.Future[LogPosition], ledger_id: LedgerId, added: asyncio.Future[EntryId]) -> None:
        if added.cancelled():
            placed.cancel()
            return
        error = added.exception()
        if error is not None:
            error = self._fail(error) if isinstance(error, BkhealError) else error
        if placed.done():
            return
        if error is None:
            placed.set_result(LogPosition(ledger_id, added.result()))
        else:
            placed.set_exception(error)
            placed.exception()  # an application may drop the future; that is not an unhandled error

    def _fail(self, error: BkhealError) -> BkhealError:
        """Record the first failure as an error of the log, and return a new copy of it."""
        if self._error is None:
            if isinstance(error, _CONCURRENT_WRITER_ERRORS):
                self._error = LogDeposedError(f"another writer has taken log {self.name!r} over ({error})")
            else:
                self._error = error
        return self._fresh_error(self._error)

    def _fresh_error(self, error: BkhealError) -> BkhealError:
        """Return a new error each time, because the traceback of an error grows each time it is raised."""
        if isinstance(error, LogDeposedError):
            return LogDeposedError(f"{error}; write to the log again to take it back, and read it to see its end")
        if isinstance(error, AddOutcomeUnknownError):
            return AddOutcomeUnknownError(str(error))
        return error
