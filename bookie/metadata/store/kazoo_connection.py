"""One session with ZooKeeper over kazoo 2.11, as awaitable requests. Only this module imports kazoo.

kazoo runs its connection in a thread. Every request is handed to that thread and answered through ``LoopBridge``;
nothing here blocks the event loop, and no callback blocks kazoo. kazoo reconnects by itself, but its retries of
requests are not used: it would send a compare-and-set twice and report the failure of the second one.

Each write records whether it was sent (``_Write``). This separates "certainly nothing happened" from "outcome unknown".
So an overdue write can be withdrawn from kazoo's queue, and a write of a lost session is never sent in the next one, no
matter when this process detects the loss (S14).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import random
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, ConnectionLoss, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Create, Delete, Exists, GetChildren2, GetData, SetData, Sync
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from bookie.metadata.access import ZooKeeperAccess, ZooKeeperAccessError
from bookie.metadata.port import (
    AccessDeniedError,
    Session,
    SessionState,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.store.bridge import BridgedResult, LoopBridge
from bookie.metadata.store.credentials import (
    TicketUnavailableError,
    auth_data,
    check_kerberos,
    get_ticket,
    sasl_options,
    tls_context,
)
from bookie.metadata.store.lookup import NameLookup
from bookie.metadata.store.outage import OutageLog
from bookie.metadata.store.session import SessionTracker
from bookie.metadata.store.sockets import PlainSocket, Receiver, TlsSocket, WakeUp, wait_receivable, wait_sendable
from bookie.metadata.store.zookeeper_errors import LOGIN_REFUSED, answer_error
from bookie.runtime.clock import SystemClock
from bookie.runtime.signal import Signal, waiting_for
from bookie.runtime.tasks import guarded

_log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 1000
"""Maximum number of requests handed to kazoo at a time; further ones wait, so its unbounded queue stays short."""
_TCP_CONNECT_TIMEOUT_S: Final = 5.0
"""Without this limit, kazoo, and ``stop`` with it, would wait a whole session timeout for one dead host."""
_HANDSHAKE_S_MIN: Final = 5.0
_HANDSHAKES_PER_SESSION: Final = 3
"""A starting server may accept a connection and never answer. With only one server, kazoo would wait for a whole
session timeout and lose the session. So the wait for each answer is a third of it, with a minimum."""
_RECONNECT_DELAY_S_MAX: Final = 2.0
_SENDS_MAX: Final = 4
"""How often a request is sent if its connection is lost each time. The request itself may cause the loss."""
_RESTART_DELAY_S: Final = 1.0
_STOP_DEADLINE_S: Final = 30.0
_EPHEMERAL_FLAG: Final = 1
_SEQUENTIAL_FLAG: Final = 2

Address = tuple[str, int]
"""Host from the metadata URI, and port."""
Watcher = Callable[[object], object]
Decode = Callable[[bytes, int], Any]


class _Request(Protocol):
    @property
    def type(self) -> int: ...
    def serialize(self) -> bytes | bytearray: ...
    def deserialize(self, reply: bytes, offset: int) -> Any: ...


class RawRequest:
    """A request unknown to kazoo, ready to send."""

    __slots__ = ("_body", "_decode", "type")

    def __init__(self, opcode: int, body: bytes, decode: Decode) -> None:
        self.type = opcode
        self._body = body
        self._decode = decode

    def serialize(self) -> bytes:
        """Called by kazoo."""
        return self._body

    def deserialize(self, reply: bytes, offset: int) -> Any:
        """Called by kazoo."""
        return self._decode(reply, offset)


class _Write:
    """A write that is sent in its own session or not at all. It records whether it was sent.

    kazoo's thread claims the write when it reads ``type`` before serializing, and the event loop by ``withdraw``. The
    first of the two succeeds. A withdrawn write stays in kazoo's queue as a harmless read, because kazoo cannot remove
    it.
    """

    __slots__ = ("_client", "_is_sent", "_lock", "_request", "is_withdrawn", "session_id")

    def __init__(self, client: KazooClient, request: _Request) -> None:
        self._client = client
        self._request = request
        self._lock = threading.Lock()
        self._is_sent = False
        self.is_withdrawn = False
        self.session_id = 0

    @property
    def type(self) -> int:
        with self._lock:
            if not self._is_sent and not self.is_withdrawn:
                if self._client._session_id == self.session_id:
                    self._is_sent = True
                else:
                    self._replace()
            return self._request.type

    def serialize(self) -> bytes | bytearray:
        return self._request.serialize()

    def deserialize(self, reply: bytes, offset: int) -> Any:
        return self._request.deserialize(reply, offset)

    @property
    def is_unsent(self) -> bool:
        """Whether it was neither sent nor withdrawn."""
        with self._lock:
            return not self._is_sent and not self.is_withdrawn

    def withdraw(self) -> bool:
        """Prevent the write from being sent; return False if it was (or may have been) sent."""
        with self._lock:
            if not self._is_sent and not self.is_withdrawn:
                self._replace()
            return self.is_withdrawn

    def _replace(self) -> None:
        self.is_withdrawn = True
        self._request = Exists("/", None)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no type information
    """kazoo's thread handler with its own TLS, and without four defects of kazoo; see the methods."""

    def __init__(
        self,
        access: ZooKeeperAccess,
        prepare: Callable[[], None],
        refused: Callable[[Address, str, bool], None],
        failed: Callable[[], None],
    ) -> None:
        """Store the callbacks.

        ``prepare`` is called before each connection. ``refused`` is called after a failed connection, with the reason
        and whether it is certain that the server refused. ``failed`` is called if an unexpected error ended kazoo's
        thread, which kazoo does not start again.
        """
        super().__init__()
        self._access = access
        self._prepare = prepare
        self._refused = refused
        self._failed = failed

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start a thread that ends without a traceback: kazoo ends it by ``InterruptedError`` to stop reconnecting."""

        def run() -> None:
            try:
                func(*args, **kwargs)
            except InterruptedError:
                return
            except Exception as error:  # noqa: BLE001  # the boundary of a thread; the connection is restarted
                _log.error("zookeeper connection thread failed", exc_info=error)
                self._failed()

        thread: threading.Thread = super().spawn(run)
        return thread

    def create_socket_pair(self) -> tuple[Any, Any]:
        """Return an eventfd as the wake-up of kazoo's thread, or a socket pair on systems without eventfd."""
        if not hasattr(os, "eventfd"):
            pair: tuple[Any, Any] = super().create_socket_pair()
            return pair
        channel = WakeUp()
        return channel, channel

    def select(
        self,
        receivers: Sequence[Receiver],
        senders: Sequence[socket.socket],
        _others: Sequence[socket.socket],
        timeout_s: float | None = None,
    ) -> tuple[list[Receiver], list[socket.socket], list[socket.socket]]:
        """Wait for one of the sockets, with fewer system calls than kazoo. Called with either receivers or senders."""
        if senders:
            return [], wait_sendable(senders, timeout_s), []
        return wait_receivable(receivers, timeout_s), [], []

    def create_connection(
        self, address: Address, hostname: str = "", timeout: float = _TCP_CONNECT_TIMEOUT_S, **kwargs: Any
    ) -> socket.socket:
        """Connect within ``_TCP_CONNECT_TIMEOUT_S`` at most, with the current certificates and secrets.

        kazoo's own TLS is not used: it verifies no host name by default, and trusts the system's authorities as well.
        """
        server = (hostname or address[0], address[1])
        try:
            self._prepare()
            context = tls_context(self._access) if self._access.is_tls else None
            get_ticket(self._access, server[0])
        except (ZooKeeperAccessError, TicketUnavailableError) as error:
            self._refused(server, str(error), isinstance(error, ZooKeeperAccessError))
            raise OSError(errno.EACCES, str(error)) from error
        plain = socket.create_connection(address, timeout=min(timeout, _TCP_CONNECT_TIMEOUT_S))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return PlainSocket.of(plain) if context is None else self._secured(plain, context, server)

    def _secured(self, plain: socket.socket, context: ssl.SSLContext, server: Address) -> socket.socket:
        context.sslsocket_class = TlsSocket
        try:
            secured = context.wrap_socket(plain, server_hostname=server[0])
        except ssl.SSLCertVerificationError as error:
            why, is_certain = f"its certificate is not accepted: {error.verify_message}", True
        except ssl.SSLError as error:
            why, is_certain = f"TLS fails ({error.reason or error}): does this port speak TLS?", False
        except BaseException:
            plain.close()
            raise
        else:
            assert isinstance(secured, TlsSocket)
            secured.refused = lambda alert: self._refused(server, self._refusal(alert), True)
            return secured
        plain.close()
        self._refused(server, why, is_certain)
        raise OSError(errno.EACCES, why)

    def _refusal(self, alert: str) -> str:
        if self._access.tls_cert is None:
            return f"the server refuses this side without a certificate ({alert}): set zk_tls_cert and zk_tls_key"
        return (
            f"the server refuses this side's certificate ({alert}): check that {self._access.tls_cert} (zk_tls_cert) "
            "has not expired, and that the server accepts its authority"
        )


