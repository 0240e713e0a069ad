"""Reads over Apache's protocol: one request for each entry, many of them in flight, with results in their order.

The ids in each received entry are checked; only the caller has the ledger's digest to verify its content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, packet_ids
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.connection import ApacheAnswer, ExpectedAnswer, FutureWaiter, Version3Connection
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.port import READ_BYTES_MAX, EntryResult, ReadReply, Status

WINDOW_MAX: Final = 64
"""Maximum number of entries in flight for one read."""
_INITIAL_WINDOW: Final = 16
"""The same while the sizes are unknown: 16 of the largest entries of bkheal's writers are 16 MiB.

Each answer allows only one more in flight, because a small entry at the start does not predict the later ones.
"""
_RECOVERY_PRIORITY: Final = 100
_ENTRY_STATUSES: Final = frozenset(
    (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER, Status.LIMBO, Status.CORRUPT, Status.IO_ERROR)
)
"""Outcomes about one entry; any other concerns the whole read."""


class EntryReads:
    """One read of a ledger's entries."""

    def __init__(self, connection: Version3Connection, ledger_id: LedgerId, fence_key: bytes | None) -> None:
        self._connection = connection
        self._ledger_id = ledger_id
        self._request = pb.Request(readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY))
        if fence_key is not None:
            self._request.header.priority = _RECOVERY_PRIORITY
            self._request.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
            self._request.readRequest.masterKey = fence_key
        self._waiting: deque[tuple[EntryId, int, FutureWaiter]] = deque()

    async def read(self, entry_ids: Sequence[EntryId], results: list[EntryResult]) -> ReadReply:
        """Read as many of ``entry_ids`` as ``READ_BYTES_MAX`` allows.

        ``results`` contains the results of the first ones, and grows as answers arrive.

        Raises:
            ConnectionLostError: the connection ended; ``results`` contains the entries received before.
        """
        sizes = [len(result.packet) for result in results]
        size, largest = sum(sizes), max(sizes, default=0)
        try:
            at_first = initial_window(self._connection.frame_bytes_max)
            while len(results) < len(entry_ids) and size < READ_BYTES_MAX:
                window = at_first + len(results)
                if results:
                    window = min(window, _window(READ_BYTES_MAX - size, largest))
                if len(self._waiting) <= window // 2:
                    first = len(results) + len(self._waiting)
                    await self._ask(entry_ids[first : first + window - len(self._waiting)])
                entry_id, _, waiter = self._waiting[0]
                answer = await waiter.future
                self._waiting.popleft()
                result = entry_result(answer, self._ledger_id, entry_id)
                if result.status not in _ENTRY_STATUSES:
                    return ReadReply(result.status, tuple(results), result.detail)
                results.append(result)
                size += len(result.packet)
                largest = max(largest, len(result.packet))
        finally:
            self._connection.forget(txn_id for _, txn_id, _ in self._waiting)
        return ReadReply(Status.OK, tuple(results))

    async def _ask(self, entry_ids: Sequence[EntryId]) -> None:
        if not entry_ids:
            return
        await self._connection.ready()
        frames = []
        for entry_id in entry_ids:
            waiter = FutureWaiter()
            self._request.readRequest.entryId = entry_id
            expected = ExpectedAnswer(pb.READ_ENTRY, self._ledger_id, entry_id, waiter)
            txn_id, frame = self._connection.prepare(self._request, expected)
            self._waiting.append((entry_id, txn_id, waiter))
            frames.append(frame)
        self._connection.send(frames)


def entry_result(answer: ApacheAnswer, ledger_id: LedgerId, entry_id: EntryId | None) -> EntryResult:
    """Return one entry's result: an OK without bytes is an I/O error, one with another entry's bytes is corruption.

    If ``entry_id`` is None, any entry is accepted. The result then contains its true id, or -1 if there is no entry.
    """
    asked = NO_ENTRY if entry_id is None else entry_id
    if answer.status is not Status.OK:
        return EntryResult(asked, answer.status, detail=answer.detail)
    if not answer.content.HasField("body"):
        return EntryResult(asked, Status.IO_ERROR)
    return checked_entry(answer.content.body, ledger_id, entry_id)


def checked_entry(packet: Any, ledger_id: LedgerId, entry_id: EntryId | None) -> EntryResult:
    """Return the entry in ``packet``, or CORRUPT if it names another ledger or entry than expected."""
    asked = NO_ENTRY if entry_id is None else entry_id
    try:
        found_ledger, found_entry = packet_ids(packet)
    except DamagedEntry:
        return EntryResult(asked, Status.CORRUPT)
    is_it = found_ledger == ledger_id and (found_entry >= 0 if entry_id is None else found_entry == entry_id)
    return EntryResult(found_entry, Status.OK, packet) if is_it else EntryResult(asked, Status.CORRUPT)


def initial_window(frame_bytes_max: int) -> int:
    """Return the number of entries in flight while their sizes are unknown: fewer if they may be larger."""
    return max(2, min(_INITIAL_WINDOW, _INITIAL_WINDOW * FRAME_BYTES_MAX // frame_bytes_max))


def _window(rest: int, largest: int) -> int:
    """Return the number of entries in flight: about as many as fit into the rest of the answer."""
    return max(2, min(rest // max(largest, 1) + 1, WINDOW_MAX))
