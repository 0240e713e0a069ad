"""Checks a file that a long command writes at its end, so that a wrong path is noticed at its start."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def require_replaceable(file: Path) -> None:
    """Check that a file can be created or replaced at this path. Nothing remains, and an existing file is not changed.

    Raises:
        OSError: the path is a directory, or no file can be made beside it.
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    with tempfile.TemporaryFile(dir=file.absolute().parent):
        pass
