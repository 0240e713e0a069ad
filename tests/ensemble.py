"""Three ZooKeeper servers with an elected leader, as processes on loopback; each can be killed and started again."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.embedded import zookeeper as embedded
from bookie.embedded.process import ManagedProcess
from bookie.runtime.java import find_java, java_environment
from bookie.runtime.ports import free_loopback_port

SERVERS: Final = 3
_HEAP_MIB: Final = 192


@dataclass(slots=True)
class Server:
    """One of the servers."""

    launch: embedded._Launch
    process: ManagedProcess = field(init=False)

    def start(self) -> None:
        """Start it on its existing data."""
        self.process = ManagedProcess.start(
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
        """Return whether it is the elected leader."""
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

    async def leader(self) -> Server:
        """Return the elected leader. All servers must be running."""
        [leader] = [server for server in self.servers if await server.leads()]
        return leader


@contextmanager
def started_ensemble(folder: Path) -> Iterator[Ensemble]:
    """Run a working ensemble; it ends with the context."""
    rng, java, ports = random.SystemRandom(), find_java(), set[int]()
    while len(ports) < 3 * SERVERS:
        ports.add(free_loopback_port(rng))
    clients, quorum, election = (sorted(ports)[part::3] for part in range(3))
    servers = []
    for number in range(SERVERS):
        launch = embedded._Launch(folder / f"zookeeper-{number}", clients[number], 0, None, _HEAP_MIB, False, java)
        launch.directory.mkdir(parents=True)
        embedded._write_configuration(launch)
        (launch.directory / "data" / "myid").write_text(f"{number + 1}\n")
        with (launch.directory / "zoo.cfg").open("a") as settings:
            settings.write("initLimit=30\nsyncLimit=15\n")
            for other in range(SERVERS):
                settings.write(f"server.{other + 1}=127.0.0.1:{quorum[other]}:{election[other]}\n")
        servers.append(Server(launch))
    with asyncio.Runner() as runner:
        try:
            for server in servers:
                server.start()
            for server in servers:
                runner.run(server.wait())
            yield Ensemble(servers)
        finally:
            for server in servers:
                runner.run(server.process.stop())
