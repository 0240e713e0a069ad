"""Execution of the operations of Apache's protocol: requests to the bookie, and encoding of the outcomes.

It contains no network code. Every request gets one answer, the body of a frame, whatever the outcome. An unavailable
entry is never reported as absent (S6): limbo and damage have a status of their own, or that of an I/O error.

Source: docs/formats.md#operations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import guarded
from bookie.server.apache import dialect_v3 as v3
from bookie.server.apache.dialect_v2 import batch_answer
from bookie.server.apache.grouping import AddGroup
from bookie.server.apache.known_lacs import KnownLacs
from bookie.server.apache.requests import (
    AddKind,
    BatchRead,
    ImmediateAnswer,
    Info,
    ListEntries,
    LongPoll,
    Other,
    Read,
    ReadLac,
    StartTls,
    WriteLac,
)
from bookie.server.lac_board import header_lac, proven_lac
from bookie.wire import requests
from bookie.wire.add_wait import AddWait
from bookie.wire.apache.framing import FRAME_BYTES_SAFE_MAX, LENGTH_SIZE
from bookie.wire.apache.v2 import BATCH_ENTRY_OVERHEAD_BYTES, BATCH_OVERHEAD_BYTES
from bookie.wire.handler import BookieHandler
from bookie.wire.port import READ_BYTES_MAX, AddBatch, EntryResult, LacReply, Status

_log = logging.getLogger(__name__)

LIST_BYTES_MAX: Final = FRAME_BYTES_SAFE_MAX - 256
"""The most bytes of an encoded entry list in one frame. A longer list is not sent: a part of it would be wrong."""
BATCH_READ_BYTES_MAX: Final = FRAME_BYTES_SAFE_MAX
_BATCH_READ_STEP: Final = 64
"""The number of entries that a batch read fetches at a time."""
_OWN_INCARNATION: Final = ""
"""The incarnation passed for Apache's requests. They have none, so they refer to the current disks."""
_POLL_ANSWER_STATUSES: Final = frozenset((Status.OK, Status.NO_ENTRY))


