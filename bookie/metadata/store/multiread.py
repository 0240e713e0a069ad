"""Many reads in few requests: ZooKeeper's ``multiRead`` (3.6 and later), several in flight, sized by earlier replies.

The size of a server's reply has no limit. So the number of paths per request follows the sizes of earlier replies, to
keep the expected reply small. If a call reads below another node than the call before, its first request is small,
because the nodes may be much larger than those of earlier calls. A request with long paths has fewer of them, because a
server closes the connection after a request larger than its ``jute.maxbuffer``. Results are not one point in time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from bookie.metadata.port import Children, Node, StoreUnavailableError
from bookie.metadata.store.jute import (
    OP_GET_CHILDREN,
    OP_GET_DATA,
    READ_OVERHEAD,
    OnError,
    multi_read_request,
    read_children,
    read_data,
    read_nodes,
)
from bookie.metadata.store.zookeeper_errors import answer_error
from bookie.runtime.waiting import all_or_first_error

PATHS_PER_REQUEST_MAX: Final = 500
REQUESTS_IN_FLIGHT: Final = 8
REPLY_BYTES_TARGET: Final = 512 * 1024
REQUEST_BYTES_MAX: Final = 512 * 1024
"""Half of the default ``jute.maxbuffer``."""
_FIRST_ESTIMATE_BYTES: Final = 8 * 1024
"""Expected bytes per path before the first reply."""
_FIRST_PATHS_MAX: Final = REPLY_BYTES_TARGET // _FIRST_ESTIMATE_BYTES
"""Maximum number of paths in the first request of a call that reads below another node than the call before."""
_ESTIMATE_WEIGHT: Final = 0.5
"""Weight of a reply that is smaller than expected. A larger reply replaces the estimate: the next nodes may be as
large."""

T = TypeVar("T")
Decode = Callable[[bytes, int, OnError], list[T]]
Send = Callable[[bytes], Awaitable[bytes]]


class BulkReader:
    """Splits long lists of paths into requests. ``send`` carries one request body and returns the reply's body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._slots = asyncio.Semaphore(REQUESTS_IN_FLIGHT)
        self._estimates = {OP_GET_DATA: float(_FIRST_ESTIMATE_BYTES), OP_GET_CHILDREN: float(_FIRST_ESTIMATE_BYTES)}
        self._parents = {OP_GET_DATA: "", OP_GET_CHILDREN: ""}
        """The node below which the previous call read, by operation."""

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        """Read many nodes, in requests of bounded size."""
        return await self._read(OP_GET_DATA, paths, read_nodes)

    async def data(self, paths: Sequence[str]) -> list[bytes | None]:
        """Read the data of many nodes, in requests of bounded size."""
        return await self._read(OP_GET_DATA, paths, read_data)

    async def children(self, paths: Sequence[str]) -> list[Children | None]:
        """List the children of many nodes, in requests of bounded size."""
        return await self._read(OP_GET_CHILDREN, paths, read_children)

    async def _read(self, opcode: int, paths: Sequence[str], decode: Decode[T | None]) -> list[T | None]:
        result: list[T | None] = [None] * len(paths)
        start = 0

        async def work() -> None:
            nonlocal start
            while start < len(paths):
                async with self._slots:  # other workers may take all remaining paths during the wait
                    first, start = start, _end(paths, start, self._paths_per_request(opcode))
                    if part := paths[first:start]:
                        result[first : first + len(part)] = await self._request(opcode, part, decode)

        if paths:
            # The first reply shows the size of these nodes, and whether the server supports the operation.
            start = _end(paths, 0, self._first_request_paths_max(opcode, paths[0]))
            result[:start] = await self._request(opcode, paths[:start], decode)
            await all_or_first_error(work() for _ in range(min(REQUESTS_IN_FLIGHT, len(paths) - start)))
        return result

    def _paths_per_request(self, opcode: int) -> int:
        return max(1, min(PATHS_PER_REQUEST_MAX, int(REPLY_BYTES_TARGET / self._estimates[opcode])))

    def _first_request_paths_max(self, opcode: int, path: str) -> int:
        before, self._parents[opcode] = self._parents[opcode], path.rpartition("/")[0]
        most = self._paths_per_request(opcode)
        return most if self._parents[opcode] == before else min(most, _FIRST_PATHS_MAX)

    async def _request(self, opcode: int, paths: Sequence[str], decode: Decode[T | None]) -> list[T | None]:
        def fail(index: int, code: int) -> None:
            raise answer_error(code, f"cannot read {paths[index]}") or StoreUnavailableError(
                f"no answer for {paths[index]} in a bulk read (code {code})"
            )

        reply = await self._send(multi_read_request(opcode, paths))
        size, estimate = max(len(reply) / len(paths), 1.0), self._estimates[opcode]
        self._estimates[opcode] = max(size, estimate + (size - estimate) * _ESTIMATE_WEIGHT)
        try:
            return decode(reply, len(paths), fail)
        except (struct.error, ValueError, IndexError) as error:
            raise StoreUnavailableError(f"the reply to a bulk read of {len(paths)} paths is malformed") from error


def _end(paths: Sequence[str], start: int, count: int) -> int:
    """Return the exclusive end of a request with at most ``count`` paths from ``start`` on, and at least one."""
    size = 0
    end = min(start + count, len(paths))
    for at in range(start, end):
        path = paths[at]
        size += READ_OVERHEAD + (len(path) if path.isascii() else len(path.encode()))
        if size > REQUEST_BYTES_MAX and at > start:
            return at
    return end
