"""A bound on the memory of answers that clients have not received yet.

The invariant: unsent answers have at most ``total_bytes_max`` bytes, plus the answers of ``reads_max`` reads. A read
takes a place, then checks the unsent bytes, and releases its place after its answer is counted. So no two reads use the
same room.

A slow client delays only itself: its next reads start after it has received the earlier answers. If many clients
together reach the total, reads are refused until some answers are sent (TOO_MANY_REQUESTS: another bookie can answer,
or this one later). If an answer is not received within ``taken_within_s``, its rest is dropped, so the refusals end.
gRPC still holds one message of such an answer, about 1 MiB, until the client receives it or disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bookie.server.read_places import ReadPlaces
from bookie.wire.port import ReadReply, Status


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


@dataclass(frozen=True, slots=True)
class UnsentAnswer:
    """An answer whose size is counted."""

    reply: ReadReply
    end: Callable[[], None]
    """To be called once, after it was sent or dropped."""


class UnsentAnswers:
    """The unsent answers of one listener."""

    def __init__(self, limits: UnsentLimits | None = None) -> None:
        """Start without answers."""
        self.limits = limits or UnsentLimits()
        self.bytes = 0
        """The bytes of the entries in unsent answers."""
        self._places = ReadPlaces(self.limits.reads_max)
        self._connections: dict[str, _UnsentOfConnection] = {}
        """The connections with a running read."""

    @asynccontextmanager
    async def answering(
        self, peer: str, read: Callable[[], Awaitable[ReadReply]], *, is_urgent: bool = False
    ) -> AsyncIterator[ReadReply]:
        """Call ``read`` if there is room, and count its answer until the context ends, which must be after its sending.

        ``is_urgent``: whether it comes before other waiting reads.
        """
        answer = await self.answer(peer, read, is_urgent=is_urgent)
        try:
            yield answer.reply
        finally:
            answer.end()

    async def answer(
        self, peer: str, read: Callable[[], Awaitable[ReadReply]], *, is_urgent: bool = False
    ) -> UnsentAnswer:
        """Call ``read`` if there is room, and count its answer until the caller releases it."""
        connection = self._connections.setdefault(peer, _UnsentOfConnection())
        connection.calls += 1
        size = 0

        def end() -> None:
            self.bytes -= size
            connection.bytes -= size
            connection.calls -= 1
            connection.has_sent.set()
            if not connection.calls:
                del self._connections[peer]

        try:
            while True:
                async with self._places.place(is_urgent=is_urgent):
                    if self.bytes >= self.limits.total_bytes_max:
                        reply = ReadReply(
                            Status.TOO_MANY_REQUESTS, detail="too many answers wait for clients to read them"
                        )
                        return UnsentAnswer(reply, end)
                    if connection.bytes < self.limits.connection_bytes_max:
                        reply = await read()
                        size = sum(len(result.packet) for result in reply.results)
                        self.bytes += size
                        connection.bytes += size
                        return UnsentAnswer(reply, end)
                connection.has_sent.clear()
                await connection.has_sent.wait()
        except BaseException:
            end()
            raise
