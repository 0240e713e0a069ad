"""Small reads of several ledgers of one bookie in one call, ``ReadLedgers`` (``joint_calls``).

Only reads with small expected answers share a call. One message contains the answers that are ready at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc.aio
from typing_extensions import override

from bookie.model.ids import EntryId, LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire.grpc.codec import MalformedAnswerError, entries_from_wire, status_from_wire
from bookie.wire.grpc.joint_calls import TRUNCATED_ANSWER_DETAIL, Joint, JointCalls
from bookie.wire.port import EntryResult, ReadReply, Status
from bookie.wire.requests import Read

ReadCallable = Callable[..., grpc.aio.UnaryStreamCall[pb.ReadLedgersRequest, pb.LedgerBatches]]
SingleRequest = Callable[[Read, list[EntryResult], float], Awaitable[ReadReply]]


class ReadAnswer:
    """The answer to one read. ``results`` grows with each piece, so a failure leaves the pieces that came before it."""

    __slots__ = ("last", "results", "wanted")

    def __init__(self, wanted: Sequence[EntryId], results: list[EntryResult]) -> None:
        self.wanted = wanted
        self.results = results
        self.last: pb.EntryBatch | None = None
        """The last piece of the answer."""

    def add(self, piece: pb.EntryBatch) -> None:
        """Add a piece.

        Raises:
            MalformedAnswerError: its entries are not the next ones of the request.
        """
        start = len(self.results)
        results = entries_from_wire(piece)
        if [result.entry_id for result in results] != list(self.wanted[start : start + len(results)]):
            raise MalformedAnswerError("the entries in the answer are not those that were asked for")
        self.results.extend(results)
        if piece.is_last:
            self.last = piece

    def reply(self) -> ReadReply:
        """Return the whole answer.

        Raises:
            MalformedAnswerError: the answer is OK, but covers no entry.
        """
        if self.last is None:
            return ReadReply(Status.UNREACHABLE, tuple(self.results), TRUNCATED_ANSWER_DETAIL)
        if self.last.status == pb.STATUS_OK and self.wanted and not self.results:
            raise MalformedAnswerError("an OK answer to a read covers no entry")
        return ReadReply(status_from_wire(self.last.status), tuple(self.results), self.last.detail)


class _Reading(Joint):
    __slots__ = ("parts", "read")

    def __init__(self, read: Read, results: list[EntryResult], timeout_s: float) -> None:
        super().__init__(read.ledger_id, timeout_s)
        self.read = read
        self.parts = ReadAnswer(read.entry_ids, results)


class JointReads(JointCalls[_Reading, pb.LedgerBatches]):
    """The small reads of one connection."""

    def __init__(self, read_ledgers: ReadCallable, incarnation: str, request_single: SingleRequest) -> None:
        """Prepare for the disks of ``incarnation``; ``request_single`` sends one read."""
        super().__init__()
        self._read_ledgers = read_ledgers
        self._incarnation = incarnation
        self._request_single = request_single

    async def read(self, read: Read, results: list[EntryResult], timeout_s: float) -> ReadReply:
        """Read entries without a fence; ``results`` grows as they arrive.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer does not match the request.
        """
        reading = _Reading(read, results, timeout_s)
        if not await self._joined(reading):
            results.clear()
            return await self._request_single(read, results, timeout_s)
        return reading.parts.reply()

    @override
    def _open(
        self, requests: Mapping[LedgerId, _Reading], timeout_s: float
    ) -> grpc.aio.UnaryStreamCall[pb.ReadLedgersRequest, pb.LedgerBatches]:
        reads = [pb.LedgerRead(ledger_id=each.ledger_id, entry_ids=each.read.entry_ids) for each in requests.values()]
        return self._read_ledgers(pb.ReadLedgersRequest(incarnation=self._incarnation, reads=reads), timeout=timeout_s)

    @override
    def _distribute(self, message: pb.LedgerBatches, requests: Mapping[LedgerId, _Reading]) -> None:
        for each in message.batches:
            reading = requests.get(LedgerId(each.ledger_id))
            if reading is None or reading.parts.last is not None:
                raise MalformedAnswerError(f"entries of ledger {each.ledger_id} came that were not asked for")
            reading.parts.add(each.piece)
            if each.piece.is_last:
                reading.complete(is_answered=True)
