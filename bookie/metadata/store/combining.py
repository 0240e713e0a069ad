"""A metadata store between the port and an adapter that joins the requests of many concurrent callers.

A worker repairs many ledgers at a time, with small requests for each. Waiting independent transactions become one
``multi``, single reads become one bulk read, and one ``sync`` serves all callers that wait for a ``sync`` at that time.
``lane`` explains why the result of each request is the same as if it were sent separately. In addition:

* Transactions are joined only if none of them changes a node that another one changes or checks. So the order inside a
  joint transaction does not matter, and no node is created twice by it.
* If the joint transaction is refused, the server names the operation at fault. The request with this operation is sent
  separately and gets its own error. The others are joined again, a few times at most.
* A joint read contains the paths of each request in their order. Repeated paths are read repeatedly.
* A joint read or ``sync`` begins after each of its requests was made. So a joint read right after a ``sync``
  (``get_many_current``) sees every write completed before any of its requests.

Watches, sequential nodes, ``set`` and ``stat`` are not joined: they need an answer that the port's ``multi`` does not
return, or another permission. Long scans are not joined because their requests are already large.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from bookie.metadata.port import (
    ANY_VERSION,
    MULTI_OPS_MAX,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NoNodeError,
    Operation,
)
from bookie.metadata.request_limits import check_data, check_multi, check_path, operation_size
from bookie.metadata.store.forwarding import ForwardingStore
from bookie.metadata.store.lane import NotJoined, QueuedRequest, RequestLane

JOINED_BYTES_MAX: Final = 256 * 1024
"""Size limit of a joint transaction: far below the limit of a request, and too small to delay the server's queue."""
JOINED_PATHS_MAX: Final = 500
"""Maximum number of paths in a joint read: two requests of the bulk reader."""
_ATTEMPTS: Final = 4
"""Joint attempts before requests are sent separately: many conflicts show that other clients change the same nodes."""


