"""Lists of several ledgers of one bookie in one call, ``ListLedgers`` (``joint_calls``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import grpc.aio
from typing_extensions import override

from bookie.model.ids import LedgerId
from bookie.runtime.waiting import run_cooperatively
from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc.codec import MalformedAnswerError, list_from_wire
from bookie.wire.grpc.joint_calls import TRUNCATED_ANSWER_DETAIL, Joint, JointCalls
from bookie.wire.port import ListReply, Status

ListCallable = Callable[..., grpc.aio.UnaryStreamCall[pb.ListLedgersRequest, pb.LedgerLists]]
SingleRequest = Callable[[LedgerId, float], Awaitable[ListReply]]


class _Listing(Joint):
    __slots__ = ("last", "pieces")

    def __init__(self, ledger_id: LedgerId, timeout_s: float) -> None:
        super().__init__(ledger_id, timeout_s)
        self.pieces: list[bytes] = []
        self.last: pb.EntryList | None = None

    def add(self, piece: pb.EntryList) -> None:
        self.pieces.append(piece.availability)
        if piece.is_last:
            self.last = piece
            self.complete(is_answered=True)


class JointLists(JointCalls[_Listing, pb.LedgerLists]):
    """The requests for lists over one connection."""

    def __init__(self, list_ledgers: ListCallable, incarnation: str, request_single: SingleRequest) -> None:
        """Prepare for the disks of ``incarnation``; ``request_single`` sends the request for one ledger."""
        super().__init__()
        self._list_ledgers = list_ledgers
        self._incarnation = incarnation
        self._request_single = request_single

    async def list(self, ledger_id: LedgerId, timeout_s: float) -> ListReply:
        """List a ledger.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer does not match the request.
            InvalidAvailabilityError: the bytes of a list are not an availability list.
        """
        listing = _Listing(ledger_id, timeout_s)
        if not await self._joined(listing):
            return await self._request_single(ledger_id, timeout_s)
        if listing.last is None:
            return ListReply(Status.UNREACHABLE, detail=TRUNCATED_ANSWER_DETAIL)
        return await run_cooperatively(list_from_wire(listing.pieces, listing.last))

    @override
    def _open(
        self, requests: Mapping[LedgerId, _Listing], timeout_s: float
    ) -> grpc.aio.UnaryStreamCall[pb.ListLedgersRequest, pb.LedgerLists]:
        request = pb.ListLedgersRequest(incarnation=self._incarnation, ledger_ids=requests)
        return self._list_ledgers(request, timeout=timeout_s)

    @override
    def _distribute(self, message: pb.LedgerLists, requests: Mapping[LedgerId, _Listing]) -> None:
        for each in message.lists:
            listing = requests.get(LedgerId(each.ledger_id))
            if listing is None or listing.last is not None:
                raise MalformedAnswerError(f"a list of ledger {each.ledger_id} came that was not asked for")
            listing.add(each.piece)
