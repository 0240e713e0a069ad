"""Ports that connect a client to the leader, whichever auditor the client reaches.

Only the leader starts runs, shows Spark's UI, and has the reports that it wrote. A load balancer cannot distinguish it
from the other auditors. So each auditor can listen on further ports, and relays every connection to the same port of
the leader, byte for byte. TLS, HTTP and gRPC stay between the client and the leader, which authenticates the client.

The invariant (A14): bytes reach only the process whose vote was the lowest when it was last read. The name in that vote
is the host and port of its HTTP API. A name with another port belongs to another kind of process, such as Apache's
auditor. No connection is opened to it, because a request may contain a token. A connection is closed soon after its
leader has lost the leadership. The client then connects again and reaches the next leader.

The leader sees the address of the relaying auditor instead of the client's, so all clients of one relay share one rate
limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from auditor.service.listeners import Listener
from auditor.service.settings import ServiceSettings
from bookie.model.hosts import is_host
from bookie.runtime.clock import Clock
from bookie.runtime.listening import accept_one_at_a_time, address_in_use
from bookie.runtime.tasks import cancel, guarded

CONNECTIONS_MAX: Final = 256
"""Open connections of one port; a further one is closed at once. The leader's API answers 64 requests at a time."""
CONNECT_S: Final = 5.0
"""Deadline for a connection to the leader. A leader that has not accepted it by then is down or unreachable."""
CLOSE_S: Final = 5.0
"""Deadline for sending the last bytes, after both sides have ended."""
IDLE_S: Final = 3600.0
"""A connection without traffic for this time is closed. It is long because a client that follows a paused run receives
nothing until the run continues."""
HALF_CLOSED_S: Final = 60.0
"""The same after one side has ended: longer than the deadline of a request. A client that never ends its side would
otherwise hold its place for an hour after the leader has closed the connection."""
CHECK_S: Final = 1.0
"""Time between two checks of open connections: the longest time for which one stays open after its leader changed."""
_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of one read. With the buffers of both sides, a connection takes a few times as much memory."""


def leader_host(leader: str, http_port: int) -> str:
    """Return the host of the leader; empty: there is none, it is another kind of process, or it has no usable host.

    Args:
        leader: the name in the vote.
        http_port: of the API of every auditor of this service.
    """
    host, _, port = leader.rpartition(":")
    return host if port == str(http_port) and is_host(host) else ""


def leader_ports(settings: ServiceSettings, leader: Callable[[], str], clock: Clock) -> Sequence[LeaderPort]:
    """Return the ports in the settings, not listening yet.

    Args:
        settings: of this auditor; all auditors of the service have the same ports.
        leader: returns the name in the lowest vote.
        clock: for idle connections.
    """
    own = (
        ("http", settings.leader_http_port, settings.http_port),
        ("grpc", settings.leader_grpc_port, settings.grpc_port),
        ("ui", settings.leader_ui_port, settings.ui_proxy_port or settings.ui_port),
    )

    def leader_target(port: int) -> Callable[[], tuple[str, int]]:
        return lambda: (leader_host(leader(), settings.http_port), port)

    return [
        LeaderPort(name, (settings.http_host, port), leader_target(target), clock) for name, port, target in own if port
    ]


@dataclass(slots=True)
class _RelayedConnection:
    target: tuple[str, int]
    moved_s: float
    """When a byte was last relayed, on the monotonic clock."""
    idle_s_max: float = IDLE_S


class LeaderPort(Listener):
    """A port that relays connections to the same port of the leader."""

    def __init__(self, name: str, listen: tuple[str, int], target: Callable[[], tuple[str, int]], clock: Clock) -> None:
        """Store the arguments.

        Args:
            name: ``http``, ``grpc`` or ``ui``.
            listen: where to listen, host and port; port 0: any free one.
            target: returns host and port of the leader; an empty host: there is none.
            clock: for idle connections.
        """
        self._name = name
        self._listen = listen
        self._target = target
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], _RelayedConnection] = {}

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the leader now; an empty host: there is none."""
        return self._target()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @override
    async def start(self) -> None:
        """Listen.

        Raises:
            AddressInUseError: it cannot listen on the address.
        """
        host, port = self._listen
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=_CHUNK_BYTES, backlog=1)
            accept_one_at_a_time(self._server)
        except OSError as error:
            options = (f"--leader-{self._name}-port", "--http-host")
            raise address_in_use(host, port, f"the leader's {self._name}", options, error) from error
        self._watching = guarded("leader port", self._watch())

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    @override
    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await cancel(self._watching)
        for task in list(self._open):
            await cancel(task)

    @override
    def set_requests_per_second(self, rate: float) -> None:
        """Do nothing: the leader limits requests."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._target()
        if not target[0] or len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        connection = _RelayedConnection(target, self._clock.monotonic_s())
        task = guarded("leader port", self._relay(connection, reader, writer))
        self._open[task] = connection
        task.add_done_callback(self._open.pop)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(CHECK_S)
            target, now_s = self._target(), self._clock.monotonic_s()
            for task, connection in list(self._open.items()):
                if connection.target != target or now_s - connection.moved_s >= connection.idle_s_max:
                    task.cancel()

    async def _relay(
        self, connection: _RelayedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writers = [writer]
        try:
            async with asyncio.timeout(CONNECT_S):
                from_leader, to_leader = await asyncio.open_connection(*connection.target, limit=_CHUNK_BYTES)
            writers.append(to_leader)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, reader, to_leader))
                group.create_task(self._pump(connection, from_leader, writer))
            async with asyncio.timeout(CLOSE_S):
                for each in writers:
                    each.close()
                    await each.wait_closed()
        except* OSError:  # a deadline has passed or one side has disconnected: both are closed below
            pass
        finally:
            for each in writers:
                each.transport.abort()

    async def _pump(
        self, connection: _RelayedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            connection.moved_s = self._clock.monotonic_s()
            writer.write(data)
            await writer.drain()
        connection.moved_s, connection.idle_s_max = self._clock.monotonic_s(), HALF_CLOSED_S
        if writer.can_write_eof():
            writer.write_eof()
