"""A bookie that becomes read-only or writable while its registration is read is found.

The server has no bulk reads, so it answers the reads of a request one after another. Virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

import pytest
from typing_extensions import override

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo, encode_service_info
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, bookie_path
from bookie.metadata.nodes import ensure_path, find
from bookie.metadata.port import Create, Delete, Node
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.model.ids import BookieId
from tests.worlds.virtual_time import in_virtual_time

ROOT = "/ledgers"
BK1 = BookieId("bk1:3181")
INFO = ServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-grpc"),))


class ChangingStore(MemoryStore):
    """A store in which the bookie changes its registration after some reads. The bookie creates the new one first."""

    def __init__(self, reads: int, *, is_read_only_first: bool) -> None:
        super().__init__(MemoryCell())
        self._reads_left = reads
        self.before = bookie_path(ROOT, BK1, is_read_only=is_read_only_first)
        self.after = bookie_path(ROOT, BK1, is_read_only=not is_read_only_first)

    async def begin(self) -> Registrations:
        await ensure_path(self, bookie_path(ROOT, BK1, is_read_only=True).rpartition("/")[0])
        await self.create(self.before, encode_service_info(INFO), is_ephemeral=True)
        return Registrations(self, Cluster(ROOT, LayoutKind.HIERARCHICAL, "id"))

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        nodes = []
        for path in paths:
            nodes.append(await find(self, path))
            self._reads_left -= 1
            if not self._reads_left:
                await self.multi([Create(self.after, encode_service_info(INFO), is_ephemeral=True)])
                await self.multi([Delete(self.before)])
        return nodes


async def _asked_alone(registrations: Registrations) -> Collection[BookieId]:
    return [] if await registrations.registration(BK1) is None else [BK1]


async def _numbers(registrations: Registrations) -> Collection[BookieId]:
    return await registrations.numbers([BK1])


async def _look(registrations: Registrations) -> Collection[BookieId]:
    nodes = await registrations._store.get_many(registrations.state_paths([BK1]))
    return registrations.decode_states([BK1], nodes).bookies.registered


@pytest.mark.parametrize("ask", [_asked_alone, _numbers, _look])
@pytest.mark.parametrize("is_read_only_first", [False, True])
@pytest.mark.parametrize("reads", [1, 2, 3])
@in_virtual_time
async def test_a_bookie_that_changes_during_the_reads_is_registered(
    ask: Callable[[Registrations], Awaitable[Collection[BookieId]]], reads: int, is_read_only_first: bool
) -> None:
    registrations = await ChangingStore(reads, is_read_only_first=is_read_only_first).begin()
    assert list(await ask(registrations)) == [BK1]
