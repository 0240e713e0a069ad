"""A bookie behind a connection that a test can cut or slow down. Clients connect to ZooKeeper directly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.model.ids import BookieId
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S

_BOOKIE_HOST = "127.0.0.1"
_LINK_HOST = "127.0.0.2"
"""The address that the bookie advertises. The link listens there, on the bookie's port."""
_READ_BYTES = 1 << 16


@dataclass
class Link:
    """Forwards bytes in both directions."""

    port: int
    delay_s: float = 0.0
    """The delay before each 64 KiB, in each direction."""
    received: int = 0
    """The bytes that the link received, whether forwarded or held back."""
    _is_open: asyncio.Event = field(default_factory=asyncio.Event)
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    def cut(self) -> None:
        """Stop forwarding. Connections stay open, as if every packet were lost."""
        self._is_open.clear()

    def restore(self) -> None:
        """Forward again, starting with the bytes that were held back."""
        self._is_open.set()

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_bookie, to_bookie = await asyncio.open_connection(_BOOKIE_HOST, self.port)
        for reader, writer in ((from_client, to_bookie), (from_bookie, to_client)):
            pump = asyncio.create_task(self._pump(reader, writer))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            try:
                while data := await reader.read(_READ_BYTES):
                    self.received += len(data)
                    await self._is_open.wait()
                    if self.delay_s:
                        await asyncio.sleep(self.delay_s)
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()


@dataclass
class LinkedBookie:
    """A bookie behind a link."""

    bookie_id: BookieId
    running: ManagedProcess
    link: Link


@asynccontextmanager
async def linked_bookie(cluster: EmbeddedCluster, name: str) -> AsyncIterator[LinkedBookie]:
    """Start a bookie of ``cluster`` behind a link."""
    directory = cluster.directory / name
    places = ("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers"))
    words = [sys.executable, "-m", "bookie.server", "--metadata-uri", cluster.metadata_uri, *places]
    words += ["--host", _BOOKIE_HOST, "--port", "0", "--advertised-host", _LINK_HOST]
    words += ["--session-timeout", str(LONG_SESSION_S), "--read-only-below-bytes", str(1 << 20)]
    async with ManagedProcess.start(name, words, log_path=directory / "log.txt") as process:
        ready = await process.wait_for_line(r"^bookie (\S+) ready on \S+:(\d+)$", STATE_S)
        link = Link(int(ready[2]))
        link.restore()
        server = await asyncio.start_server(link.serve, _LINK_HOST, link.port)
        try:
            yield LinkedBookie(BookieId(ready[1]), process, link)
        finally:
            server.close()
            await link.close()
