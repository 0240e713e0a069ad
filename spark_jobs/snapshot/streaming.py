"""A snapshot made and sent by the admin server of ZooKeeper (release 3.9 or newer): verified while it arrives.

The bytes go to a file at the same time, as Spark tasks read parts of a snapshot. The file can be used only if this
returns: a snapshot is refused if it is cut off, damaged, of another cluster, or of a server that lags.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bookie.metadata.cluster import Cluster
from bookie.metadata.port import StoreUnavailableError
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import source_of
from spark_jobs.snapshot.index import SnapshotIndex, check_layout, index_source
from spark_jobs.snapshot_options import AUTHORIZATION_VARIABLE

if TYPE_CHECKING:
    import httpx

_COMMANDS: Final = "/commands"
_CONNECT_S: Final = 15.0
_SILENCE_S: Final = 600.0
"""The server writes the snapshot to its own disk before it sends the first byte."""
_BLOCK: Final = 1 << 20
_EPOCH_BITS: Final = 32
_HEADER_BYTES_MAX: Final = 4096
_LAST_ZXID: Final = "last_zxid"
_SIZE: Final = "snapshot_size"


@dataclass(frozen=True, slots=True)
class AdminServer:
    """The address of the server, and the credentials for it."""

    url: str
    """Such as ``http://zk1:8080``, or with the path of the commands if this is not ``/commands``."""
    authorization: str = field(default="", repr=False)
    """Value of the Authorization header, such as ``digest user:password``; empty: none."""
    ca: Path | None = None
    """PEM file of the authority that signed the server's certificate; None: the authorities of this machine."""

    @property
    def request_url(self) -> str:
        """The URL of the snapshot."""
        path = urlsplit(self.url).path.rstrip("/")
        base = self.url.rstrip("/")
        return f"{base if path else base + _COMMANDS}/snapshot?streaming=true"


def read_authorization(file: Path | None, environment: Mapping[str, str]) -> str:
    """The value of the Authorization header: of the file, else of ``$BKHEAL_SNAPSHOT_AUTHORIZATION``, else none.

    Raises:
        SnapshotError: the file cannot be read, or the value found is not a header value.
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
    server: AdminServer, target: Path, cluster: Cluster, newest_zxid: int, on_block: Callable[[], None] | None = None
) -> SnapshotIndex:
    """Let a server make a snapshot, and store and verify it while it arrives.

    Args:
        server: the admin server.
        target: file to write, which all Spark executors share.
        cluster: the live cluster; the snapshot must be of this one.
        newest_zxid: a transaction that the cluster has.
        on_block: called before each block of 1 MiB; an error it raises stops the transfer.

    Raises:
        StoreUnavailableError: no answer, or not yet: the server limits how often it makes a snapshot.
        SnapshotError: the server refused, or the snapshot that it sent cannot be used.
    """
    import httpx  # a tenth of a second, for these runs alone

    check_layout(cluster)
    verify = True if server.ca is None else _context(server.ca)
    # A proxy or a redirection would give the authorization to another host.
    timeout = httpx.Timeout(_CONNECT_S, read=_SILENCE_S)
    headers = {"Accept-Encoding": "identity"} | (
        {"Authorization": server.authorization} if server.authorization else {}
    )
    name = f"from {server.url}"
    try:
        with (
            httpx.Client(verify=verify, timeout=timeout, trust_env=False) as client,
            client.stream("GET", server.request_url, headers=headers) as response,
        ):
            _check_answer(server.url, response.status_code)
            _check_epoch(server.url, response.headers.get(_LAST_ZXID), newest_zxid)
            with _stored(response, target, name) as body:
                source = source_of(body, f"the snapshot {name}", is_seekable=False)
                index = index_source(source, target, name, cluster, on_block)
                while body.read(_BLOCK):
                    pass
            _check_size(name, response.headers.get(_SIZE), body.size)
    except httpx.TimeoutException as error:
        raise StoreUnavailableError(
            f"no answer from {server.url}: {type(error).__name__}; nothing was marked"
        ) from error
    except httpx.RequestError as error:
        reason = str(error) or type(error).__name__
        raise StoreUnavailableError(
            f"the snapshot from {server.url} did not arrive: {reason}; nothing was marked"
        ) from error
    with target.open("rb") as stored:
        is_plain = stored.read(4) == b"ZKSN"
    return replace(index, is_seekable=is_plain)


class _Body:
    """The body of an answer, written to a file at the same time."""

    def __init__(self, chunks: Iterator[bytes], file: Callable[[bytes], object]) -> None:
        self._chunks = chunks
        self._write = file
        self._rest = bytearray()
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """``size`` bytes, and fewer at the end alone."""
        while len(self._rest) < size and (chunk := next(self._chunks, None)) is not None:
            self.size += len(chunk)
            self._write(chunk)
            self._rest += chunk
        block = bytes(self._rest[:size])
        del self._rest[:size]
        return block


@contextlib.contextmanager
def _stored(response: httpx.Response, target: Path, name: str) -> Iterator[_Body]:
    try:
        with target.open("xb") as file:
            os.chmod(target, 0o600)  # it has the data of every node
            yield _Body(response.iter_raw(_BLOCK), file.write)
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
                f"{url} refused with status {status}: it wants an identity that has all permissions for the node /, "
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
    """Refuse a server that lost its connection to the others: its last transactions may never have been agreed on."""
    try:
        found = int(last_zxid or "", 16)
    except ValueError as error:
        raise SnapshotError(
            f"{url} does not answer as an admin server of ZooKeeper does: {_LAST_ZXID} is missing"
        ) from error
    if found >> _EPOCH_BITS < newest_zxid >> _EPOCH_BITS:
        raise SnapshotError(
            f"the snapshot from {url} is of epoch {found >> _EPOCH_BITS}, and the cluster has transactions of epoch "
            f"{newest_zxid >> _EPOCH_BITS}: the server lags behind the others, ask another one"
        )


def _check_size(name: str, expected: str | None, size: int) -> None:
    if expected is not None and expected != str(size):
        raise SnapshotError(f"the snapshot {name} is cut off: {size} of {expected[:20]} bytes arrived")