class CombiningStore(ForwardingStore):
    """Joins the requests of concurrent callers. Passes everything else on to ``store``, and owns it."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self._writes = _Writes(store)
        self._reads = _Reads(store)
        self._current_reads = _CurrentReads(store)
        self._syncs = _Syncs(store)

    @override
    async def get(self, path: str) -> Node:
        check_path(path)

        async def call_single() -> Sequence[Node | None]:
            return [await self._store.get(path)]

        (node,) = await self._reads.run([path], call_single)
        if node is None:
            raise NoNodeError(f"read {path}: no such node")
        return node

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if not 0 < len(paths) < JOINED_PATHS_MAX:
            return await self._store.get_many(paths)
        return list(await self._reads.run(paths, lambda: self._store.get_many(paths)))

    @override
    async def get_many_current(self, paths: Sequence[str]) -> list[Node | None]:
        if len(paths) >= JOINED_PATHS_MAX:
            return await self._store.get_many_current(paths)
        return list(await self._current_reads.run(paths, lambda: self._store.get_many_current(paths)))

    @override
    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        if is_sequential:
            return await self._store.create(path, data, is_ephemeral=is_ephemeral, is_sequential=True)
        check_path(path)
        check_data(path, data)

        async def call_single() -> None:
            await self._store.create(path, data, is_ephemeral=is_ephemeral)

        await self._writes.run(_Joinable([Create(path, data, is_ephemeral)]), call_single)
        return path

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._writes.run(_Joinable([Delete(path, version)]), lambda: self._store.delete(path, version))

    @override
    async def multi(self, operations: Sequence[Operation]) -> None:
        size = check_multi(operations)
        if operations:
            await self._writes.run(_Joinable(operations, size), lambda: self._store.multi(operations))

    @override
    async def sync(self, path: str) -> None:
        check_path(path)
        await self._syncs.run(path, lambda: self._store.sync(path))


class _Joinable:
    """A transaction that may be joined with others."""

    __slots__ = ("changed", "operations", "size", "touched")

    def __init__(self, operations: Sequence[Operation], size: int | None = None) -> None:
        """Store a transaction. ``size`` is the sum of its operation sizes; it is computed if not given."""
        self.operations = operations
        self.size = sum(map(operation_size, operations)) if size is None else size
        self.touched = {operation.path for operation in operations}
        """The nodes changed or checked."""
        self.changed = {operation.path for operation in operations if not isinstance(operation, Check)}


class _Writes(RequestLane[_Joinable, None]):
    def __init__(self, store: MetadataStore) -> None:
        super().__init__(lambda: store.session)
        self._store = store

    @override
    def _take(self, queue: deque[QueuedRequest[_Joinable, None]]) -> list[QueuedRequest[_Joinable, None]]:
        taken = [queue.popleft()]
        first = taken[0].work
        count, size, changed, touched = len(first.operations), first.size, set(first.changed), set(first.touched)
        while queue:
            work = queue[0].work
            count, size = count + len(work.operations), size + work.size
            if count > MULTI_OPS_MAX or size > JOINED_BYTES_MAX or queue[0].made_in.epoch != taken[0].made_in.epoch:
                break
            if not (changed.isdisjoint(work.touched) and touched.isdisjoint(work.changed)):
                break
            changed |= work.changed
            touched |= work.touched
            taken.append(queue.popleft())
        return taken

    @override
    async def _send(self, batch: Sequence[QueuedRequest[_Joinable, None]]) -> None:
        for _ in range(_ATTEMPTS):
            batch = [waiting for waiting in batch if not waiting.answer.done()]
            if len(batch) < 2:
                break
            self.ensure_session(batch[0].made_in)
            try:
                await self._store.multi([operation for waiting in batch for operation in waiting.work.operations])
            except MultiFailedError as error:
                _failed_request(batch, error.index).complete(NotJoined.ALONE)
                continue
            for waiting in batch:
                waiting.complete(None)
        for waiting in batch:
            waiting.complete(NotJoined.ALONE)


class _Reads(RequestLane[Sequence[str], Sequence[Node | None]]):
    def __init__(self, store: MetadataStore) -> None:
        super().__init__(lambda: store.session)
        self._store = store

    @override
    def _take(
        self, queue: deque[QueuedRequest[Sequence[str], Sequence[Node | None]]]
    ) -> list[QueuedRequest[Sequence[str], Sequence[Node | None]]]:
        taken = [queue.popleft()]
        count = len(taken[0].work)
        while queue and (count := count + len(queue[0].work)) <= JOINED_PATHS_MAX:
            if queue[0].made_in.epoch != taken[0].made_in.epoch:
                break
            taken.append(queue.popleft())
        return taken

    @override
    async def _send(self, batch: Sequence[QueuedRequest[Sequence[str], Sequence[Node | None]]]) -> None:
        # No path is left out: a caller may read a node before and after another one, to see a change between the two.
        nodes = iter(await self._read([path for waiting in batch for path in waiting.work]))
        for waiting in batch:
            waiting.complete(list(itertools.islice(nodes, len(waiting.work))))

    async def _read(self, paths: Sequence[str]) -> Sequence[Node | None]:
        return await self._store.get_many(paths)


class _CurrentReads(_Reads):
    @override
    async def _read(self, paths: Sequence[str]) -> Sequence[Node | None]:
        return await self._store.get_many_current(paths)


class _Syncs(RequestLane[str, None]):
    def __init__(self, store: MetadataStore) -> None:
        super().__init__(lambda: store.session)
        self._store = store

    @override
    def _take(self, queue: deque[QueuedRequest[str, None]]) -> list[QueuedRequest[str, None]]:
        taken = [queue.popleft()]
        while queue and queue[0].made_in.epoch == taken[0].made_in.epoch:
            taken.append(queue.popleft())
        return taken

    @override
    async def _send(self, batch: Sequence[QueuedRequest[str, None]]) -> None:
        await self._store.sync(batch[0].work)
        for waiting in batch:
            waiting.complete(None)


def _failed_request(batch: Sequence[QueuedRequest[_Joinable, None]], index: int) -> QueuedRequest[_Joinable, None]:
    for waiting in batch:
        if index < len(waiting.work.operations):
            return waiting
        index -= len(waiting.work.operations)
    return batch[-1]
