"""The metadata store of a history: the in-memory store of the contract suite, with faults, lag and witnesses.

``SimCell`` keeps every past state of a node, so a session on a lagging server reads a consistent past state. It reports
each change to its witness immediately. ``SimStore`` is the session of one process.
"""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bookie.metadata.port import (
    ANY_VERSION,
    Children,
    Node,
    NoNodeError,
    Operation,
    Session,
    SessionState,
    Stat,
    StoreUnavailableError,
)
from bookie.metadata.request_limits import check_data, check_path
from bookie.metadata.store.memory import Fault, MemoryStore, ReadableTree, _read_or_none
from bookie.metadata.store.memory_cell import MemoryCell, _MemoryNode
from tests.simulation.harshness import Harshness
from tests.simulation.loop import Process, yield_control
from tests.simulation.trace import Trace

T = TypeVar("T")
_PART: Final = "get_many part"

Witness = Callable[[int, str, bytes | None, bytes | None, int | None], None]
"""Called with the session, path, data before and after (None: no node), and the expected version of a set or delete."""


@dataclass(slots=True)
class _State:
    zxid: int
    node: Node | None
    children: Children


@dataclass(slots=True)
class _Past:
    """The tree after transaction ``zxid``."""

    histories: dict[str, list[_State]]
    zxid: int

    def get(self, path: str) -> Node:
        state = self._at(path)
        if state is None or state.node is None:
            raise NoNodeError(f"read {path}: no such node")
        return state.node

    def stat(self, path: str) -> Stat | None:
        state = self._at(path)
        return None if state is None or state.node is None else state.node.stat

    def children(self, path: str) -> Children:
        state = self._at(path)
        if state is None or state.node is None:
            raise NoNodeError(f"list {path}: no such node")
        return state.children

    def _at(self, path: str) -> _State | None:
        states = self.histories.get(path, [])
        index = bisect_right(states, self.zxid, key=lambda state: state.zxid)
        return states[index - 1] if index else None


