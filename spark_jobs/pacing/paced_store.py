"""A metadata store that a task reads through: its reads keep the pace of the task. Writes are passed on as they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from typing_extensions import override

from bookie.metadata.port import (
    ANY_VERSION,
    AccessDeniedError,
    Children,
    MetadataStore,
    Node,
    Operation,
    Session,
    Stat,
)
from spark_jobs.pacing.pace import Pace

T = TypeVar("T")


class PacedStore(MetadataStore):
    """Cuts bulk reads into parts, and sends each when the pace admits it. ``store`` stays the caller's."""

    def __init__(self, store: MetadataStore, pace: Pace, small_node: str) -> None:
        """Only stores.

        Args:
            store: that answers.
            pace: of the task.
            small_node: path of a node whose stat is read to measure the latency.
        """
        self._store = store
        self._small_node = small_node
        self.pace = pace

    async def look(self) -> None:
        """Measure the latency if it is time to. Call it where nothing is decoded until it returns.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self.pace.look(self._read_small)

    @override
    async def get(self, path: str) -> Node:
        async with self.pace.reading(1) as reading:
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
        async with self.pace.reading(1, is_list=True):
            return await self._store.stat(path)

    @override
    async def children(self, path: str) -> Children:
        async with self.pace.reading(1, is_list=True) as reading:
            children = await self._store.children(path)
            reading.size = _names_size(children)
        return children

    @override
    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:
        return await self._parts(paths, self._store.children_many, _names_size, is_list=True)

    @override
    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        return await self._store.create(path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)

    @override
    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return await self._store.set(path, data, version)

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._store.delete(path, version)

    @override
    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._store.multi(operations)

    @override
    async def sync(self, path: str) -> None:
        await self._store.sync(path)

    @override
    async def wait_children_changed(self, path: str, seen: Children) -> None:
        await self._store.wait_children_changed(path, seen)

    @override
    async def wait_node_changed(self, path: str, seen: Stat | None) -> None:
        await self._store.wait_node_changed(path, seen)

    @property
    @override
    def session(self) -> Session:
        return self._store.session

    @override
    async def wait_session_changed(self, seen: Session) -> Session:
        return await self._store.wait_session_changed(seen)

    @override
    async def close(self) -> None:
        await self._store.close()

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
            part = paths[len(found) : len(found) + self.pace.chunk]
            async with self.pace.reading(len(part), is_list=is_list) as reading:
                answers = await read(part)
                reading.size = sum(size_of(answer) for answer in answers if answer is not None)
            found += answers
        return found

    async def _read_small(self) -> None:
        with suppress(AccessDeniedError):  # a refusal is an answer as well
            await self._store.stat(self._small_node)


def _names_size(children: Children) -> int:
    return sum(map(len, children.names))
