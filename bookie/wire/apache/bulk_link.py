"""The bulk transfer of entries to and from one bookie's address, over version 2 as long as that succeeds.

Reads and recovery adds are idempotent and independent of their order. So this module raises no errors: requests that
fail on a bulk connection are left to version 3, and after failures without any success, version 2 is no longer used.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Sequence
from typing import Final

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.apache import v2
from bookie.wire.apache.bulk import BulkConnection, Key, batch_key
from bookie.wire.apache.framing import FRAME_BYTES_SAFE_MAX, MalformedFrameError, framed
from bookie.wire.apache.handshake import CONNECT_S_MAX, connect_to
from bookie.wire.apache.reading import WINDOW_MAX, checked_entry, initial_window
from bookie.wire.apache.stream import ConnectionLostError
from bookie.wire.port import READ_BYTES_MAX, AddBatch, EntryResult, Status
from bookie.wire.resolver import BookieAddress

_log = logging.getLogger(__name__)

_RUN_MIN: Final = 8
"""Minimum number of consecutive entries for a batch read."""
_WINDOW_MAX: Final = 512
"""Maximum number of concurrent reads of single entries, after as many small entries have arrived."""
_SMALL_ENTRY_BYTES_MAX: Final = READ_BYTES_MAX // _WINDOW_MAX
"""Maximum bytes of a small entry, 16 KiB. After larger ones, at most ``reading.WINDOW_MAX`` reads are concurrent."""
_ADD: Final = v2.packet_header(v2.ADD_ENTRY, v2.RECOVERY_ADD | v2.HIGH_PRIORITY)
"""High priority: see ``adding.RECOVERY_PRIORITY``."""
_READ_PACKET_HEADER: Final = v2.packet_header(v2.READ_ENTRY)
_LENGTH: Final = struct.Struct(">i")
_IDS: Final = struct.Struct(">qq")
_READ_HEAD: Final = _LENGTH.pack(len(_READ_PACKET_HEADER) + _IDS.size) + _READ_PACKET_HEADER
_READ_ANSWER_SIZE: Final = 24
"""Bytes of a single read's answer before the entry."""


