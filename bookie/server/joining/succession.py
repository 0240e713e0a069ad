"""Changing the disks of a stopped bookie to a new incarnation that keeps their data.

``rebuilt-from`` proves to the next start that the disks were the last ones of the bookie id (``identity``). It is
written first, then ``limbo-pending``, then ``incarnation``: a start after a crash between two steps finds either the
earlier incarnation or the incomplete new one.

All directories of the bookie are needed (R130). The entries in an omitted one would be missing from the new index, or
would not be read again after the removal of the journal. The next start would then remove its logs.

If an addition of ledger directories was interrupted, the longest list is used. An added directory may have no
``VERSION`` yet; ``incarnation`` shows that it belongs to these disks. The next start completes the addition.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from bookie.metadata.bookies.cookies import InvalidCookieError, decode_cookie
from bookie.model.errors import PermanentError
from bookie.runtime.human import agreeing
from bookie.server.joining.directories import INCARNATION_FILE, LIMBO_FILE, REBUILT_FILE, DirectoryRole, LocalDirectory
from bookie.server.joining.identity import is_extended_by
from bookie.storage.port import Disk


class OfflineRepairRefusedError(PermanentError):
    """The files of these directories must not be repaired in this way. Nothing was changed."""


def predecessor(directories: Sequence[LocalDirectory]) -> tuple[str, str | None]:
    """Return the previous incarnation of the disks, and the new one if an earlier attempt was interrupted.

    Raises:
        OfflineRepairRefusedError: these are not all directories of one bookie that has joined a cluster.
    """
    if any(directory.version is not None for directory in directories):
        _check_complete(directories)
    first = next(directory for directory in directories if directory.role is DirectoryRole.LEDGERS)
    for directory in directories:
        is_needed = directory.role is DirectoryRole.JOURNAL or directory is first or directory.incarnation is None
        if is_needed and directory.version is None:
            raise OfflineRepairRefusedError(
                f"{directory.path} has no file VERSION: it is not that of a bookie that ever ran"
            )
    pending = {directory.pending for directory in directories if directory.pending is not None}
    rebuilt = {directory.rebuilt_from for directory in directories if directory.rebuilt_from is not None}
    found = {directory.incarnation for directory in directories}
    if not pending:
        if len(found) == 1 and (incarnation := found.pop()) is not None:
            return incarnation, None
        raise OfflineRepairRefusedError(f"{_paths(directories)} belong to different incarnations of the bookie")
    if len(pending) == len(rebuilt) == 1 and found <= pending | rebuilt:
        return rebuilt.pop(), pending.pop()
    raise OfflineRepairRefusedError(
        f"{_paths(directories)} are those of a new incarnation whose start was interrupted: empty them, and start the "
        "bookie with --new-incarnation"
    )


async def succeed(disks: Sequence[Disk], before: str, resumed: str | None, rng: random.Random) -> str:
    """Give the disks a new incarnation, durably, and return it.

    Args:
        disks: the disk for ``current`` of each directory.
        before: the previous incarnation of the disks.
        resumed: the new incarnation of an interrupted attempt, or None.
        rng: makes the UUID.

    Raises:
        DiskError: a directory cannot be written.
    """
    incarnation = resumed or str(uuid.UUID(int=rng.getrandbits(128), version=4))
    for name, content in ((REBUILT_FILE, before), (LIMBO_FILE, incarnation), (INCARNATION_FILE, incarnation)):
        for disk in disks:
            await disk.replace(name, content.encode())
    return incarnation


def _check_complete(directories: Sequence[LocalDirectory]) -> None:
    versions = {directory.version for directory in directories if directory.version is not None}
    try:
        cookies = [decode_cookie(version) for version in versions]
    except InvalidCookieError as error:
        raise OfflineRepairRefusedError(f"the files VERSION in {_paths(directories)} are damaged: {error}") from error
    cookie = max(cookies, key=lambda cookie: len(cookie.ledger_dirs))
    if not all(is_extended_by(each, cookie) for each in cookies):
        raise OfflineRepairRefusedError(f"{_paths(directories)} belong to different bookies by their files VERSION")
    for role, known in ((DirectoryRole.JOURNAL, cookie.journal_dirs), (DirectoryRole.LEDGERS, cookie.ledger_dirs)):
        given = sum(directory.role is role for directory in directories)
        if given != len(known):
            were = agreeing(given, "was", "were")
            is_longer = role is DirectoryRole.LEDGERS and given > len(known)
            advice = "only them, in their order; the next start adds empty ones at the end of its list"
            raise OfflineRepairRefusedError(
                f"the {role.value} directories of bookie {cookie.bookie_id} are {', '.join(known)}, and {given} {were} "
                f"given: give {advice if is_longer else 'all of them, in their order'}"
            )


def _paths(directories: Sequence[LocalDirectory]) -> str:
    return " and ".join(directory.path for directory in directories)
