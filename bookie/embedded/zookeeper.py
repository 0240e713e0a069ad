"""A real ZooKeeper server on this machine, from the jars inside the installed pyspark package.

pyspark is located, not imported. There is one server without a quorum, and it listens only on 127.0.0.1. Its data stays
in the given directory, and is used again by a later start, or by a restart after a kill.

The first server on a machine writes an archive of its Java classes (12 MB) when it is stopped. Later ones start from
the archive, in two thirds of the processor time (``bookie.runtime.class_data``).
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import logging
import os
import random
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.model.errors import PermanentError
from bookie.runtime.class_data import fingerprint as class_fingerprint
from bookie.runtime.class_data import is_possible, is_usable_path, is_whole, mark_complete, reading, writing
from bookie.runtime.java import Java, find_java, java_environment
from bookie.runtime.kept_files import BeingMadeError, cache_folder, place_to_make
from bookie.runtime.ports import free_loopback_port, is_loopback_port_free

_log = logging.getLogger(__name__)

READY_DEADLINE_S: Final = 60.0
"""Deadline of a start, in seconds. A start takes one to three seconds on an idle machine, and longer on a loaded one,
or with a large snapshot to read."""
_ANSWER_DEADLINE_S: Final = 1.0
_ANSWER_BYTES_MAX: Final = 4096
_STOP_GRACE_S: Final = 5.0
_ARCHIVE_GRACE_S: Final = 15.0
"""As ``_STOP_GRACE_S``, for a server that writes the archive of its classes, which takes half a second of processor
time."""
_ARCHIVE: Final = "classes.jsa"
_PORT_ATTEMPTS: Final = 3
"""A free port may be taken before the server binds it; three times in a row is not a coincidence."""
_PARALLEL_HEAP_MIB_MIN: Final = 1024
"""Heaps of this size or more use the parallel collector: a single-threaded full collection would take seconds, long
enough to expire sessions."""

_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
)

_TLS_JARS: Final = (
    "netty-buffer-*.jar",
    "netty-codec-[0-9]*.jar",
    "netty-codec-base-*.jar",
    "netty-common-*.jar",
    "netty-handler-[0-9]*.jar",
    "netty-resolver-[0-9]*.jar",
    "netty-transport-[0-9]*.jar",
    "netty-transport-classes-epoll-*.jar",
    "netty-transport-native-unix-common-*.jar",
)
"""ZooKeeper supports TLS only over Netty."""

_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1} %m%n%rEx{6}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class ZooKeeperJarsMissingError(PermanentError):
    """The installed pyspark does not contain ZooKeeper's server jars."""


@dataclass(frozen=True, slots=True)
class ZooKeeperKerberos:
    """The Kerberos identity of a server."""

    principal: str
    """Such as ``zookeeper/127.0.0.1@REALM``, with the host used by clients."""
    keytab: Path
    """Keytab file with the principal's key."""
    configuration: Path
    """The file ``krb5.conf`` with the realm."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """A server's requirements for its clients: TLS on a second port, and SASL on both."""

    certificate: Path
    """PEM file with the server's certificate chain and key (PKCS 8)."""
    ca: Path
    """PEM file of the authority for clients' certificates, required on the second port."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by name, for logins by SASL (DIGEST-MD5). Empty if there are none."""
    is_login_required: bool = False
    """Whether sessions without a login are closed, on both ports."""
    kerberos: ZooKeeperKerberos | None = None
    """Identity for logins by SASL (GSSAPI), instead of logins with passwords."""


@dataclass(frozen=True, slots=True)
class _Launch:
    directory: Path
    port: int
    secure_port: int
    security: ZooKeeperSecurity | None
    heap_mib: int
    is_durable: bool
    java: Java
    writes_archive: bool = False
    """Whether the server writes an archive of its classes when it ends."""


