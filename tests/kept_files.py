"""Files made once and kept for later runs of the tests."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

from bookie.runtime.kept_files import remove_stale


def made_once(path: Path, make: Callable[[Path], None]) -> None:
    """Make a missing file or folder. Concurrent processes wait for one of them to make it.

    Args:
        path: the file or folder; it appears there only when it is complete.
        make: makes it at the given path.

    Raises:
        OSError: nothing can be written there, or ``make`` made nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            remove_stale(path)
            with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as directory:
                made = Path(directory) / path.name
                make(made)
                made.rename(path)
