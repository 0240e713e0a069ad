"""Read a log across its ledgers. The next ledger is computed from the list by a pure function."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from bookie.client.errors import NoSuchEntryError
from bookie.client.log.values import InvalidPositionError, LogEntry, LogPosition, LogTruncatedError
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import LedgerReader, open_reader, poll_interval_s
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.logs.log_list import LogList
from bookie.metadata.logs.log_store import ListedLog, LogLists
from bookie.metadata.port import StoreUnavailableError
from bookie.model.ids import EntryId, LedgerId

_log: Final = logging.getLogger(__name__)
_RETRY_PAUSE_S: Final = 1.0
"""Pause before a store that did not answer is read again."""
_FAILURES_MAX: Final = 60
"""A tail fails after this many consecutive reads without an answer from the store."""
_MISSING_READS_MAX: Final = 3
"""After this many consecutive reads of a missing ledger, it counts as damage and not as a truncation under way."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of a reader: its next position, or with ``is_done`` that the ledger of ``position`` is finished."""

    position: LogPosition
    is_done: bool = False


def next_position_after(name: str, log: LogList, cursor: Cursor | None) -> LogPosition | None:
    """Return the next position; None at the end of the list.

    A ledger that was removed from the list because it was empty is skipped.

    Raises:
        LogTruncatedError: entries at or after the cursor were deleted.
        InvalidPositionError: the log never had that ledger.
    """
    if cursor is None:
        return _start_of(log.ledgers[0]) if log.ledgers else None
    at = cursor.position.ledger_id
    if at in log.ledgers and not cursor.is_done:
        return cursor.position
    if at not in log.ledgers:
        if at > log.last_listed:
            raise InvalidPositionError(f"log {name!r} never had ledger {at}; its last one is {log.last_listed}")
        if at < log.truncated_through or (at == log.truncated_through and not cursor.is_done):
            raise LogTruncatedError(name, cursor.position, _start_of(log.ledgers[0]) if log.ledgers else None)
    following = next((ledger_id for ledger_id in log.ledgers if ledger_id > at), None)
    return None if following is None else _start_of(following)


class LogReader:
    """Reads one log. Get its entries from ``Log.read`` and ``Log.tail``."""

    def __init__(self, ports: ClientPorts, lists: LogLists, name: str, password: bytes | None) -> None:
        self._ports = ports
        self._lists = lists
        self._name = name
        self._password = password
        self._gone = 0
        """Number of consecutive listed ledgers without metadata. After each, the list is read again for the reason."""

    async def read(self, first: LogPosition | None) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries in the order of the log."""
        cursor = None if first is None else Cursor(first)
        is_newest = True  # once: no server that was behind at the call is read after it
        while True:
            listed = await self._lists.read(self._name, is_newest=is_newest)
            is_newest = False
            place = next_position_after(self._name, listed.list, cursor)
            if place is None:
                return
            cursor = Cursor(place)
            try:
                reader = await self._open(listed, place.ledger_id)
                end = await reader.last_entry_id()
                if end >= place.entry_id:
                    async with aclosing(reader.read_range(place.entry_id, end)) as entries:
                        async for entry in entries:
                            position = LogPosition(place.ledger_id, entry.entry_id)
                            cursor = Cursor(position.following())
                            yield LogEntry(position, entry.payload)
            except (NoSuchLedgerError, NoSuchEntryError):
                self._gone += 1
                if self._gone >= _MISSING_READS_MAX:
                    raise
                continue
            self._gone = 0
            if not reader.metadata.is_closed:
                return
            # The metadata may have been read again since then: the ledger may continue after the end known before.
            cursor = Cursor(cursor.position, is_done=end == reader.metadata.last_entry_id)

    async def tail(self, first: LogPosition | None, poll_s: float | None) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries, and wait for new ones. For ``poll_s`` see ``LedgerReader.tail``."""
        wait_s = poll_interval_s(self._ports, poll_s)
        cursor = None if first is None else Cursor(first)
        failures = 0
        while True:
            try:
                listed = await self._lists.read(self._name)
                place = next_position_after(self._name, listed.list, cursor)
                if place is None:
                    failures = 0
                    await self._lists.wait_changed(listed)
                    continue
                cursor = Cursor(place)
                reader = await self._open(listed, place.ledger_id)
                failures = 0
                async with aclosing(reader.tail(place.entry_id, poll_s=wait_s)) as entries:
                    async for entry in entries:
                        position = LogPosition(place.ledger_id, entry.entry_id)
                        cursor = Cursor(position.following())
                        yield LogEntry(position, entry.payload)
                self._gone = 0
                cursor = Cursor(cursor.position, is_done=True)
            except (NoSuchLedgerError, NoSuchEntryError):
                self._gone += 1
                if self._gone >= _MISSING_READS_MAX:
                    raise
            except StoreUnavailableError:
                failures += 1
                if failures >= _FAILURES_MAX:
                    raise
                await self._ports.clock.sleep(_RETRY_PAUSE_S)

    async def _open(self, listed: ListedLog, ledger_id: LedgerId) -> LedgerReader:
        """Return a reader of a listed ledger. Only the last is open, so open metadata of another one is stale."""
        ledger = await self._ports.ledgers.read(ledger_id)
        if not ledger.metadata.is_closed and ledger_id != listed.list.last:
            current = await self._ports.ledgers.current(ledger_id)
            if current is None:
                raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
            ledger = current
        return open_reader(self._ports, ledger, self._password)


def _start_of(ledger_id: LedgerId) -> LogPosition:
    return LogPosition(ledger_id, EntryId(0))