class EmbeddedZooKeeper:
    """A running ZooKeeper server that this process owns and that ends with it. Use ``start``, then ``async with``."""

    def __init__(self, launch: _Launch, process: ManagedProcess, lock: int) -> None:
        self._launch = launch
        self._lock = lock
        self.process = process

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        heap_mib: int = 512,
        is_durable: bool = True,
        java: Java | None = None,
        security: ZooKeeperSecurity | None = None,
    ) -> EmbeddedZooKeeper:
        """Start a server on the data in ``directory`` (created if missing) and wait until it answers.

        Args:
            directory: contains data, configuration and log; one server at a time.
            port: port on 127.0.0.1; by default a free one.
            heap_mib: Java heap in MiB; a million ledgers need about 1024.
            is_durable: False leaves out the fsync before each answer, for tests and benchmarks.
            java: the runtime; by default the result of ``find_java``.
            security: a second port with TLS, and logins; by default none.

        Raises:
            EmbeddedProcessError: it did not answer in time, or its port or directory is in use.
            ZooKeeperJarsMissingError: the installed pyspark contains no ZooKeeper.
            JavaNotFoundError: no usable Java was found.
        """
        runtime = await asyncio.to_thread(find_java) if java is None else java
        lock = _lock_directory(directory)
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                chosen = free_loopback_port(random.SystemRandom()) if port is None else port
                secure_port = free_loopback_port(random.SystemRandom()) if security else 0
                launch = _Launch(
                    directory, chosen, secure_port, security, heap_mib, is_durable, runtime, _needs_archive(runtime)
                )
                try:
                    return cls(launch, await _launch(launch), lock)
                except EmbeddedProcessError:
                    if port is not None or attempt == _PORT_ATTEMPTS or is_loopback_port_free(chosen):
                        raise
                    _log.info("port was taken, trying another", extra={"port": chosen})
        except BaseException:
            os.close(lock)
            raise
        raise AssertionError("the last attempt returns or raises")

    @property
    def port(self) -> int:
        """Client port on 127.0.0.1, kept across restarts."""
        return self._launch.port

    @property
    def connect_string(self) -> str:
        """Connect string for ZooKeeper clients, for example ``127.0.0.1:20181``."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_connect_string(self) -> str:
        """As ``connect_string``, for clients with TLS; only with ``security``."""
        return f"127.0.0.1:{self._launch.secure_port}"

    @property
    def used_connect_string(self) -> str:
        """Connect string for clusters: the one with TLS, if available."""
        return self.connect_string if self._launch.security is None else self.secure_connect_string

    @property
    def pid(self) -> int:
        """Process id of the server; a restart changes it."""
        return self.process.pid

    @property
    def log_path(self) -> Path:
        """File with the server's warnings and errors."""
        return self.process.log_path

    async def stop(self) -> None:
        """End the server and release its directory. May be called again, and after ``kill``."""
        try:
            await self._end()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def kill(self) -> None:
        """Kill the server (SIGKILL) without waiting for its end; ``restart`` starts it again."""
        self.process.kill9()

    async def restart(self) -> None:
        """Start the server again on the same data and port; end a running one first.

        Raises:
            EmbeddedProcessError: it did not answer in time.
        """
        await self._end()
        self.process = await _launch(self._launch)

    async def _end(self) -> None:
        """End the server, and keep the archive of its classes if it has written one."""
        made = self._launch.directory / _ARCHIVE
        is_writing = self._launch.writes_archive and self.process.is_running
        code = await self.process.stop(_ARCHIVE_GRACE_S if is_writing else _STOP_GRACE_S)
        if is_writing and code == 128 + signal.SIGTERM and made.is_file():  # any other end may have cut the archive
            await asyncio.to_thread(_keep_archive, made, _archive_path(self._launch.java))
        made.unlink(missing_ok=True)
        self._launch = replace(self._launch, writes_archive=False)

    async def __aenter__(self) -> EmbeddedZooKeeper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def _launch(launch: _Launch) -> ManagedProcess:
    # Checked first: another ZooKeeper on the port would answer the readiness check in place of this server.
    if not is_loopback_port_free(launch.port):
        raise EmbeddedProcessError(
            f"port {launch.port} on 127.0.0.1 is in use: stop what listens there, or choose another"
        )
    _write_configuration(launch)
    process = ManagedProcess.start(
        "zookeeper",
        _command(launch),
        log_path=launch.directory / "zookeeper.log",
        environment=java_environment(launch.java),
    )
    try:
        await process.wait_until(lambda: _is_serving(launch.port), "an answer to 'srvr'", READY_DEADLINE_S)
    except BaseException:
        process.kill9()
        raise
    return process


def _write_configuration(launch: _Launch) -> None:
    data = launch.directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    settings = {
        "dataDir": data.resolve(),
        "clientPort": launch.port,
        "clientPortAddress": "127.0.0.1",
        "maxClientCnxns": 0,
        "tickTime": 2000,
        "minSessionTimeout": 2000,
        "maxSessionTimeout": 60_000,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok,cons",
        "preAllocSize": 4096,  # KiB of zeros per transaction log; the default of 64 MiB is too much for small clusters
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
    }
    if launch.security is not None:
        settings |= _security_settings(launch, launch.security)
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (launch.directory / "zoo.cfg").write_text(lines)
    (launch.directory / "log4j2.properties").write_text(_LOG4J)


