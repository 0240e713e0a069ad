"""Files in an object store or on a Hadoop file system, through pyarrow: the adapter for reports and for the image.

The invariant: a file appears whole under its name, or not at all. Every call has a time limit. Credentials come from
the environment, from files or from the machine's role, as the library of the store reads them; an address with a
password is refused, and no message contains one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
from pyarrow import fs

from bookie.runtime.clock import Clock, SystemClock
from spark_jobs.store_address import S3, StoreAddress

T = TypeVar("T")

_GCS: Final = ("gs", "gcs")
_HDFS: Final = ("hdfs", "viewfs")
_ATOMIC_FILE_SYSTEMS: Final = frozenset({"s3", "gcs", "abfs"})
"""File systems in which a file becomes visible when it is closed. In all others, it is first written under a hidden
name."""
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables with the endpoint of another S3 server; AWS's own tools read them as well."""
CALL_S: Final = 60.0
"""Time limit of one call with its retries, in addition to the time for the bytes."""
_BYTES_PER_S: Final = 256 * 1024
_CHUNK: Final = 4 << 20
_REASON_MAX: Final = 300
SLOW_S: Final = 5.0
"""If a call fails after more than this time, the store counts as unresponsive."""
REST_S: Final = 120.0
"""How long an unresponsive store is not called again, so that not every task of a scan waits for it."""


class LocalFileError(OSError):
    """A file of this machine cannot be read, so the store is not the cause."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below the address."""

    name: str
    size: int


class Pending(Generic[T]):
    """A call that was started."""

    def __init__(
        self, future: Future[T], deadline_s: float, clock: Clock, end: Callable[[Exception], Exception]
    ) -> None:
        self._future = future
        self._clock = clock
        self._until_s = clock.monotonic_s() + deadline_s
        self._deadline_s = deadline_s
        self._end = end

    def is_done_within(self, seconds: float) -> bool:
        """Wait at most this long; return whether the call has ended, or its deadline has passed."""
        left_s = self._until_s - self._clock.monotonic_s()
        try:
            self._future.exception(max(0.0, min(seconds, left_s)))
        except TimeoutError:
            return self._until_s <= self._clock.monotonic_s()
        return True

    def result(self) -> T:
        """Wait until the call ends, or its deadline has passed.

        Raises:
            Exception: ``failure`` of the store; see ``RemoteFiles``.
            LocalFileError: a file to upload cannot be read.
        """
        try:
            return self._future.result(max(0.0, self._until_s - self._clock.monotonic_s()))
        except TimeoutError as error:
            raise self._end(TimeoutError(f"no answer within {self._deadline_s:.0f} s")) from error
        except LocalFileError:
            raise
        except Exception as error:  # the library of each store has its own errors, and all of them mean a failure
            raise self._end(error) from error