class BulkLink:
    """The use of version 2, in addition to the connection of version 3. Connects at first use, and after a failure."""

    def __init__(self, address: BookieAddress, frame_bytes_max: int) -> None:
        self._address = address
        self._frame_bytes_max = frame_bytes_max
        self._opening: asyncio.Task[BulkConnection | None] | None = None
        self._request_ids = itertools.count(1)
        self._good_operations: set[int] = set()
        """Opcodes with a good answer over any of the connections so far."""
        self._is_without_batches = False
        self.is_refused = False
        """Whether the bookie gets no more requests in version 2, because none of them succeeded."""

    async def store(self, batch: AddBatch) -> bool:
        """Send a batch of recovery adds; return whether the bookie acknowledged every entry. False: use version 3."""
        connection = await self._connection()
        if connection is None or len(batch.master_key) != v2.MASTER_KEY_SIZE:
            return False
        requests: list[tuple[Key, Sequence[bytes]]] = []
        start = _ADD + batch.master_key
        for entry in batch.entries:
            ids = _IDS.unpack_from(entry)
            requests.append(((v2.ADD_ENTRY, *ids), (_LENGTH.pack(len(start) + len(entry)) + start, entry)))
        answers = await self._ask(connection, v2.ADD_ENTRY, requests)
        return all(answer is not None for answer in answers)

    async def fetch(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], results: list[EntryResult]) -> None:
        """Read entries into ``results``, in their order, up to ``READ_BYTES_MAX`` or the first failure.

        A round requests at most as many entries as have arrived before (the first one ``initial_window``), and at most
        as many as fit into ``READ_BYTES_MAX`` by the largest size so far. So whatever the sizes are, ``results`` grows
        to at most ``READ_BYTES_MAX`` and one round, which adds at most ``ANSWERS_BYTES_MAX`` and one entry.
        """
        connection = await self._connection()
        size, largest = 0, 1
        while connection is not None and len(results) < len(entry_ids) and size < READ_BYTES_MAX:
            first = len(results)
            window = max(initial_window(self._frame_bytes_max), first)
            if first:
                window = min(window, _window(READ_BYTES_MAX - size, largest))
            run = _run(entry_ids, first)
            if run >= _RUN_MIN and not self._is_without_batches:
                packets = await self._read_run(connection, ledger_id, entry_ids[first], run)
            else:
                wanted = entry_ids[first : first + window]
                packets = await self._read_each(connection, ledger_id, wanted)
            for entry_id, packet in zip(entry_ids[first : first + len(packets)], packets, strict=False):
                result = checked_entry(packet, ledger_id, entry_id)
                if result.status is not Status.OK:
                    return
                results.append(result)
                size += len(packet)
                largest = max(largest, len(packet))
            if not packets:
                return

    async def close(self) -> None:
        """End requests in flight; their callers continue over version 3, which is closed as well."""
        self.is_refused = True
        if self._opening is not None:
            await cancel(self._opening)
            if not self._opening.cancelled() and (opened := self._opening.result()) is not None:
                await opened.close("the connection was closed")

    async def _read_run(
        self, connection: BulkConnection, ledger_id: LedgerId, first: EntryId, count: int
    ) -> Sequence[bytes]:
        """Read consecutive entries from ``first`` on: as many as fit into one answer, or up to one that is missing."""
        request_id = next(self._request_ids)
        request = v2.BatchReadV2(ledger_id, first, request_id, count, FRAME_BYTES_SAFE_MAX)
        asked = [(batch_key(request_id), (framed(v2.encode_request(request)),))]
        [answer] = await self._ask(connection, v2.BATCH_READ_ENTRY, asked)
        try:
            return v2.batch_entries(answer) if answer is not None else ()
        except MalformedFrameError as error:
            connection.end(str(error))
            return ()

    async def _read_each(
        self, connection: BulkConnection, ledger_id: LedgerId, entry_ids: Sequence[EntryId]
    ) -> Sequence[bytes]:
        """Read entries one by one, up to the first failure."""
        requests = [
            ((v2.READ_ENTRY, ledger_id, entry_id), (_READ_HEAD + _IDS.pack(ledger_id, entry_id),))
            for entry_id in entry_ids
        ]
        packets = []
        for answer in await self._ask(connection, v2.READ_ENTRY, requests):
            if answer is None:
                break
            packets.append(answer[_READ_ANSWER_SIZE:])
        return packets

    async def _ask(
        self, connection: BulkConnection, operation: int, requests: Sequence[tuple[Key, Sequence[bytes]]]
    ) -> Sequence[bytes | None]:
        """Send requests. Unless the operation ever succeeded, a missing answer shows that it is not supported."""
        is_answered = False
        try:
            answers = await connection.ask(requests)
            is_answered = True
            return answers
        except ConnectionLostError as error:
            extra = {"address": self._where, "reason": str(error)}
            _log.info("bulk transfer continues over version 3", extra=extra)
            return [None] * len(requests)
        finally:
            self._good_operations |= connection.good_operations
            if not is_answered and operation not in self._good_operations:
                self._note_unsupported_operation(operation)

    @property
    def _where(self) -> str:
        return f"{self._address.host}:{self._address.port}"

    def _note_unsupported_operation(self, operation: int) -> None:
        if operation == v2.BATCH_READ_ENTRY:  # bookies before 4.17 close the connection upon one
            self._is_without_batches = True
        elif not self.is_refused:
            self.is_refused = True
            _log.info("no bulk transfer any more: it never succeeded", extra={"address": self._where})

    async def _connection(self) -> BulkConnection | None:
        """Return an open connection; None if there is none. A cancelled caller does not stop the opening for others."""
        if self.is_refused:
            return None
        opening = self._opening
        if opening is None or (opening.done() and _is_over(opening)):
            opening = self._opening = guarded("open bulk connection", self._open())
        await asyncio.wait([opening])
        return None if opening.cancelled() else opening.result()

    async def _open(self) -> BulkConnection | None:
        connection = BulkConnection(self._frame_bytes_max)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await connect_to(self._address, connection)
        except (TimeoutError, ConnectionLostError):
            connection.end("it could not be opened")
            return None  # version 3 meets the same error and reports it
        return connection


def _is_over(opening: asyncio.Task[BulkConnection | None]) -> bool:
    return opening.cancelled() or (opened := opening.result()) is None or opened.is_over


def _window(rest: int, largest: int) -> int:
    """Return the number of entries to request one by one, with ``rest`` bytes left, by the ``largest`` size so far."""
    return min(rest // largest + 1, _WINDOW_MAX if largest <= _SMALL_ENTRY_BYTES_MAX else WINDOW_MAX)


def _run(entry_ids: Sequence[EntryId], first: int) -> int:
    """Return the number of consecutive ``entry_ids`` from index ``first`` on."""
    count = 1
    start = entry_ids[first] - first
    while first + count < len(entry_ids) and entry_ids[first + count] - (first + count) == start:
        count += 1
    return count
