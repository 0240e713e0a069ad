"""``/api/v1``: drains of bookies: what is left on them, beginning and ending them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from auditor.api.http import upkeep_queries as queries
from auditor.api.http.queries import refuse_unknown
from auditor.api.http.routes import Call, Parameter, Route, segment
from auditor.api.http.upkeep_route_parts import API, BOOKIES, actor_of, answer, bookies_of_query, changing, reading
from auditor.api.problems import InvalidRequestError, NotFoundError
from auditor.api.upkeep_port import Upkeep
from auditor.operating import drain_status, drains
from auditor.operating.client import Actor, ClusterClient, Document
from bookie.metadata.bookies.drains import Drains
from bookie.model.ids import BookieId

_DRAIN: Final = "drain"
"""First part of the keys of work that begins drains; the second part is the tuple of the bookies."""
_DETAIL_MAX: Final = 500
_BOOKIE: Final = segment("bookie_id", "Id of the bookie.")
_DRAINED: Final = Parameter("bookie", "Id of a bookie, repeated for each. Default: every drained one.", BOOKIES)


class DrainRoutes:
    """Handlers over ``Upkeep``."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._recording = asyncio.Lock()
        """Held on the loop of the work while drains are recorded or stopped, so that none is stopped half-recorded."""
        self._marking: dict[Hashable, set[BookieId]] = {}
        """The bookies that are still drained, by the key of the work that recorded their drains."""

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        return (
            reading(f"{API}/drains", "list_drains", "Bookies that are being drained.", self._drains, "DrainList"),
            reading(f"{API}/drain-status", "get_drain_status",
                    "What is left on drained bookies. 503 with Retry-After while the metadata is read: repeat "
                    "the request.",
                    self._drain_status, "DrainStatus", (_DRAINED,)),
            changing("PUT", f"{API}/drains/{{bookie_id}}", "start_drain",
                     "Drain a bookie. 503 with Retry-After while the metadata is read: repeat the request.",
                     self._start_drain, "DrainStart", segments=(_BOOKIE,)),
            changing("POST", f"{API}/drains", "start_drains",
                     "Drain bookies, all or none. 503 with Retry-After while the metadata is read: repeat the request.",
                     self._start_drains, "DrainStart", body="DrainsRequest"),
            changing("DELETE", f"{API}/drains/{{bookie_id}}", "stop_drain", "Cancel a drain.", self._stop_drain,
                     "DrainStop", segments=(_BOOKIE,)),
        )  # fmt: skip

    async def _drains(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("DrainList", await self._upkeep.run(drains.list_drains))

    async def _drain_status(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, ("bookie",), "parameter")
        bookies = bookies_of_query(call)
        found = await self._upkeep.run_long(
            ("drain status", bookies), lambda client: drain_status.drain_status(client, bookies)
        )
        return answer("DrainStatus", found)

    async def _start_drain(self, call: Call) -> web.Response:
        return await self._begin(actor_of(call), (_bookie(call),))

    async def _start_drains(self, call: Call) -> web.Response:
        bookies = queries.drains_request(await call.body())
        call.trail.detail = ", ".join(bookies)[:_DETAIL_MAX]
        return await self._begin(actor_of(call), bookies)

    async def _begin(self, actor: Actor, bookies: tuple[BookieId, ...]) -> web.Response:
        key = (_DRAIN, bookies, actor)

        @asynccontextmanager
        async def recording() -> AsyncIterator[None]:
            async with self._recording:
                yield
                self._marking[key] = set(bookies)

        async def work(client: ClusterClient) -> Document:
            try:
                found = await drains.start_drains(client, actor, bookies, recording)
                drained = self._marking.get(key, set(bookies))
                return {**found, "bookies": [bookie for bookie in bookies if bookie in drained]}
            finally:
                self._marking.pop(key, None)

        async def drained(client: ClusterClient) -> Hashable:
            return frozenset(await Drains(client.store, client.cluster.root).read())

        return answer("DrainStart", await self._upkeep.run_long(key, work, drained))

    async def _stop_drain(self, call: Call) -> web.Response:
        bookie, actor = _bookie(call), actor_of(call)

        def is_meant(key: Hashable) -> bool:
            """Return whether the work begins a drain of this bookie, and all its other drains were stopped."""
            is_of_bookie = isinstance(key, tuple) and key[:1] == (_DRAIN,) and bookie in key[1]
            return is_of_bookie and self._marking.get(key, {bookie}) <= {bookie}

        async def work(client: ClusterClient) -> Document:
            async with self._recording:
                await self._upkeep.cancel_matching(is_meant)
                stopped = await drains.stop_drains(client, actor, (bookie,))
                for left in self._marking.values():
                    left.discard(bookie)
            return stopped

        return answer("DrainStop", await self._upkeep.run(work))


def _bookie(call: Call) -> BookieId:
    """Return the bookie named in the path. A text that is not an id, such as another path, is not found."""
    name = call.request.match_info["bookie_id"]
    call.trail.detail = name[:100]
    try:
        return queries.bookie(name)
    except InvalidRequestError as error:
        raise NotFoundError(str(error)) from error