class RequestAnswerer:
    """Executes the requests of all connections of one listener."""

    def __init__(self, handler: BookieHandler, clock: Clock) -> None:
        self._handler = handler
        self._lacs = KnownLacs(clock)
        self._polls: dict[LedgerId, set[asyncio.Task[LacReply]]] = {}

    async def adds(self, group: AddGroup) -> Sequence[bytes]:
        """Return the answer frames for the adds of a group, in their order.

        The adds are stored together. While the ledger disk is behind, they wait within the bounds of the group. If the
        batch is refused as malformed, each add is tried separately, so a bad add does not affect the others.
        """
        kind, packets, accepted, wait = group.kind, group.packets, group.accepted, group.wait
        status = await self._add(kind, packets, wait)
        if status is Status.OK:
            return accepted
        statuses: Sequence[Status] = [status] * len(packets)
        if status is Status.BAD_REQUEST and len(packets) > 1:
            statuses = await asyncio.gather(*(self._add(kind, [packet], wait) for packet in packets))
        refused = kind.dialect.refused
        return [
            answer if its_status is Status.OK else refused(answer, its_status)
            for answer, its_status in zip(accepted, statuses, strict=True)
        ]

    async def _add(self, kind: AddKind, packets: Sequence[bytes], wait: AddWait | None) -> Status:
        batch = AddBatch(kind.stored_in, kind.master_key, packets, kind.is_recovery, wait=wait)
        reply = await self._handler.add(_OWN_INCARNATION, batch)
        if reply.status is Status.OK:
            self._lacs.note(kind.stored_in, header_lac(packets[-1]))
        return reply.status

    async def reads(self, reads: Sequence[Read]) -> tuple[list[bytes], list[Read]]:
        """Answer at least one of the reads of one group (``grouping``).

        Return the pieces of the frames, and the reads that are left for another call.

        The answers have at most ``READ_BYTES_MAX`` plus one entry, even if one entry is requested many times.
        """
        if reads[0].entry_id == NO_ENTRY:
            return self._read_answers(reads, {EntryId(NO_ENTRY): await self._last(reads[0])})
        ledger_id, fence_key = reads[0].ledger_id, reads[0].fence_key
        entry_ids = sorted({read.entry_id for read in reads})
        reply = await self._handler.answer(_OWN_INCARNATION, requests.Read(ledger_id, entry_ids, fence_key))
        if fence_key is not None:
            self._end_polls(ledger_id)
        found = {result.entry_id: result for result in reply.results}
        if reply.status is not Status.OK or not found:
            failure = reply.status if reply.status is not Status.OK else Status.IO_ERROR
            found |= {entry: EntryResult(entry, failure) for entry in entry_ids if entry not in found}
        return self._read_answers(reads, found)

    def _read_answers(
        self, reads: Sequence[Read], found: Mapping[EntryId, EntryResult]
    ) -> tuple[list[bytes], list[Read]]:
        answers: list[bytes] = []
        left: list[Read] = []
        size = 0
        for read in reads:
            result = found.get(read.entry_id)
            if result is None or size > READ_BYTES_MAX:
                left.append(read)
            else:
                answers += self._read_answer(read, result)
                size += len(result.packet)
        return answers, left

    async def _last(self, read: Read) -> EntryResult:
        """Return the greatest entry. After a fence of an unknown ledger, there is none."""
        if read.fence_key is not None:
            fenced = await self._handler.answer(_OWN_INCARNATION, requests.Fence(read.ledger_id, read.fence_key))
            self._end_polls(read.ledger_id)
            if fenced.status is not Status.OK:
                return EntryResult(NO_ENTRY, fenced.status)
            return fenced.last_entry or EntryResult(NO_ENTRY, Status.NO_ENTRY)
        reply = await self._handler.answer(_OWN_INCARNATION, requests.ReadLast(read.ledger_id))
        return reply.results[0] if reply.results else EntryResult(NO_ENTRY, _failure(reply.status))

    def _read_answer(self, read: Read, result: EntryResult) -> Sequence[bytes]:
        if result.status is not Status.OK or read.fence_key is not None:
            return read.dialect.was_read(read, result.status, result.packet, None)
        known_lac = self._lacs.note(read.ledger_id, header_lac(result.packet))
        return read.dialect.was_read(read, Status.OK, result.packet, known_lac)

    async def one(self, request: Other) -> bytes:
        """Return the answer to an ungrouped request."""
        match request:
            case LongPoll():
                return await self._long_poll(request)
            case ReadLac():
                return await self._read_lac(request)
            case WriteLac():
                return await self._write_lac(request)
            case ListEntries():
                return await self._list_entries(request)
            case Info():
                return await self._info(request)
            case BatchRead():
                return await self._batch_read(request)
            case ImmediateAnswer():
                return request.answer
            case StartTls():
                return request.refused
            case Read():
                frame, _ = await self.reads([request])
                return b"".join(frame)[LENGTH_SIZE:]

    async def _long_poll(self, poll: LongPoll) -> bytes:
        reply = await self._await_poll_reply(poll)
        if reply.status is Status.BAD_REQUEST:
            return v3.failed_poll_answer(poll, reply.status)
        lac = self._noted(poll.ledger_id, reply)
        if not poll.wants_entry:
            return await self.one(Read(poll.dialect, poll.tag, poll.ledger_id, poll.entry_id, None))
        if lac <= poll.beyond:
            if reply.status not in _POLL_ANSWER_STATUSES:
                return v3.failed_poll_answer(poll, reply.status)
            return v3.polled(poll, NO_ENTRY, None, lac, None)
        updated_ms = self._lacs.updated_ms(poll.ledger_id)
        if reply.entry is None:
            return v3.polled(poll, NO_ENTRY, None, lac, updated_ms)
        return v3.polled(poll, reply.entry.entry_id, reply.entry.packet, lac, updated_ms)

    async def _await_poll_reply(self, poll: LongPoll) -> LacReply:
        """Return the answer after a change, at the end of the wait, or after a fence by this listener.

        A fence over gRPC does not end the poll, which then waits for its full time.
        """
        waiting = self._handler.answer(_OWN_INCARNATION, requests.WaitLac(poll.ledger_id, poll.beyond, poll.wait_s))
        task = guarded("apache long poll", waiting)
        self._polls.setdefault(poll.ledger_id, set()).add(task)
        try:
            reply: LacReply = await task
            return reply
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if us is not None and us.cancelling():
                raise
            return await self._handler.answer(_OWN_INCARNATION, requests.WaitLac(poll.ledger_id, poll.beyond, 0.0))
        finally:
            polls = self._polls.get(poll.ledger_id, set())
            polls.discard(task)
            if not polls:
                self._polls.pop(poll.ledger_id, None)

    def _end_polls(self, ledger_id: LedgerId) -> None:
        """Make the waiting polls of the ledger look again and answer, after a fence or an attempt to fence."""
        for task in self._polls.pop(ledger_id, set()):
            task.cancel()

    async def _read_lac(self, request: ReadLac) -> bytes:
        """Answer READ_LAC. An explicit LAC without any entry becomes an I/O error, as in Apache's bookies.

        Source: docs/formats.md#operations.
        """
        reply = await self._handler.answer(_OWN_INCARNATION, requests.ReadLac(request.ledger_id))
        self._noted(request.ledger_id, reply)
        if reply.status is Status.OK and reply.last_entry is not None and reply.last_entry.status is Status.OK:
            return v3.lac_answer(request, Status.OK, reply.explicit, reply.last_entry.packet)
        if reply.status is Status.OK and reply.last_entry is not None:
            return v3.lac_answer(request, reply.last_entry.status, reply.explicit, None)
        if reply.status is Status.OK or reply.status.is_absent:
            status = Status.IO_ERROR if reply.explicit else Status.NO_ENTRY
            return v3.lac_answer(request, status, reply.explicit, None)
        return v3.lac_answer(request, reply.status, reply.explicit, None)

    async def _write_lac(self, request: WriteLac) -> bytes:
        hint = requests.WriteLac(request.ledger_id, request.master_key, request.packet)
        reply = await self._handler.answer(_OWN_INCARNATION, hint)
        if reply.status is Status.OK:
            self._noted(request.ledger_id, LacReply(Status.OK, request.packet))
        return v3.write_lac_answer(request, reply.status)

    async def _list_entries(self, request: ListEntries) -> bytes:
        reply = await self._handler.answer(_OWN_INCARNATION, requests.ListEntries(request.ledger_id))
        if reply.status is not Status.OK:
            return v3.list_answer(request, reply.status, b"")
        pieces = []
        for piece in reply.entries.encoded():
            pieces.append(piece)
            await asyncio.sleep(0)
        encoded = b"".join(pieces)
        if len(encoded) > LIST_BYTES_MAX:
            extra = {"ledger_id": request.ledger_id, "bytes": len(encoded), "bytes_max": LIST_BYTES_MAX}
            _log.warning("entry list too long for a frame of Apache's protocol", extra=extra)
            return v3.list_answer(request, Status.IO_ERROR, b"")
        return v3.list_answer(request, Status.OK, encoded)

    async def _info(self, request: Info) -> bytes:
        reply = await self._handler.answer(_OWN_INCARNATION, requests.Info())
        if reply.info is None:
            return v3.info_answer(request, _failure(reply.status), 0, 0)
        return v3.info_answer(request, Status.OK, reply.info.disk_total_bytes, reply.info.disk_free_bytes)

    async def _batch_read(self, read: BatchRead) -> bytes:
        """Return entries from the first on, until one is unavailable or a limit is reached, but at least the first."""
        room = min(read.bytes_max, BATCH_READ_BYTES_MAX) - BATCH_OVERHEAD_BYTES
        last = LEDGER_ID_MAX if read.count_max <= 0 else min(read.first + read.count_max - 1, LEDGER_ID_MAX)
        entries: list[bytes] = []
        fence_key = read.fence_key
        while (start := read.first + len(entries)) <= last:
            ids = [EntryId(entry) for entry in range(start, min(start + _BATCH_READ_STEP, last + 1))]
            reply = await self._handler.answer(_OWN_INCARNATION, requests.Read(read.ledger_id, ids, fence_key))
            fence_key = None  # the ledger is fenced durably now
            for result in reply.results:
                room -= BATCH_ENTRY_OVERHEAD_BYTES + len(result.packet)
                if result.status is not Status.OK or (entries and room < 0):
                    return _batch(read, entries, result.status)
                entries.append(result.packet)
            if not reply.results or reply.status is not Status.OK:
                return _batch(read, entries, _failure(reply.status))
        return _batch(read, entries, Status.BAD_REQUEST)

    def _noted(self, ledger_id: LedgerId, reply: LacReply) -> int:
        """Take a reply into account, and return the greatest known LAC."""
        return self._lacs.note(ledger_id, proven_lac(reply))


def _batch(read: BatchRead, entries: Sequence[bytes], ended_by: Status) -> bytes:
    """Return the answer with the found entries, or with the reason why there are none."""
    return batch_answer(read, Status.OK if entries else ended_by, entries)


def _failure(status: Status) -> Status:
    """Return the status of an answer without content; never OK."""
    return Status.IO_ERROR if status is Status.OK else status
