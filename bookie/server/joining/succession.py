"""The change of a stopped bookie's disks to a new incarnation that keeps its data.

``rebuilt-from`` proves to the next start that the disks were the last ones of the bookie id (``identity``). It is
written before ``limbo-pending``, and this before ``incarnation``: a start after a crash between two steps finds either
the earlier incarnation, or the new one that is not complete.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from bookie.model.errors import PermanentError
from bookie.server.joining.directories import INCARNATION_FILE, LIMBO_FILE, REBUILT_FILE, LocalDirectory
from bookie.storage.port import Disk


class MendingRefusedError(PermanentError):
    """The files of these directories must not be mended in this way. Nothing was changed."""


def predecessor(directories: Sequence[LocalDirectory]) -> tuple[str, str | None]:
    """Return the incarnation that the disks had, and the new one if an earlier mending was interrupted.

    Raises:
        MendingRefusedError: these are not the directories of one bookie that has joined a cluster.
    """
    for directory in directories:
        if directory.version is None:
            raise MendingRefusedError(f"{directory.path} has no file VERSION: it is not that of a bookie that ever ran")
    if len({directory.version for directory in directories}) > 1:
        raise MendingRefusedError(f"{_paths(directories)} belong to different bookies by their files VERSION")
    pending = {directory.pending for directory in directories if directory.pending is not None}
    rebuilt = {directory.rebuilt_from for directory in directories if directory.rebuilt_from is not None}
    found = {directory.incarnation for directory in directories}
    if not pending:
        if len(found) == 1 and (incarnation := found.pop()) is not None:
            return incarnation, None
        raise MendingRefusedError(f"{_paths(directories)} belong to different incarnations of the bookie")
    if len(pending) == len(rebuilt) == 1 and found <= pending | rebuilt:
        return rebuilt.pop(), pending.pop()
    raise MendingRefusedError(
        f"{_paths(directories)} are those of a new incarnation whose start was interrupted: empty them, and start the "
        "bookie with --new-incarnation"
    )


async def succeed(disks: Sequence[Disk], before: str, resumed: str | None, rng: random.Random) -> str:
    """Make the disks those of a new incarnation, durably, and return it.

    Args:
        disks: ``current`` of each directory.
        before: the incarnation that the disks had.
        resumed: the new one of an interrupted attempt; None for none.
        rng: makes the UUID.

    Raises:
        DiskError: a directory cannot be written.
    """
    incarnation = resumed or str(uuid.UUID(int=rng.getrandbits(128), version=4))
    for name, content in ((REBUILT_FILE, before), (LIMBO_FILE, incarnation), (INCARNATION_FILE, incarnation)):
        for disk in disks:
            await disk.replace(name, content.encode())
    return incarnation


def _paths(directories: Sequence[LocalDirectory]) -> str:
    return " and ".join(directory.path for directory in directories)
