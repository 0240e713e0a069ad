"""The counters of a ZooKeeper server, from its answer to ``srvr``."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import TransientError

_DEADLINE_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 1 << 16
_RECEIVED: Final = re.compile(r"^Received: (\d+)$", re.MULTILINE)
_ZXID: Final = re.compile(r"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)
_EPOCH_BITS: Final = 32


class NoCountersError(TransientError):
    """ZooKeeper's answer does not contain its counters."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters since the server's start."""

    received: int
    """Packets from clients: pings, and requests, of which a multi counts as one."""
    transactions: int
    """Changes; a multi counts as one."""


def parse_counters(answer: str) -> Counters:
    """Read the answer to ``srvr``.

    Raises:
        NoCountersError: the answer has no counters.
    """
    received, zxid = _RECEIVED.search(answer), _ZXID.search(answer)
    if received is None or zxid is None:
        raise NoCountersError(f"ZooKeeper's answer to srvr names no counters: {answer[:200]!r}")
    return Counters(int(received[1]), int(zxid[1], 16) & ((1 << _EPOCH_BITS) - 1))


async def counters(port: int) -> Counters:
    """Request the counters of the server on this port of 127.0.0.1.

    Raises:
        NoCountersError: no answer, or an answer without counters.
    """
    try:
        async with asyncio.timeout(_DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"srvr")
                answer = await reader.read(_ANSWER_BYTES_MAX)
                while more := await reader.read(_ANSWER_BYTES_MAX):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise NoCountersError(f"ZooKeeper on port {port} does not answer srvr: {error}") from error
    return parse_counters(answer.decode(errors="replace"))
