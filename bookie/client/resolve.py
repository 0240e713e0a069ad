"""From a bookie's registration to the address a transport dials, with a short memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bookie.metadata.registration import Registrations
from bookie.model.errors import TransientError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.wire.resolver import GRPC_PROTOCOL, BookieAddress

_FRESH_S: Final = 2.0
"""How long an answer is believed. A restarted bookie may come back on another port within a second or two."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    address: BookieAddress | None
    until_s: float


class RegistrationResolver:
    """Resolves bookie ids through their registration; a bookie that is not registered has no address."""

    def __init__(self, registrations: Registrations, clock: Clock, *, patience_s: float = 0.5) -> None:
        """Know nothing yet.

        Args:
            registrations: the cluster's.
            clock: tells how old an answer is.
            patience_s: how long a request is held up by a silent store, every now and then, where an address is known.
        """
        self._registrations = registrations
        self._clock = clock
        self._patience_s = patience_s
        self._remembered: dict[BookieId, _Remembered] = {}

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        """Address of the bookie's gRPC endpoint, or None where it never had one.

        While the store is silent or the registration is gone the last address stands: a bookie goes on serving when
        its ZooKeeper session ends, and the incarnation in each request keeps a stranger on that port from answering.
        """
        known = self._remembered.get(bookie)
        if known is not None and self._clock.monotonic_s() < known.until_s:
            return known.address
        address = known.address if known is not None else None
        try:
            # A store without a connection would hold the request for longer than the request's own deadline.
            async with asyncio.timeout(None if address is None else self._patience_s):
                found = await self._look_up(bookie)
        except (TransientError, TimeoutError):
            if address is None:
                return None
            found = None
        address = found or address
        self._remembered[bookie] = _Remembered(address, self._clock.monotonic_s() + _FRESH_S)
        return address

    async def _look_up(self, bookie: BookieId) -> BookieAddress | None:
        info = await self._registrations.service_info(bookie)
        if info is None:
            return None
        for endpoint in info.endpoints:
            if endpoint.protocol == GRPC_PROTOCOL:
                return BookieAddress(endpoint.host, endpoint.port, endpoint.protocol, info.incarnation)
        return None
