"""Files that are made once, and kept for later runs of the tests."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path


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
