"""The directory of a cluster on this machine: checked before the start, and removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bookie.embedded.cluster import require_space

NEEDED_BYTES: Final = 512 << 20
"""Free space needed: the tour writes about 200 MiB, and its bookies become read-only below 128 MiB."""


@contextlib.contextmanager
def working_directory(keep: Path | None, prefix: str) -> Iterator[Path]:
    """Yield a directory for all data and logs.

    It is kept if ``keep`` names it, and after a failure, because it contains the logs. If the user ended the program,
    by a signal or by closing its output, it is removed.

    Args:
        keep: the directory to keep; None: a temporary one.
        prefix: beginning of the name of a temporary directory.

    Raises:
        NoSpaceError: the disk has less free space than ``NEEDED_BYTES``; nothing is left.
    """
    require_space(Path(tempfile.gettempdir()) if keep is None else keep, NEEDED_BYTES)
    if keep is not None:
        yield keep.resolve()
        return
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    except BaseException as error:
        if not _is_ended_by_user(error):
            sys.stderr.write(f"The logs of all processes are kept in {directory}\n")
            raise
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory)


def _is_ended_by_user(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(BrokenPipeError) is not None
    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError | BrokenPipeError)
