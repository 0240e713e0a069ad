"""The common part of all connections to a bookie, in any version of the protocol.

A stream receives the bodies of frames, and sends frames while the socket accepts them and not too many requests are in
flight. It belongs to one event loop. Deadlines and the meaning of answers are left to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from bookie.model.errors import TransientError
from bookie.wire.apache.framing import FrameSplitter, MalformedFrameError

IN_FLIGHT_MAX: Final = 8192
"""Limit of the requests in flight on one connection; further ones wait for room."""
_CLOSE_S: Final = 5.0


class ConnectionLostError(TransientError):
    """The connection has ended; the request may or may not have taken effect. The text contains the reason."""


class Stream(ABC, asyncio.Protocol):
    """A connection to a bookie: frames in both directions."""

    def __init__(self, splitter: FrameSplitter, in_flight_max: int) -> None:
        self._splitter = splitter
        self._in_flight_max = in_flight_max
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._may_go = asyncio.Event()
        self._closed = asyncio.Event()
        self._over: str | None = None

    @abstractmethod
    def _receive(self, body: bytes) -> None:
        """Handle the body of a frame.

        Raises:
            MalformedFrameError: it is not an answer.
        """

    @abstractmethod
    def _fail_all(self, why: str) -> None:
        """Drop all requests in flight, and report ``why`` to every waiting caller."""

    @property
    @abstractmethod
    def _in_flight(self) -> int:
        """Number of requests waiting for their answers."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._over is not None

    @property
    def end_reason(self) -> str:
        """The reason for its end, or for accepting no more requests."""
        return self._over or "a request on it was abandoned"

    async def ready(self) -> None:
        """Wait until more may be sent: the socket accepts it, and not too many requests are in flight.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        while not self.is_over and (self._is_paused or self._in_flight >= self._in_flight_max):
            self._may_go.clear()
            await self._may_go.wait()
        if self.is_over:
            raise ConnectionLostError(self.end_reason)

    async def taken(self) -> None:
        """Wait until the socket accepts more bytes, or the connection has ended."""
        while self._over is None and self._is_paused:
            self._may_go.clear()
            await self._may_go.wait()

    def send(self, parts: Iterable[bytes]) -> None:
        """Write frames, or parts of them, together. No effect after the end of the connection."""
        if self._over is None:
            assert self._transport is not None
            self._transport.writelines(parts)

    def end(self, why: str) -> None:
        """Close the connection, and report ``why`` to every waiting caller. Idempotent."""
        if self._over is not None:
            return
        self._over = why
        self._fail_all(why)
        self._may_go.set()
        if self._transport is not None:
            self._transport.abort()

    async def close(self, why: str) -> None:
        """End the connection, and wait until the socket is closed."""
        self.end(why)
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A callback of ``asyncio.Protocol``, as are the following."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self.end("the bookie closed the connection" if exc is None else f"the connection broke: {exc}")
        self._closed.set()

    def pause_writing(self) -> None:
        """Pause sending: the socket accepts no more bytes for now."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Resume sending."""
        self._is_paused = False
        self._may_go.set()

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame."""
        try:
            for body in self._splitter.feed(data):
                if self._over is not None:
                    return
                self._receive(body)
        except MalformedFrameError as error:
            self.end(f"the bookie's answer is not a message of its protocol: {error}")
        if self._in_flight < self._in_flight_max:
            self._may_go.set()