class RemoteFiles:
    """Files below an address. Names are relative, with slashes. May be used by several threads."""

    def __init__(
        self,
        address: StoreAddress,
        failure: type[Exception],
        *,
        call_s: float = CALL_S,
        rest_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Only store the arguments; the first call opens the file system.

        Args:
            address: address of the folder above all files.
            failure: the error to raise if the store cannot be read or written; the text has the reason.
            call_s: time limit of each call, seconds, in addition to the time for the bytes.
            rest_s: after a call to an unresponsive store, every call fails immediately for this time, seconds.
            clock: for measurements; default: the machine's.
        """
        self.address = address
        self._failure = failure
        self._call_s = call_s
        self._rest_s = rest_s
        self._clock = SystemClock() if clock is None else clock
        self._rests_until_s = 0.0
        self._rests_because = ""
        self._opening = threading.Lock()
        self._opened: tuple[Any, str] | None = None

    def list(self, folder: str = "", *, is_deep: bool = True) -> tuple[list[StoredFile], list[str]]:
        """List the files in a folder and, if not deep, the names of its folders. A missing folder is empty.

        Raises:
            Exception: the store cannot be read.
        """

        def call(system: Any, base: str) -> tuple[list[StoredFile], list[str]]:
            start = f"{base}/{folder}".rstrip("/")
            selector = fs.FileSelector(start, allow_not_found=True, recursive=is_deep)
            files, folders = [], []
            for info in system.get_file_info(selector):
                name = info.path[len(start) :].lstrip("/")
                if info.type is fs.FileType.File:
                    files.append(StoredFile(name, info.size))
                elif info.type is fs.FileType.Directory:
                    folders.append(name)
            bucket = self.address.authority if system.type_name in ("s3", "gcs") else ""
            if bucket and not files and not folders and system.get_file_info(bucket).type is fs.FileType.NotFound:
                raise FileNotFoundError(f"there is no bucket {bucket}, or it cannot be seen with these credentials")
            return files, folders

        return self._start("list", folder, call).result()

    def read(self, name: str, size_max: int) -> pa.Buffer:
        """Read a file; if it is longer than ``size_max``, only its first ``size_max`` + 1 bytes.

        Raises:
            Exception: the store cannot be read, or lacks the file.
        """

        def call(system: Any, base: str) -> pa.Buffer:
            with system.open_input_stream(f"{base}/{name}") as source:
                return source.read_buffer(size_max + 1)

        return self._start("read", name, call, size_max).result()

    def download(self, name: str, target: Path, size: int) -> None:
        """Copy a file to a new file on this machine. Only one chunk is in memory.

        Args:
            name: name of the file in the store.
            target: the new file.
            size: its size according to the list of files.

        Raises:
            Exception: the store cannot be read, lacks the file, or has one of another size.
        """

        def call(system: Any, base: str) -> None:
            with system.open_input_stream(f"{base}/{name}") as source, target.open("wb") as file:
                while (chunk := source.read(_CHUNK)) and file.tell() <= size:
                    file.write(chunk)
                if file.tell() != size:
                    raise OSError(f"its size is not the listed {size} bytes: it is being changed, or is incomplete")

        self._start("read", name, call, size).result()

    def upload(self, source: Path, name: str) -> None:
        """Write a file of this machine to the store. It appears whole, or not at all.

        Raises:
            Exception: the store cannot be written.
            LocalFileError: the file cannot be read.
        """
        self._start_write(name, lambda: _chunks(source), source.stat().st_size).result()

    def start_write(self, name: str, data: pa.Buffer) -> Pending[None]:
        """Begin to write a file, which appears whole, or not at all."""
        return self._start_write(name, lambda: (data,), data.size)

    def remove_folder(self, folder: str, *, first: Iterable[str]) -> None:
        """Remove the files ``first`` of a folder, in order, if they exist, and then the folder.

        Raises:
            Exception: it cannot be removed.
        """

        def call(system: Any, base: str) -> None:
            for name in first:
                if system.get_file_info(f"{base}/{folder}/{name}").type is fs.FileType.File:
                    system.delete_file(f"{base}/{folder}/{name}")
            try:
                system.delete_dir(f"{base}/{folder}")
            except OSError:  # a store without real folders may not find a folder whose files were removed
                left = fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True)
                if any(info.type is fs.FileType.File for info in system.get_file_info(left)):
                    raise

        self._start("remove", folder, call).result()

    def _start_write(self, name: str, chunks: Callable[[], Iterable[Any]], size: int) -> Pending[None]:
        def call(system: Any, base: str) -> None:
            path = f"{base}/{name}"
            folder, _, last = path.rpartition("/")
            is_direct = system.type_name in _ATOMIC_FILE_SYSTEMS
            written = path if is_direct else f"{folder}/.{last}.tmp"
            if not is_direct:
                system.create_dir(folder, recursive=True)
            try:
                with system.open_output_stream(written) as sink:
                    for chunk in chunks():
                        sink.write(chunk)
            except LocalFileError:
                with contextlib.suppress(OSError):  # the stream was closed, so a file with the first bytes exists
                    system.delete_file(written)
                raise
            if not is_direct:
                system.move(written, path)

        return self._start("write", name, call, size)

    def _start(self, verb: str, name: str, call: Callable[[Any, str], T], size: int = 0) -> Pending[T]:
        """Start a call in a thread of its own, so a hanging library does not delay the end of a run."""
        future: Future[T] = Future()
        since_s = self._clock.monotonic_s()
        failed_s: float | None = None

        def run() -> None:
            nonlocal failed_s
            try:
                system, base = self._system()
                future.set_result(call(system, base))
            except BaseException as error:  # noqa: BLE001  # the boundary of a thread; it is raised to the caller
                failed_s = self._clock.monotonic_s()
                future.set_exception(error)

        def ended(error: Exception) -> Exception:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:_REASON_MAX]
            now_s = self._clock.monotonic_s()
            if self._rest_s and (now_s if failed_s is None else failed_s) - since_s > SLOW_S:
                self._rests_until_s, self._rests_because = now_s + self._rest_s, reason
            return self._failure(f"cannot {verb} {self.address}{f' ({name})' if name else ''}: {reason}")

        if since_s < self._rests_until_s:
            failed_s = since_s
            future.set_exception(
                OSError(f"it is not tried again yet, because an earlier request failed: {self._rests_because}")
            )
        else:
            threading.Thread(target=run, name="store", daemon=True).start()
        return Pending(future, self._call_s + size / _BYTES_PER_S, self._clock, ended)

    def _system(self) -> tuple[Any, str]:
        with self._opening:
            if self._opened is None:
                self._opened = _open(self.address)
            return self._opened


def _chunks(source: Path) -> Iterator[bytes]:
    try:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise LocalFileError(error.errno, error.strerror, str(source)) from error


def _open(address: StoreAddress) -> tuple[Any, str]:
    if address.scheme in S3:
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=3)
        options = dict(address.parameters)
        if endpoint := next(filter(None, map(os.environ.get, _ENDPOINTS)), None):
            options.setdefault("endpoint_override", endpoint)
        return (
            fs.S3FileSystem(
                connect_timeout=5, request_timeout=20, retry_strategy=retries, allow_delayed_open=True, **options
            ),
            f"{address.authority}{address.path}",
        )
    if address.scheme in _HDFS and (system := _hdfs(address)) is not None:
        return system, address.path
    scheme = "gs" if address.scheme in _GCS else address.scheme
    system, base = fs.FileSystem.from_uri(f"{scheme}://{address.authority}{address.path or '/'}")
    return system, base.rstrip("/")


def _hdfs(address: StoreAddress) -> Any:
    """Return the file system through a client that needs no Java; None: ``hdfs-native`` is not installed."""
    try:
        native = importlib.import_module("hdfs_native.fsspec")
    except ModuleNotFoundError:
        return None
    kind = native.HdfsFileSystem if address.scheme == "hdfs" else native.ViewfsFileSystem

    class Replacing(kind):  # type: ignore[misc, valid-type]
        """Replaces the target of a move, as pyarrow's other file systems do."""

        def mv(self, path1: str, path2: str, **_: object) -> None:
            super().mv(path1, path2, overwrite=True)

    host, _, port = address.authority.partition(":")
    return fs.PyFileSystem(fs.FSSpecHandler(Replacing(host or None, int(port) if port else None)))
