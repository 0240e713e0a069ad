"""Adds to one address over one long-lived gRPC stream, matched to their acks by request id (S18).

Batches that wait during the write of a message are sent together in the next one, because a message costs as much as
hundreds of entries. A message is meant for one incarnation: the connection's, or the one that its batches pin. The
first add opens the stream, and the first add after a break opens it again. Adds in flight on a broken stream answer
UNREACHABLE; this module never sends them again. Acks for cancelled callers are dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from bookie.runtime.tasks import cancel, guarded
from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc.channel import failure_of
from bookie.wire.grpc.codec import CHUNK_BYTES, ack_from_wire, add_to_wire
from bookie.wire.port import AddBatch, AddReply, Status

_log = logging.getLogger(__name__)

AddCall = grpc.aio.StreamStreamCall[pb.AddRequest, pb.AddResponse]


@dataclass(frozen=True, slots=True)
class SubmittedAdd:
    """An add with its place in the order; ``reply`` completes with its ack or with the end of the stream."""

    request_id: int
    batch: AddBatch = field(repr=False)
    size: int
    reply: asyncio.Future[AddReply] = field(repr=False)


class AddStream:
    """One stream of adds to a bookie. Adds are sent in the order of the ``submit`` calls."""

    def __init__(self, open_call: Callable[[], AddCall], incarnation: str) -> None:
        self._open_call = open_call
        self._incarnation = incarnation
        self._ids = itertools.count(1)
        self._live: _LiveStream | None = None

    def submit(self, batch: AddBatch, size: int) -> SubmittedAdd:
        """Queue ``batch`` of ``size`` bytes. The caller must call ``forget`` at the end."""
        if self._live is None or self._live.is_over:
            self._live = _LiveStream(self._open_call(), self._incarnation)
        add = SubmittedAdd(next(self._ids), batch, size, asyncio.get_running_loop().create_future())
        self._live.submit(add)
        return add

    def forget(self, add: SubmittedAdd) -> None:
        """Forget ``add``: if it is still queued, it is not sent, and a later ack is dropped."""
        if self._live is not None:
            self._live.forget(add)

    async def close(self) -> None:
        """End the stream; adds in flight answer UNREACHABLE."""
        if self._live is not None:
            await self._live.close("the connection was closed")


class _LiveStream:
    """One gRPC call, from its opening to its end."""

    def __init__(self, call: AddCall, incarnation: str) -> None:
        self.is_over = False
        self._call = call
        self._incarnation = incarnation
        self._unsent: dict[int, SubmittedAdd] = {}  # a dict: it keeps the order, and removes any member quickly
        self._waiting: dict[int, SubmittedAdd] = {}
        self._has_unsent = asyncio.Event()
        self._sender = guarded("add stream sender", self._send())
        self._receiver = guarded("add stream receiver", self._receive())

    def submit(self, add: SubmittedAdd) -> None:
        self._waiting[add.request_id] = add
        self._unsent[add.request_id] = add
        self._has_unsent.set()

    def forget(self, add: SubmittedAdd) -> None:
        self._waiting.pop(add.request_id, None)
        self._unsent.pop(add.request_id, None)

    async def close(self, why: str) -> None:
        self._end(why)
        await cancel(self._sender)
        await cancel(self._receiver)

    async def _send(self) -> None:
        # This runs in a task of its own, because the cancellation of a write would end the whole stream.
        try:
            while True:
                while not self._unsent:
                    self._has_unsent.clear()
                    await self._has_unsent.wait()
                await self._call.write(self._next_message())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the receiver gets the reason and passes it to the waiting callers
        except BaseException:
            self._end("sending failed")
            raise

    def _next_message(self) -> pb.AddRequest:
        """Return a message of waiting batches for one incarnation, up to ``CHUNK_BYTES``, or of one larger batch."""
        message = pb.AddRequest()
        size = 0
        while self._unsent:
            add = next(iter(self._unsent.values()))
            incarnation = add.batch.incarnation or self._incarnation
            size += add.size
            if message.batches and (size > CHUNK_BYTES or incarnation != message.incarnation):
                break
            message.incarnation = incarnation
            del self._unsent[add.request_id]
            message.batches.append(add_to_wire(add.request_id, add.batch))
        return message

    async def _receive(self) -> None:
        why = "the bookie ended the stream"
        try:
            while isinstance(message := await self._call.read(), pb.AddResponse):
                for ack in message.acks:
                    self._settle(ack)
        except grpc.aio.AioRpcError as error:
            why = failure_of(error)[1]
        finally:
            self._end(why)

    def _settle(self, ack: pb.AddAck) -> None:
        add = self._waiting.get(ack.request_id)
        if add is None or add.batch.ledger_id != ack.ledger_id:
            _log.debug("ack dropped", extra={"request_id": ack.request_id, "ledger_id": ack.ledger_id})
            return
        del self._waiting[ack.request_id]
        if not add.reply.done():
            add.reply.set_result(ack_from_wire(ack))

    def _end(self, why: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._unsent.clear()
        for add in self._waiting.values():
            if not add.reply.done():
                add.reply.set_result(AddReply(Status.UNREACHABLE, why))
        self._waiting.clear()
        self._call.cancel()
        self._sender.cancel()
