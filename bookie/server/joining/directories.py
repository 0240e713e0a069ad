"""The identity files in a bookie's directories.

In addition to the data, ``current`` in each directory holds ``VERSION`` (the cookie, as Apache's bookies write it) and
``incarnation`` (the UUID of this set of disks). While ``limbo-pending`` exists as well, with the same UUID, the bookie
has not yet put into limbo the entries that earlier disks under its id may have held, and must not serve. If the index
was rebuilt or the journal salvaged, the disks count as new ones, and ``rebuilt-from`` has their previous UUID.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from bookie.runtime.waiting import within_running_time
from bookie.server.upkeep.operator_read_only import READ_ONLY_FILE
from bookie.storage.port import DISK_SILENCE_S_MAX, Disk, StalledDiskError

CURRENT: Final = "current"
"""The subdirectory with all files of the bookie. Other files may exist next to it, such as ``lost+found``."""
INDEX_DIRECTORY: Final = "index"
"""The directory of the entry index, in ``current`` of the first ledger directory."""
VERSION_FILE: Final = "VERSION"
INCARNATION_FILE: Final = "incarnation"
LIMBO_FILE: Final = "limbo-pending"
REBUILT_FILE: Final = "rebuilt-from"
_NON_DATA_PREFIXES: Final = (VERSION_FILE, INCARNATION_FILE, LIMBO_FILE, REBUILT_FILE, READ_ONLY_FILE, ".")
"""Prefixes of names that are not data, including the lock and the remains of an interrupted write of such a file.

The read-only file is included because an operator may request the read-only mode before the first start.
"""


class DirectoryRole(enum.Enum):
    """The purpose of a directory."""

    JOURNAL = "journal"
    LEDGERS = "ledger"


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """The identity files of one directory. None means that the file does not exist."""

    role: DirectoryRole
    path: str
    """The path as it is in the cookie."""
    version: bytes | None = None
    incarnation: str | None = None
    has_data: bool = False
    """Whether there are files other than identity files."""
    pending: str | None = None
    """The incarnation in ``limbo-pending``."""
    rebuilt_from: str | None = None
    """The incarnation in ``rebuilt-from``. It has a meaning only together with ``pending``."""
    problem: str = ""
    """The reason why it could not be opened; its files are then unknown."""


async def read_directory(
    role: DirectoryRole, path: str, disk: Disk, *, silent_s: float = DISK_SILENCE_S_MAX
) -> LocalDirectory:
    """Read the identity files in ``disk``, the ``current`` of the directory ``path``.

    Raises:
        StalledDiskError: the disk did not answer for ``silent_s``.
        DiskError: a file cannot be read.
    """
    try:
        return await within_running_time(silent_s, _found(role, path, disk))
    except TimeoutError as error:
        raise StalledDiskError(f"cannot read {path}: its disk did not answer for {silent_s:g} s") from error


async def _found(role: DirectoryRole, path: str, disk: Disk) -> LocalDirectory:
    names = await disk.names("")
    version = await _read(disk, VERSION_FILE) if VERSION_FILE in names else None
    incarnation = await _read(disk, INCARNATION_FILE) if INCARNATION_FILE in names else None
    pending = await _read(disk, LIMBO_FILE) if LIMBO_FILE in names else None
    rebuilt_from = await _read(disk, REBUILT_FILE) if REBUILT_FILE in names else None
    return LocalDirectory(
        role,
        path,
        version,
        _text(incarnation),
        has_data=any(not name.startswith(_NON_DATA_PREFIXES) for name in names),
        pending=_text(pending),
        rebuilt_from=_text(rebuilt_from),
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace").strip()


async def _read(disk: Disk, name: str) -> bytes:
    file = await disk.open(name)
    try:
        [data] = await file.read([(0, await file.size())])
    finally:
        await file.close()
    return data