def _security_settings(launch: _Launch, security: ZooKeeperSecurity) -> dict[str, object]:
    settings: dict[str, object] = {
        "secureClientPort": launch.secure_port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": security.certificate.resolve(),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": security.ca.resolve(),
        "ssl.trustStore.type": "PEM",
        "sslQuorum": "false",
    }
    if module := _login_module(security):
        settings["authProvider.sasl"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        (launch.directory / "jaas.conf").write_text(f"Server {{\n  {module};\n}};\n")
        (launch.directory / "jaas.conf").chmod(0o600)
    if security.is_login_required:
        settings |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
    return settings


def _login_module(security: ZooKeeperSecurity) -> str:
    """Return the module with its options, one on each line; empty without logins."""
    if kerberos := security.kerberos:
        module = "com.sun.security.auth.module.Krb5LoginModule"
        options = {"principal": kerberos.principal, "keyTab": kerberos.keytab.resolve(), "useKeyTab": "true"}
        options |= {"storeKey": "true", "useTicketCache": "false"}
    else:
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        options = {f"user_{name}": password for name, password in security.users.items()}
    lines = [f'{name}="{value}"' for name, value in options.items()]
    return "\n  ".join([f"{module} required", *lines]) if lines else ""


def _command(launch: _Launch) -> list[str]:
    collector = "-XX:+UseParallelGC" if launch.heap_mib >= _PARALLEL_HEAP_MIB_MIN else "-XX:+UseSerialGC"
    # A server with a small heap runs for minutes, which is too short for the optimizing compiler to pay off.
    compiler = () if launch.heap_mib >= _PARALLEL_HEAP_MIB_MIN else ("-XX:TieredStopAtLevel=1",)
    return [
        str(launch.java.executable),
        f"-Xmx{launch.heap_mib}m",
        collector,
        *compiler,
        "-XX:-UsePerfData",
        f"-Dzookeeper.forceSync={'yes' if launch.is_durable else 'no'}",
        f"-Dlog4j2.configurationFile={launch.directory.resolve() / 'log4j2.properties'}",
        "-Dzookeeper.jmx.log4j.disable=true",
        *_security_properties(launch),
        *_archive_options(launch),
        "-cp",
        os.pathsep.join(_jars(_JARS + (_TLS_JARS if launch.security else ()))),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(launch.directory.resolve() / "zoo.cfg"),
    ]


def _archive_path(java: Java) -> Path:
    """Return the path of the archive of the server's classes for this Java and these jars."""
    jars = _jars()
    return cache_folder() / f"zookeeper-{class_fingerprint(java, Path(jars[0]).parent, *jars)}.jsa"


def _needs_archive(java: Java) -> bool:
    """Whether there is no archive, and this Java can make one."""
    path = _archive_path(java)
    return is_possible(java) and is_usable_path(path) and not is_whole(path)


def _archive_options(launch: _Launch) -> Sequence[str]:
    """Return Java's options to read the archive or, if this server makes it, to write it. A secured server reads only.

    Java ignores the archive if the class path does not begin with that of the archive.
    """
    if launch.writes_archive:
        made = launch.directory.resolve() / _ARCHIVE
        return writing(made) if launch.security is None and is_usable_path(made) else ()
    path = _archive_path(launch.java)
    return reading(path) if is_usable_path(path) and is_whole(path) else ()


def _keep_archive(made: Path, path: Path) -> None:
    """Put a complete archive at its path. If this is not possible, the next server tries again."""
    try:
        with place_to_make(path, wait_s=0) as (directory, _):
            copy = directory / path.name
            shutil.copyfile(made, copy)
            mark_complete(copy)
            copy.replace(path)
    except (OSError, BeingMadeError) as error:
        _log.info("no archive of ZooKeeper's classes", extra={"path": str(path), "reason": str(error)})


def _security_properties(launch: _Launch) -> list[str]:
    if launch.security is None or not _login_module(launch.security):
        return []
    properties = [f"-Djava.security.auth.login.config={launch.directory.resolve() / 'jaas.conf'}"]
    if kerberos := launch.security.kerberos:
        properties.append(f"-Djava.security.krb5.conf={kerberos.configuration.resolve()}")
    return properties


def _jars(patterns: Sequence[str] = _JARS) -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(place) / "jars" for place in (spec.submodule_search_locations or [])] if spec else []
    found = {pattern: sorted(str(jar) for folder in folders for jar in folder.glob(pattern)) for pattern in patterns}
    missing = [pattern for pattern, jars in found.items() if not jars]
    if missing:
        raise ZooKeeperJarsMissingError(
            f"the installed pyspark lacks ZooKeeper's server jars: looked for {', '.join(missing)} in "
            f"{', '.join(map(str, folders)) or 'pyspark, which is not installed'}. Do: pip install 'pyspark>=4.1'"
        )
    return [jar for jars in found.values() for jar in jars]


def _lock_directory(directory: Path) -> int:
    """Lock ``directory`` for this process: two servers on the same data would destroy it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise EmbeddedProcessError(
            f"another process runs a ZooKeeper in {directory}: stop it, or choose another directory"
        ) from error
    return descriptor


async def _is_serving(port: int) -> bool:
    """Return whether the server answers requests: only then ``srvr`` returns a mode. ``ruok`` succeeds too early."""
    try:
        async with asyncio.timeout(_ANSWER_DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"srvr")
                answer = await reader.read(_ANSWER_BYTES_MAX)
                while answer and (more := await reader.read(_ANSWER_BYTES_MAX)):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b"\nMode:" in answer