class SimCell(MemoryCell):
    """The nodes of the store with all their past states, and a witness for each change."""

    def __init__(self, loop: asyncio.AbstractEventLoop, witness: Witness) -> None:
        self.offset_s = 0.0
        """The difference between the clock of the server and the true time."""
        super().__init__(now_ms=lambda: int((loop.time() + self.offset_s) * 1000))
        self._loop = loop
        self._witness = witness
        self._histories: dict[str, list[_State]] = {}
        self._times: list[tuple[float, int]] = []
        self._in_multi: list[tuple[str, bytes | None, int | None]] | None = None
        self._changed("/")

    @property
    def zxid(self) -> int:
        """The last transaction."""
        return self._zxid

    def zxid_at(self, time_s: float) -> int:
        """The last transaction before a point in time."""
        index = bisect_right(self._times, time_s, key=lambda item: item[0])
        return self._times[index - 1][1] if index else 0

    def created_s(self, stat: Stat) -> float:
        """The true time at which a node was created."""
        if not self.offset_s:
            return stat.ctime_ms / 1000
        index = bisect_left(self._times, stat.czxid, key=lambda item: item[1])
        return self._times[index][0] if index < len(self._times) else self._loop.time()

    def past(self, zxid: int) -> ReadableTree:
        """The tree after transaction ``zxid``."""
        return _Past(self._histories, zxid)

    def data(self, path: str) -> bytes | None:
        """A node's data now."""
        node = self._nodes.get(path)
        return None if node is None else node.data

    def create(self, session_id: int, path: str, data: bytes, *, is_ephemeral: bool, is_sequential: bool) -> str:
        created = super().create(session_id, path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)
        self._notify(session_id, created, None, None)
        return created

    def set(self, path: str, data: bytes, version: int, session_id: int = 0) -> Stat:
        before = self.data(path)
        stat = super().set(path, data, version)
        self._notify(session_id, path, before, version)
        return stat

    def delete(self, path: str, version: int, session_id: int = 0) -> None:
        before = self.data(path)
        super().delete(path, version)
        self._notify(session_id, path, before, version)

    def close_session(self, session_id: int) -> None:
        gone = [(path, node.data) for path, node in self._nodes.items() if node.ephemeral_owner == session_id]
        super().close_session(session_id)
        for path, before in gone:
            self._notify(session_id, path, before, None)

    def multi(self, session_id: int, operations: Sequence[Operation]) -> None:
        self._in_multi = []
        try:
            super().multi(session_id, operations)
            reported, self._in_multi = self._in_multi, None
        finally:
            self._in_multi = None
        for path, before, version in reported:
            self._notify(session_id, path, before, version)

    def remove_if_there(self, path: str) -> None:
        """Delete a node, if it exists."""
        if self.stat(path) is not None:
            self.delete(path, ANY_VERSION)

    def _notify(self, session_id: int, path: str, before: bytes | None, version: int | None) -> None:
        if self._in_multi is not None:
            self._in_multi.append((path, before, version))
        else:
            self._witness(session_id, path, before, self.data(path), version)

    def _restore(self, saved: dict[str, _MemoryNode | None], zxid: int) -> None:
        super()._restore(saved, zxid)
        for path in saved:
            states = self._histories.get(path, [])
            while states and states[-1].zxid > zxid:
                states.pop()
        while self._times and self._times[-1][1] > zxid:
            self._times.pop()

    def _changed(self, *paths: str) -> None:
        zxid = self._zxid
        for path in paths:
            node = self._nodes.get(path)
            states = self._histories.setdefault(path, [])
            if states and states[-1].zxid == zxid:
                states.pop()
            if node is None:
                states.append(_State(zxid, None, Children((), 0, 0)))
            else:
                stat = node.stat()
                children = Children(tuple(sorted(node.children)), stat.children_version, stat.czxid)
                states.append(_State(zxid, Node(node.data, stat), children))
        self._times.append((self._loop.time(), zxid))
        super()._changed(*paths)


@dataclass(slots=True)
class StoreFaults:
    """The present faults of one session's server and connection. Times are in seconds, shares from 0 to 1."""

    latency_max_s: float = 0.004
    fail_share: float = 0.0
    lose_share: float = 0.0
    slow_share: float = 0.0
    slow_s: float = 1.0
    lag_s: float = 0.0
    fail_next: list[tuple[str, Fault]] = field(default_factory=list)
    """Faults of the next requests, each with the name of its operation."""
    lost_next: set[str] = field(default_factory=set)
    """The writes, by operation, of which the next one is lost, either before or after it was carried out."""


