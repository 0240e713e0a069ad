"""A real Apache BookKeeper cluster on this machine: its bookies, its auto-recovery and its shell, as processes.

Needs Apache's jars (``apache_jars``), which this project does not ship. Metadata is in the embedded ZooKeeper. Layout:
``zookeeper/``, ``apache-1/{bookie.conf,journal,ledgers,log.txt}``, ``auto-recovery-1/``, ``shell/``. Everything listens
only on 127.0.0.1, is owned by this process and ends with it. Nothing here is bound to an event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie.embedded.apache_jars import ApacheJvm, find_apache_lib
from bookie.embedded.apache_settings import ApacheOptions, write_log_settings, write_settings
from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from bookie.runtime.java import Java, find_java
from bookie.runtime.ports import free_loopback_port

LEDGERS_ROOT: Final = "/ledgers"
SHELL_DEADLINE_S: Final = 90.0
"""Deadline of a command, in seconds. A command takes one to three seconds on an idle machine."""
_READY_DEADLINE_S: Final = 180.0
"""Deadline of a start, in seconds. A start takes two seconds on an idle machine, and much longer on a loaded one or
with a long journal."""
_STOP_GRACE_S: Final = 20.0
_BOOKIE_MAIN: Final = "org.apache.bookkeeper.server.Main"
_RECOVERY_MAIN: Final = "org.apache.bookkeeper.replication.AutoRecoveryMain"
_SHELL_MAIN: Final = "org.apache.bookkeeper.bookie.BookieShell"
_BOOKIE_READY: Final = r"Started component (bookie-server|.*component=bookie-server)"
_RECOVERY_READY: Final = r"Started component (auto ?recovery|.*component=auto ?recovery)"
"""Line printed after the start. Release 4.18 prints the second form."""


class ApacheShellError(EmbeddedProcessError):
    """A command of Apache's shell failed; the text quotes its output."""


@dataclass(slots=True)
class ApacheServer:
    """One of Apache's Java processes, with its configuration file. Keeps its port and directories across restarts."""

    name: str
    directory: Path
    port: int
    jvm: ApacheJvm
    main_class: str
    ready_line: str
    settings: dict[str, str]
    """Settings by Apache's names; a change takes effect at the next start."""
    jaas: Path | None = None
    process: ManagedProcess | None = None

    def launch(self) -> None:
        """Write the configuration and start the process; ``wait_ready`` returns once it is ready."""
        configuration = self.directory / "bookie.conf"
        write_settings(configuration, self.settings)
        write_log_settings(self.directory / "log4j2.properties", is_shell=False)
        properties = java_properties(self.directory / "log4j2.properties", self.jaas)
        command = self.jvm.command(self.main_class, "--conf", str(configuration), properties=properties)
        self.process = ManagedProcess.start(self.name, command, log_path=self.directory / "log.txt")

    async def wait_ready(self) -> None:
        """Wait until it has started: a bookie is then registered and listening.

        Raises:
            EmbeddedProcessError: it ended or took too long; quotes its log.
        """
        await self.running.wait_for_line(self.ready_line, _READY_DEADLINE_S)

    async def start(self) -> None:
        """Start and wait until ready; do not start a running process again."""
        if self.process is None or not self.process.is_running:
            self.launch()
        await self.wait_ready()

    @property
    def address(self) -> str:
        """The address of a bookie, and its id without other settings: ``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> ManagedProcess:
        """The last started process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self.process

    async def stop(self) -> None:
        """Send SIGTERM and wait. The registration ends at once."""
        if self.process is not None:
            await self.process.stop(_STOP_GRACE_S)

    async def kill9(self) -> None:
        """Send SIGKILL and wait for the end of the process. The registration stays until its session expires."""
        self.running.kill9()
        await self.running.wait(_STOP_GRACE_S)


