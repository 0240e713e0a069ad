"""The transport port without a network: calls a bookie's handler in this process, with faults on demand.

Twin of ``bookie.wire.grpc.transport`` (one contract suite tests both): a sent request runs to its end at the bookie,
even if its caller is cancelled (except for a long poll, which ends with its caller); adds arrive in the order of the
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import guarded
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, AddReply, Failed, ReplyT, Request, Status, Transport
from bookie.wire.requests import WaitLac, incarnation_for
from bookie.wire.resolver import GRPC_PROTOCOL, Resolver

_SLOW_REQUEST_DELAY_S: Final = 0.05
"""The extra delay of a request at the fault point for slow requests."""


class MemoryNetwork:
    """The handlers by address."""

    def __init__(self) -> None:
        self._listening: dict[tuple[str, int], BookieHandler] = {}

    def listen(self, host: str, port: int, handler: BookieHandler) -> None:
        """Let ``handler`` answer at ``host:port``, in place of the present one."""
        self._listening[host, port] = handler

    def stop_listening(self, host: str, port: int) -> None:
        """Remove the handler at this address."""
        self._listening.pop((host, port), None)

    def at(self, host: str, port: int) -> BookieHandler | None:
        """Return the handler at this address, or None."""
        return self._listening.get((host, port))


@dataclass(slots=True)
class LinkFaults:
    """The faults between one transport and one bookie; may be changed at any time."""

    is_unreachable: bool = False
    """Calls answer UNREACHABLE and have no effect."""
    is_request_lost: bool = False
    """Calls have no effect and answer TIMEOUT."""
    is_reply_lost: bool = False
    """Calls take effect and answer TIMEOUT."""
    delay_s: float = 0.0
    """Delay before a request arrives, in seconds."""


@dataclass(slots=True)
class _Line:
    """The connection of one transport to one bookie."""

    faults: LinkFaults = field(default_factory=LinkFaults)
    tail: asyncio.Future[None] | None = None
    """Completes after the latest request was delivered or cancelled; the next one is delivered after that."""
    calls: dict[asyncio.Future[str], None] = field(default_factory=dict)
    """One future for each call in flight, in order; completed with a reason when the connection breaks."""


class MemoryTransport(Transport):
    """``bookie.wire.port.Transport`` in memory."""

    def __init__(self, resolver: Resolver, network: MemoryNetwork) -> None:
        self._resolver = resolver
        self._network = network
        self._lines: dict[BookieId, _Line] = {}
        self._is_closed = False

    def faults(self, bookie: BookieId) -> LinkFaults:
        """Return the faults towards ``bookie``, which a test or simulation may set."""
        return self._line(bookie).faults

    def cut(self, bookie: BookieId) -> None:
        """Break the connection: calls in flight answer UNREACHABLE; sent requests still take effect."""
        for call in list(self._line(bookie).calls):
            if not call.done():
                call.set_result("the connection broke")

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._ask(
            bookie, lambda to, incarnation: to.add(batch.incarnation or incarnation, batch), AddReply, timeout_s
        )

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        return await self._ask(
            bookie,
            lambda to, registered: to.answer(incarnation_for(request, registered), request),
            request.failed,
            timeout_s,
            ends_with_caller=isinstance(request, WaitLac),
        )

    @override
    async def close(self) -> None:
        """Break every connection. Idempotent."""
        self._is_closed = True
        for bookie in self._lines:
            self.cut(bookie)

    def _line(self, bookie: BookieId) -> _Line:
        return self._lines.setdefault(bookie, _Line())

    async def _ask(
        self,
        bookie: BookieId,
        ask: Callable[[BookieHandler, str], Coroutine[Any, Any, ReplyT]],
        failed: Failed[ReplyT],
        timeout_s: float,
        *,
        ends_with_caller: bool = False,
    ) -> ReplyT:
        line = self._line(bookie)
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        line.calls[broken] = None
        sent: asyncio.Future[ReplyT] | tuple[Status, str] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                sent = await self._in_turn(bookie, line, ask)
                if isinstance(sent, tuple):
                    return failed(sent[0], detail=sent[1])
                outcomes: tuple[asyncio.Future[Any], ...] = (sent, broken)
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
                if broken.done():
                    return failed(Status.UNREACHABLE, detail=broken.result())
                if line.faults.is_reply_lost:
                    return failed(Status.UNREACHABLE, detail=await broken)
                if fault_point("transport.reply_lost"):
                    return failed(Status.UNREACHABLE, detail="the connection broke")
                return sent.result()
        except TimeoutError:
            return failed(Status.TIMEOUT, detail=f"no answer within {timeout_s:g} s")
        finally:
            del line.calls[broken]
            if ends_with_caller and isinstance(sent, asyncio.Future):
                sent.cancel()

    async def _in_turn(
        self, bookie: BookieId, line: _Line, ask: Callable[[BookieHandler, str], Coroutine[Any, Any, ReplyT]]
    ) -> asyncio.Future[ReplyT] | tuple[Status, str]:
        """Deliver a request after all earlier ones; the delays of several requests overlap."""
        before, line.tail = line.tail, asyncio.get_running_loop().create_future()
        delivered = line.tail
        try:
            delay_s = line.faults.delay_s + (_SLOW_REQUEST_DELAY_S if fault_point("transport.slow_request") else 0.0)
            if delay_s:
                await asyncio.sleep(delay_s)
            if before is not None and not before.done():
                await asyncio.wait([before])
            return await self._deliver(bookie, line.faults, ask)
        finally:
            if before is None or before.done():
                delivered.set_result(None)
            else:  # cancelled before its turn: later requests still wait for earlier ones
                before.add_done_callback(lambda _: delivered.set_result(None))

    async def _deliver(
        self, bookie: BookieId, faults: LinkFaults, ask: Callable[[BookieHandler, str], Coroutine[Any, Any, ReplyT]]
    ) -> asyncio.Future[ReplyT] | tuple[Status, str]:
        try:
            address = await self._resolver.resolve(bookie)
        except BkhealError as error:
            return Status.UNRESOLVED, f"the address of bookie {bookie} could not be looked up: {error}"
        if address is None or address.protocol != GRPC_PROTOCOL:
            return Status.UNRESOLVED, f"bookie {bookie} has no {GRPC_PROTOCOL} endpoint"
        if faults.is_request_lost:
            return asyncio.get_running_loop().create_future()
        handler = self._network.at(address.host, address.port)
        if self._is_closed or faults.is_unreachable or handler is None:
            return Status.UNREACHABLE, f"no server answers for bookie {bookie} at {address.host}:{address.port}"
        return guarded("request to bookie", ask(handler, address.incarnation))
