"""A snapshot that the admin server of ZooKeeper (release 3.9 or newer) makes and sends. It is verified as it arrives.

The bytes are written to a file at the same time, because Spark tasks read parts of the snapshot. The file may be used
only if no error is raised: a snapshot is refused if it is cut off, damaged, of another cluster, or of a server that
lags.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bookie.metadata.cluster import Cluster
from bookie.metadata.port import StoreUnavailableError
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.connection_problem import connection_problem
from spark_jobs.options.snapshot import AUTHORIZATION_VARIABLE
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import source_of
from spark_jobs.snapshot.index import SnapshotIndex, check_layout, index_source

_COMMANDS: Final = "/commands"
_CONNECT_S: Final = 15.0
_FIRST_BYTE_TIMEOUT_S: Final = 600.0
"""Longest wait for the next byte. The server writes the snapshot to its own disk before it sends the first byte."""
BYTES_PER_S_MIN: Final = 100_000
"""Lowest average rate of a transfer after its first ``_FIRST_BYTE_TIMEOUT_S``. A slower transfer ends the run."""
_CONNECTED: Final = ("connection.connect_tcp.complete", "connection.start_tls.complete")
TRANSFER: Final = "snapshot transfer"
"""Name of the thread of a transfer."""
_POLL_S: Final = 0.5
"""Interval at which the caller checks whether the transfer may continue, seconds."""
_BLOCK: Final = 1 << 20
_EPOCH_BITS: Final = 32
_HEADER_BYTES_MAX: Final = 4096
_LAST_ZXID: Final = "last_zxid"
_SIZE: Final = "snapshot_size"


@dataclass(frozen=True, slots=True)
class AdminServer:
    """The address of the server, and the credentials for it."""

    url: str
    """URL such as ``http://zk1:8080``, with the path of the commands if it is not ``/commands``."""
    authorization: str = field(default="", repr=False)
    """Value of the Authorization header, such as ``digest user:password``; empty: no header."""
    ca: Path | None = None
    """PEM file of the authority that signed the server's certificate; None: the authorities of this machine."""

    @property
    def request_url(self) -> str:
        """The URL of the snapshot."""
        path = urlsplit(self.url).path.rstrip("/")
        base = self.url.rstrip("/")
        return f"{base if path else base + _COMMANDS}/snapshot?streaming=true"


def read_authorization(file: Path | None, environment: Mapping[str, str]) -> str:
    """Return the Authorization header: from the file, else from ``$BKHEAL_SNAPSHOT_AUTHORIZATION``, else empty.

    Raises:
        SnapshotError: the file cannot be read, or what was found cannot be a header value.
    """
    where, text = f"${AUTHORIZATION_VARIABLE}", environment.get(AUTHORIZATION_VARIABLE, "")
    if file is not None:
        where = str(file)
        try:
            with file.open(encoding="utf-8") as stream:
                text = stream.read(_HEADER_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"the authorization in {where} cannot be read: {error}") from error
    text = text.strip()
    if file is not None and not text:
        raise SnapshotError(f"there is no authorization in {where}")
    if len(text) > _HEADER_BYTES_MAX or not all(" " <= character <= "~" for character in text):
        raise SnapshotError(f"what is in {where} is not an authorization: one line of plain ASCII is needed")
    return text


def stream_snapshot(
    server: AdminServer,
    target: Path,
    cluster: Cluster,
    newest_zxid: int,
    may_go_on: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
) -> SnapshotIndex:
    """Request a snapshot from a server, and store and verify it while it arrives.

    The transfer runs in a thread, because a read from an unresponsive server blocks for minutes. After an error or a
    stop, the connection is closed, and nothing more is written.

    Args:
        server: the admin server.
        target: the file to write, which all Spark executors must be able to read.
        cluster: the live cluster; the snapshot must be of this cluster.
        newest_zxid: a transaction that the cluster has.
        may_go_on: is called twice a second in the thread of the caller; an error that it raises stops the transfer.
        clock: measures the rate of the transfer; None: the machine's clock.

    Raises:
        StoreUnavailableError: the server does not answer, makes no snapshot yet because it limits how often it does, or
            sends the snapshot too slowly.
        SnapshotError: the server refused, or the snapshot that it sent cannot be used.
    """
    check_layout(cluster)
    verify = True if server.ca is None else _context(server.ca)
    clock = clock or SystemClock()
    name = f"from {server.url}"
    with _stored(target, name):
        transfer = _Transfer(server, verify, target, cluster, newest_zxid)
    began_s = clock.monotonic_s()
    try:
        threading.Thread(target=transfer.run, name=TRANSFER, daemon=True).start()
        while not futures.wait((transfer.result,), _POLL_S).done:
            allowed_s = _FIRST_BYTE_TIMEOUT_S + transfer.size / BYTES_PER_S_MIN
            if clock.monotonic_s() - began_s > allowed_s:
                raise StoreUnavailableError(
                    f"the snapshot {name} arrives too slowly: {transfer.size} bytes in {allowed_s:.0f} s, and at least "
                    f"{BYTES_PER_S_MIN} bytes per second are needed after the first {_FIRST_BYTE_TIMEOUT_S:.0f} s; "
                    "nothing was marked"
                )
            may_go_on()
    finally:
        transfer.stop()
    index = transfer.result.result()
    with target.open("rb") as stored:
        is_plain = stored.read(4) == b"ZKSN"
    return replace(index, is_seekable=is_plain)


class _StoppedError(Exception):
    """The caller no longer waits for the transfer."""


