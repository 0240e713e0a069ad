"""The gRPC interface of a bookie: conversion between messages and values, without decisions.

Adds of one stream are passed to the handler in order and then overlap: a batch does not wait for the acknowledgement of
the one before it. The number of overlapping batches is bounded. At the bound, the stream is not read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.tasks import cancel, guarded
from bookie.server.grpc.unsent import SMALL_ANSWER_BYTES, UnsentAnswers, UnsentCount, UnsentLimits, entry_bytes
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.codec import (
    ack_to_wire,
    add_from_wire,
    copied_to_wire,
    copy_from_wire,
    fence_to_wire,
    info_to_wire,
    lac_to_wire,
    list_to_wire,
    lists_to_wire,
    read_last_to_wire,
    read_to_wire,
    reads_to_wire,
    write_lac_to_wire,
)
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, ListReply, ReadReply, ReplyT, Request
from bookie.wire.request_shape import ledgers_problem
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac

AddContext = grpc.aio.ServicerContext[pb.AddRequest, pb.AddResponse]
ReadContext = grpc.aio.ServicerContext[pb.ReadRequest, pb.EntryBatch]
ReadLedgersContext = grpc.aio.ServicerContext[pb.ReadLedgersRequest, pb.LedgerBatches]
Context = grpc.aio.ServicerContext[object, object]
MessageT = TypeVar("MessageT")

ADD_STREAMS_MAX: Final = 2048
"""The most concurrent add streams. A client has one for as long as its connection exists."""
_ADD_STREAMS_OF_PEER_MAX: Final = 64
"""The most of them on one connection, which all clients of a process may share."""
_STREAM_BATCHES_MAX: Final = 256
"""The most batches of one add stream in flight. Beyond this and the next bound the stream is not read, which slows down
its client."""
_STREAM_BYTES_MAX: Final = 16 << 20
"""The most bytes of the entries of these batches."""


class BookieServicer(rpc.BookieServicer):
    """The gRPC servicer of ``handler``."""

    def __init__(self, handler: BookieHandler, unsent: UnsentLimits | None = None) -> None:
        self._handler = handler
        self._exchanges: set[_AddExchange] = set()
        self._streams_of_peer: Counter[str] = Counter()
        self.unsent = UnsentAnswers(unsent)

    async def Add(self, request_iterator: object, context: AddContext) -> None:  # noqa: N802 (gRPC's name)
        """The methods are documented in the ``.proto`` file."""
        peer = context.peer()
        if len(self._exchanges) >= ADD_STREAMS_MAX or self._streams_of_peer[peer] >= _ADD_STREAMS_OF_PEER_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many add streams; use one for all ledgers")
        exchange = _AddExchange(self._handler, context)
        self._exchanges.add(exchange)
        self._streams_of_peer[peer] += 1
        try:
            await exchange.run()
        finally:
            self._exchanges.discard(exchange)
            self._streams_of_peer[peer] -= 1
            if not self._streams_of_peer[peer]:
                del self._streams_of_peer[peer]

    async def Read(self, request: pb.ReadRequest, context: ReadContext) -> None:  # noqa: N802
        """Answer with messages of about 1 MiB, within the bounds of unsent answers (``UnsentAnswers``)."""
        fence_key = request.fence_key if request.HasField("fence_key") else None
        entry_ids = cast(list[EntryId], list(request.entry_ids))
        read = Read(LedgerId(request.ledger_id), entry_ids, fence_key)
        late = await self._send_read(context, request.incarnation, read, is_urgent=read.is_urgent)
        if late is not None:
            await _end_late(context, late)

    async def _send_read(
        self, context: ReadContext, incarnation: str, read: Request[ReadReply], *, is_urgent: bool
    ) -> asyncio.Future[None] | None:
        """Send the answer to a read as ``_send_in_time`` does."""
        reply, count = await self._counted(context, incarnation, read, is_urgent=is_urgent)
        late = await self._send_in_time(context, read_to_wire(reply))
        count.end() if late is None else count.drop()
        return late

    async def ReadLedgers(self, request: pb.ReadLedgersRequest, context: ReadLedgersContext) -> None:  # noqa: N802
        """Read ledgers concurrently, and send each answer as soon as it is complete."""
        reads = [Read(LedgerId(each.ledger_id), cast(list[EntryId], list(each.entry_ids))) for each in request.reads]
        if (problem := ledgers_problem([read.ledger_id for read in reads])) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        by_ledger = {read.ledger_id: read for read in reads}
        late = await self._send_reads(context, request.incarnation, by_ledger)
        if late is not None:
            await _end_late(context, late)

    async def _send_reads(
        self, context: ReadLedgersContext, incarnation: str, reads: Mapping[LedgerId, Request[ReadReply]]
    ) -> asyncio.Future[None] | None:
        """Send the answers to several reads, each as ``_send_in_time`` does."""
        late: asyncio.Future[None] | None = None
        running = {
            guarded("read of a ledger", self._counted(context, incarnation, read)): ledger_id
            for ledger_id, read in reads.items()
        }
        try:
            while running and late is None:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                answers = [(running.pop(task), *task.result()) for task in done]
                messages = reads_to_wire((ledger_id, reply) for ledger_id, reply, _ in answers)
                late = await self._send_in_time(context, messages)
                for _, _, count in answers:
                    count.end() if late is None else count.drop()
        finally:
            for task in running:
                if not task.cancel() and task.exception() is None:  # it has an answer, which was not sent
                    task.result()[1].end()
        return late

    async def _counted(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        incarnation: str,
        request: Request[ReplyT],
        *,
        is_urgent: bool = False,
    ) -> tuple[ReplyT, UnsentCount]:
        """Return the answer to a request, which counts as unsent until the end of the call at the latest."""
        ask = partial(self._handler.answer, incarnation, request)
        reply, count = await self.unsent.answer(context.peer(), request, ask, is_urgent=is_urgent)
        context.add_done_callback(lambda _: count.end())  # type: ignore[arg-type]  # the stubs use the clients' type
        return reply, count

    async def _counted_after_wait(
        self, context: Context, incarnation: str, request: Request[ReplyT], again: Request[ReplyT]
    ) -> ReplyT:
        """Return the answer to a request that may wait for a disk or for an event, and so must not hold a place.

        If the answer has a large entry, it is discarded, and ``again`` is answered within the bounds.
        """
        reply = await self._handler.answer(incarnation, request)
        if entry_bytes(reply) <= SMALL_ANSWER_BYTES:
            return reply
        del reply
        return (await self._counted(context, incarnation, again, is_urgent=isinstance(again, Fence)))[0]

    async def _send_in_time(
        self, context: grpc.aio.ServicerContext[Any, MessageT], messages: Iterable[MessageT]
    ) -> asyncio.Future[None] | None:
        """Send an answer. If the client does not receive it in time, return the sending of the current message.

        The caller must wait for its end: gRPC accepts nothing else in the call until then.
        """
        sending: asyncio.Future[None] | None = None
        try:
            async with asyncio.timeout(self.unsent.limits.taken_within_s):
                for message in messages:
                    sending = asyncio.ensure_future(context.write(message))
                    await asyncio.shield(sending)
        except TimeoutError:
            return sending
        except asyncio.CancelledError:
            if sending is not None:
                sending.cancel()
            raise
        return None

    async def ReadLast(self, request: pb.ReadLastRequest, context: Context) -> pb.EntryBatch:  # noqa: N802
        """Answer with one message, because there is only one entry."""
        last = ReadLast(LedgerId(request.ledger_id))
        return read_last_to_wire((await self._counted(context, request.incarnation, last))[0])

    async def Fence(self, request: pb.FenceRequest, context: Context) -> pb.FenceResponse:  # noqa: N802
        """Fence a ledger."""
        fence = Fence(LedgerId(request.ledger_id), request.master_key)
        return fence_to_wire(await self._counted_after_wait(context, request.incarnation, fence, fence))

    async def ReadLac(self, request: pb.ReadLacRequest, context: Context) -> pb.LacResponse:  # noqa: N802
        """Answer with the known last add confirmed."""
        lac = ReadLac(LedgerId(request.ledger_id))
        return lac_to_wire((await self._counted(context, request.incarnation, lac))[0])

    async def WaitLac(self, request: pb.WaitLacRequest, context: Context) -> pb.LacResponse:  # noqa: N802
        """Answer after a greater last add confirmed is known; cancelled when the client disconnects."""
        poll = WaitLac(LedgerId(request.ledger_id), EntryId(request.beyond), request.wait_ms / 1000)
        again = replace(poll, wait_s=0.0)
        return lac_to_wire(await self._counted_after_wait(context, request.incarnation, poll, again))

    async def WriteLac(self, request: pb.WriteLacRequest, context: Context) -> pb.WriteLacResponse:  # noqa: N802
        """Store an explicit last add confirmed, which is a hint."""
        hint = WriteLac(LedgerId(request.ledger_id), request.master_key, request.explicit_lac)
        return write_lac_to_wire(await self._handler.answer(request.incarnation, hint))

    async def ListEntries(  # noqa: N802
        self, request: pb.ListEntriesRequest, context: Context
    ) -> AsyncIterator[pb.EntryList]:
        """Stream the answer in pieces."""
        listing = ListEntries(LedgerId(request.ledger_id))
        for message in list_to_wire(await self._handler.answer(request.incarnation, listing)):
            yield message

    async def ListLedgers(  # noqa: N802
        self, request: pb.ListLedgersRequest, context: Context
    ) -> AsyncIterator[pb.LedgerLists]:
        """List ledgers concurrently, and send each list as soon as it is complete."""
        ledger_ids = [LedgerId(ledger_id) for ledger_id in request.ledger_ids]
        if (problem := ledgers_problem(ledger_ids)) is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        running = {
            guarded("list of a ledger", self._listed(request.incarnation, ledger_id)) for ledger_id in ledger_ids
        }
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for message in lists_to_wire(task.result() for task in done):
                    yield message
        finally:
            for task in running:
                task.cancel()

    async def _listed(self, incarnation: str, ledger_id: LedgerId) -> tuple[LedgerId, ListReply]:
        return ledger_id, await self._handler.answer(incarnation, ListEntries(ledger_id))

    async def Copy(self, request: pb.CopyRequest, context: Context) -> pb.CopyResponse:  # noqa: N802
        """Copy from another bookie. The copies continue if the client disconnects."""
        return copied_to_wire(await self._handler.answer(request.incarnation, copy_from_wire(request)))

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:  # noqa: N802
        """Answer with the state of the bookie."""
        return info_to_wire(await self._handler.answer(request.incarnation, Info()))

    async def finish_adds(self, deadline_s: float) -> None:
        """Read no further adds, send the remaining acknowledgements, and end every add stream."""
        if self._exchanges:
            await asyncio.wait([exchange.finish() for exchange in self._exchanges], timeout=deadline_s)


async def _end_late(context: grpc.aio.ServicerContext[Any, Any], late: asyncio.Future[None]) -> None:
    """End a call after its client has received the message ``late``. gRPC holds it until then."""
    await late
    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client did not read the answer in time")


class _AddExchange:
    """The add stream of one client. A batch is in flight until its acknowledgement is sent."""

    def __init__(self, handler: BookieHandler, context: AddContext) -> None:
        self._handler = handler
        self._context = context
        self._in_flight = 0
        self._bytes = 0
        self._due: list[tuple[pb.AddAck, int]] = []
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._reader = guarded("add stream reader", self._read())
        self._reader.add_done_callback(lambda _: self._has_work.set())
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until the client closes the stream or ``finish`` is called; cancelled when the client disconnects."""
        try:
            while self._in_flight or not self._reader.done():
                self._has_work.clear()
                if self._due:
                    await self._send()
                elif self._in_flight or not self._reader.done():
                    await self._has_work.wait()
        finally:
            await cancel(self._reader)
            self._over.set_result(None)

    def finish(self) -> asyncio.Future[None]:
        """Request the end of the stream. The future completes after it has ended."""
        self._reader.cancel()
        return self._over

    async def _send(self) -> None:
        """Send all due acknowledgements in one message."""
        due, self._due = self._due, []
        await self._context.write(pb.AddResponse(acks=[ack for ack, _ in due]))
        self._in_flight -= len(due)
        self._bytes -= sum(size for _, size in due)
        self._has_room.set()

    async def _read(self) -> None:
        while isinstance(message := await self._context.read(), pb.AddRequest):
            for batch in message.batches:
                await self._room()
                self._begin(message.incarnation, batch)

    async def _room(self) -> None:
        while self._in_flight >= _STREAM_BATCHES_MAX or self._bytes >= _STREAM_BYTES_MAX:
            self._has_room.clear()
            await self._has_room.wait()

    def _begin(self, incarnation: str, message: pb.AddBatch) -> None:
        batch = add_from_wire(message)
        size = sum(map(len, batch.entries))
        self._in_flight += 1
        self._bytes += size
        guarded("add batch", self._add(incarnation, message, batch, size))

    async def _add(self, incarnation: str, message: pb.AddBatch, batch: AddBatch, size: int) -> None:
        reply = await self._handler.add(incarnation, batch)
        self._due.append((ack_to_wire(message, reply), size))
        self._has_work.set()
