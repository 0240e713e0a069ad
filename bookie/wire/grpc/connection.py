"""One bookie at one address: its channel, its add stream, and each request of the port as an exchange of messages.

Requests raise what gRPC raises; ``bookie.wire.grpc.transport`` sets the deadlines and turns failures into statuses.
"""

from __future__ import annotations

import asyncio
from typing import Final, assert_never, cast

import grpc
import grpc.aio

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.waiting import run_cooperatively
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.add_stream import AddStream
from bookie.wire.grpc.channel import open_channel
from bookie.wire.grpc.codec import (
    MalformedAnswerError,
    copied_from_wire,
    copy_to_wire,
    fence_from_wire,
    info_from_wire,
    lac_from_wire,
    list_from_wire,
    read_last_from_wire,
    write_lac_from_wire,
)
from bookie.wire.grpc.joint_calls import ANSWER_BYTES_MAX, TRUNCATED_ANSWER_DETAIL
from bookie.wire.grpc.joint_lists import JointLists
from bookie.wire.grpc.joint_reads import JointReads, ReadAnswer
from bookie.wire.port import READ_BYTES_MAX, EntryResult, ListReply, ReadReply, Reply, ReplyT, Request, Status
from bookie.wire.requests import (
    AnyRequest,
    Copy,
    Fence,
    Info,
    ListEntries,
    Read,
    ReadLac,
    ReadLast,
    WaitLac,
    WriteLac,
    incarnation_for,
)
from bookie.wire.resolver import BookieAddress

_WAIT_S_MAX: Final = 3600.0
"""Longest wait in a request; bookies answer far earlier."""


class GrpcConnection:
    """One gRPC connection to a bookie. Connects at its first use, and again automatically after a failure."""

    def __init__(self, address: BookieAddress, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self._opened_s = asyncio.get_running_loop().time()
        self._channel = open_channel(address, credentials)
        self._stub = rpc.BookieStub(self._channel)  # type: ignore[no-untyped-call]  # generated without types
        self.adds = AddStream(self._stub.Add, address.incarnation)
        self._lists = JointLists(self._stub.ListLedgers, address.incarnation, self._list_single)
        self._reads = JointReads(self._stub.ReadLedgers, address.incarnation, self._read)

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return asyncio.get_running_loop().time() - self._opened_s

    async def ask(self, request: Request[ReplyT], results: list[EntryResult], timeout_s: float) -> ReplyT:
        """Make a request. A cancelled long poll frees its place at the bookie.

        In a read, ``results`` grows with each piece, so a failure leaves the pieces that came before it.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer is not one to this request.
            InvalidAvailabilityError: the bytes of a list are not an availability list.
        """
        return cast(ReplyT, await self._exchanged(cast(AnyRequest, request), results, timeout_s))

    async def _exchanged(self, request: AnyRequest, results: list[EntryResult], timeout_s: float) -> Reply:
        to, stub = self.address.incarnation, self._stub
        match request:
            case Read():
                if request.is_small and request.fence_key is None:
                    return await self._reads.read(request, results, timeout_s)
                return await self._read(request, results, timeout_s)
            case ReadLast():
                last = pb.ReadLastRequest(incarnation=to, ledger_id=request.ledger_id)
                return read_last_from_wire(await stub.ReadLast(last, timeout=timeout_s))
            case Fence():
                fence = pb.FenceRequest(incarnation=to, ledger_id=request.ledger_id, master_key=request.master_key)
                return fence_from_wire(await stub.Fence(fence, timeout=timeout_s))
            case ReadLac():
                lac = pb.ReadLacRequest(incarnation=to, ledger_id=request.ledger_id)
                return lac_from_wire(await stub.ReadLac(lac, timeout=timeout_s))
            case WaitLac():
                poll = pb.WaitLacRequest(incarnation=to, ledger_id=request.ledger_id, beyond=request.beyond)
                poll.wait_ms = round(min(max(request.wait_s, 0.0), _WAIT_S_MAX) * 1000)
                return lac_from_wire(await stub.WaitLac(poll, timeout=timeout_s), EntryId(request.beyond + 1))
            case WriteLac():
                hint = pb.WriteLacRequest(incarnation=to, ledger_id=request.ledger_id, master_key=request.master_key)
                hint.explicit_lac = request.explicit
                return write_lac_from_wire(await stub.WriteLac(hint, timeout=timeout_s))
            case ListEntries():
                return await self._lists.list(request.ledger_id, timeout_s)
            case Copy():
                message = copy_to_wire(request, incarnation_for(request, to))
                return copied_from_wire(await stub.Copy(message, timeout=timeout_s), request.entry_ids)
            case Info():
                return info_from_wire(await stub.Info(pb.InfoRequest(incarnation=to), timeout=timeout_s))
            case _:
                assert_never(request)

    async def _read(self, asked: Read, results: list[EntryResult], timeout_s: float) -> ReadReply:
        request = pb.ReadRequest(
            incarnation=self.address.incarnation,
            ledger_id=asked.ledger_id,
            entry_ids=asked.entry_ids,
            fence_key=asked.fence_key,
        )
        call = self._stub.Read(request, timeout=timeout_s)
        answer = ReadAnswer(asked.entry_ids, results)
        size = 0
        try:
            while isinstance(message := await call.read(), pb.EntryBatch):
                answer.add(message)
                size += message.ByteSize()
                if size > ANSWER_BYTES_MAX:
                    raise MalformedAnswerError(f"{size} bytes came for a read of at most {READ_BYTES_MAX}")
        finally:
            call.cancel()
        return answer.reply()

    async def _list_single(self, ledger_id: LedgerId, timeout_s: float) -> ListReply:
        request = pb.ListEntriesRequest(incarnation=self.address.incarnation, ledger_id=ledger_id)
        call = self._stub.ListEntries(request, timeout=timeout_s)
        pieces: list[bytes] = []
        last: pb.EntryList | None = None
        try:
            while isinstance(message := await call.read(), pb.EntryList):
                pieces.append(message.availability)
                last = message
        finally:
            call.cancel()
        if last is None or not last.is_last:
            return ListReply(Status.UNREACHABLE, detail=TRUNCATED_ANSWER_DETAIL)
        return await run_cooperatively(list_from_wire(pieces, last))

    async def close(self) -> None:
        """Close the add stream and the channel; calls in flight end."""
        await self.adds.close()
        await self._channel.close(None)
