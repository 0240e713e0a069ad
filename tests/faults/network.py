"""Links that can be cut or slowed down: one from each process to ZooKeeper, and one to each of our bookies.

A link forwards bytes. While it is cut, connections stay open, as if every packet were lost; what was held back arrives
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import Final

BOOKIE_HOST: Final = "127.0.0.1"
LINK_HOST: Final = "127.0.0.2"
"""The address that a bookie advertises. Its links listen there, on the ports of the bookie."""
_READ_BYTES: Final = 1 << 16
_DELAY_S: Final = 0.05
"""The delay before each 64 KiB, in each direction, of a slow link."""


class Trouble(enum.Enum):
    """A fault of a link. The value is the verb of the sentence that reports it."""

    CUT = "cut"
    NO_ANSWERS = "cut the answers of"
    CLOSE = "close"
    """Connections end at once, and new ones as well."""
    SLOW = "slow down"


class Link:
    """Forwards connections to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        """Store the port to which it forwards."""
        self._target_port = target_port
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
                from_target, to_target = await asyncio.open_connection(BOOKIE_HOST, self._target_port)
                try:
                    async with asyncio.TaskGroup() as pumps:
                        pumps.create_task(self._pump(from_client, to_target, is_answer=False))
                        pumps.create_task(self._pump(from_target, to_client, is_answer=True))
                finally:
                    to_target.transport.abort()
        finally:
            to_client.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                await self._passage(is_answer)
                writer.write(data)
                await writer.drain()
            await self._passage(is_answer)
            writer.write_eof()
        except OSError:  # one of the ends was aborted
            writer.transport.abort()

    async def _passage(self, is_answer: bool) -> None:
        """Wait until bytes may pass."""
        if self._trouble is Trouble.SLOW:
            await asyncio.sleep(_DELAY_S)
        while self._trouble is Trouble.CUT or (is_answer and self._trouble is Trouble.NO_ANSWERS):
            await self._has_changed.wait()


class Network:
    """All links of a cluster."""

    def __init__(self, zookeeper_port: int) -> None:
        """Store the port of ZooKeeper."""
        self._zookeeper_port = zookeeper_port
        self._to_zookeeper: dict[str, Link] = {}
        self._to_bookie: dict[str, list[Link]] = {}

    async def close(self) -> None:
        """Close all links."""
        links = [*self._to_zookeeper.values(), *(link for links in self._to_bookie.values() for link in links)]
        await asyncio.gather(*(link.close() for link in links))

    async def to_zookeeper(self, name: str) -> str:
        """Make the link of a process to ZooKeeper, and return its connect string."""
        link = self._to_zookeeper[name] = Link(self._zookeeper_port)
        return f"{BOOKIE_HOST}:{await link.listen(BOOKIE_HOST)}"

    async def to_bookie(self, name: str, *ports: int) -> None:
        """Make the links to a bookie, unless they exist: they stay over its restarts."""
        if name in self._to_bookie:
            return
        links = self._to_bookie[name] = [Link(port) for port in ports]
        for link, port in zip(links, ports, strict=True):
            await link.listen(LINK_HOST, port)

    def links(self, name: str, *, to_zookeeper: bool) -> list[Link]:
        """Return the links of a process: the one to ZooKeeper, or those to a bookie, if there are any."""
        return [self._to_zookeeper[name]] if to_zookeeper else self._to_bookie.get(name, [])
