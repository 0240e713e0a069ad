"""A metadata store that passes requests on to another one. Its subclasses treat some of them otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from bookie.metadata.port import ANY_VERSION, Children, MetadataStore, Node, Operation, Session, Stat


class ForwardingStore(MetadataStore):
    """Passes requests on to ``store``. ``get_many_current`` is a ``sync`` and a ``get_many`` of this store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @override
    async def get(self, path: str) -> Node:
        return await self._store.get(path)

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._store.get_many(paths)

    @override
    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        return await self._store.get_many_data(paths)

    @override
    async def stat(self, path: str) -> Stat | None:
        return await self._store.stat(path)

    @override
    async def children(self, path: str) -> Children:
        return await self._store.children(path)

    @override
    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:
        return await self._store.children_many(paths)

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
