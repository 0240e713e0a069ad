"""Each request of ``bookie.wire.requests`` as an exchange of messages (docs/formats.md#operations).

Requests raise ``ConnectionLostError``; ``transport`` sets the deadlines and turns failures into statuses. A bookie in
limbo answers LIMBO only for missing entries: its present last entry need not be the last one that it ever had.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never, cast

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.connection import ApacheAnswer, Version3Connection
from bookie.wire.apache.listing import list_entries
from bookie.wire.apache.reading import EntryReads, checked_entry, entry_result
from bookie.wire.port import (
    AddReply,
    BookieInfo,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ReadReply,
    Reply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.request_shape import explicit_lac
from bookie.wire.requests import AnyRequest, Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac

_MISSING: Final = (Status.NO_ENTRY, Status.NO_LEDGER, Status.LIMBO)
_WAIT_S_MAX: Final = 3600.0
"""Longest wait in a request. Apache's bookies bound neither waits nor waiters."""
_DISK_INFO_FLAGS: Final = 3
"""The bits of GET_BOOKIE_INFO for total and free bytes."""
_IMMEDIATE_POLL_STATUSES: Final = (Status.OK, Status.IO_ERROR, *_MISSING)
"""Outcomes of a long poll that are followed by a request for the last add confirmed."""


