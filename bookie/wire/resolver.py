"""Where a bookie listens, and the port through which a transport finds out.

The address carries the storage incarnation that the bookie registered with; a transport puts it into every request,
so that other disks under the same bookie id never answer for the ones that were meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from bookie.model.ids import BookieId

GRPC_PROTOCOL: Final = "bookie-grpc"
"""Endpoint protocol of our bookies in their service info."""


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """One endpoint of a registered bookie."""

    host: str
    port: int
    protocol: str = GRPC_PROTOCOL
    incarnation: str = ""
    """Empty: not known, requests are not checked against it."""


class Resolver(Protocol):
    """Finds addresses. May cache for a second or two; errors of ours (``BkhealError``) mean that it cannot tell."""

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        """Where ``bookie`` listens, or None if it has no address."""
        ...
