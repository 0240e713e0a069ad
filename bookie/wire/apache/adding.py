"""A batch of adds over Apache's protocol, which has no batches: one request for each entry, written together.

The bookie answers each separately, so a refused batch may have been stored in part.
"""

from __future__ import annotations

import asyncio
from typing import Final

from typing_extensions import override

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.add_frames import AddFrames
from bookie.wire.apache.connection import STORED_ANSWER, AnswerWaiter, ApacheAnswer, ExpectedAnswer, Version3Connection
from bookie.wire.apache.stream import ConnectionLostError
from bookie.wire.port import AddBatch, AddReply, Status

RECOVERY_PRIORITY: Final = 100
"""The priority of adds in Apache's recovery, but not in its re-replication. Here the two cannot be distinguished.

A read-only bookie accepts adds of this priority while its disks have room, and recovery has to re-add to read-only
members of an ensemble. Repair never chooses read-only targets (S8)."""

_PARTIAL_BATCH_DETAIL: Final = (
    "other entries of the batch may have been stored: over this protocol each is sent separately"
)
_DECISIVE_STATUSES: Final = (
    Status.FENCED,
    Status.UNAUTHORIZED,
    Status.READ_ONLY,
    Status.LIMBO,
    Status.TOO_MANY_REQUESTS,
    Status.BAD_REQUEST,
    Status.IO_ERROR,
)
"""Failures of a batch's entries, the most informative one first."""


class AddWaiter(AnswerWaiter):
    """One batch in flight. Call ``submit``, then await ``reply``; call ``forget`` in any case."""

    def __init__(self, batch: AddBatch) -> None:
        self.reply: asyncio.Future[AddReply] = asyncio.get_running_loop().create_future()
        self._batch = batch
        self._unanswered = len(batch.entries)
        self._expected: list[tuple[int, bytes]] = []
        self._failures: set[Status] = set()
        self._is_left_over = False
        """Whether the connection still has the expected answer bytes of some entry."""

    async def submit(self, connection: Version3Connection) -> None:
        """Write the requests for all entries together, in order: the bookie syncs them together.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        batch, ledger_id = self._batch, self._batch.ledger_id
        await connection.ready()
        first = connection.take_ids(len(batch.entries))
        priority = RECOVERY_PRIORITY if batch.is_recovery else None
        frames = AddFrames(ledger_id, batch.master_key, priority, is_recovery=batch.is_recovery)
        parts: list[bytes] = []
        for txn_id, entry in enumerate(batch.entries, first):
            entry_id = int.from_bytes(entry[8:16], "big")
            head, tail, stored = frames.around(txn_id, entry_id, len(entry))
            connection.expect_stored(txn_id, ExpectedAnswer(pb.ADD_ENTRY, ledger_id, entry_id, self), stored)
            self._expected.append((txn_id, stored))
            parts += (head, entry, tail)
        connection.send(parts)

    def forget(self, connection: Version3Connection) -> None:
        """Drop acks that arrive later."""
        if self._unanswered or self._is_left_over:
            connection.forget_stored(self._expected)

    @property
    def failure(self) -> AddReply | None:
        """The most informative failure so far, None if there is none."""
        if not self._failures:
            return None
        status = next((status for status in _DECISIVE_STATUSES if status in self._failures), min(self._failures))
        return AddReply(status, _PARTIAL_BATCH_DETAIL if len(self._batch.entries) > 1 else "")

    @override
    def answered(self, answer: ApacheAnswer) -> None:
        if answer is not STORED_ANSWER:
            self._is_left_over = True
            if answer.status is not Status.OK:
                self._failures.add(answer.status)
        self._unanswered -= 1
        if not self._unanswered and not self.reply.done():
            self.reply.set_result(self.failure or AddReply(Status.OK))

    @override
    def lost(self, error: ConnectionLostError) -> None:
        if not self.reply.done():
            self.reply.set_result(self.failure or AddReply(Status.UNREACHABLE, str(error)))
