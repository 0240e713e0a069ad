"""A whole cluster under one directory: ZooKeeper, a formatted root, N bookie processes.

Layout: ``zookeeper/``, ``bookie-1/{journal,ledgers,log.txt}``, ... Everything is owned by this process
and ends with it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper, ZooKeeperSecurity
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.runtime.human import size
from bookie.runtime.java import Java

LEDGERS_ROOT: Final = "/ledgers"
_READY_DEADLINE_S: Final = 60.0
_STOP_GRACE_S: Final = 15.0
_READ_ONLY_BELOW_BYTES: Final = 128 << 20
"""Small, because a trial should work even on a laptop with a nearly full disk."""
_READY_LINE: Final = r"^bookie (\S+) ready on (\S+):(\d+)$"
_APACHE_LINE: Final = r"^bookie speaks Apache's protocol on (\S+):(\d+)$"
_METRICS_LINE: Final = r"^bookie metrics on (\S+)$"
NEEDED_BYTES: Final = 2 * _READ_ONLY_BELOW_BYTES
"""Free space that a cluster needs at its start. With less, its bookies would soon be read-only."""
SESSION_TIMEOUT_S: Final = 10.0
"""A killed bookie is unregistered after this time. If a busy machine delays a bookie for less, it stays registered."""


class NoSpaceError(PermanentError):
    """The disk has no room for a cluster."""


def require_space(directory: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Refuse a directory, which need not exist yet, on a disk with too little free space.

    Raises:
        NoSpaceError: it has less than ``needed_bytes``.
    """
    place = directory.resolve()
    free = shutil.disk_usage(next(each for each in (place, *place.parents) if each.exists())).free
    if free < needed_bytes:
        raise NoSpaceError(
            f"the cluster needs {size(needed_bytes)} of free disk space, and {directory} has {size(free)}: choose a "
            "directory on another disk (TMPDIR for temporary ones)"
        )


