"""A TCP proxy between a client and one bookie, which records every frame until TLS begins."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import FrameSplitter

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Frame:
    """The body of a frame, without its length."""

    connection: int
    is_request: bool
    body: bytes


@dataclass
class RecordingProxy:
    """A proxy, to be used as an async context. ``frames`` contains the recorded frames in order."""

    target_port: int
    port: int = 0
    frames: list[Frame] = field(default_factory=list)
    _connections: int = 0
    _server: asyncio.Server | None = None
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> RecordingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        from_bookie, to_bookie = await asyncio.open_connection("127.0.0.1", self.target_port)
        for reader, writer, is_request in ((from_client, to_bookie, True), (from_bookie, to_client, False)):
            pump = asyncio.create_task(self._pump(number, reader, writer, is_request))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_request: bool
    ) -> None:
        splitter = FrameSplitter()
        is_readable = True
        with suppress(ConnectionError):
            try:
                while data := await reader.read(_READ_BYTES):
                    if is_readable:
                        frames = [Frame(connection, is_request, bytes(body)) for body in splitter.feed(data)]
                        self.frames += frames
                        is_readable = not any(map(_begins_tls, frames))
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()


def _begins_tls(frame: Frame) -> bool:
    """Return whether everything after this in the same direction is encrypted, or whether there is nothing more."""
    if frame.body[0] == v2.VERSION:
        return False
    message = pb.Request if frame.is_request else pb.Response
    return message.FromString(frame.body).header.operation == pb.START_TLS
