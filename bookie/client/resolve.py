"""From a bookie's registration to the address a transport dials, with a short memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import Registrations
from bookie.model.errors import TransientError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.wire.resolver import APACHE_PROTOCOL, GRPC_PROTOCOL, BookieAddress

_FRESH_S: Final = 2.0
"""How long an answer is believed. A restarted bookie may come back on another port within a second or two."""
_REMEMBERED_MAX: Final = 10_000
"""Answers kept: more than a cluster has bookies. A bookie looks up any id in a request to copy."""
_UNGUARDED_S: Final = 30.0
"""How long an address of Apache's protocol stands while the store is silent. A dead bookie's registration lasts as
long as its session, some ten to thirty seconds, so an address that is no older is as good as a registered one."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    address: BookieAddress | None
    until_s: float
    seen_s: float
    """The time of the store's last answer."""

    def stands_at(self, now_s: float) -> bool:
        """Whether the address may be used while the store is silent."""
        if self.address is None:
            return False
        return self.address.protocol != APACHE_PROTOCOL or now_s - self.seen_s < _UNGUARDED_S


class RegistrationResolver:
    """Resolves bookie ids through their registration; an unregistered bookie has no address."""

    def __init__(self, registrations: Registrations, clock: Clock, *, patience_s: float = 0.5) -> None:
        """Start without addresses.

        Args:
            registrations: the cluster's.
            clock: measures the age of an answer.
            patience_s: how long a request waits for a silent store, from time to time, if an address is known.
        """
        self._registrations = registrations
        self._clock = clock
        self._patience_s = patience_s
        self._remembered: dict[BookieId, _Remembered] = {}

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        """Address of the bookie's gRPC endpoint, of its Apache endpoint if it has no other, or None if it has neither.

        While the store is silent the last address remains valid, and with an incarnation even after the registration is
        deleted: a bookie continues to serve after its ZooKeeper session, and the incarnation in each request prevents
        answers from a stranger on the same port. Apache's protocol has no such guard, so there an address ends with its
        registration, and half a minute after the last news of it: a stranger's "never stored" must not be taken for
        this bookie's (S6, R145).

        Raises:
            StoreUnavailableError: no answer, and no address that is still valid; the address is unknown.
        """
        known, now_s = self._remembered.get(bookie), self._clock.monotonic_s()
        if known is not None and now_s < known.until_s:
            return known.address
        valid = known if known is not None and known.stands_at(now_s) else None
        try:
            # A store without a connection would hold the request for longer than the request's own deadline.
            async with asyncio.timeout(None if valid is None else self._patience_s):
                address = await self._look_up(bookie)
        except (TransientError, TimeoutError):
            if valid is None:
                raise
            address, seen_s = valid.address, valid.seen_s
        else:
            seen_s = now_s
            if address is None and known is not None and known.address is not None and known.address.incarnation:
                address = known.address
        if bookie not in self._remembered and len(self._remembered) >= _REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[bookie] = _Remembered(address, self._clock.monotonic_s() + _FRESH_S, seen_s)
        return address

    async def _look_up(self, bookie: BookieId) -> BookieAddress | None:
        info = await self._registrations.service_info(bookie)
        if info is None:
            return None
        for protocol in (GRPC_PROTOCOL, APACHE_PROTOCOL):
            if (endpoint := info.endpoint(protocol)) is not None:
                incarnation = info.incarnation if protocol == GRPC_PROTOCOL else ""
                return BookieAddress(endpoint.host, endpoint.port, protocol, incarnation)
        return None
