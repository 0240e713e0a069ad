"""Links in front of a port, which can be cut, closed or slowed down.

A link forwards bytes. While it is cut, connections stay open, as if every packet were lost; what was held back arrives
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable
from typing import Final

LOOPBACK: Final = "127.0.0.1"
LINK_HOST: Final = "127.0.0.2"
"""The address that a bookie of bkheal advertises. Its links listen there, on the ports of the bookie."""
_READ_BYTES: Final = 1 << 16
_DELAY_S: Final = 0.05
"""The delay before each 64 KiB, in each direction, of a slow link."""
_AGAIN_S: Final = 0.1


class Trouble(enum.Enum):
    """A fault of a link. The value is the verb of the sentence that reports it."""

    CUT = "cut"
    NO_ANSWERS = "cut the answers of"
    CLOSE = "close"
    """Connections end at once, and new ones as well."""
    SLOW = "slow down"


class Link:
    """Forwards connections to a port of this machine."""

    def __init__(
        self,
        port: int,
        host: str = LOOPBACK,
        *,
        first: Callable[[asyncio.StreamReader], Awaitable[bytes]] | None = None,
        attempts: int = 1,
    ) -> None:
        """Store the address to which it forwards.

        Args:
            port: the port to which it forwards.
            host: the address to which it forwards.
            first: reads the first message of each connection, and returns what is forwarded instead.
            attempts: how often it tries to connect, every tenth of a second. Its clients are connected in the meantime:
                a link cannot refuse a connection, only end it.
        """
        self.received = 0
        """The bytes that the link received, whether forwarded or held back."""
        self._target = host, port
        self._first = first
        self._attempts = attempts
        self._trouble: Trouble | None = None
        self._has_changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int = 0) -> int:
        """Begin to forward, and return the port."""
        self._server = await asyncio.start_server(self._accept, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def set(self, trouble: Trouble | None) -> None:
        """Begin a fault, or end it."""
        self._trouble = trouble
        self._has_changed.set()
        self._has_changed = asyncio.Event()
        if trouble is Trouble.CLOSE:
            for connection in self._connections:
                connection.cancel()

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._trouble is Trouble.CLOSE:
            writer.transport.abort()
            return
        connection = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):  # the target does not run, or one end was closed
                from_target, to_target = await self._connected()
                try:
                    async with asyncio.TaskGroup() as pumps:
                        pumps.create_task(self._pump(from_client, to_target, is_answer=False))
                        pumps.create_task(self._pump(from_target, to_client, is_answer=True))
                finally:
                    to_target.transport.abort()
        finally:
            to_client.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(self._attempts - 1):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(*self._target)
            await asyncio.sleep(_AGAIN_S)
        return await asyncio.open_connection(*self._target)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            if self._first is not None and not is_answer:
                await self._pass(await self._first(reader), writer, is_answer=False)
            while data := await reader.read(_READ_BYTES):
                self.received += len(data)
                await self._pass(data, writer, is_answer=is_answer)
            await self._passage(is_answer)
            writer.write_eof()
        except (OSError, EOFError):  # one of the ends was aborted, or ended before its first message
            writer.transport.abort()

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        await self._passage(is_answer)
        writer.write(data)
        await writer.drain()

    async def _passage(self, is_answer: bool) -> None:
        """Wait until bytes may pass."""
        if self._trouble is Trouble.SLOW:
            await asyncio.sleep(_DELAY_S)
        while self._trouble is Trouble.CUT or (is_answer and self._trouble is Trouble.NO_ANSWERS):
            await self._has_changed.wait()
