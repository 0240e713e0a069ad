"""End the ZooKeeper sessions of another process immediately, as if their timeout had passed.

After a SIGKILL the server keeps the session, and with it the registration, locks and votes of the process, until the
session times out. Tests use a timeout longer than any stall of a loaded machine, so a stall ends no session. A test
that needs the end of a session closes it with this module. The server then acts as after a timeout: it deletes the
ephemeral nodes, and refuses the session to a process that returns with it, such as a paused one.

Any client that knows the id and the password of a session can use it. The server lists the ids with their connections
(``cons``), and derives the password from the id (``ZooKeeperServer.generatePasswd``).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from collections.abc import Sequence
from typing import BinaryIO, Final, Protocol

import psutil

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper

LONG_SESSION_S: Final = 60.0
"""The longest timeout of the embedded ZooKeeper: longer than a stall of a loaded machine."""
_DEADLINE_S: Final = 30.0
_PASSWORD_SECRET: Final = 0xB3415C00
_PASSWORD_BYTES: Final = 16
_CLOSE: Final = -11
_CONNECTION: Final = re.compile(r"^ /127\.0\.0\.1:(\d+)\[.*\bsid=0x([0-9a-f]+)", re.MULTILINE)


class Killable(Protocol):
    """A server of an embedded cluster, ours or Apache's."""

    @property
    def running(self) -> ManagedProcess:
        """The last started process."""


async def sessions_of(zookeeper: EmbeddedZooKeeper, process: ManagedProcess | psutil.Process) -> Sequence[int]:
    """Return the ids of the sessions that ``process`` and its children are connected to; none if it has ended."""
    ports = await asyncio.to_thread(_local_ports, process.pid, zookeeper.port)
    connections = _CONNECTION.findall(await _ask(zookeeper, b"cons"))
    return [int(session, 16) for port, session in connections if int(port) in ports and int(session, 16)]


async def end_sessions(zookeeper: EmbeddedZooKeeper, sessions: Sequence[int]) -> None:
    """End these sessions and delete their ephemeral nodes. A session that has already ended is no error."""
    await asyncio.gather(*(asyncio.to_thread(_end, zookeeper.connect_string, session) for session in sessions))


async def expire(zookeeper: EmbeddedZooKeeper, process: ManagedProcess) -> None:
    """End the sessions of a process that runs or is paused."""
    await end_sessions(zookeeper, await sessions_of(zookeeper, process))


async def kill9(zookeeper: EmbeddedZooKeeper, *killed: Killable | ManagedProcess) -> None:
    """Kill these processes with SIGKILL, wait for their end, and end their sessions."""
    processes = [one if isinstance(one, ManagedProcess) else one.running for one in killed]
    sessions = [session for process in processes for session in await sessions_of(zookeeper, process)]
    for process in processes:
        process.kill9()
    for process in processes:
        await process.wait(_DEADLINE_S)
    await end_sessions(zookeeper, sessions)


def _local_ports(pid: int, server_port: int) -> set[int]:
    """Return the local ports of the process's connections to a server on this machine.

    The kernel gives the same local port to connections of different processes if they go to different servers.
    """
    ports: set[int] = set()
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:  # the process and its connections have ended
        return ports
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # the child has ended after it was listed
            connections = process.net_connections("tcp")
            ports.update(one.laddr.port for one in connections if one.raddr and one.raddr.port == server_port)
    return ports


async def _ask(zookeeper: EmbeddedZooKeeper, word: bytes) -> str:
    async with asyncio.timeout(_DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", zookeeper.port)
        try:
            writer.write(word)
            return (await reader.read()).decode()
        finally:
            writer.close()


def _end(connect_string: str, session: int) -> None:
    close_session(connect_string, _signed(session), _password(session))


def close_session(connect_string: str, session: int, password: bytes) -> None:
    """Close this session, and return after the server has closed it or refused it because it had ended.

    The session's own client loses its connection to this one, and then reconnects and takes the session back. Both
    requests are therefore sent in one write, and sent again until the server has answered.
    """
    host, _, port = connect_string.partition("/")[0].partition(":")
    deadline = time.monotonic() + _DEADLINE_S
    connect = struct.pack(">iqiqi16s?", 0, 0, int(LONG_SESSION_S * 1000), session, _PASSWORD_BYTES, password, False)
    request = b"".join(struct.pack(">i", len(part)) + part for part in (connect, struct.pack(">ii", 1, _CLOSE)))
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((host, int(port)), timeout=_DEADLINE_S) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(request)
            connected = _answer(answers)
            _, granted_ms, _ = struct.unpack_from(">iiq", connected)
            if not granted_ms:  # the session had ended
                return
            _answer(answers)
            return
    raise TimeoutError(f"the server has not closed session {session:#x} within {_DEADLINE_S:g} s")


def _answer(answers: BinaryIO) -> bytes:
    head = answers.read(4)
    if len(head) < 4:
        raise ConnectionResetError("closed by the server")
    (length,) = struct.unpack(">i", head)
    body = answers.read(length)
    if len(body) < length:
        raise ConnectionResetError("closed by the server")
    return body


def _signed(session: int) -> int:
    return session - (1 << 64) if session >= 1 << 63 else session


def _password(session: int) -> bytes:
    """Return the output of ``java.util.Random`` for the id: 16 bytes, four of each 32-bit number, lowest first."""
    state = (session ^ _PASSWORD_SECRET ^ 0x5DEECE66D) & ((1 << 48) - 1)
    numbers = bytearray()
    while len(numbers) < _PASSWORD_BYTES:
        state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        numbers += (state >> 16).to_bytes(4, "little")
    return bytes(numbers)
