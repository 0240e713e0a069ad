"""The port that a bookie serves: the transport's requests as they arrive, each with its intended incarnation.

Implemented by ``bookie.server.service``; called by the gRPC servicer and by the in-process transport.
"""

from __future__ import annotations

from typing import Protocol

from bookie.wire.port import AddBatch, AddReply, ReplyT, Request


class BookieHandler(Protocol):
    """Answers requests to one bookie. Refusals are statuses; only cancellation and our own bugs raise.

    A started request runs to its end even if its caller is cancelled, except for a long poll. Adds are passed to the
    storage in the order in which their coroutines first run.
    """

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        """Store a batch."""
        ...

    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        """Answer any other request (``bookie.wire.requests``)."""
        ...
