"""The resolver of bookie addresses by the registrations, with a short-lived cache."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import Registrations
from bookie.model.errors import TransientError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.wire.resolver import APACHE_PROTOCOL, GRPC_PROTOCOL, BookieAddress

_CACHE_TTL_S: Final = 2.0
"""Time for which an answer is used. A restarted bookie may come back on another port within a second or two."""
_CACHED_ADDRESSES_MAX: Final = 10_000
"""Maximum number of cached answers, more than a cluster has bookies. The bound is necessary because a bookie looks up
any id that a request to copy contains."""
_LOOK_UPS_MAX: Final = 8
"""Maximum number of concurrent look-ups of one bookie. If an address has expired, thousands of requests may need it."""
_APACHE_ADDRESS_TTL_S: Final = 30.0
"""Time for which an address of Apache's protocol remains valid while the store does not answer. The registration of a
dead bookie lasts as long as its session, ten to thirty seconds, so an address of this age is as good as a registered
one."""


@dataclass(frozen=True, slots=True)
class _CachedAddress:
    address: BookieAddress | None
    until_s: float
    seen_s: float
    """The time of the store's last answer."""

    def is_usable_at(self, now_s: float) -> bool:
        """Whether the address may be used while the store does not answer."""
        if self.address is None:
            return False
        return self.address.protocol != APACHE_PROTOCOL or now_s - self.seen_s < _APACHE_ADDRESS_TTL_S


class RegistrationResolver:
    """Resolves bookie ids through their registration; an unregistered bookie has no address."""

    def __init__(self, registrations: Registrations, clock: Clock, *, patience_s: float = 0.5) -> None:
        """Start without addresses.

        Args:
            registrations: the registrations of the cluster.
            clock: the clock for the age of answers.
            patience_s: longest wait for a store that does not answer, in seconds, if an address is known.
        """
        self._registrations = registrations
        self._clock = clock
        self._patience_s = patience_s
        self._remembered: dict[BookieId, _CachedAddress] = {}
        self._looking_up: dict[BookieId, list[asyncio.Future[None]]] = {}
        """The look-ups under way. Each ends without a result: an answer is remembered."""

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        """Return the address of a bookie's gRPC endpoint, else of its Apache endpoint; None if it has neither.

        While the store does not answer, the last address remains valid. An address with an incarnation also remains
        valid after the registration is deleted: a bookie continues to serve after its ZooKeeper session has ended, and
        the incarnation in each request prevents answers from another bookie on the same port. Apache's protocol has no
        incarnations. So its addresses end with the registration, or ``_APACHE_ADDRESS_TTL_S`` after the store's last
        answer: the "never stored" of another bookie must not be taken for the answer of this one (S6, R145).

        Raises:
            StoreUnavailableError: no answer, and no address that is still valid; the address is unknown.
        """
        while True:
            known, now_s = self._remembered.get(bookie), self._clock.monotonic_s()
            if known is not None and now_s < known.until_s:
                return known.address
            valid = known if known is not None and known.is_usable_at(now_s) else None
            under_way = self._looking_up.get(bookie, [])
            if len(under_way) < _LOOK_UPS_MAX:
                break
            newest = under_way[-1]
            await asyncio.wait([newest], timeout=None if valid is None else self._patience_s)
            if not newest.done() and valid is not None:
                return valid.address
            if newest.done() and not newest.cancelled() and (error := newest.exception()) is not None:
                raise error
        return await self._resolved(bookie, known, valid, now_s)

    async def _resolved(
        self, bookie: BookieId, known: _CachedAddress | None, valid: _CachedAddress | None, now_s: float
    ) -> BookieAddress | None:
        """Look up the bookie, and remember the answer."""
        look_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking_up.setdefault(bookie, []).append(look_up)
        try:
            address = await self._remember(bookie, known, valid, now_s)
            look_up.set_result(None)
            return address
        except TransientError as error:
            look_up.set_exception(error)
            look_up.exception()  # perhaps no other caller waits for it
            raise
        finally:
            look_up.cancel()  # if this caller was cancelled, another one looks up
            self._looking_up[bookie].remove(look_up)
            if not self._looking_up[bookie]:
                del self._looking_up[bookie]

    async def _remember(
        self, bookie: BookieId, known: _CachedAddress | None, valid: _CachedAddress | None, now_s: float
    ) -> BookieAddress | None:
        try:
            # A store without a connection would delay the request beyond its own deadline.
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
        if bookie not in self._remembered and len(self._remembered) >= _CACHED_ADDRESSES_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[bookie] = _CachedAddress(address, self._clock.monotonic_s() + _CACHE_TTL_S, seen_s)
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
