"""A lock that allows one process at a time on a directory (rule J7); the kernel releases it when the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError

_NAME: Final = ".bkheal.lock"


class DirectoryInUseError(PermanentError):
    """Another process, or another part of this one, uses the directory."""


def lock_directory(root: Path, *, may_be_read_only: bool = False) -> int:
    """Lock ``root`` until the returned descriptor is closed. No program reads the process id in the lock file.

    Args:
        root: the directory.
        may_be_read_only: whether the directory may be on a file system that is mounted read-only.

    Raises:
        DirectoryInUseError: the directory is locked.
        OSError: the lock file cannot be created.
    """
    descriptor = _open(root / _NAME, may_be_read_only=may_be_read_only)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        is_ours = holder == str(os.getpid())
        advice = "give each directory once" if is_ours else "stop it, or give this bookie a directory of its own"
        who = f"process {holder}, which is this one" if is_ours else f"process {holder}"
        raise DirectoryInUseError(f"{root} is in use by {who}: {advice}") from error
    with suppress(OSError):  # a full disk must not keep the bookie from starting
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open(path: Path, *, may_be_read_only: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS or not may_be_read_only:
            raise
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        raise
