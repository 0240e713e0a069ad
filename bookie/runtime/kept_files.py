"""The folder for files that outlive a process, and the making of such files. All its content can be recreated.

A file is made in a directory beside it, ``<name>-`` with eight random characters. A process that is killed leaves it
there. The lock on ``<name>.lock`` is held as long as a process makes the file, so the holder of the lock knows that
every other such directory is stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from bookie.model.errors import ConflictError

_POLL_S: Final = 0.5
_RANDOM_SUFFIX: Final = re.compile(r"-[a-z0-9_]{8}")
"""The end of the names that ``tempfile`` makes."""


_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class BeingMadeError(ConflictError):
    """Another process makes the file."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``$XDG_CACHE_HOME/bkheal`` or ``~/.cache/bkheal``; without a home, this user's temporary folder.

    Args:
        environment: default: this process's.
    """
    env = os.environ if environment is None else environment
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]) / "bkheal"
    if env.get("HOME"):
        return Path(env["HOME"]) / ".cache" / "bkheal"
    return temporary_folder()


def temporary_folder() -> Path:
    """This user's folder among the temporary files."""
    return Path(tempfile.gettempdir()) / f"bkheal-{os.getuid()}"


@contextlib.contextmanager
def place_to_make(
    path: Path,
    wait_s: float,
    *,
    on_wait: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Path, int | None]]:
    """Yield a directory in which to make the file ``path``; afterwards the directory is removed.

    Directories that killed processes left for this file are removed first. The second value is the descriptor of the
    lock, which a child process that uses the directory should inherit, or None if the file system has no locks: then
    nothing is removed.

    Args:
        path: the file. Its folder is created.
        wait_s: how long to wait for another process that makes it.
        on_wait: called at the beginning of such a wait.
        sleep: for the pauses of the wait.
        monotonic_s: for the deadline of the wait.

    Raises:
        BeingMadeError: another process was making it during the whole wait.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = _locked(path, wait_s, on_wait, sleep, monotonic_s)
        if lock is not None:
            stack.callback(os.close, lock)
            remove_stale(path)
        made = tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent, ignore_cleanup_errors=True)
        yield Path(stack.enter_context(made)), lock


def remove_stale(path: Path) -> None:
    """Remove the directories that killed processes left for the file ``path``, as far as possible.

    The caller holds the lock of the file.
    """
    with contextlib.suppress(OSError):
        for found in path.parent.iterdir():
            is_ours = found.name.startswith(path.name) and _RANDOM_SUFFIX.fullmatch(found.name, len(path.name))
            if is_ours and found.is_dir() and not found.is_symlink():
                shutil.rmtree(found, ignore_errors=True)


def _locked(
    path: Path,
    wait_s: float,
    on_wait: Callable[[], None],
    sleep: Callable[[float], None],
    monotonic_s: Callable[[], float],
) -> int | None:
    name = path.with_name(f"{path.name}.lock")
    end_s, is_waiting = monotonic_s() + wait_s, False
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic_s() >= end_s:
                    raise BeingMadeError(f"another process is making {path}: wait for its end") from None
                if not is_waiting:
                    on_wait()
                is_waiting = True
                sleep(_POLL_S)
            else:
                return descriptor
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno in _NO_LOCKS:
            return None
        raise
