"""Files that tests make once and keep in the cache folder, outside the repository, between runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from bookie.embedded.apache_jars import LIB_VARIABLE, default_apache_lib
from bookie.runtime.java import Java


def cache_folder() -> Path:
    """The folder for what this project can make again."""
    return default_apache_lib({name: value for name, value in os.environ.items() if name != LIB_VARIABLE}).parent


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


def fingerprint(java: Java, jars: Path, *more: str) -> str:
    """A short text that changes with the release of Java, with any jar in the folder ``jars``, and with ``more``."""
    release = java.home / "release"
    facts = [str(java.executable.resolve()), release.read_text() if release.is_file() else "", *more]
    for jar in sorted(jars.glob("*.jar")):
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
