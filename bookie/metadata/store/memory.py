"""In-memory twin of the metadata store: same rules, no threads, no clock.

It runs under a virtual-time loop. A request yields to the loop before its effect and before its answer, so requests
interleave. A fault hook may delay or refuse it, or lose its answer after the effect. Limits of a real network are not
modelled. Reads are current unless a subclass changes this (``view``).
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from typing_extensions import override

from bookie.metadata.port import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    NoNodeError,
    Operation,
    Session,
    SessionState,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.request_limits import check_data, check_multi, check_path
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.store.session import SessionTracker
from bookie.runtime.signal import waiting_for

__all__ = ["Fault", "FaultHook", "MemoryCell", "MemoryStore", "ReadableTree"]

T = TypeVar("T")


class Fault(enum.Enum):
    """Faults of a request."""

    FAIL_BEFORE = "fail_before"
    """The request is not carried out, and the client gets an error."""
    LOSE_ANSWER = "lose_answer"
    """The request is carried out, and the client gets no answer."""


class FaultHook(Protocol):
    """Called before each request; it may wait (the request's latency) and may return a fault.

    ``operation`` is the name of the port's method, ``path`` the first path of the request.
    """

    def __call__(self, operation: str, path: str) -> Awaitable[Fault | None]:
        """Return the fault of this request, or None."""
        ...


class ReadableTree(Protocol):
    """A state of the tree."""

    def get(self, path: str) -> Node:
        """Return the data and the stat of a node."""
        ...

    def stat(self, path: str) -> Stat | None:
        """Return the stat of a node, None if it does not exist."""
        ...

    def children(self, path: str) -> Children:
        """Return the names of the children."""
        ...


class MemoryStore(MetadataStore):
    """One session on a ``MemoryCell``. ``suspend``, ``resume`` and ``expire`` simulate the network and the server."""

    def __init__(
        self,
        cell: MemoryCell,
        *,
        fault_hook: FaultHook | None = None,
        operation_timeout_s: float = 30.0,
        session_timeout_s: float = math.inf,
    ) -> None:
        self.cell = cell
        self.fault_hook = fault_hook
        self._timeout_s = operation_timeout_s
        self._tracker = SessionTracker(Session(SessionState.CONNECTED, 1, cell.open_session(), session_timeout_s))

    def suspend(self) -> None:
        """Interrupt the connection; the session continues."""
        self._become(SessionState.SUSPENDED)

    def expire(self) -> None:
        """End the session, as a server does after its timeout. ``resume`` begins the next one."""
        self.cell.close_session(self.session.session_id)
        self._become(SessionState.LOST)

    def resume(self) -> None:
        """Connect again: in the same session, or in a new one if it has ended."""
        if self._tracker.is_closed:
            return
        if self.session.state is SessionState.LOST:
            epoch, session_id = self.session.epoch + 1, self.cell.open_session()
            self._tracker.update(
                replace(self.session, state=SessionState.CONNECTED, epoch=epoch, session_id=session_id)
            )
        else:
            self._become(SessionState.CONNECTED)

    def view(self) -> ReadableTree:
        """Return the state seen by reads. A subclass may return an earlier state, like a stale server."""
        return self.cell

    @override
    async def get(self, path: str) -> Node:
        check_path(path)
        return await self._read("get", path, lambda: self.view().get(path))

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:

        def nodes() -> list[Node | None]:
            get = self.view().get
            return [_read_or_none(get, path) for path in paths]

        return await self._read("get_many", _first(paths), nodes)

    @override
    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        nodes = await self.get_many(paths)
        return [None if node is None else node.data for node in nodes]

    @override
    async def stat(self, path: str) -> Stat | None:
        check_path(path)
        return await self._read("stat", path, lambda: self.view().stat(path))

    @override
    async def children(self, path: str) -> Children:
        check_path(path)
        return await self._read("children", path, lambda: self.view().children(path))

    @override
    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:

        def listings() -> list[Children | None]:
            children = self.view().children
            found = [_read_or_none(children, path) for path in paths]
            return [None if listing is None else Children(listing.names, -1, -1) for listing in found]

        return await self._read("children_many", _first(paths), listings)

    @override
    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        check_path(path)
        check_data(path, data)

        def create(session_id: int) -> str:
            return self.cell.create(session_id, path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)

        return await self._write("create", path, create)

    @override
    async def set(self, path: str, data: bytes, version: int) -> Stat:
        check_path(path)
        check_data(path, data)
        return await self._write("set", path, lambda _: self.cell.set(path, data, version))

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._write("delete", path, lambda _: self.cell.delete(path, version))

    @override
    async def multi(self, operations: Sequence[Operation]) -> None:
        check_multi(operations)
        if operations:
            path = operations[0].path
            await self._write("multi", path, lambda session_id: self.cell.multi(session_id, operations))

    @override
    async def sync(self, path: str) -> None:
        check_path(path)
        await self._read("sync", path, lambda: None)

    @override
    async def wait_children_changed(self, path: str, seen: Children) -> None:

        def is_changed() -> bool:
            try:
                return self.cell.children(path).stamp != seen.stamp
            except NoNodeError:
                return True

        check_path(path)
        await self._wait_until(path, is_changed)

    @override
    async def wait_node_changed(self, path: str, seen: Stat | None) -> None:

        def is_changed() -> bool:
            now = self.cell.stat(path)
            if now is None or seen is None:
                return now is not seen
            return (now.czxid, now.mzxid) != (seen.czxid, seen.mzxid)

        check_path(path)
        await self._wait_until(path, is_changed)

    @property
    @override
    def session(self) -> Session:
        return self._tracker.current

    @override
    async def wait_session_changed(self, seen: Session) -> Session:
        return await self._tracker.wait_changed(seen)

    @override
    async def close(self) -> None:
        self.cell.close_session(self.session.session_id)
        self._tracker.close()

    def _become(self, state: SessionState) -> None:
        if not self._tracker.is_closed and self.session.state is not SessionState.LOST:
            self._tracker.update(replace(self.session, state=state))

    async def _read(self, operation: str, path: str, action: Callable[[], T]) -> T:
        return await self._request(operation, path, lambda _: action(), StoreUnavailableError)

    async def _write(self, operation: str, path: str, action: Callable[[int], T]) -> T:
        return await self._request(operation, path, action, WriteOutcomeUnknownError)

    async def _request(
        self, operation: str, path: str, action: Callable[[int], T], lost: Callable[[str], Exception]
    ) -> T:
        session = await self._connected_session(operation, path)
        fault = await self._fault(operation, path)
        while not self.session.is_connected or self.session != session:
            self._tracker.ensure(session)
            session = await self._connected_session(operation, path)
        if fault is Fault.FAIL_BEFORE:
            raise StoreUnavailableError(f"{operation} {path}: not sent (injected)")
        result = action(session.session_id)
        await asyncio.sleep(0)
        if fault is Fault.LOSE_ANSWER or self.session != session:
            raise lost(f"{operation} {path}: answer lost")
        return result

    async def _fault(self, operation: str, path: str) -> Fault | None:
        if self.fault_hook is None:
            await asyncio.sleep(0)
            return None
        return await self.fault_hook(operation, path)

    async def _connected_session(self, operation: str, path: str) -> Session:
        if self.session.is_connected:
            return self.session
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._tracker.ready()
        except TimeoutError as error:
            raise StoreUnavailableError(f"{operation} {path}: not connected for {self._timeout_s:g} s") from error

    async def _wait_until(self, path: str, is_changed: Callable[[], bool]) -> None:
        session = await self._tracker.ready()
        while True:
            with waiting_for(self.cell.signal(path), self._tracker.changed) as waiter:
                if self.session.is_connected and is_changed():
                    return
                await waiter
            self._tracker.ensure(session)


def _read_or_none(read: Callable[[str], T], path: str) -> T | None:
    try:
        return read(path)
    except NoNodeError:
        return None


def _first(paths: Sequence[str]) -> str:
    return paths[0] if paths else "/"