class _Transfer:
    """The request to a server. It runs in a thread of its own; other threads may use ``size`` and ``stop``."""

    def __init__(
        self, server: AdminServer, verify: ssl.SSLContext | bool, target: Path, cluster: Cluster, newest_zxid: int
    ) -> None:
        """Prepare.

        The file is opened here, so that a late answer cannot create it again after the caller removed it.
        """
        self._server = server
        self._verify = verify
        self._target = target
        self._cluster = cluster
        self._newest_zxid = newest_zxid
        self._is_stopped = threading.Event()
        self._connection: socket.socket | None = None
        self._file = target.open("xb")
        os.chmod(target, 0o600)  # the file has the data of every node
        self.size = 0
        """Number of bytes of the body that have arrived."""
        self.result: futures.Future[SnapshotIndex] = futures.Future()

    def stop(self) -> None:
        """Close the connection, and write nothing more."""
        self._is_stopped.set()
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):  # it has already ended
                connection.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Do the transfer, and set the result."""
        try:
            with _stored(self._target, f"from {self._server.url}"), self._file:
                index = self._received()
        except BaseException as error:  # noqa: BLE001  # the boundary of a thread; it is raised to the waiting caller
            self.result.set_exception(error)
        else:
            self.result.set_result(index)

    def _received(self) -> SnapshotIndex:
        import httpx  # this takes a tenth of a second, which only these runs need

        server, name = self._server, f"from {self._server.url}"
        # No proxies and redirections, which would send the authorization to another host.
        timeout = httpx.Timeout(_CONNECT_S, read=_FIRST_BYTE_TIMEOUT_S)
        headers = {"Accept-Encoding": "identity"} | (
            {"Authorization": server.authorization} if server.authorization else {}
        )
        try:
            with (
                httpx.Client(verify=self._verify, timeout=timeout, trust_env=False) as client,
                client.stream(
                    "GET", server.request_url, headers=headers, extensions={"trace": self._trace}
                ) as response,
            ):
                _check_answer(server.url, response.status_code)
                _check_epoch(server.url, response.headers.get(_LAST_ZXID), self._newest_zxid)
                body = _Body(response.iter_raw(), self._take)
                source = source_of(body, f"the snapshot {name}", is_seekable=False)
                index = index_source(source, self._target, name, self._cluster)
                while body.read(_BLOCK):
                    pass
                _check_size(name, response.headers.get(_SIZE), self.size)
        except httpx.TimeoutException as error:
            raise StoreUnavailableError(
                f"no answer from {server.url}: {type(error).__name__}; nothing was marked"
            ) from error
        except httpx.RequestError as error:
            reason = connection_problem(error)
            raise StoreUnavailableError(
                f"the snapshot from {server.url} did not arrive: {reason}; nothing was marked"
            ) from error
        return index

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Receive the steps of the request (an extension of httpx), to get the socket of the connection."""
        if event in _CONNECTED:
            self._connection = info["return_value"].get_extra_info("socket")
        self._check_stop()

    def _check_stop(self) -> None:
        if self._is_stopped.is_set():
            raise _StoppedError

    def _take(self, chunk: bytes) -> None:
        self._check_stop()
        self._file.write(chunk)
        self.size += len(chunk)


class _Body:
    """The body of an answer. Each chunk is also passed to a function as it arrives."""

    def __init__(self, chunks: Iterator[bytes], take: Callable[[bytes], None]) -> None:
        self._chunks = chunks
        self._take = take
        self._rest = bytearray()

    def read(self, size: int, /) -> bytes:
        """Return ``size`` bytes, and fewer only at the end."""
        while len(self._rest) < size and (chunk := next(self._chunks, None)) is not None:
            self._take(chunk)
            self._rest += chunk
        block = bytes(self._rest[:size])
        del self._rest[:size]
        return block


@contextlib.contextmanager
def _stored(target: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SnapshotError(f"the snapshot {name} cannot be stored in {target}: {error.strerror}") from error


def _context(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise SnapshotError(f"the authorities in {ca} cannot be read: {error}") from error


def _check_answer(url: str, status: int) -> None:
    match status:
        case 200:
            return
        case 429:
            raise StoreUnavailableError(
                f"{url} made a snapshot a short time ago, and limits how often it does "
                "(zookeeper.admin.rateLimiterIntervalInMS): run the audit again later, or ask another server; "
                "nothing was marked"
            )
        case 401 | 403:
            raise SnapshotError(
                f"{url} refused with status {status}: it requires an identity that has all permissions for the node /, "
                "such as 'digest user:password' in the file of --snapshot-authorization-file"
            )
        case 404:
            raise SnapshotError(f"{url} has no command 'snapshot': is it the admin server of ZooKeeper 3.9 or newer?")
        case _:
            raise SnapshotError(
                f"{url} answered with status {status}: is the command enabled (zookeeper.admin.snapshot.enabled, "
                "zookeeper.serializeLastProcessedZxid.enabled), and does the server serve clients?"
            )


def _check_epoch(url: str, last_zxid: str | None, newest_zxid: int) -> None:
    """Refuse a server that lost its connection to the ensemble: its last transactions may not be committed."""
    try:
        found = int(last_zxid or "", 16)
    except ValueError as error:
        raise SnapshotError(
            f"{url} does not answer like an admin server of ZooKeeper: {_LAST_ZXID} is missing"
        ) from error
    if found >> _EPOCH_BITS < newest_zxid >> _EPOCH_BITS:
        raise SnapshotError(
            f"the snapshot from {url} is of epoch {found >> _EPOCH_BITS}, and the cluster has transactions of epoch "
            f"{newest_zxid >> _EPOCH_BITS}: the server lags behind the others, ask another one"
        )


def _check_size(name: str, expected: str | None, size: int) -> None:
    if expected is not None and expected != str(size):
        raise SnapshotError(f"the snapshot {name} is cut off: {size} of {expected[:20]} bytes arrived")
