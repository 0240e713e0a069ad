"""Files in an object store or on a Hadoop file system, through pyarrow: the port that reports need, and its adapter.

The invariant: a file appears whole under its name, or not at all. Every call ends within a time. Credentials come from
the environment, from files or from the machine's role, as the library of the store reads them; an address with a
password is refused, and no message contains one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from spark_jobs.report.files import ReportDirError
from spark_jobs.store_address import S3, StoreAddress

T = TypeVar("T")

_GCS: Final = ("gs", "gcs")
_IN_ONE_STEP: Final = frozenset({"s3", "gcs", "abfs"})
"""File systems in which a file appears when it is closed; in the others it is written under a hidden name first."""
CALL_S: Final = 60.0
"""For one call, with its repetitions, beside the time for the bytes."""
_BYTES_PER_S: Final = 256 * 1024
_CHUNK: Final = 4 << 20
_REASON_MAX: Final = 300


class ReportStoreError(ReportDirError):
    """The store of reports cannot be read or written."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below the address."""

    name: str
    size: int


class ReportStore:
    """Files below an address. Names are relative, with slashes. May be used by several threads."""

    def __init__(self, address: StoreAddress, *, call_s: float = CALL_S) -> None:
        """Only stores; the first call opens the file system.

        Args:
            address: of the folder of all reports.
            call_s: seconds for each call, beside the time for the bytes.
        """
        self.address = address
        self._call_s = call_s
        self._opened: tuple[Any, str] | None = None

    def list(self, folder: str = "", *, is_deep: bool = True) -> tuple[list[StoredFile], list[str]]:
        """The files in a folder and, if not deep, the names of its folders. A folder that does not exist is empty.

        Raises:
            ReportStoreError: the store cannot be read.
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

        return self._bounded("list", folder, call)

    def download(self, name: str, target: Path, size: int) -> None:
        """Copy a file to a new file of this machine. Memory is bounded by a chunk.

        Args:
            name: of the file.
            target: the new file.
            size: the size that the list of files gave.

        Raises:
            ReportStoreError: the store cannot be read, lacks the file, or has one of another size.
        """

        def call(system: Any, base: str) -> None:
            with system.open_input_stream(f"{base}/{name}") as source, target.open("wb") as file:
                while (chunk := source.read(_CHUNK)) and file.tell() <= size:
                    file.write(chunk)
                if file.tell() != size:
                    raise OSError(f"it has another size than the {size} bytes of the list: it changes, or is cut off")

        self._bounded("read", name, call, size)

    def upload(self, source: Path, name: str) -> None:
        """Write a file of this machine to the store: it appears whole, or not at all.

        Raises:
            ReportStoreError: the store cannot be written.
        """

        def call(system: Any, base: str) -> None:
            path = f"{base}/{name}"
            folder, _, last = path.rpartition("/")
            is_direct = system.type_name in _IN_ONE_STEP
            written = path if is_direct else f"{folder}/.{last}.tmp"
            if not is_direct:
                system.create_dir(folder, recursive=True)
            with source.open("rb") as file, system.open_output_stream(written) as sink:
                while chunk := file.read(_CHUNK):
                    sink.write(chunk)
            if not is_direct:
                system.move(written, path)

        self._bounded("write", name, call, source.stat().st_size)

    def remove_folder(self, folder: str, *, first: str) -> None:
        """Remove the file ``first`` of a folder, then the folder.

        Raises:
            ReportStoreError: it cannot be removed.
        """

        def call(system: Any, base: str) -> None:
            if system.get_file_info(f"{base}/{folder}/{first}").type is fs.FileType.File:
                system.delete_file(f"{base}/{folder}/{first}")
            system.delete_dir(f"{base}/{folder}")

        self._bounded("remove", folder, call)

    def _bounded(self, verb: str, name: str, call: Callable[[Any, str], T], size: int = 0) -> T:
        """Call in a thread of its own: a library that hangs does not keep a run from its end."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                system, base = self._system()
                future.set_result(call(system, base))
            except BaseException as error:  # noqa: BLE001  # the boundary of a thread; it is raised to the caller
                future.set_exception(error)

        deadline_s = self._call_s + size / _BYTES_PER_S
        what = f"cannot {verb} {self.address}{f' ({name})' if name else ''}"
        threading.Thread(target=run, name="store of reports", daemon=True).start()
        try:
            return future.result(deadline_s)
        except TimeoutError as error:
            raise ReportStoreError(f"{what}: no answer within {deadline_s:.0f} s") from error
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:_REASON_MAX]
            raise ReportStoreError(f"{what}: {reason}") from error

    def _system(self) -> tuple[Any, str]:
        if self._opened is None:
            self._opened = _open(self.address)
        return self._opened


def _open(address: StoreAddress) -> tuple[Any, str]:
    if address.scheme in S3:
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=3)
        options = dict(address.parameters)
        return (
            fs.S3FileSystem(connect_timeout=5, request_timeout=20, retry_strategy=retries, **options),
            f"{address.authority}{address.path}",
        )
    scheme = "gs" if address.scheme in _GCS else address.scheme
    system, base = fs.FileSystem.from_uri(f"{scheme}://{address.authority}{address.path}")
    return system, base.rstrip("/")