class Exchange:
    """Requests to one bookie over one connection."""

    def __init__(self, connection: Version3Connection, list_silence_s: float | None) -> None:
        self._connection = connection
        self._list_silence_s = list_silence_s

    async def ask(self, request: Request[ReplyT], results: list[EntryResult]) -> ReplyT:
        """Make a request. In a read, ``results`` contains those of the first entries, and grows as answers arrive.

        Raises:
            ConnectionLostError: the connection ended.
        """
        return cast(ReplyT, await self._exchanged(cast(AnyRequest, request), results))

    async def _exchanged(self, request: AnyRequest, results: list[EntryResult]) -> Reply:
        match request:
            case Read():
                return await self._read(request, results)
            case ReadLast():
                return await self._read_last(request.ledger_id)
            case Fence():
                return await self._fence(request.ledger_id, request.master_key)
            case ReadLac():
                return await self._read_lac(request.ledger_id)
            case WaitLac():
                return await self._wait_lac(request)
            case WriteLac():
                return await self._write_lac(request)
            case ListEntries():
                return await list_entries(self._connection, request.ledger_id, self._list_silence_s)
            case Copy():
                return request.failed(Status.UNSUPPORTED, detail="Apache's protocol has no such request")
            case Info():
                return await self._info()
            case _:
                assert_never(request)

    async def _read(self, read: Read, results: list[EntryResult]) -> ReadReply:
        """Read entries, after a durable fence if there is a key for it.

        An entry that the bookie fails to read gets IO_ERROR; the other entries are not affected.
        """
        if read.fence_key is not None:
            fenced = await self._fence(read.ledger_id, read.fence_key)
            if fenced.status is not Status.OK:
                return ReadReply(fenced.status, detail=fenced.detail)
        return await EntryReads(self._connection, read.ledger_id, read.fence_key).read(read.entry_ids, results)

    async def _read_last(self, ledger_id: LedgerId) -> ReadReply:
        """Read the last entry. Its id is taken from its header, because the answer repeats the -1 of the request."""
        result = await self._last(ledger_id)
        if result.status in (Status.OK, Status.CORRUPT, *_MISSING):
            return ReadReply(Status.OK, (result,))
        return ReadReply(result.status, detail=result.detail)

    async def _fence(self, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """Fence a ledger durably.

        If the bookie has an entry, it answers after the fence is in its journal. Otherwise ("no such entry", limbo) it
        answers at once; then the journal is forced, and the ledger counts as fenced only if the force succeeds.
        """
        read = pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY, masterKey=master_key)
        read.flag = pb.ReadRequest.FENCE_LEDGER
        answer = await self._ask(pb.READ_ENTRY, pb.Request(readRequest=read), ledger_id, NO_ENTRY)
        result = entry_result(answer, ledger_id, None)
        if result.status in (Status.OK, Status.CORRUPT):
            return FenceReply(Status.OK, result)
        if result.status not in _MISSING:
            return FenceReply(result.status, detail=result.detail or "the bookie refused to fence the ledger")
        force = await forced(self._connection, ledger_id)
        if force.status is not Status.OK:
            return FenceReply(force.status, detail=f"the fence is not known to be durable: {force.detail}")
        return FenceReply(Status.OK, result if result.status is Status.LIMBO else None)

    async def _read_lac(self, ledger_id: LedgerId) -> LacReply:
        """Ask for the last add confirmed.

        READ_LAC answers "no such entry" for an unknown ledger, an empty one and one in limbo alike, and "I/O error" for
        an empty one with an explicit LAC; if the answer has no entry, an ordinary read of the last one distinguishes
        these.
        """
        request = pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id))
        answer = await self._ask(pb.READ_LAC, request, ledger_id)
        if answer.content is None or answer.status not in (Status.OK, Status.IO_ERROR, *_MISSING):
            return LacReply(answer.status, detail=answer.detail)
        explicit: bytes = answer.content.lacBody
        if answer.content.HasField("lastEntryBody"):
            last = checked_entry(answer.content.lastEntryBody, ledger_id, None)
        else:
            last = await self._last(ledger_id)
        if last.status in (Status.OK, Status.CORRUPT):
            is_limbo = answer.status is Status.LIMBO
            return LacReply(Status.LIMBO if is_limbo else Status.OK, explicit, last)
        return LacReply(last.status, explicit)

    async def _wait_lac(self, poll: WaitLac) -> LacReply:
        """Wait for a greater last add confirmed, then ask for its proof.

        Apache's bookies answer for an unknown ledger at once. A cancelled long poll keeps its place there until its
        wait ends: the protocol cannot withdraw it.
        """
        ledger_id = poll.ledger_id
        read = pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY, previousLAC=poll.beyond)
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
        if poll.wait_s > 0:
            read.timeOut = round(min(poll.wait_s, _WAIT_S_MAX) * 1000)
        answer = await self._ask(pb.READ_ENTRY, pb.Request(readRequest=read), ledger_id)
        if answer.status not in _IMMEDIATE_POLL_STATUSES:
            return LacReply(answer.status)
        return replace(await self._read_lac(ledger_id), entry=_piggybacked(answer, ledger_id, EntryId(poll.beyond + 1)))

    async def _write_lac(self, hint: WriteLac) -> AddReply:
        """Write a last add confirmed.

        Apache's bookies create an unknown ledger for it.
        """
        lac = explicit_lac(hint.ledger_id, hint.explicit)
        if isinstance(lac, str):
            return AddReply(Status.BAD_REQUEST, lac)
        write = pb.WriteLacRequest(ledgerId=hint.ledger_id, lac=lac, masterKey=hint.master_key, body=hint.explicit)
        answer = await self._ask(pb.WRITE_LAC, pb.Request(writeLacRequest=write), hint.ledger_id)
        return AddReply(answer.status)

    async def _info(self) -> InfoReply:
        """Ask for the bookie's disks. The protocol offers nothing else.

        Of the rest, ``incarnation`` and ``version`` are empty, ``ledger_count`` is None, ``is_read_only`` False, which
        means nothing here: whether a bookie is read-only is in its registration.
        """
        request = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=_DISK_INFO_FLAGS))
        answer = await self._ask(pb.GET_BOOKIE_INFO, request)
        if answer.status is not Status.OK:
            return InfoReply(answer.status)
        content = answer.content
        info = BookieInfo(
            incarnation="",
            version="",
            is_read_only=False,
            disk_total_bytes=content.totalDiskCapacity,
            disk_free_bytes=content.freeDiskSpace,
            ledger_count=None,
        )
        return InfoReply(Status.OK, info)

    async def _last(self, ledger_id: LedgerId) -> EntryResult:
        request = pb.Request(readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY))
        answer = await self._ask(pb.READ_ENTRY, request, ledger_id, NO_ENTRY)
        return entry_result(answer, ledger_id, None)

    async def _ask(
        self, operation: int, request: pb.Request, ledger_id: int | None = None, entry_id: int | None = None
    ) -> ApacheAnswer:
        return await self._connection.ask(operation, request, ledger_id, entry_id)


async def forced(connection: Version3Connection, ledger_id: LedgerId) -> AddReply:
    """Wait until all entries of a ledger sent to the bookie so far are in its journal.

    Raises:
        ConnectionLostError: the connection ended.
    """
    request = pb.Request(forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=ledger_id))
    answer = await connection.ask(pb.FORCE_LEDGER, request, ledger_id)
    return AddReply(answer.status, "" if answer.status is Status.OK else "the bookie did not force its journal")


def _piggybacked(answer: ApacheAnswer, ledger_id: LedgerId, entry_id: EntryId) -> EntryResult | None:
    """Return the entry in a long poll's answer; None if there is none, or if its ids are not the requested ones."""
    if answer.status is not Status.OK or answer.content is None or not answer.content.HasField("body"):
        return None
    result = checked_entry(answer.content.body, ledger_id, entry_id)
    return result if result.status is Status.OK else None
