"""A metadata store that keeps the pace of a task for its reads. Writes are passed on unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from typing_extensions import override

from bookie.metadata.port import (
    AccessDeniedError,
    Children,
    MetadataStore,
    Node,
    Stat,
)
from bookie.metadata.store.forwarding import ForwardingStore
from spark_jobs.pacing.pace import AdmittedRead, Pace
from spark_jobs.pacing.sharing import COUNT_INTERVAL_S, Sharing

T = TypeVar("T")


class PacedStore(ForwardingStore):
    """Divides bulk reads into parts, and sends each when the pace admits it. The caller has to close ``store``."""

    def __init__(
        self,
        store: MetadataStore,
        pace: Pace,
        small_node: str,
        sharing: Sharing | None = None,
        *,
        measures_itself: bool = False,
    ) -> None:
        """Only store the arguments.

        Args:
            store: answers the requests.
            pace: the pace of the task.
            small_node: path of a node whose stat is read to measure the latency, unless ``sharing`` has one.
            sharing: follows the runs that share the limits; None: the limits are not shared.
            measures_itself: whether to call ``measure_if_due`` before each read, for a caller that never does.
        """
        super().__init__(store)
        self._small_node = small_node if sharing is None else sharing.path
        self._small: Stat | None = None
        self._sharing = sharing
        self._measures_itself = measures_itself
        self.pace = pace

    @property
    def readers(self) -> int:
        """Number of runs that shared the limits at the last count."""
        return 1 if self._sharing is None else self._sharing.count

    async def measure_if_due(self) -> None:
        """Measure the latency and count the runs that read, if a measurement is due.

        Call it where nothing is decoded until it returns.

        Raises:
            StoreUnavailableError: no answer.
        """
        if self._sharing is None:
            await self.pace.measure_if_due(self._read_small)
        elif await self.pace.measure_if_due(self._read_small, COUNT_INTERVAL_S):
            await self._sharing.follow(self._small)
            self.pace.divide(self._sharing.count)

    @override
    async def get(self, path: str) -> Node:
        async with self._reading(1) as reading:
            node = await self._store.get(path)
            reading.size = len(node.data)
        return node

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._parts(paths, self._store.get_many, lambda node: len(node.data))

    @override
    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        return await self._parts(paths, self._store.get_many_data, len)

    @override
    async def stat(self, path: str) -> Stat | None:
        async with self._reading(1, is_list=True):
            return await self._store.stat(path)

    @override
    async def children(self, path: str) -> Children:
        async with self._reading(1, is_list=True) as reading:
            children = await self._store.children(path)
            reading.size = _names_size(children)
        return children

    @override
    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:
        return await self._parts(paths, self._store.children_many, _names_size, is_list=True)

    async def _parts(
        self,
        paths: Sequence[str],
        read: Callable[[Sequence[str]], Awaitable[list[T | None]]],
        size_of: Callable[[T], int],
        *,
        is_list: bool = False,
    ) -> list[T | None]:
        if self.pace.is_free:
            return await read(paths)
        found: list[T | None] = []
        while len(found) < len(paths):
            await self._measure_if_due()
            part = paths[len(found) : len(found) + self.pace.chunk]
            async with self.pace.reading(len(part), is_list=is_list) as reading:
                answers = await read(part)
                reading.size = sum(size_of(answer) for answer in answers if answer is not None)
            found += answers
        return found

    @asynccontextmanager
    async def _reading(self, nodes: int, *, is_list: bool = False) -> AsyncIterator[AdmittedRead]:
        await self._measure_if_due()
        async with self.pace.reading(nodes, is_list=is_list) as reading:
            yield reading

    async def _measure_if_due(self) -> None:
        if self._measures_itself:
            await self.measure_if_due()

    async def _read_small(self) -> None:
        with suppress(AccessDeniedError):  # an answer that refuses access is sufficient to measure
            self._small = await self._store.stat(self._small_node)


def _names_size(children: Children) -> int:
    return sum(map(len, children.names))
