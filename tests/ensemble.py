"""ZooKeeper servers, as processes on loopback; each can be killed and started again. Three of them elect a leader."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from bookie.embedded import zookeeper as embedded
from bookie.embedded.process import ManagedProcess
from bookie.runtime.java import find_java, java_environment
from bookie.runtime.ports import free_loopback_port

SERVERS: Final = 3
_HEAP_MIB: Final = 192
_SYNC_TICKS: Final = 15
"""Longer than a stall of a loaded machine."""

Linking: TypeAlias = Callable[[int, int, int, int], Awaitable[tuple[int, int]]]
"""Returns the ports for followers and for elections at which one server reaches another.

Its arguments are the number of the one, the number of the other, and the two ports of the other.
"""


@dataclass(slots=True)
class Server:
    """One of the servers."""

    launch: embedded._Launch
    started: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        """The last started process."""
        assert self.started is not None, "the server was never started"
        return self.started

    def start(self) -> None:
        """Start it on its existing data."""
        self.started = ManagedProcess.start(
            self.launch.directory.name,
            embedded._command(self.launch),
            log_path=self.launch.directory / "zookeeper.log",
            environment=java_environment(self.launch.java),
        )

    async def wait(self) -> None:
        """Wait until it serves clients, which requires a majority of the servers."""
        port = self.launch.port
        await self.process.wait_until(lambda: embedded._is_serving(port), "a server", embedded.READY_DEADLINE_S)

    async def leads(self) -> bool:
        """Return whether it is the elected leader.

        Raises:
            OSError: it does not run.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"srvr")
            return re.search(rb"^Mode: leader$", await reader.read(), re.MULTILINE) is not None
        finally:
            writer.close()

    @property
    def port(self) -> int:
        """Return the port for clients."""
        return self.launch.port


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The servers."""

    servers: Sequence[Server]

    @property
    def connect_string(self) -> str:
        """The addresses of all servers, for clients."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def used_connect_string(self) -> str:
        """The addresses of all servers in the form of a metadata URI."""
        return self.connect_string.replace(",", ";")

    async def start(self) -> None:
        """Start all servers, and wait until they serve."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            await server.wait()

    async def stop(self) -> None:
        """Stop the servers that were started."""
        await asyncio.gather(*(server.process.stop() for server in self.servers if server.started is not None))

    async def leader(self) -> Server:
        """Return the elected leader. All servers must be running."""
        [leader] = [server for server in self.servers if await server.leads()]
        return leader


async def prepared_ensemble(
    folder: Path, *, servers: int = SERVERS, sync_ticks: int = _SYNC_TICKS, link: Linking | None = None
) -> Ensemble:
    """Write the settings of servers that do not run yet.

    Args:
        folder: for all files.
        servers: their number. A single server needs no others.
        sync_ticks: for how many ticks of two seconds a leader and a follower wait for each other.
        link: returns the ports at which a server reaches another one; by default those of the other one.
    """
    rng, java, ports = random.SystemRandom(), await asyncio.to_thread(find_java), set[int]()
    while len(ports) < 3 * servers:
        ports.add(free_loopback_port(rng))
    clients, quorum, election = (sorted(ports)[part::3] for part in range(3))
    made = []
    for number in range(servers):
        launch = embedded._Launch(folder / f"zookeeper-{number}", clients[number], 0, None, _HEAP_MIB, False, java)
        launch.directory.mkdir(parents=True)
        embedded._write_configuration(launch)
        settings = [f"initLimit={2 * sync_ticks}", f"syncLimit={sync_ticks}"]
        for other in range(servers):
            used = quorum[other], election[other]
            if link is not None and other != number:
                used = await link(number, other, *used)
            settings.append(f"server.{other + 1}=127.0.0.1:{used[0]}:{used[1]}")
        if servers > 1:
            (launch.directory / "data" / "myid").write_text(f"{number + 1}\n")
            with (launch.directory / "zoo.cfg").open("a") as file:
                file.writelines(f"{line}\n" for line in settings)
        made.append(Server(launch))
    return Ensemble(made)


@contextmanager
def started_ensemble(folder: Path) -> Iterator[Ensemble]:
    """Run a working ensemble; it ends with the context."""
    with asyncio.Runner() as runner:
        ensemble = runner.run(prepared_ensemble(folder))
        try:
            runner.run(ensemble.start())
            yield ensemble
        finally:
            runner.run(ensemble.stop())
