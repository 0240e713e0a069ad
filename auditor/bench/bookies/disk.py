"""The bare disk, as a baseline for a bookie: a write with fdatasync, and reads of an uncached plain file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20
_IO_COUNTERS: Final = Path("/proc/self/io")


def drop_caches(directory: Path) -> None:
    """Make every file below ``directory`` durable, and let the kernel drop its pages from the cache.

    Pages mapped by another process stay. No other files of the machine are affected.
    """
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def written_bytes() -> int | None:
    """Return the bytes written to disks for this process so far; None if the system does not count them."""
    try:
        lines = _IO_COUNTERS.read_text().splitlines()
    except OSError:
        return None
    counters = dict(line.split(": ") for line in lines)
    return int(counters["write_bytes"]) - int(counters["cancelled_write_bytes"])


@contextmanager
def synced_writes(path: Path, data: bytes) -> Iterator[SyncedWrites]:
    """Create a file for writes of ``data``, each with its own sync."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        yield SyncedWrites(descriptor, data)
    finally:
        os.close(descriptor)


class SyncedWrites:
    """A file that grows by one write and one fdatasync at a time."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        self._descriptor = descriptor
        self._data = data

    def once(self) -> float:
        """Write and sync once, and return the elapsed seconds."""
        started_s = time.perf_counter()
        os.write(self._descriptor, self._data)
        os.fdatasync(self._descriptor)
        return time.perf_counter() - started_s


class PlainFile:
    """A file of random bytes. Each measurement begins without its pages in the cache."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        chunk = random.Random(1).randbytes(_CHUNK_BYTES)
        with path.open("wb") as file:
            for start in range(0, size, _CHUNK_BYTES):
                file.write(chunk[: size - start])

    def sequential_s(self) -> tuple[float, float]:
        """Read the file once, a megabyte at a time; return the elapsed seconds and the processor seconds."""
        drop_caches(self._path.parent)
        with self._path.open("rb", buffering=0) as file:
            started_s, began_s = time.perf_counter(), time.process_time()
            while file.read(_CHUNK_BYTES):
                continue
            return time.perf_counter() - started_s, time.process_time() - began_s

    def random_s(self, count: int, size: int, rng: random.Random) -> float:
        """Read ``count`` ranges of ``size`` bytes at random, one by one, and return the elapsed seconds."""
        drop_caches(self._path.parent)
        offsets = [rng.randrange(max(1, self._size - size)) for _ in range(count)]
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            started_s = time.perf_counter()
            for offset in offsets:
                os.pread(descriptor, size, offset)
            return time.perf_counter() - started_s
        finally:
            os.close(descriptor)