class SimStore(MemoryStore):
    """One process's session."""

    def __init__(
        self,
        cell: SimCell,
        process: Process,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        faults: StoreFaults,
        trace: Trace,
        harshness: Harshness | None = None,
        session_s: float = math.inf,
    ) -> None:
        super().__init__(cell, operation_timeout_s=10.0)
        self._harshness = harshness
        self._session_s = session_s
        self._ended_id = 0
        """The last session that the server ended before this process knew it."""
        self._interruptions = 0
        self._fired = 0
        """The last transaction that this process knows from the end of a wait."""
        self.on_ended: Callable[[], None] = self.resume
        """Called when this process learns that the server has ended its session."""
        self.sim_cell = cell
        self.faults = faults
        self._process = process
        self._loop = loop
        self._rng = rng
        self._trace = trace
        self._seen = cell.zxid
        self.is_cut_off = False
        self.requests = 0
        self.on_request: Callable[[], None] = lambda: None
        """Called at each request of this process."""

    def view(self) -> ReadableTree:
        if not self.faults.lag_s:
            self._seen = self.sim_cell.zxid
            return self.sim_cell
        self._seen = max(self._seen, self.sim_cell.zxid_at(self._loop.time() - self.faults.lag_s))
        return self.sim_cell.past(self._seen)

    async def sync(self, path: str) -> None:
        await super().sync(path)
        self._seen = self.sim_cell.zxid

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        check_path(path)
        check_data(path, data)
        return await self._write("set", path, lambda session_id: self._set(session_id, path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._write("delete", path, lambda session_id: self._delete(session_id, path, version))

    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        created = await super().create(path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)
        self._seen = self.sim_cell.zxid
        return created

    async def multi(self, operations: Sequence[Operation]) -> None:
        await super().multi(operations)
        self._seen = self.sim_cell.zxid

    async def wait_children_changed(self, path: str, seen: Children) -> None:
        await super().wait_children_changed(path, seen)
        self._note_fired()

    async def wait_node_changed(self, path: str, seen: Stat | None) -> None:
        await super().wait_node_changed(path, seen)
        self._note_fired()

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        harsh = self._harshness
        if harsh is None or not harsh.splits_reads or not paths:
            return await super().get_many(paths)
        size = harsh.part_size()
        found = await super().get_many(paths[:size])
        while len(found) < len(paths):
            size = harsh.part_size()
            found += await self._read_part(paths[len(found) : len(found) + size])
        return found

    def suspend(self) -> None:
        super().suspend()
        self._interruptions += 1
        if self._harshness is not None and self._harshness.ends_sessions and not self.is_cut_off:
            self._loop.call_later(self._session_s, self._end_if_interrupted, self._interruptions)

    def hold(self, until_s: float) -> None:
        """Note that the process is frozen: after a long time, the server ends the session."""
        frozen_s = until_s - self._loop.time()
        if self._harshness is not None and self._harshness.ends_sessions and frozen_s > self._session_s:
            self._loop.call_later(self._session_s, self._end_if_frozen, self.session.session_id)
            self._loop.call_at(until_s + 0.2 * self._harshness.rng.random(), self._learn_of_end)

    def resume(self) -> None:
        if self.session.session_id == self._ended_id:
            self._become(SessionState.LOST)
        super().resume()

    def cut_off(self) -> None:
        """Note that the process is dead: it sends no more requests. The server keeps its session until the timeout."""
        self.is_cut_off = True
        self.suspend()

    def forget_session(self) -> None:
        """End the session on the server, whether or not its process lives."""
        self.cell.close_session(self.session.session_id)

    def _end_if_interrupted(self, interruption: int) -> None:
        if self._interruptions == interruption and self.session.state is SessionState.SUSPENDED:
            self._end_at_server(self.session.session_id)

    def _end_if_frozen(self, session_id: int) -> None:
        if self._process.held_until_s > self._loop.time() and self.session.session_id == session_id:
            self._end_at_server(session_id)

    def _end_at_server(self, session_id: int) -> None:
        if not self.is_cut_off:
            self._trace.event(self._process.name, "has an ended session, and does not know it")
            self._ended_id = session_id
            self.cell.close_session(session_id)

    def _learn_of_end(self) -> None:
        is_ended = self.session.session_id == self._ended_id and self.session.state is not SessionState.LOST
        if is_ended and not self.is_cut_off:
            self._trace.event(self._process.name, "learns that its session has ended")
            self._become(SessionState.LOST)
            self.on_ended()

    def _note_fired(self) -> None:
        is_late = self._harshness is not None and self._harshness.delays_watches
        self._seen = max(self._seen, self._fired) if is_late else self.sim_cell.zxid

    async def _wait_until(self, path: str, is_changed: Callable[[], bool]) -> None:
        await super()._wait_until(path, is_changed)
        harsh, self._fired = self._harshness, max(self._fired, self.sim_cell.zxid)
        if harsh is not None and harsh.delays_watches:
            session = self.session
            delay_s = self.faults.lag_s + harsh.rng.random() ** 4
            await asyncio.sleep(max(delay_s, self._process.held_until_s - self._loop.time()))
            self._tracker.ensure(session)

    async def _read_part(self, paths: Sequence[str]) -> list[Node | None]:
        """Read the next nodes of a list. All parts of a list count as one request."""
        tree = self.view
        return await self._asked(
            _PART, paths[0], lambda: [_read_or_none(tree().get, path) for path in paths], StoreUnavailableError
        )

    def _set(self, session_id: int, path: str, data: bytes, version: int) -> Stat:
        stat = self.sim_cell.set(path, data, version, session_id)
        self._seen = self.sim_cell.zxid
        return stat

    def _delete(self, session_id: int, path: str, version: int) -> None:
        self.sim_cell.delete(path, version, session_id)
        self._seen = self.sim_cell.zxid

    async def _read(self, operation: str, path: str, action: Callable[[], T]) -> T:
        return await self._asked(operation, path, action, StoreUnavailableError)

    async def _request(
        self, operation: str, path: str, action: Callable[[int], T], lost: Callable[[str], Exception]
    ) -> T:
        return await self._asked(operation, path, lambda: action(self.session.session_id), lost)

    async def _asked(self, operation: str, path: str, action: Callable[[], T], lost: Callable[[str], Exception]) -> T:
        """Make a request as the twin does, with this session's faults. For speed, this is a single coroutine."""
        tracker, faults, rng = self._tracker, self.faults, self._rng
        if operation != _PART:
            self.requests += 1
            self.on_request()
        session = tracker.current
        if not session.is_connected:
            session = await self._connected_session(operation, path)
        draw = rng.random()
        delay_s = max(0.0, 2 * draw - 1) * faults.latency_max_s
        if faults.slow_share and rng.random() < faults.slow_share:
            delay_s += faults.slow_s * rng.random()
        delay_s = max(delay_s, self._process.held_until_s - self._loop.time())
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        else:
            await yield_control()
        if self._trace.is_recording:
            self._trace.detail(self._process.name, f"store {operation} {path}")
        fault = self._next_fault(operation)
        if self._harshness is not None:
            self._fail_before(self._harshness, operation, path, session, lost)
        while tracker.current is not session or not session.is_connected:
            tracker.ensure(session)
            session = await self._connected_session(operation, path)
        if operation in faults.lost_next:
            faults.lost_next.discard(operation)
            if rng.random() < 0.5:
                raise lost(f"{operation} {path}: lost before it was carried out")
            fault = Fault.LOSE_ANSWER
        if fault is Fault.FAIL_BEFORE:
            raise StoreUnavailableError(f"{operation} {path}: not sent (injected)")
        result = action()
        await yield_control()
        if fault is Fault.LOSE_ANSWER or tracker.current is not session:
            raise lost(f"{operation} {path}: answer lost")
        if faults.slow_share and rng.random() < faults.slow_share:
            await asyncio.sleep(rng.random() * faults.slow_s)  # the answer is in flight
        return result

    def _fail_before(
        self, harsh: Harshness, operation: str, path: str, session: Session, lost: Callable[[str], Exception]
    ) -> None:
        """Raise the error of a request that was sent, but not carried out."""
        if session.session_id == self._ended_id and self.session is session:
            self._loop.call_soon(self._learn_of_end)
            raise lost(f"{operation} {path}: the connection ended")
        if not harsh.loses_writes:
            return
        is_interrupted = self._tracker.current is not session or not session.is_connected
        if (is_interrupted and harsh.rng.random() < 0.5) or harsh.rng.random() < self.faults.lose_share:
            raise lost(f"{operation} {path}: lost before it was carried out")

    def _next_fault(self, operation: str) -> Fault | None:
        faults, rng = self.faults, self._rng
        for index, (name, fault) in enumerate(faults.fail_next):
            if name == operation:
                del faults.fail_next[index]
                return fault
        if faults.fail_share and rng.random() < faults.fail_share:
            return Fault.FAIL_BEFORE
        if faults.lose_share and rng.random() < faults.lose_share:
            return Fault.LOSE_ANSWER
        return None
