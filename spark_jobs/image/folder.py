"""Where the files of images are: a directory that executors and driver share, or a folder of a store.

A folder is a value: it is sent to executors, and contains no client and no secret. A store has no rename, so whole
generations are marked differently there (``files``). Errors are ``OSError``: an image that cannot be read or written
costs only time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import override

from spark_jobs.remote_files import REST_S, RemoteFiles
from spark_jobs.store_address import StoreAddress, is_path, parse_address

_log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_AT_A_TIME: Final = 8
"""Number of files that are read at the same time: in a store, each takes a round trip or two."""
_CALL_S: Final = 30.0
_FILE_BYTES_MAX: Final = 1 << 30
"""Largest size of a file. A file has at most 250,000 ledgers, which is a few megabytes with usual metadata."""


class ImageFolderError(OSError):
    """A store cannot be read or written; the text has its address and the reason."""


class Writing(Protocol):
    """A file that is being written."""

    def is_done_within(self, seconds: float) -> bool:
        """Wait at most this long; return whether the write has ended, successfully or not."""
        ...

    def result(self) -> None:
        """Wait until the file is written, or a deadline has passed.

        Raises:
            OSError: it could not be written.
        """
        ...


class ImageFolder(Protocol):
    """A folder with files of images."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        ...

    @property
    def parent(self) -> ImageFolder:
        """The folder above it."""
        ...

    @property
    def has_rename(self) -> bool:
        """Whether ``publish`` gives the folder another name."""
        ...

    def child(self, name: str) -> ImageFolder:
        """Return the folder with this name in it."""
        ...

    def to_text(self) -> str:
        """Return the text from which ``image_folder`` makes the same folder, also in another process."""
        ...

    def make(self) -> None:
        """Make the folder. A directory must not exist yet; a store does not check this.

        Raises:
            OSError: the folder cannot be made.
        """
        ...

    def folders(self) -> Mapping[str, Collection[str]]:
        """Return the folders in it, with the names of their files; none if this folder does not exist.

        Raises:
            OSError: it cannot be read.
        """
        ...

    def files(self) -> Mapping[str, int]:
        """Return the files in it, with their sizes.

        Raises:
            OSError: it cannot be read.
        """
        ...

    def read(self, name: str, size_max: int) -> bytes:
        """Return the content of a small file, up to this size.

        Raises:
            OSError: it cannot be read.
        """
        ...

    def opened(self, name: str, size: int) -> pa.NativeFile:
        """Open a file, to read parts of it.

        Raises:
            OSError: it cannot be read.
            ValueError: the file has another size, or the name is not that of a file of an image.
        """
        ...

    def start_write(self, name: str, data: pa.Buffer) -> Writing:
        """Begin to write a file.

        Raises:
            OSError: the write cannot begin. ``Writing.result`` raises later failures.
        """
        ...

    def publish(self, name: str, kept: Collection[str], manifest: tuple[str, pa.Buffer]) -> None:
        """Write the last file of a folder. The folder counts from then on.

        Args:
            name: new name of the folder, if ``has_rename``.
            kept: the other files that belong to the folder.
            manifest: name and content of the last file.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def remove(self, first: Sequence[str] = ()) -> None:
        """Remove the folder with its content.

        A failure is not raised. A store removes the files ``first`` before the others.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that is already written."""

    def is_done_within(self, seconds: float) -> bool:
        """Return True."""
        return True

    def result(self) -> None:
        """Return immediately."""


@dataclass(frozen=True, slots=True)
class LocalImageFolder(ImageFolder):
    """A directory."""

    path: Path
    has_rename = True

    @property
    @override
    def name(self) -> str:
        return self.path.name

    @property
    @override
    def parent(self) -> LocalImageFolder:
        return LocalImageFolder(self.path.parent)

    def __str__(self) -> str:
        return str(self.path)

    @override
    def child(self, name: str) -> LocalImageFolder:
        return LocalImageFolder(self.path / name)

    @override
    def to_text(self) -> str:
        return str(self.path.resolve())

    @override
    def make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir()

    @override
    def folders(self) -> Mapping[str, Collection[str]]:
        found: dict[str, Collection[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for path in self.path.iterdir():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found[path.name] = os.listdir(path)
        return found

    @override
    def files(self) -> Mapping[str, int]:
        return {path.name: path.stat().st_size for path in self.path.iterdir() if path.is_file()}

    @override
    def read(self, name: str, size_max: int) -> bytes:
        with (self.path / name).open("rb") as file:
            return file.read(size_max)

    @override
    def opened(self, name: str, size: int) -> pa.NativeFile:
        path = self.path / name
        if path.parent != self.path or path.stat().st_size != size:
            raise ValueError(f"{name} does not have the size in its manifest")
        return pa.OSFile(str(path))

    @override
    def start_write(self, name: str, data: pa.Buffer) -> Writing:
        """Write the file; it is on the disk when this returns."""
        with (self.path / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return _Written()

    @override
    def publish(self, name: str, kept: Collection[str], manifest: tuple[str, pa.Buffer]) -> None:
        for path in self.path.iterdir():
            if path.name not in kept:  # a file of a task that Spark repeated
                path.unlink()
        self.start_write(*manifest)
        _fsync_directory(self.path)
        self.path.rename(self.path.parent / name)
        _fsync_directory(self.path.parent)

    @override
    def remove(self, first: Sequence[str] = ()) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class StoreImageFolder(ImageFolder):
    """A folder of a store. In a process, all folders of one bucket or name node share a client."""

    address: StoreAddress
    has_rename = False

    @property
    @override
    def name(self) -> str:
        return self.address.path.rpartition("/")[2]

    @property
    @override
    def parent(self) -> StoreImageFolder:
        return self._at(self.address.path.rpartition("/")[0])

    def __str__(self) -> str:
        return str(self.address)

    @override
    def child(self, name: str) -> StoreImageFolder:
        return self._at(f"{self.address.path}/{name}")

    @override
    def to_text(self) -> str:
        return str(self)

    @override
    def make(self) -> None:
        """Do nothing: a store makes a folder with its first file."""

    @override
    def folders(self) -> Mapping[str, Collection[str]]:
        found: dict[str, list[str]] = {}
        for file in self._client.list(self._path)[0]:
            folder, slash, name = file.name.partition("/")
            if slash:
                found.setdefault(folder, []).append(name)
        return found

    @override
    def files(self) -> Mapping[str, int]:
        return {file.name: file.size for file in self._client.list(self._path)[0]}

    @override
    def read(self, name: str, size_max: int) -> bytes:
        content: bytes = self._client.read(self._of(name), size_max)[:size_max].to_pybytes()
        return content

    @override
    def opened(self, name: str, size: int) -> pa.NativeFile:
        """Read the whole file into memory: a few megabytes."""
        if "/" in name or not 0 <= size <= _FILE_BYTES_MAX:
            raise ValueError(f"{name} is no file of an image")
        content = self._client.read(self._of(name), size)
        if content.size != size:
            raise ValueError(f"{name} does not have the size in its manifest")
        return pa.BufferReader(content)

    @override
    def start_write(self, name: str, data: pa.Buffer) -> Writing:
        return self._client.start_write(self._of(name), data)

    @override
    def publish(self, name: str, kept: Collection[str], manifest: tuple[str, pa.Buffer]) -> None:
        """Write the manifest. The folder keeps its name, and foreign files stay until the folder is removed."""
        self.start_write(*manifest).result()

    @override
    def remove(self, first: Sequence[str] = ()) -> None:
        try:
            self._client.remove_folder(self._path, first=first)
        except ImageFolderError as error:
            _log.warning("an image that is no longer used was not removed", extra={"reason": str(error)})

    @property
    def _client(self) -> RemoteFiles:
        return _client(self._at("").address)

    @property
    def _path(self) -> str:
        return self.address.path.lstrip("/")

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}".lstrip("/")

    def _at(self, path: str) -> StoreImageFolder:
        return StoreImageFolder(replace(self.address, path=path))


@functools.lru_cache(maxsize=8)
def _client(root: StoreAddress) -> RemoteFiles:
    return RemoteFiles(root, ImageFolderError, call_s=_CALL_S, rest_s=REST_S)


def image_folder(text: str) -> ImageFolder:
    """Return the folder with this path or address, such as ``s3a://bucket/image``. No store is called yet.

    Raises:
        StoreAddressError: the text is neither, or contains a password.
    """
    if is_path(text):
        return LocalImageFolder(Path(text))
    address = parse_address(text)
    return LocalImageFolder(Path(address.path or "/")) if address.scheme == "file" else StoreImageFolder(address)


def map_concurrently(function: Callable[[U], T], some: Iterable[U]) -> Iterator[T]:
    """Call a function for each item, a few at a time, and yield the results in order. The first error ends this."""
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        try:
            yield from threads.map(function, some)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
