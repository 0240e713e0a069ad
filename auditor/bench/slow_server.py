"""A proxy in front of ZooKeeper that answers as one slow server does: one answer after the other, at a fixed rate.

Each answer waits for all that came before it, whoever asked. So a client that asks for much delays all others, as on a
server whose processor, disk or network is the limit, and not the cores of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from bookie.runtime.tasks import cancel, guarded

_CHUNK_BYTES: Final = 64 * 1024
_ANSWERS_MAX: Final = 1_000
"""Waiting for their turn, of each connection; what is in flight from one client is less."""


@asynccontextmanager
async def slow_server(target: str, bytes_per_s: int) -> AsyncIterator[str]:
    """Pass connections on to ``target``, and its answers back in the order in which they came; yield host and port.

    Args:
        target: ``host:port`` of the real server.
        bytes_per_s: that all connections together get.
    """
    host, port = target.rsplit(":", 1)
    open_connections: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    free_s = loop.time()

    async def come(reader: asyncio.StreamReader, turns: asyncio.Queue[tuple[float, bytes]]) -> None:
        nonlocal free_s
        while data := await reader.read(_CHUNK_BYTES):
            free_s = max(free_s, loop.time()) + len(data) / bytes_per_s
            await turns.put((free_s, data))

    async def go(turns: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            at_s, data = await turns.get()
            if at_s > loop.time():
                await asyncio.sleep(at_s - loop.time())
            writer.write(data)
            await writer.drain()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, int(port))
        turns: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_ANSWERS_MAX)
        ways = [guarded("answers", _until_closed(way)) for way in (come(answers, turns), go(turns, writer))]
        try:
            while data := await reader.read(_CHUNK_BYTES):
                requests.write(data)
                await requests.drain()
        finally:
            for way in ways:
                await cancel(way)
            requests.close()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = guarded("slow server", _until_closed(pass_on(reader, writer)))
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        name, number = server.sockets[0].getsockname()[:2]
        yield f"{name}:{number}"
    finally:
        server.close()
        for task in list(open_connections):
            await cancel(task)


async def _until_closed(work: Any) -> None:
    with suppress(ConnectionError):
        await work
