"""A proxy in front of ZooKeeper, with which a benchmark delays the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from bookie.runtime.tasks import cancel, guarded

_CHUNK_BYTES: Final = 64 * 1024

PassAnswers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Copies the answers of one connection from the server to the client, until it is cancelled or the connection ends."""


@asynccontextmanager
async def proxy(target: str, pass_answers: PassAnswers) -> AsyncIterator[str]:
    """Accept connections and forward them to ``target``; yield host and port of the proxy.

    Args:
        target: ``host:port`` of the real server.
        pass_answers: runs once for each connection; requests are forwarded at once.
    """
    host, port = target.rsplit(":", 1)
    open_connections: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, int(port))
        returning = guarded("answers", ignoring_closed_connection(pass_answers(answers, writer)))
        try:
            while data := await reader.read(_CHUNK_BYTES):
                requests.write(data)
                await requests.drain()
        finally:
            await cancel(returning)
            requests.close()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = guarded("proxy connection", ignoring_closed_connection(forward(reader, writer)))
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


async def ignoring_closed_connection(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``, which may also end by a closed connection."""
    with suppress(ConnectionError):
        await work