@dataclass(slots=True)
class EmbeddedBookie:
    """One bookie process and its directories. Keeps its id and port across restarts."""

    name: str
    directory: Path
    metadata_uri: str
    process: ManagedProcess | None = None
    known_as: BookieId | None = None
    """Its id; None until it is ready for the first time."""
    port: int = 0
    serves_metrics: bool = False
    metrics_url: str = ""
    """The address of metrics and probes, if served; the port differs after each start."""
    speaks_apache: bool = False
    apache_port: int = 0
    """The port of Apache's protocol, if spoken; kept across restarts."""
    session_timeout_s: float = SESSION_TIMEOUT_S
    options: Sequence[str] = ()
    """Further arguments of its command line."""

    def launch(self) -> None:
        """Start the process; ``wait_ready`` returns once it is registered."""
        arguments = [
            *(sys.executable, "-m", "bookie.server"),
            *("--metadata-uri", self.metadata_uri, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--journal-dir", str(self.directory / "journal"), "--ledger-dir", str(self.directory / "ledgers")),
            *("--session-timeout", str(self.session_timeout_s), "--read-only-below-bytes", str(_READ_ONLY_BELOW_BYTES)),
        ]
        arguments += self.options
        if self.serves_metrics:
            arguments += ["--http-port", "0"]
        if self.speaks_apache:
            arguments += ["--apache-port", str(self.apache_port)]
        self.process = ManagedProcess.start(self.name, arguments, log_path=self.directory / "log.txt")

    async def wait_ready(self) -> None:
        """Wait until the bookie has registered.

        Raises:
            EmbeddedProcessError: it ended or took too long; quotes its log.
        """
        ready = await self.running.wait_for_line(_READY_LINE, _READY_DEADLINE_S)
        self.known_as, self.port = BookieId(ready[1]), int(ready[3])
        if self.speaks_apache:
            self.apache_port = int((await self.running.wait_for_line(_APACHE_LINE, _READY_DEADLINE_S))[2])
        if self.serves_metrics:
            self.metrics_url = (await self.running.wait_for_line(_METRICS_LINE, _READY_DEADLINE_S))[1]

    async def start(self) -> None:
        """Start and wait until ready."""
        self.launch()
        await self.wait_ready()

    @property
    def bookie_id(self) -> BookieId:
        """The id of its registration."""
        if self.known_as is None:
            raise RuntimeError(f"{self.name} was never ready")
        return self.known_as

    @property
    def running(self) -> ManagedProcess:
        """The last started process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self.process

    async def stop(self) -> None:
        """Send SIGTERM and wait."""
        if self.process is not None:
            await self.process.stop(_STOP_GRACE_S)

    async def kill9(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self.running.kill9()
        await self.running.wait(_STOP_GRACE_S)


async def format_new_cluster(connect_string: str) -> None:
    """Write the metadata of a new cluster at ``LEDGERS_ROOT`` to a ZooKeeper."""
    store = await ZooKeeperStore.connect(connect_string)
    try:
        await format_cluster(store, LEDGERS_ROOT, rng=random.SystemRandom())
    finally:
        await store.close()


class EmbeddedCluster:
    """ZooKeeper and bookies as child processes on this machine. Use ``start``, then ``async with``."""

    def __init__(
        self,
        directory: Path,
        zookeeper: EmbeddedZooKeeper,
        *,
        serves_metrics: bool = False,
        speaks_apache: bool = False,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.serves_metrics = serves_metrics
        self.speaks_apache = speaks_apache
        self.session_timeout_s = session_timeout_s
        self.bookies: list[EmbeddedBookie] = []

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        bookies: int,
        zookeeper_heap_mib: int = 512,
        is_zookeeper_durable: bool = True,
        serves_metrics: bool = False,
        speaks_apache: bool = False,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        java: Java | None = None,
        security: ZooKeeperSecurity | None = None,
    ) -> Self:
        """Start everything on free loopback ports and wait until every bookie is registered.

        With ``serves_metrics``, bookies serve metrics and probes at their ``metrics_url``. With ``speaks_apache``, they
        speak Apache's protocol as well, at their ``apache_port``. ``session_timeout_s`` applies to the bookies. With
        ``security``, everything uses the TLS port of ZooKeeper, with the access of this process and of its environment.

        Raises:
            EmbeddedProcessError: a process did not start; quotes its log.
            JavaNotFoundError: no usable Java was found.
            NoSpaceError: the disk has no room; nothing was started.
        """
        require_space(directory)
        directory.mkdir(parents=True, exist_ok=True)
        zookeeper = await EmbeddedZooKeeper.start(
            directory / "zookeeper",
            heap_mib=zookeeper_heap_mib,
            is_durable=is_zookeeper_durable,
            java=java,
            security=security,
        )
        cluster = cls(
            directory,
            zookeeper,
            serves_metrics=serves_metrics,
            speaks_apache=speaks_apache,
            session_timeout_s=session_timeout_s,
        )
        try:
            await format_new_cluster(zookeeper.used_connect_string)
            await cluster.add_bookies(bookies)
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    @property
    def metadata_uri(self) -> str:
        """URI of the cluster for clients."""
        return f"zk+hierarchical://{self.zookeeper.used_connect_string}{LEDGERS_ROOT}"

    async def add_bookies(self, count: int) -> Sequence[EmbeddedBookie]:
        """Start ``count`` more bookies concurrently, and return them once all are registered."""
        added = []
        for _ in range(count):
            name = f"bookie-{len(self.bookies) + 1}"
            where = self.directory / name
            bookie = EmbeddedBookie(
                name,
                where,
                self.metadata_uri,
                serves_metrics=self.serves_metrics,
                speaks_apache=self.speaks_apache,
                session_timeout_s=self.session_timeout_s,
            )
            self.bookies.append(bookie)
            added.append(bookie)
            bookie.launch()
        for bookie in added:
            await bookie.wait_ready()
        return added

    async def stop(self) -> None:
        """Stop bookies, then ZooKeeper. Idempotent; leaves no process."""
        try:
            await asyncio.gather(*(bookie.stop() for bookie in self.bookies))
        finally:
            await self.zookeeper.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
