"""A proxy in front of ZooKeeper that answers like one slow server: one answer after the other, at a fixed rate.

Each answer waits for all earlier answers to all clients. So a client that requests much data delays all others, as on a
server that is limited by its processor, disk or network instead of the cores of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from auditor.bench.proxy import ignoring_closed_connection, proxy

_CHUNK_BYTES: Final = 64 * 1024
_ANSWERS_MAX: Final = 1_000
"""Waiting answers of each connection; one client has fewer requests in flight."""


@asynccontextmanager
async def slow_server(target: str, bytes_per_s: int) -> AsyncIterator[str]:
    """Forward connections to ``target``, and its answers back in their order of arrival; yield host and port.

    Args:
        target: ``host:port`` of the real server.
        bytes_per_s: the rate for all connections together.
    """
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

    async def pass_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turns: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_ANSWERS_MAX)
        async with asyncio.TaskGroup() as both:
            both.create_task(ignoring_closed_connection(come(reader, turns)))
            both.create_task(ignoring_closed_connection(go(turns, writer)))

    async with proxy(target, pass_answers) as address:
        yield address
