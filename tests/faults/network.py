"""The links of a cluster: from each process to ZooKeeper, between the ZooKeeper servers, and to each bookie."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Final

from tests.links import LINK_HOST, LOOPBACK, Link

APACHE_HOST: Final = "localhost"
"""The name that Apache's bookies advertise. In their own Java virtual machines it means another address.

Apache's bookies listen at the address that they advertise, so a link needs another one for the same name.
"""
_WORD: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_ADDRESS_MAX: Final = 1000
_LEADER_ATTEMPTS: Final = 50
"""An elected leader listens a moment later. If the connection of a follower ends before that, the election is void."""


def hosts_file() -> str:
    """Return the addresses of all host names for the Java virtual machines of Apache's bookies."""
    return f"{LINK_HOST} {APACHE_HOST}\n{LOOPBACK} {socket.gethostname()}\n"


class Network:
    """All links of a cluster."""

    def __init__(self) -> None:
        """Start without a link."""
        self._zookeeper_ports: Sequence[int] = ()
        self._to_zookeeper: dict[str, list[Link]] = {}
        self._to_bookie: dict[str, list[Link]] = {}
        self._between_servers: dict[tuple[int, int], list[Link]] = {}

    async def close(self) -> None:
        """Close all links."""
        groups = [*self._to_zookeeper.values(), *self._to_bookie.values(), *self._between_servers.values()]
        await asyncio.gather(*(link.close() for links in groups for link in links))

    def set_zookeeper(self, ports: Sequence[int]) -> None:
        """Store the ports of the ZooKeeper servers."""
        self._zookeeper_ports = ports

    async def to_zookeeper(self, name: str) -> str:
        """Make the links of a process to each ZooKeeper server, and return their addresses as in a metadata URI."""
        links = self._to_zookeeper[name] = [Link(port) for port in self._zookeeper_ports]
        return ";".join([f"{LOOPBACK}:{await link.listen(LOOPBACK)}" for link in links])

    async def between_servers(self, number: int, other: int, quorum: int, election: int) -> tuple[int, int]:
        """Make the links from a ZooKeeper server to the ports of another one, and return their own ports."""
        links = self._between_servers[number, other] = [
            Link(quorum, attempts=_LEADER_ATTEMPTS),
            Link(election, first=_without_address),
        ]
        return await links[0].listen(LOOPBACK), await links[1].listen(LOOPBACK)

    async def to_bookie(self, name: str, *ports: int) -> None:
        """Make the links to one of our bookies, unless they exist: they stay over its restarts."""
        if name not in self._to_bookie:
            links = self._to_bookie[name] = [Link(port) for port in ports]
            for link, port in zip(links, ports, strict=True):
                await link.listen(LINK_HOST, port)

    async def to_apache_bookie(self, name: str, port: int) -> None:
        """Make the link to one of Apache's bookies."""
        [link] = self._to_bookie[name] = [Link(port, LINK_HOST)]
        await link.listen(LOOPBACK, port)

    def links(self, name: str, *, to_zookeeper: bool) -> list[Link]:
        """Return the links of a process: those to ZooKeeper, or those to a bookie."""
        return self._to_zookeeper[name] if to_zookeeper else self._to_bookie[name]

    def links_of_server(self, number: int) -> list[Link]:
        """Return the links between a ZooKeeper server and the others, in both directions."""
        return [link for pair, links in self._between_servers.items() if number in pair for link in links]


async def _without_address(reader: asyncio.StreamReader) -> bytes:
    """Return the first message to the election port of a ZooKeeper server, without the address of its sender.

    The server would connect to this address, which is no link. Without it, the server uses its own settings.
    """
    [word] = _WORD.unpack(await reader.readexactly(_WORD.size))
    if word >= 0:  # the number of the sender, and no address
        return _WORD.pack(word)
    number = await reader.readexactly(_WORD.size)
    [size] = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if not 0 <= size <= _ADDRESS_MAX:
        raise EOFError(f"an address of {size} bytes")
    await reader.readexactly(size)
    return number
