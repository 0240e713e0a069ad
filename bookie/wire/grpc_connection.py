"""One bookie at one address: its channel, its add stream, and each request of the port as an exchange of messages.

Methods raise what gRPC raises; ``grpc_transport`` sets the deadlines and turns failures into statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from bookie.model.ids import EntryId, LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.add_stream import AddStream
from bookie.wire.grpc_channel import MESSAGE_BYTES_MAX, open_channel
from bookie.wire.grpc_codec import (
    MalformedAnswerError,
    entries_from_wire,
    fence_from_wire,
    info_from_wire,
    lac_from_wire,
    list_from_wire,
    status_from_wire,
    write_lac_from_wire,
)
from bookie.wire.port import (
    READ_BYTES_MAX,
    AddReply,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Status,
)
from bookie.wire.resolver import BookieAddress

_CUT_SHORT: Final = "the answer was cut short"
_WAIT_S_MAX: Final = 3600.0
"""Longest wait that a request asks for; bookies answer far earlier."""


class Connection:
    """One gRPC connection to a bookie. Connects at its first use, and again by itself after a failure."""

    def __init__(self, address: BookieAddress, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self._channel = open_channel(address, credentials)
        self._stub = rpc.BookieStub(self._channel)  # type: ignore[no-untyped-call]  # generated without types
        self.adds = AddStream(self._stub.Add, address.incarnation)

    async def read(
        self,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        results: list[EntryResult],
        timeout_s: float,
        fence_key: bytes | None,
    ) -> ReadReply:
        """Read entries, after a fence if there is a key for it.

        ``results`` grows as pieces arrive, so that a failure leaves what came before it.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer is not one to this request.
        """
        request = pb.ReadRequest(
            incarnation=self.address.incarnation, ledger_id=ledger_id, entry_ids=entry_ids, fence_key=fence_key
        )
        call = self._stub.Read(request, timeout=timeout_s)
        last: pb.EntryBatch | None = None
        size = 0
        try:
            while isinstance(message := await call.read(), pb.EntryBatch):
                results.extend(_expected(entries_from_wire(message), entry_ids[len(results) :]))
                size += message.ByteSize()
                if size > READ_BYTES_MAX + 2 * MESSAGE_BYTES_MAX:
                    raise MalformedAnswerError(f"{size} bytes came for a read of at most {READ_BYTES_MAX}")
                last = message
        finally:
            call.cancel()
        if last is None or not last.is_last:
            return ReadReply(Status.UNREACHABLE, tuple(results), _CUT_SHORT)
        if last.status == pb.STATUS_OK and entry_ids and not results:
            raise MalformedAnswerError("an OK answer to a read covers no entry")
        return ReadReply(status_from_wire(last.status), tuple(results), last.detail)

    async def read_last(self, ledger_id: LedgerId, timeout_s: float) -> ReadReply:
        """Read the last entry.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: an OK answer without exactly one result.
        """
        request = pb.ReadLastRequest(incarnation=self.address.incarnation, ledger_id=ledger_id)
        message = await self._stub.ReadLast(request, timeout=timeout_s)
        results = entries_from_wire(message)
        status = status_from_wire(message.status)
        if status is Status.OK and len(results) != 1:
            raise MalformedAnswerError(f"{len(results)} results came for the last entry")
        return ReadReply(status, tuple(results), message.detail)

    async def fence(self, ledger_id: LedgerId, master_key: bytes, timeout_s: float) -> FenceReply:
        """Fence a ledger.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
        """
        request = pb.FenceRequest(incarnation=self.address.incarnation, ledger_id=ledger_id, master_key=master_key)
        return fence_from_wire(await self._stub.Fence(request, timeout=timeout_s))

    async def read_lac(self, ledger_id: LedgerId, timeout_s: float) -> LacReply:
        """Ask for the last add confirmed.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: an entry came that was not asked for.
        """
        request = pb.ReadLacRequest(incarnation=self.address.incarnation, ledger_id=ledger_id)
        return lac_from_wire(await self._stub.ReadLac(request, timeout=timeout_s))

    async def wait_lac(self, ledger_id: LedgerId, beyond: EntryId, wait_s: float, timeout_s: float) -> LacReply:
        """Wait for a greater last add confirmed. A call that is given up gives its place at the bookie back.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: another entry than the next one came along.
        """
        request = pb.WaitLacRequest(
            incarnation=self.address.incarnation,
            ledger_id=ledger_id,
            beyond=beyond,
            wait_ms=round(min(max(wait_s, 0.0), _WAIT_S_MAX) * 1000),
        )
        return lac_from_wire(await self._stub.WaitLac(request, timeout=timeout_s), EntryId(beyond + 1))

    async def write_lac(self, ledger_id: LedgerId, master_key: bytes, explicit: bytes, timeout_s: float) -> AddReply:
        """Write a last add confirmed.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
        """
        request = pb.WriteLacRequest(
            incarnation=self.address.incarnation, ledger_id=ledger_id, master_key=master_key, explicit_lac=explicit
        )
        return write_lac_from_wire(await self._stub.WriteLac(request, timeout=timeout_s))

    async def list_entries(self, ledger_id: LedgerId, timeout_s: float) -> ListReply:
        """List a ledger's entries.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            InvalidAvailabilityError: the bytes are no availability list.
        """
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
            return ListReply(Status.UNREACHABLE, detail=_CUT_SHORT)
        return list_from_wire(pieces, last)

    async def info(self, timeout_s: float) -> InfoReply:
        """Ask for the bookie's state.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
        """
        request = pb.InfoRequest(incarnation=self.address.incarnation)
        return info_from_wire(await self._stub.Info(request, timeout=timeout_s))

    async def close(self) -> None:
        """End the add stream and the channel; calls in flight end."""
        await self.adds.close()
        await self._channel.close(None)


def _expected(results: list[EntryResult], entry_ids: Sequence[EntryId]) -> list[EntryResult]:
    if [result.entry_id for result in results] != list(entry_ids[: len(results)]):
        raise MalformedAnswerError("the entries in the answer are not those that were asked for")
    return results
