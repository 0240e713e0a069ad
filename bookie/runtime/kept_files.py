"""Files that are made once and kept in the user's cache folder. Everything in it can be made again."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/bkheal`` or ``~/.cache/bkheal``; without a home, a folder of this user for temporary files.

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


def made_once(path: Path, make: Callable[[Path], None]) -> None:
    """Make a file or folder if it is missing; processes that ask at the same time wait for one of them.

    Args:
        path: the file or folder; it appears there only when it is complete.
        make: makes it at the path that it is given.

    Raises:
        OSError: nothing can be written there, or ``make`` made nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as directory:
                made = Path(directory) / path.name
                make(made)
                made.rename(path)
