"""The addresses of bookies, and the port through which a transport gets them.

An address contains the storage incarnation that the bookie registered. A transport puts it into every request, so other
disks under the same bookie id never answer in place of the intended ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from bookie.model.errors import BkhealError, TransientError
from bookie.model.ids import BookieId

GRPC_PROTOCOL: Final = "bookie-grpc"
"""Endpoint protocol of our bookies in their service info."""
APACHE_PROTOCOL: Final = "bookie-rpc"
"""Endpoint protocol of Apache's bookies, and of bkheal's with an Apache port.

Source: docs/formats.md#registration.
"""


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """One endpoint of a registered bookie."""

    host: str
    port: int
    protocol: str = GRPC_PROTOCOL
    incarnation: str = ""
    """Empty if unknown; requests are then not checked against it."""


class Resolver(Protocol):
    """Finds addresses. May cache for a second or two. After a ``BkhealError`` the address is unknown."""

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        """Return the address of ``bookie``; None if it has none."""
        ...


class UnresolvedError(TransientError):
    """There is no address for the bookie, or none of the requested protocol."""


async def address_for(resolver: Resolver, bookie: BookieId, protocol: str) -> BookieAddress:
    """Return the address of ``bookie`` for ``protocol``.

    Raises:
        UnresolvedError: it has no such address, or the address is unknown; the text distinguishes these.
    """
    try:
        address = await resolver.resolve(bookie)
    except BkhealError as error:
        raise UnresolvedError(f"the address of bookie {bookie} could not be looked up: {error}") from error
    if address is None:
        raise UnresolvedError(f"bookie {bookie} is not registered")
    if address.protocol != protocol:
        raise UnresolvedError(f"bookie {bookie} speaks {address.protocol}, not {protocol}")
    return address
