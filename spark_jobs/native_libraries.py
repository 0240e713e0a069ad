"""Where Spark's JVM on this machine unpacks the native libraries of its codecs, if ``/tmp`` forbids to execute files.

Hardened machines mount ``/tmp`` with ``noexec``. Java cannot load Snappy and Zstandard from it, so Spark could not
write Parquet files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bookie.runtime.class_data import is_usable_path
from bookie.runtime.kept_files import cache_folder

_JAVA_TEMPORARY: Final = Path("/tmp")  # noqa: S108  # Java's default, whatever the environment says
_PROPERTIES: Final = ("org.xerial.snappy.tempdir", "ZstdTempFolder")


def forbids_execution(directory: Path) -> bool:
    """Whether the file system of a directory is mounted with ``noexec``; False if this cannot be determined."""
    try:
        return bool(os.statvfs(directory).f_flag & getattr(os, "ST_NOEXEC", 0))
    except OSError:
        return False


def library_options(
    environment: Mapping[str, str], forbids: Callable[[Path], bool] = forbids_execution
) -> tuple[str, ...]:
    """Return Java's options for a folder that only this user can write, and make it.

    There are none if they are not needed, or if the cache folder cannot be used. The first codec then fails.
    """
    folder = cache_folder(environment) / "native"
    if not forbids(_JAVA_TEMPORARY) or not is_usable_path(folder):
        return ()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # only its owner can do this
    except OSError:
        return ()
    return () if forbids(folder) else tuple(f"-D{name}={folder}" for name in _PROPERTIES)
