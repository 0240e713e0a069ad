"""One transport for every kind of bookie: requests go over gRPC or Apache's protocol, whichever the bookie speaks.

The resolver returns the protocol together with the address. A route is kept until its transport finds that the bookie
no longer speaks this protocol, so adds to one bookie stay on one connection and in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.wire.apache.listing import LIST_SILENCE_S
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import AddBatch, AddReply, Failed, ReplyT, Request, Status, Transport
from bookie.wire.resolver import APACHE_PROTOCOL, Resolver
from bookie.wire.security import PLAINTEXT, BookieSecurity


def open_transport(
    resolver: Resolver, security: BookieSecurity = PLAINTEXT, *, uses_apache_lists: bool = False
) -> RoutedTransport:
    """Return a transport to every bookie that ``resolver`` finds; nothing is connected yet.

    Args:
        resolver: finds the addresses of bookies.
        security: TLS and login for every bookie.
        uses_apache_lists: whether to ask Apache's bookies for lists of entries, which cost them memory permanently
            (``bookie.wire.apache.listing``).

    Raises:
        TlsFilesError: the TLS files cannot be read.
    """
    over_grpc = GrpcTransport(resolver, tls=security.tls, is_plaintext=security.tls is None)
    silence_s = LIST_SILENCE_S if uses_apache_lists else None
    frame_bytes_max = security.frame_bytes_max
    over_apache = ApacheTransport(
        resolver, security=security, frame_bytes_max=frame_bytes_max, list_silence_s=silence_s
    )
    return RoutedTransport(resolver, over_grpc, over_apache)


@dataclass(slots=True)
class _Search:
    """The requests that wait for the route to a bookie, in order."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class RoutedTransport(Transport):
    """``bookie.wire.port.Transport`` over the protocol of each bookie. Owns both transports."""

    def __init__(self, resolver: Resolver, over_grpc: Transport, over_apache: Transport) -> None:
        self._resolver = resolver
        self._over_grpc = over_grpc
        self._over_apache = over_apache
        self._routes: dict[BookieId, Transport] = {}
        self._searches: dict[BookieId, _Search] = {}

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._ask(bookie, timeout_s, lambda to: to.add(bookie, batch, timeout_s), AddReply)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        return await self._ask(bookie, timeout_s, lambda to: to.ask(bookie, request, timeout_s), request.failed)

    @override
    async def close(self) -> None:
        try:
            await self._over_grpc.close()
        finally:
            await self._over_apache.close()

    async def _ask(
        self,
        bookie: BookieId,
        timeout_s: float,
        ask: Callable[[Transport], Awaitable[ReplyT]],
        failed: Failed[ReplyT],
    ) -> ReplyT:
        route = self._routes.get(bookie)
        if route is None or bookie in self._searches:
            try:
                async with asyncio.timeout(timeout_s):
                    route = await self._find(bookie)
            except TimeoutError:
                return failed(Status.TIMEOUT, detail=f"the address of bookie {bookie} was not found in {timeout_s:g} s")
        reply = await ask(route)
        if reply.status is Status.UNRESOLVED:
            self._routes.pop(bookie, None)
        return reply

    async def _find(self, bookie: BookieId) -> Transport:
        """Return the route to ``bookie``; concurrent callers wait for one search."""
        search = self._searches.setdefault(bookie, _Search())
        search.waiting += 1
        try:
            async with search.turn:
                return self._routes.get(bookie) or await self._look_up(bookie)
        finally:
            search.waiting -= 1
            if not search.waiting:
                del self._searches[bookie]

    async def _look_up(self, bookie: BookieId) -> Transport:
        try:
            address = await self._resolver.resolve(bookie)
        except BkhealError:
            address = None
        if address is None:
            return self._over_grpc  # it asks the resolver itself, and its reply contains the answer
        route = self._over_apache if address.protocol == APACHE_PROTOCOL else self._over_grpc
        self._routes[bookie] = route
        return route
