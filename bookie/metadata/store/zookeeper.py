"""The metadata store on a real ZooKeeper. All use of kazoo is in ``kazoo_connection``."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from typing_extensions import override

from bookie.metadata.access import OPEN_ACL, Acl, ZooKeeperAccess, current_access
from bookie.metadata.port import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    NoNodeError,
    Operation,
    Session,
    Stat,
    StoreUnavailableError,
)
from bookie.metadata.request_limits import check_data, check_multi, check_path
from bookie.metadata.store.jute import OP_MULTI, OP_MULTI_READ, encode_acl, multi_reply, multi_request, stat_of
from bookie.metadata.store.kazoo_connection import KazooConnection, Watcher
from bookie.metadata.store.multiread import BulkReader
from bookie.metadata.store.zookeeper_errors import RequestUnknownError, multi_error
from bookie.runtime.signal import Signal, waiting_for

_log = logging.getLogger(__name__)

PIPELINED_READS_MAX: Final = 1000
"""Maximum number of single reads in flight if the server does not support ``multiRead``."""
_WATCH_RETRY_S: Final = 1.0
"""Pause before a wait reads again after a failed read; a session change shortens it."""

T = TypeVar("T")


class ZooKeeperStore(MetadataStore):
    """One session with ZooKeeper. Create it with ``connect``, and call every method on the same event loop."""

    def __init__(self, connection: KazooConnection, acl: Acl = OPEN_ACL, *, is_multi_read_enabled: bool = True) -> None:
        self._connection = connection
        self._acl = encode_acl(acl)
        self._tracker = connection.tracker
        self._is_multi_read_enabled = is_multi_read_enabled
        self._bulk_reader = BulkReader(self._send_multi_read)
        self._watches: dict[tuple[str, str], tuple[Signal, Watcher]] = {}

    @classmethod
    async def connect(
        cls,
        hosts: str,
        *,
        session_timeout_s: float = 10.0,
        connect_timeout_s: float = 15.0,
        operation_timeout_s: float = 30.0,
        is_multi_read_enabled: bool = True,
        access: ZooKeeperAccess | None = None,
    ) -> ZooKeeperStore:
        """Open a session with one of ``hosts``.

        Args:
            hosts: ``host:port`` joined with commas.
            session_timeout_s: how long the session outlives its connection; the server may bound it.
            connect_timeout_s: deadline of this call.
            operation_timeout_s: deadline of each later request, a wait for reconnection included.
            is_multi_read_enabled: whether bulk reads may try ZooKeeper's ``multiRead`` (3.6 and later).
            access: TLS, login and the ACL of new nodes; default those of this process.

        Raises:
            StoreUnavailableError: no session within the deadline. No thread remains.
            ZooKeeperAccessError: no server accepts the certificates or settings of ``access``.
            AccessDeniedError: the login was refused.
        """
        access = current_access() if access is None else access
        connection = KazooConnection(hosts, session_timeout_s, operation_timeout_s, access)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await connection.start()
        except TimeoutError as error:
            await connection.stop()
            raise StoreUnavailableError(
                f"no ZooKeeper session from {hosts} within {connect_timeout_s:g} s: "
                + (connection.problem or _advice(is_tls_used=access.tls_ca is not None))
            ) from error
        except BaseException:
            await connection.stop()
            raise
        return cls(connection, access.acl_entries, is_multi_read_enabled=is_multi_read_enabled)

    @override
    async def get(self, path: str) -> Node:
        check_path(path)
        data, fields = await self._connection.get_data(path)
        return Node(data or b"", stat_of(fields))

    @override
    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read_in_bulk(
            lambda: self._bulk_reader.nodes(paths), lambda: _read_pipelined(self._node, paths)
        )

    @override
    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:

        async def one(path: str) -> bytes | None:
            node = await self._node(path)
            return None if node is None else node.data

        return await self._read_in_bulk(lambda: self._bulk_reader.data(paths), lambda: _read_pipelined(one, paths))

    @override
    async def stat(self, path: str) -> Stat | None:
        check_path(path)
        fields = await self._connection.exists(path)
        return None if fields is None else stat_of(fields)

    @override
    async def children(self, path: str) -> Children:
        check_path(path)
        return await self._list(path, None)

    @override
    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:

        async def one(path: str) -> Children | None:
            try:
                return await self._list(path, None)
            except NoNodeError:
                return None

        return await self._read_in_bulk(lambda: self._bulk_reader.children(paths), lambda: _read_pipelined(one, paths))

    @override
    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        check_path(path)
        check_data(path, data)
        created = await self._connection.create(path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)
        return str(created)

    @override
    async def set(self, path: str, data: bytes, version: int) -> Stat:
        check_path(path)
        check_data(path, data)
        return stat_of(await self._connection.set_data(path, data, version))

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._connection.delete(path, version)

    @override
    async def multi(self, operations: Sequence[Operation]) -> None:
        check_multi(operations)
        if not operations:
            return
        what = f"a multi of {len(operations)} operations from {operations[0].path} on"
        codes = await self._connection.raw_write(OP_MULTI, multi_request(operations, self._acl), multi_reply, what)
        error = multi_error(codes, [operation.path for operation in operations])
        if error is not None:
            raise error

    @override
    async def sync(self, path: str) -> None:
        check_path(path)
        await self._connection.sync(path)

    @override
    async def wait_children_changed(self, path: str, seen: Children) -> None:

        async def is_changed(watcher: Watcher) -> bool:
            try:
                return (await self._list(path, watcher)).stamp != seen.stamp
            except NoNodeError:
                return True

        check_path(path)
        await self._wait_until(("children", path), is_changed)

    @override
    async def wait_node_changed(self, path: str, seen: Stat | None) -> None:

        async def is_changed(watcher: Watcher) -> bool:
            fields = await self._connection.exists(path, watcher)
            now = None if fields is None else stat_of(fields)
            if now is None or seen is None:
                return now is not seen
            return (now.czxid, now.mzxid) != (seen.czxid, seen.mzxid)

        check_path(path)
        await self._wait_until(("node", path), is_changed)

    @property
    @override
    def session(self) -> Session:
        return self._tracker.current

    @override
    async def wait_session_changed(self, seen: Session) -> Session:
        return await self._tracker.wait_changed(seen)

    @override
    async def close(self) -> None:
        await self._connection.stop()

    async def _node(self, path: str) -> Node | None:
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def _list(self, path: str, watcher: Watcher | None) -> Children:
        names, fields = await self._connection.get_children(path, watcher)
        stat = stat_of(fields)
        return Children(tuple(names), stat.children_version, stat.czxid)

    async def _send_multi_read(self, body: bytes) -> bytes:
        reply = await self._connection.raw_read(OP_MULTI_READ, body, _rest, "bulk read")
        return bytes(reply)

    async def _read_in_bulk(self, together: Callable[[], Awaitable[T]], singly: Callable[[], Awaitable[T]]) -> T:
        if self._is_multi_read_enabled:
            try:
                return await together()
            except RequestUnknownError:
                self._is_multi_read_enabled = False
                _log.warning("the zookeeper server does not support multiRead (3.6 and later), so bulk reads are slow")
                try:
                    return await singly()
                except StoreUnavailableError:  # a server closes the connection on an unknown request
                    return await singly()
        return await singly()

    def _watch(self, key: tuple[str, str]) -> tuple[Signal, Watcher]:
        # One watcher per node and kind, for any number of waits: kazoo keeps each until it fires.
        if key not in self._watches:
            fire = functools.partial(self._connection.bridge.push, self._fire, key)
            self._watches[key] = (Signal(), lambda event: fire())
        return self._watches[key]

    def _fire(self, key: tuple[str, str]) -> None:
        found = self._watches.pop(key, None)
        if found is not None:
            found[0].fire()

    async def _wait_until(self, key: tuple[str, str], is_changed: Callable[[Watcher], Awaitable[bool]]) -> None:
        session = await self._tracker.ready()
        while True:
            signal, watcher = self._watch(key)
            with waiting_for(signal, self._tracker.changed) as waiter:
                retry_s = None
                try:
                    if await is_changed(watcher):
                        return
                except StoreUnavailableError:
                    self._tracker.ensure(session)
                    retry_s = _WATCH_RETRY_S
                await asyncio.wait([waiter], timeout=retry_s)
            self._tracker.ensure(session)


def _rest(reply: bytes, offset: int) -> bytes:
    return reply[offset:]


async def _read_pipelined(read: Callable[[str], Awaitable[T]], paths: Sequence[str]) -> list[T]:
    result: list[T] = []
    for start in range(0, len(paths), PIPELINED_READS_MAX):
        result += await asyncio.gather(*(read(path) for path in paths[start : start + PIPELINED_READS_MAX]))
    return result


def _advice(*, is_tls_used: bool) -> str:
    """Return what to check if no server answers. A port with TLS closes a connection without it silently."""
    if is_tls_used:
        return "check the addresses, and that a majority of the servers runs"
    return "check the addresses, that a majority of the servers runs, and whether the port needs TLS (zk_tls_ca)"
