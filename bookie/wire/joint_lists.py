"""Lists of several ledgers of one bookie in one call, for callers that ask at the same time.

A call costs both sides more than the list of a small ledger. So requests that wait together are sent as one
``ListLedgers``, and a lone request as ``ListEntries``. The reply to each is the same as alone: each list was made after
its request, a ledger is answered as soon as its own pieces are complete, and a call that breaks is the answer to those
that have none yet. A bookie of an earlier version does not support the call; then every request is sent alone.

A request waits for the end of the loop's current step, and for a place: ``CALLS_MAX`` calls have one. A call gives its
place up after ``PLACE_S``, as it then lists a large ledger, and the small ones must not wait for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc
import grpc.aio

from bookie.model.ids import LedgerId
from bookie.runtime.tasks import guarded
from bookie.runtime.waiting import in_turns
from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc_codec import MalformedAnswerError, list_from_wire
from bookie.wire.port import LIST_LEDGERS_MAX, ListReply, Status

CALLS_MAX: Final = 2
"""Calls with a place: the bookie works on one while the answer of the other is on its way."""
PLACE_S: Final = 0.05
CUT_SHORT: Final = "the answer was cut short"

ListCallable = Callable[..., grpc.aio.UnaryStreamCall[pb.ListLedgersRequest, pb.LedgerLists]]
Alone = Callable[[LedgerId, float], Awaitable[ListReply]]


class _Listing:
    """One request, from its arrival until its caller has the answer."""

    __slots__ = ("answer", "call", "last", "ledger_id", "pieces", "timeout_s")

    def __init__(self, ledger_id: LedgerId, timeout_s: float, answer: asyncio.Future[bool]) -> None:
        self.ledger_id = ledger_id
        self.timeout_s = timeout_s
        self.answer = answer
        """True once ``pieces`` and ``last`` are complete; False: to be sent alone."""
        self.pieces: list[bytes] = []
        self.last: pb.EntryList | None = None
        self.call: _Call | None = None

    def add(self, piece: pb.EntryList) -> None:
        self.pieces.append(piece.availability)
        if piece.is_last:
            self.last = piece
            self.complete(is_listed=True)

    def complete(self, *, is_listed: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(is_listed)


class _Call:
    """Requests that were sent together."""

    __slots__ = ("callers", "has_place", "task")

    def __init__(self, callers: int) -> None:
        self.callers = callers
        self.has_place = True
        self.task: asyncio.Task[None] | None = None
        """None for a lone request, which its caller sends."""


class JointLists:
    """The lists that one connection asks for."""

    def __init__(self, list_ledgers: ListCallable, incarnation: str, alone: Alone) -> None:
        """Prepare for the disks of ``incarnation``; ``alone`` sends the request for one ledger."""
        self._list_ledgers = list_ledgers
        self._incarnation = incarnation
        self._alone = alone
        self._waiting: deque[_Listing] = deque()
        self._with_place = 0
        self._is_begun_soon = False
        self._is_supported = True

    async def list(self, ledger_id: LedgerId, timeout_s: float) -> ListReply:
        """List a ledger.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer is not one to this request.
            InvalidAvailabilityError: the bytes of a list are no availability list.
        """
        if not self._is_supported:
            return await self._alone(ledger_id, timeout_s)
        listing = _Listing(ledger_id, timeout_s, asyncio.get_running_loop().create_future())
        self._waiting.append(listing)
        self._begin_soon()
        try:
            if not await listing.answer:
                return await self._alone(ledger_id, timeout_s)
        finally:
            self._left(listing)
        if listing.last is None:
            return ListReply(Status.UNREACHABLE, detail=CUT_SHORT)
        return await in_turns(list_from_wire(listing.pieces, listing.last))

    def _begin_soon(self) -> None:
        if not self._is_begun_soon and self._with_place < CALLS_MAX:
            self._is_begun_soon = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_begun_soon = False
        while self._waiting and self._with_place < CALLS_MAX:
            listings = self._take()
            if not listings:
                return
            call = _Call(len(listings))
            self._with_place += 1
            for listing in listings.values():
                listing.call = call
            if len(listings) == 1 or not self._is_supported:
                for listing in listings.values():
                    listing.complete(is_listed=False)
            else:
                call.task = guarded("list of several ledgers", self._exchange(listings))
            asyncio.get_running_loop().call_later(PLACE_S, self._leave, call)

    def _take(self) -> dict[LedgerId, _Listing]:
        """Remove the first requests that may be sent together: each ledger once."""
        taken: dict[LedgerId, _Listing] = {}
        while self._waiting and len(taken) < LIST_LEDGERS_MAX and self._waiting[0].ledger_id not in taken:
            listing = self._waiting.popleft()
            if not listing.answer.done():  # else its caller was cancelled
                taken[listing.ledger_id] = listing
        return taken

    async def _exchange(self, listings: dict[LedgerId, _Listing]) -> None:
        request = pb.ListLedgersRequest(incarnation=self._incarnation, ledger_ids=listings)
        call = self._list_ledgers(request, timeout=max(listing.timeout_s for listing in listings.values()))
        try:
            while isinstance(message := await call.read(), pb.LedgerLists):
                _hand_over(message.lists, listings)
            for listing in listings.values():
                listing.complete(is_listed=True)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._is_supported = False
                for listing in listings.values():
                    listing.complete(is_listed=False)
            _fail(listings, error)
        except MalformedAnswerError as error:
            _fail(listings, error)
        finally:
            call.cancel()
            for listing in listings.values():
                listing.answer.cancel()  # only if this task or its channel was closed, or has a defect

    def _left(self, listing: _Listing) -> None:
        call = listing.call
        if call is None:
            return
        call.callers -= 1
        if not call.callers:
            if call.task is not None:
                call.task.cancel()
            self._leave(call)

    def _leave(self, call: _Call) -> None:
        if call.has_place:
            call.has_place = False
            self._with_place -= 1
            if self._waiting:
                self._begin_soon()


def _hand_over(lists: Sequence[pb.LedgerList], listings: dict[LedgerId, _Listing]) -> None:
    for each in lists:
        listing = listings.get(LedgerId(each.ledger_id))
        if listing is None or listing.last is not None:
            raise MalformedAnswerError(f"a list of ledger {each.ledger_id} came that was not asked for")
        listing.add(each.piece)


def _fail(listings: dict[LedgerId, _Listing], error: Exception) -> None:
    for listing in listings.values():
        if not listing.answer.done():
            listing.answer.set_exception(error)