@dataclass(slots=True)
class ApacheBookie(ApacheServer):
    """One Apache bookie."""

    @property
    def bookie_id(self) -> BookieId:
        """The id of its registration, known before the first start."""
        return BookieId(self.settings.get("bookieId") or f"{self.settings['advertisedAddress']}:{self.port}")


@dataclass(slots=True)
class ApacheCluster:
    """A cluster of Apache's programs as child processes. Use ``start``, then ``async with``."""

    directory: Path
    zookeeper: EmbeddedZooKeeper
    jvm: ApacheJvm
    options: ApacheOptions
    bookies: list[ApacheBookie] = field(default_factory=list)
    auto_recoveries: list[ApacheServer] = field(default_factory=list)
    _shell_runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        bookies: int,
        options: ApacheOptions | None = None,
        is_formatted_by_apache: bool = True,
        is_zookeeper_durable: bool = True,
        zookeeper_heap_mib: int = 256,
        heap_mib: int = 192,
        jvm_options: Sequence[str] = ("-XX:+UseSerialGC",),
        java: Java | None = None,
        lib: Path | None = None,
    ) -> ApacheCluster:
        """Start ZooKeeper and ``bookies`` bookies on free loopback ports, and wait until all are registered.

        Args:
            directory: contains all files.
            bookies: number of bookies; more with ``add_bookies``. 0 for a cluster with only metadata.
            options: configuration of every program; ``add_bookies`` may add to it.
            is_formatted_by_apache: whether Apache's shell or ``format_cluster`` creates the root.
            is_zookeeper_durable: False leaves out ZooKeeper's fsync, for tests and benchmarks.
            zookeeper_heap_mib: Java heap of ZooKeeper.
            heap_mib: Java heap of each of Apache's programs.
            jvm_options: further options of their Java virtual machines.
            java: the runtime; by default the result of ``find_java``.
            lib: folder with the jars; by default the result of ``find_apache_lib``.

        Raises:
            ApacheJarsMissingError: Apache's jars were not found.
            JavaNotFoundError: no usable Java was found.
            EmbeddedProcessError: a process did not start; quotes its log.
        """
        lib = find_apache_lib() if lib is None else lib
        runtime = await asyncio.to_thread(find_java) if java is None else java
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        zookeeper = await EmbeddedZooKeeper.start(
            directory / "zookeeper", heap_mib=zookeeper_heap_mib, is_durable=is_zookeeper_durable, java=runtime
        )
        jvm = ApacheJvm(runtime, lib, heap_mib, tuple(jvm_options))
        cluster = cls(directory, zookeeper, jvm, options or ApacheOptions())
        try:
            await cluster._format(is_formatted_by_apache)
            await cluster.add_bookies(bookies)
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    @property
    def metadata_uri(self) -> str:
        """URI of the cluster for bkheal's and Apache's clients."""
        return f"zk+hierarchical://{self.zookeeper.connect_string}{LEDGERS_ROOT}"

    @property
    def jaas(self) -> Path | None:
        """File for Java's login, if bookies require a name and password; Apache's clients need it as well."""
        if self.options.sasl is None:
            return None
        path = self.directory / "jaas.conf"
        path.touch(mode=0o600)
        path.write_text(self.options.sasl.jaas())
        return path

    async def add_bookies(
        self, count: int, *, options: ApacheOptions | None = None, extra: Mapping[str, str] | None = None
    ) -> Sequence[ApacheBookie]:
        """Start ``count`` more bookies concurrently, and return them once all are registered.

        Args:
            count: number of bookies.
            options: replace the cluster's options.
            extra: settings by Apache's names, which override all others.

        Raises:
            EmbeddedProcessError: a bookie did not start; quotes its log.
        """
        added = []
        for _ in range(count):
            name = f"apache-{len(self.bookies) + 1}"
            where, port = self.directory / name, self._free_port()
            settings = (options or self.options).bookie(self.metadata_uri, port, where) | dict(extra or {})
            bookie = ApacheBookie(name, where, port, self.jvm, _BOOKIE_MAIN, _BOOKIE_READY, settings, self.jaas)
            self.bookies.append(bookie)
            added.append(bookie)
            bookie.launch()
        for bookie in added:
            await bookie.wait_ready()
        return added

    async def start_auto_recovery(self, extra: Mapping[str, str] | None = None) -> ApacheServer:
        """Start Apache's auditor and replication worker in a separate process, and wait until they run.

        Args:
            extra: settings by Apache's names (docs/formats.md#settings), for example ``lostBookieRecoveryDelay``.

        Raises:
            EmbeddedProcessError: it did not start; quotes its log.
        """
        name = f"auto-recovery-{len(self.auto_recoveries) + 1}"
        port = self._free_port()  # it does not listen there, but the name in its vote must differ from all bookies
        settings = self.options.bookie(self.metadata_uri, port, self.directory / name) | dict(extra or {})
        server = ApacheServer(
            name, self.directory / name, port, self.jvm, _RECOVERY_MAIN, _RECOVERY_READY, settings, self.jaas
        )
        self.auto_recoveries.append(server)
        await server.start()
        return server

    async def shell(
        self,
        *arguments: str,
        extra: Mapping[str, str] | None = None,
        deadline_s: float = SHELL_DEADLINE_S,
    ) -> str:
        """Run a command of Apache's shell (``bin/bookkeeper shell ...``) and return its output.

        Args:
            *arguments: the command and its options, for example ``"ledgermetadata", "-ledgerid", "7"``.
            extra: settings by Apache's names, which override all others.
            deadline_s: seconds until it is killed.

        Raises:
            ApacheShellError: its exit code is not 0.
            TimeoutError: it did not end within the deadline, and was killed.
        """
        where = self.directory / "shell" / f"{next(self._shell_runs):04}-{arguments[0]}"
        settings = self.options.bookie(self.metadata_uri, 3181, where)
        write_settings(where / "bookie.conf", settings | dict(extra or {}))
        write_log_settings(where / "log4j2.properties", is_shell=True)
        command = replace(self.jvm, heap_mib=128).command(
            _SHELL_MAIN,
            *("-conf", str(where / "bookie.conf"), *arguments),
            properties=java_properties(where / "log4j2.properties", self.jaas),
        )
        process = ManagedProcess.start(f"shell {arguments[0]}", command, log_path=where / "printed.txt")
        try:
            code = await process.wait(deadline_s)
        finally:
            process.kill9()
        printed = process.log_path.read_text(errors="replace")
        if code != 0:
            raise ApacheShellError(f"Apache's shell: {' '.join(arguments)} ended with exit code {code}:\n{printed}")
        return printed

    async def stop(self) -> None:
        """Stop auto-recovery, bookies, then ZooKeeper. Idempotent; leaves no process."""
        try:
            await asyncio.gather(*(server.stop() for server in [*self.auto_recoveries, *self.bookies]))
        finally:
            await self.zookeeper.stop()

    async def __aenter__(self) -> ApacheCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _format(self, is_by_apache: bool) -> None:
        if is_by_apache:
            await self.shell("initnewcluster")
            return
        store = await ZooKeeperStore.connect(self.zookeeper.connect_string)
        try:
            await format_cluster(store, LEDGERS_ROOT, rng=random.SystemRandom())
        finally:
            await store.close()

    def _free_port(self) -> int:
        taken = {server.port for server in [*self.bookies, *self.auto_recoveries]}
        while (port := free_loopback_port(random.SystemRandom())) in taken:
            pass
        return port


def java_properties(log_settings: Path, jaas: Path | None) -> dict[str, str]:
    """Return the Java system properties for Apache's programs, and for drivers of its client."""
    properties = {
        "log4j2.configurationFile": str(log_settings),
        "io.netty.leakDetectionLevel": "disabled",
        "java.net.preferIPv4Stack": "true",
        "zookeeper.sasl.client": "false",
    }
    return properties | ({"java.security.auth.login.config": str(jaas)} if jaas else {})
