"""A second connection to a bookie, for bulk transfers in version 2 of Apache's protocol, which costs half as much.

A request that fails, for any reason, is repeated over version 3, whose answers contain the reason. So there are only
two outcomes here: success and failure.

Version 2 has no transaction ids: an answer names an operation, a ledger and an entry. Each such combination is in
flight at most once. After a request was given up, the connection accepts no more requests, because a late answer would
count as the answer to the next one (S18). Batch reads have unique ids. This module has no deadlines.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from bookie.wire.apache.framing import FRAME_BYTES_MAX, FrameSplitter, MalformedFrameError
from bookie.wire.apache.stream import IN_FLIGHT_MAX, ConnectionLostError, Stream
from bookie.wire.apache.v2 import BATCH_READ_ENTRY, VERSION
from bookie.wire.port import READ_BYTES_MAX

_CHUNK_BYTES: Final = 256 << 10
"""Number of bytes after which sending waits until the socket accepts more."""
ANSWERS_BYTES_MAX: Final = 2 * READ_BYTES_MAX
"""Limit of the answers to one group of requests, plus one answer: later answers are dropped and count as failures."""
_ANSWER: Final = struct.Struct(">HHiqq")
"""Version and opcode, flags, code, ledger, entry; a batch read's request id follows."""
_REQUEST_ID: Final = struct.Struct(">q")
_SUCCESS_CODE: Final = 0

Key = tuple[int, int, int]
"""The key for matching an answer: opcode, ledger and entry; for a batch read its opcode, -1 and the request id."""


class _Group:
    """Requests sent together by one caller."""

    __slots__ = ("answers", "done", "kept_bytes", "left")

    def __init__(self, size: int) -> None:
        self.left = size
        self.kept_bytes = 0
        self.answers: dict[Key, bytes | None] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, key: Key, body: bytes | None) -> None:
        if body is not None and self.kept_bytes < ANSWERS_BYTES_MAX:
            self.kept_bytes += len(body)
            self.answers[key] = body
        else:
            self.answers[key] = None
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class BulkConnection(Stream):
    """A connection that speaks version 2. Belongs to one event loop."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__(FrameSplitter(frame_bytes_max, self._too_long), in_flight_max)
        self._expected: dict[Key, _Group] = {}
        self._is_retired = False
        self.good_operations: set[int] = set()
        """Opcodes with a good answer so far: the bookie supports these operations of version 2."""

    @property
    def is_over(self) -> bool:
        """Whether the connection accepts no more requests."""
        return self._over is not None or self._is_retired

    async def ask(self, requests: Sequence[tuple[Key, Sequence[bytes]]]) -> list[bytes | None]:
        """Send requests, each as its key and the parts of its frame; return the bodies of good answers in this order.

        None means a failure, or an answer beyond ``ANSWERS_BYTES_MAX``. If a key is already in flight, nothing is sent,
        and all are None.

        Raises:
            ConnectionLostError: the connection ended before all answers arrived, or accepts no more requests.
        """
        await self.ready()
        keys = [key for key, _ in requests]
        group = _Group(len(keys))
        fresh = dict.fromkeys(keys, group)
        if len(fresh) < len(keys) or not fresh.keys().isdisjoint(self._expected):
            return [None] * len(keys)
        self._expected |= fresh
        try:
            await self._send(parts for _, parts in requests)
            await group.done
        finally:
            if group.left:
                self._stop_expecting(key for key in keys if key not in group.answers)
        return [group.answers[key] for key in keys]

    async def _send(self, frames: Iterable[Sequence[bytes]]) -> None:
        parts: list[bytes] = []
        size = 0
        for frame in frames:
            parts += frame
            size += sum(map(len, frame))
            if size > _CHUNK_BYTES:
                self.send(parts)
                parts, size = [], 0
                await self.taken()
        self.send(parts)

    def _stop_expecting(self, keys: Iterable[Key]) -> None:
        """Stop expecting these answers. They may still arrive, and only those of batch reads can be recognized."""
        for key in keys:
            self._expected.pop(key, None)
            self._is_retired |= key[0] != BATCH_READ_ENTRY
        self._may_go.set()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_retired and not self._expected:
            self.end("a request on it was abandoned")

    @property
    def _in_flight(self) -> int:
        return len(self._expected)

    def _fail_all(self, why: str) -> None:
        groups = set(self._expected.values())
        self._expected.clear()
        for group in groups:
            if not group.done.done():
                group.done.set_exception(ConnectionLostError(why))
                group.done.exception()  # a waiting caller gets it; without one it is dropped

    def _too_long(self, head: bytes, _frame_bytes: int) -> None:
        self._receive(head, is_whole=False)

    def _receive(self, body: bytes, *, is_whole: bool = True) -> None:
        try:
            kind, _, code, ledger_id, entry_id = _ANSWER.unpack_from(body)
            operation = kind & 0xFF
            key = (operation, ledger_id, entry_id)
            if operation == BATCH_READ_ENTRY:
                key = batch_key(_REQUEST_ID.unpack_from(body, _ANSWER.size)[0])
        except struct.error as error:
            raise MalformedFrameError(f"{len(body)} bytes") from error
        if kind >> 8 != VERSION:
            raise MalformedFrameError(f"it is of version {kind >> 8}")
        group = self._expected.pop(key, None)
        if group is None:
            return
        is_good = is_whole and code == _SUCCESS_CODE
        if is_good:
            self.good_operations.add(operation)
        group.take(key, body if is_good else None)
        self._end_if_done()


def batch_key(request_id: int) -> Key:
    """Return the key for matching the answer to a batch read."""
    return (BATCH_READ_ENTRY, -1, request_id)