class KazooConnection:
    """A session and its requests. Create it on its event loop.

    ``stop`` leaves no thread and no descriptor, except for the thread of a look-up of a name that has no answer yet.
    """

    def __init__(
        self, hosts: str, session_timeout_s: float, operation_timeout_s: float, access: ZooKeeperAccess
    ) -> None:
        check_kerberos(access)
        self._access = access
        self._acl = [ACL(each.permissions, Id(each.scheme, each.identity)) for each in access.acl_entries]
        self._problems: dict[Address, str] = {}
        self._refusals: dict[Address, str] = {}
        self._refused = Signal()
        self._hosts = hosts
        self._is_logged_in = False
        self._is_login_refused = False
        self._login_ended = Signal()
        logging.getLogger("kazoo").setLevel(logging.WARNING)  # at lower levels it prints requests with node data
        self._loop = asyncio.get_running_loop()
        self._timeout_s = operation_timeout_s
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.bridge = LoopBridge(self._loop)
        self.tracker = SessionTracker(Session(SessionState.LOST, 0, 0))
        handler = _Handler(
            access,
            self._prepare,
            refused=lambda *why: self.bridge.push(self._on_refused, *why),
            failed=lambda: self.bridge.push(self._schedule_restart),
        )
        retry = KazooRetry(max_tries=-1, max_delay=_RECONNECT_DELAY_S_MAX, sleep_func=handler.sleep_func)
        now_s = SystemClock().monotonic_s
        self._outage = OutageLog(logging.getLogger(KazooClient.__module__), hosts, now_s)
        self._lookup = NameLookup(functools.partial(self._outage.warning, "Cannot resolve %s: %s"), now_s)
        self._client = KazooClient(
            hosts, timeout=session_timeout_s, handler=handler, connection_retry=retry, logger=self._outage
        )
        self._client.add_listener(self._listen)
        self._client._connection._expand_client_hosts = self._find_servers
        self._granted_s = session_timeout_s
        self._restart_task: asyncio.Task[None] | None = None
        self._watch_handshakes()
        self._watch_logins()

    async def start(self) -> None:
        """Connect, and return with the first session. The caller sets a deadline, and calls ``stop`` after a failure.

        Raises:
            ZooKeeperAccessError: certainly no server accepts these settings.
            AccessDeniedError: the login was refused.
        """
        self._client.start_async()
        while not (self.tracker.current.is_connected and self._is_logged_in):
            with waiting_for(self.tracker.changed, self._login_ended, self._refused) as waiter:
                if self._is_login_refused:
                    raise AccessDeniedError(f"cannot log in to {self._hosts}: {LOGIN_REFUSED}")
                if self._refusals.keys() >= set(self._client.hosts):
                    refused = sorted(self._refusals.items())
                    raise ZooKeeperAccessError("; ".join(f"ZooKeeper at {h}:{p}: {why}" for (h, p), why in refused))
                if not (self.tracker.current.is_connected and self._is_logged_in):
                    await waiter

    @property
    def problem(self) -> str:
        """Why connections fail; empty if unknown."""
        return "; ".join(f"{host}:{port}: {why}" for (host, port), why in sorted(self._problems.items()))

    async def stop(self) -> None:
        """End the session and all its threads. Idempotent."""
        if self.tracker.is_closed:
            return
        self.tracker.close()
        try:
            async with asyncio.timeout(_STOP_DEADLINE_S):
                await self._in_thread(self._shut_down)
        except TimeoutError:
            _log.warning("zookeeper connection cannot be closed", extra={"deadline_s": _STOP_DEADLINE_S})

    async def get_data(self, path: str) -> Any:
        """``(data, stat fields)`` of a node."""
        return await self._call(GetData(path, None), f"read {path}")

    async def get_children(self, path: str, watcher: Watcher | None = None) -> Any:
        """``(names, stat fields)`` of a node."""
        return await self._call(GetChildren2(path, watcher), f"list {path}")

    async def exists(self, path: str, watcher: Watcher | None = None) -> Any:
        """Stat fields of a node, or None."""
        return await self._call(Exists(path, watcher), f"look for {path}")

    async def sync(self, path: str) -> None:
        """Bring the server up to date with its leader."""
        await self._call(Sync(path), f"sync {path}")

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool, is_sequential: bool) -> Any:
        """Path of the new node."""
        flags = _EPHEMERAL_FLAG * is_ephemeral | _SEQUENTIAL_FLAG * is_sequential
        return await self._write(Create(path, data, self._acl, flags), f"create {path}")

    async def set_data(self, path: str, data: bytes, version: int) -> Any:
        """Stat fields of the changed node."""
        return await self._write(SetData(path, data, version), f"change {path}")

    async def delete(self, path: str, version: int) -> None:
        """Delete a node."""
        await self._write(Delete(path, version), f"delete {path}")

    async def raw_read(self, opcode: int, body: bytes, decode: Decode, what: str) -> Any:
        """Return the result of ``decode`` for the reply to a read."""
        return await self._call(RawRequest(opcode, body, decode), what)

    async def raw_write(self, opcode: int, body: bytes, decode: Decode, what: str) -> Any:
        """Return the result of ``decode`` for the reply to a write."""
        return await self._write(RawRequest(opcode, body, decode), what)

    async def _write(self, request: _Request, what: str) -> Any:
        write = _Write(self._client, request)
        try:
            return await self._call(write, what)
        finally:
            write.withdraw()  # for a cancelled caller; no effect once the write was sent

    async def _call(self, request: _Request, what: str) -> Any:
        """Send a request and return its answer. After a lost connection, repeat it, except a sent write (R144)."""
        session = self.tracker.current
        try:
            async with asyncio.timeout(self._timeout_s):
                session = await self.tracker.ready()
                async with self._slots:
                    sends, changes = 1, self.tracker.changes
                    value, error = await self._exchange(request, session)
                    while isinstance(error, ConnectionLoss) and self._may_resend(request, session, sends):
                        await self.tracker.wait_changes(changes)  # until it reports the loss, kazoo empties its queue
                        self.tracker.ensure(session)
                        await self.tracker.ready()
                        sends, changes = sends + 1, self.tracker.changes
                        value, error = await self._exchange(request, session)
        except TimeoutError as late:
            why = f"ZooKeeper at {self._hosts} did not answer within {self._timeout_s:g} s"
            raise _unanswered(request, what, why) from late
        if isinstance(request, _Write) and request.is_withdrawn:
            raise StoreUnavailableError(f"{what}: ZooKeeper session {session.session_id:#x} ended before it was sent")
        if error is not None:
            known = answer_error(getattr(error, "code", None), what)
            why = f"the connection to ZooKeeper at {self._hosts} failed ({type(error).__name__})"
            raise known or _unanswered(request, what, why) from error
        return value

    def _may_resend(self, request: _Request, session: Session, sends: int) -> bool:
        is_safe = not isinstance(request, _Write) or request.is_unsent
        return is_safe and sends < _SENDS_MAX and self.tracker.lives(session)

    async def _exchange(self, request: _Request, session: Session) -> tuple[Any, BaseException | None]:
        if isinstance(request, _Write):
            request.session_id = session.session_id
        answer = BridgedResult(self.bridge, self._loop)
        self._client._call(request, answer)
        return await answer.future

    def _find_servers(self) -> list[tuple[str, str, int]]:
        """Return ``(host, address, port)`` of each server to try, in random order. Runs in kazoo's thread."""
        found = self._lookup.find(self._client.hosts)
        random.shuffle(found)
        return found

    def _prepare(self) -> None:
        """Read the secrets of the login again. Runs in kazoo's thread, before it connects."""
        self._client._connection.sasl_options = sasl_options(self._access)
        self._client.auth_data = auth_data(self._access)

    def _on_refused(self, server: Address, why: str, is_certain: bool) -> None:
        self._problems[server] = why
        if is_certain:
            self._refusals[server] = why
            self._refused.fire()

    def _watch_handshakes(self) -> None:
        """Bound the wait for each handshake, and keep the granted session timeout: kazoo does not publish it."""
        connection = self._client._connection
        invoke = connection._invoke

        def invoke_with_connect_bound(timeout_s: float, request: _Request, *rest: Any, **named: Any) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout_s, request, *rest, **named)
            session_s = self._client._session_timeout / 1000
            bound_s = max(_HANDSHAKE_S_MIN, session_s / _HANDSHAKES_PER_SESSION)
            result = invoke(min(timeout_s, bound_s), request, *rest, **named)
            self._granted_s = result[0].time_out / 1000
            return result

        connection._invoke = invoke_with_connect_bound

    def _watch_logins(self) -> None:
        """Report the end of each login: kazoo reports the session before the login, which may fail.

        If a connection ends during a login, kazoo treats this as a refusal, and drops the session. After an earlier
        successful login, it is an ordinary outage. A server that refuses a login answers with an error: a server that
        demands logins (``enforce.auth.enabled``) with another one than the others, which kazoo does not expect here.
        """
        connection = self._client._connection
        connect, log_in = connection._connect, connection._authenticate_with_sasl

        def connect_and_log_in(*server: Any) -> Any:
            timeouts = connect(*server)
            self.bridge.push(self._on_login)
            return timeouts

        def log_in_again(*server: Any) -> None:
            try:
                log_in(*server)
            except AuthFailedError as error:
                if self._is_logged_in and isinstance(error.__cause__, ConnectionDropped):
                    raise ConnectionDropped(str(error)) from error
                raise
            except SessionClosedRequireSaslError as error:
                raise AuthFailedError(str(error)) from error

        connection._connect = connect_and_log_in
        connection._authenticate_with_sasl = log_in_again

    def _on_login(self) -> None:
        self._is_logged_in = True
        self._login_ended.fire()

    def _listen(self, state: str) -> None:
        # Runs in kazoo's thread. The bridge keeps the order of states and answers.
        session_id = self._client._session_id or 0
        self.bridge.push(self._on_state, state, session_id, self._granted_s, self._client.client_state)
        if state == KazooState.CONNECTED:
            self._outage.connected()

    def _on_state(self, state: str, session_id: int, timeout_s: float, keeper_state: str) -> None:
        if self.tracker.is_closed:
            return
        known = self.tracker.current
        session = replace(known, state=SessionState.SUSPENDED)
        if state == KazooState.CONNECTED:
            self._refusals.clear()
            self._problems.clear()
            is_same = session_id == known.session_id and known.state is not SessionState.LOST
            epoch = known.epoch if is_same else known.epoch + 1
            session = Session(SessionState.CONNECTED, epoch, session_id, timeout_s)
        elif state == KazooState.LOST:
            session = replace(known, state=SessionState.LOST)
            self._is_login_refused = keeper_state == KeeperState.AUTH_FAILED
            if keeper_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                self._schedule_restart()
        self.tracker.update(session)
        fields = {"state": session.state.value, "epoch": session.epoch, "session": f"{session.session_id:#x}"}
        _log.info("zookeeper session changed", extra=fields)

    def _schedule_restart(self) -> None:
        """Schedule a restart of kazoo's thread after its end.

        kazoo reports the end as a change of state, except while there is no session: then the state is LOST already.
        """
        if not self.tracker.is_closed and (self._restart_task is None or self._restart_task.done()):
            self._restart_task = guarded("restart of the zookeeper connection", self._restart())

    async def _restart(self) -> None:
        """Start kazoo's thread again after its end, for example after a malformed reply. kazoo does not do this."""
        await asyncio.sleep(_RESTART_DELAY_S)
        if not self.tracker.is_closed:
            await self._in_thread(self._shut_down)
        if not self.tracker.is_closed:
            self._client.start_async()

    def _shut_down(self) -> None:
        try:
            self._client.stop()
        finally:
            self._client._queue.clear()  # an unsent close request would end the next session
            self._client.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Run blocking ``work`` in its own thread, and return after the end of the thread."""
        answer = BridgedResult(self.bridge, self._loop)

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # the boundary of a thread; it is raised on the loop
                answer.set_exception(error)
            else:
                answer.set()

        thread = threading.Thread(target=run, name="zookeeper-stop", daemon=True)
        thread.start()
        _, error = await answer.future
        thread.join()
        if error is not None:
            _log.warning("zookeeper connection did not end cleanly", exc_info=error)


def _unanswered(request: _Request, what: str, why: str) -> StoreUnavailableError | WriteOutcomeUnknownError:
    if isinstance(request, _Write) and not request.withdraw():
        return WriteOutcomeUnknownError(f"{what}: {why} after it was sent; it may have been carried out: read it again")
    return StoreUnavailableError(f"{what}: {why}; check that a majority of its servers runs")
