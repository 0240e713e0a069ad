"""A bound on the memory of answers that clients have not received yet.

The invariant: unsent answers have at most ``total_bytes_max`` bytes, plus the answers of ``reads_max`` reads. A read
takes a place, then checks the unsent bytes, and releases its place after its answer is counted. So no two reads use the
same room.

A slow client delays only itself: its next reads start after it has received the earlier answers. If many clients
together reach the total, reads are refused until some answers are sent (TOO_MANY_REQUESTS: another bookie can answer,
or this one later). If an answer to a read is not received within ``taken_within_s``, its rest is dropped, so the
refusals end. gRPC still holds one message of such an answer, of 1 MiB or one entry, until the client receives it or
disconnects. Until then, the answer counts for its connection.

The answers about a last entry are single messages, which gRPC sends after the end of our code. They count until the end
of the call. A client that receives messages at all receives them within the deadline of its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from bookie.server.read_places import ReadPlaces
from bookie.wire.port import EntryResult, FenceReply, LacReply, ReadReply, Reply, ReplyT, Request, Status

SMALL_ANSWER_BYTES: Final = 64 << 10
"""The most bytes of entries in an answer that need not be counted, because the number of calls is bounded."""


@dataclass(frozen=True, slots=True)
class UnsentLimits:
    """The bounds of unsent answers."""

    connection_bytes_max: int = 32 << 20
    """Bytes of unsent answers of one connection, beyond which its next read waits."""
    total_bytes_max: int = 256 << 20
    """Bytes of unsent answers of all connections, beyond which further reads are refused."""
    reads_max: int = 32
    """The most reads whose answers are not counted yet. Each answer has at most 13 MB."""
    taken_within_s: float = 30.0
    """Deadline for a client to receive one answer. Clients wait half as long for it."""


@dataclass(slots=True)
class _UnsentOfConnection:
    bytes: int = 0
    calls: int = 0
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)


class UnsentCount:
    """The count of one answer for all connections and for its own one, until ``end``."""

    __slots__ = ("_answers", "_is_over", "_peer", "_size", "_total_size")

    def __init__(self, answers: UnsentAnswers, peer: str, size: int) -> None:
        self._answers = answers
        self._peer = peer
        self._size = self._total_size = size
        self._is_over = False

    def drop(self) -> None:
        """Count the answer only for its own connection from now on, because its client does not receive it in time."""
        self._answers.bytes -= self._total_size
        self._total_size = 0

    def end(self) -> None:
        """Stop counting, because the answer was sent or its call has ended. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self.drop()
            self._answers.leave(self._peer, self._size)


class UnsentAnswers:
    """The unsent answers of one listener."""

    def __init__(self, limits: UnsentLimits | None = None) -> None:
        """Start without answers."""
        self.limits = limits or UnsentLimits()
        self.bytes = 0
        """The bytes of the entries in unsent answers."""
        self._places = ReadPlaces(self.limits.reads_max)
        self._connections: dict[str, _UnsentOfConnection] = {}
        """The connections with a running call."""

    async def answer(
        self,
        peer: str,
        request: Request[ReplyT],
        ask: Callable[[], Awaitable[ReplyT]],
        *,
        is_urgent: bool = False,
    ) -> tuple[ReplyT, UnsentCount]:
        """Call ``ask`` if there is room, and count its answer until the caller ends the count.

        Args:
            peer: the connection.
            request: the request, for a refusal.
            ask: returns the answer to the request.
            is_urgent: whether it comes before other waiting reads.
        """
        connection = self._connections.setdefault(peer, _UnsentOfConnection())
        connection.calls += 1
        try:
            while True:
                async with self._places.place(is_urgent=is_urgent):
                    if self.bytes >= self.limits.total_bytes_max:
                        refusal = request.failed(
                            Status.TOO_MANY_REQUESTS, detail="too many answers wait for clients to read them"
                        )
                        return refusal, UnsentCount(self, peer, 0)
                    if connection.bytes < self.limits.connection_bytes_max:
                        reply = await ask()
                        size = entry_bytes(reply)
                        self.bytes += size
                        connection.bytes += size
                        return reply, UnsentCount(self, peer, size)
                connection.has_sent.clear()
                await connection.has_sent.wait()
        except BaseException:
            self.leave(peer, 0)
            raise

    def leave(self, peer: str, size: int) -> None:
        """Count a call of a connection as ended, and its answer of ``size`` bytes as sent."""
        connection = self._connections[peer]
        connection.bytes -= size
        connection.calls -= 1
        connection.has_sent.set()
        if not connection.calls:
            del self._connections[peer]


def entry_bytes(reply: Reply) -> int:
    """Return the bytes of the entries in an answer."""
    match reply:
        case ReadReply():
            return sum(len(result.packet) for result in reply.results)
        case FenceReply():
            return _packet_bytes(reply.last_entry)
        case LacReply():
            return _packet_bytes(reply.last_entry) + _packet_bytes(reply.entry)
        case _:
            return 0


def _packet_bytes(result: EntryResult | None) -> int:
    return 0 if result is None else len(result.packet)
