"""The memory of answers that clients have not taken yet.

The invariant: what is unsent is at most ``total_bytes_max``, and the answers of ``reads_max`` reads more. A read gets
its place, then looks at what is unsent, and gives its place back when its answer is counted. So no two reads see the
same room.

A client that takes its answers slowly waits for itself: its next reads start when it has taken the earlier ones. If
many clients together reach the total, reads are refused until some are sent (TOO_MANY_REQUESTS: another bookie can
answer, or this one later). What is not taken of an answer in ``taken_within_s`` is dropped, so this
ends. Of such an answer, gRPC holds one message of about 1 MiB until the client takes it or goes.
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
    """Bounds of the answers of all connections."""

    connection_bytes_max: int = 32 << 20
    """Unsent answers of one connection; its next read waits."""
    total_bytes_max: int = 256 << 20
    """Unsent answers of all connections; further reads are refused."""
    reads_max: int = 32
    """Reads whose answers are not counted yet, each of 13 MB at most."""
    taken_within_s: float = 30.0
    """For one answer. Clients wait half of that for it."""


@dataclass(slots=True)
class _Connection:
    bytes: int = 0
    calls: int = 0
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class UnsentAnswer:
    """An answer that is counted."""

    reply: ReadReply
    end: Callable[[], None]
    """To be called once, when it was sent or is dropped."""


class UnsentAnswers:
    """Counts the answers of one listener."""

    def __init__(self, limits: UnsentLimits | None = None) -> None:
        """Start with nothing unsent."""
        self.limits = limits or UnsentLimits()
        self.bytes = 0
        """Bytes of entries in answers that are not sent."""
        self._places = ReadPlaces(self.limits.reads_max)
        self._connections: dict[str, _Connection] = {}
        """Those with a read under way."""

    @asynccontextmanager
    async def answering(
        self, peer: str, read: Callable[[], Awaitable[ReadReply]], *, is_urgent: bool = False
    ) -> AsyncIterator[ReadReply]:
        """Call ``read`` if there is room, and count its answer until the context ends, so until it was sent.

        ``is_urgent``: whether it goes before the others that wait.
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
        connection = self._connections.setdefault(peer, _Connection())
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
                        reply = ReadReply(Status.TOO_MANY_REQUESTS, detail="too many answers were not taken yet")
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
