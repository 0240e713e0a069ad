"""Erasing the directories of a stopped bookie, to use them like new ones (``bkheal bookie format``).

The invariant: a bookie never starts on partly erased directories. ``VERSION`` is deleted last, and nothing is deleted
before the cookie is removed from ZooKeeper: without a cookie there, directories with a cookie or with data are refused
(``identity``). After a crash, run the command again.

The history of incarnations is kept. So if the bookie id is used again, the content of the erased disks counts as
unknown and is marked for repair (R30).

Source: docs/failure-model.md#identity-of-a-bookie.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.cookies import Cookie, CookieStore, InvalidCookieError, decode_cookie
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.model.errors import PermanentError
from bookie.server.joining.directories import VERSION_FILE, LocalDirectory
from bookie.server.joining.identity import is_extended_by
from bookie.storage.port import Disk, DiskError

_KEPT: Final = (VERSION_FILE, ".")
"""Prefixes of names that are not deleted with the data: the cookie, which is deleted last, and the lock, which is never
deleted."""


class FormatRefusedError(PermanentError):
    """These directories must not be erased, or not yet. Nothing was changed."""


def check_all_can_be_opened(directories: Sequence[LocalDirectory]) -> None:
    """Check that all directories can be opened; otherwise a bookie might be erased in part.

    Raises:
        FormatRefusedError: a directory cannot be opened.
    """
    for directory in directories:
        if directory.problem:
            raise FormatRefusedError(f"the {directory.role.value} directory cannot be opened: {directory.problem}")


def owner(directories: Sequence[LocalDirectory]) -> Cookie | None:
    """Return the cookie in the directories, or None if they have neither a cookie nor data.

    If an addition of ledger directories was interrupted, return the cookie with the longest list (``identity``).

    Raises:
        FormatRefusedError: they belong to different bookies, or the bookie cannot be determined.
    """
    try:
        cookies = [decode_cookie(directory.version) for directory in directories if directory.version is not None]
    except InvalidCookieError as error:
        raise FormatRefusedError(
            f"a file VERSION is damaged, so it is not known whose directories these are: {error}"
        ) from error
    if not cookies:
        if any(directory.has_data for directory in directories):
            raise FormatRefusedError(
                "there is data but no file VERSION, so it is not known whose directories these are"
            )
        return None
    newest = max(cookies, key=lambda cookie: len(cookie.ledger_dirs))
    if not all(is_extended_by(cookie, newest) for cookie in cookies):
        raise FormatRefusedError("the directories belong to different bookies by their files VERSION")
    return newest


async def release_cookie(
    store: MetadataStore,
    cluster: Cluster,
    cookie: Cookie,
    directories: Sequence[LocalDirectory],
    *,
    may_delete: bool,
    record: Callable[[], Awaitable[None]],
) -> bool:
    """Make sure that ZooKeeper has no cookie for these directories. Return whether one was deleted.

    Args:
        store: a session with the cluster's ZooKeeper.
        cluster: the cluster of the bookie.
        cookie: the cookie in the directories.
        directories: the identity files of the directories.
        may_delete: whether the cookie may be deleted.
        record: called before the cookie is deleted, so that there is no deletion without a record.

    Raises:
        FormatRefusedError: the directories belong to another cluster; the bookie is registered; its cookie belongs to
            other disks; or there is a cookie and ``may_delete`` is False.
        CookieConflictError: the cookie was changed since it was read.
        InvalidCookieError: the cookie in ZooKeeper is damaged.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; nothing was erased.
    """
    bookie = cookie.bookie_id
    if (cookie.instance_id or "") != (cluster.instance_id or ""):
        raise FormatRefusedError(
            f"the directories belong to the cluster with instance id {cookie.instance_id or '(none)'}, and the "
            f"metadata URI names the one with {cluster.instance_id or '(none)'}"
        )
    stored = await CookieStore(store, cluster).read(bookie)
    if stored is None:
        return False
    if bookie in (await Registrations(store, cluster).list()).registered:
        raise FormatRefusedError(f"bookie {bookie} is registered: a process runs with this id")
    if not may_delete:
        raise FormatRefusedError(
            f"ZooKeeper has a cookie of bookie {bookie}, so the cluster expects its entries: drain it and use `bkheal "
            "decommission`, or give up its copies with --delete-cookie"
        )
    history = [incarnation.uuid for incarnation in await Incarnations(store, cluster.root).read(bookie)]
    ours = {name for each in directories for name in (each.incarnation, each.pending, each.rebuilt_from)} - {None}
    # If an addition of ledger directories was interrupted, only the cookie in ZooKeeper may have them.
    if not is_extended_by(cookie, stored.cookie) or (history and history[-1] not in ours):
        raise FormatRefusedError(f"the cookie of bookie {bookie} in ZooKeeper is that of other disks")
    await record()
    await CookieStore(store, cluster).delete(bookie, stored.version)
    return True


async def erase(currents: Sequence[tuple[Path, Disk]]) -> None:
    """Delete everything in the ``current`` of each directory except its lock, the cookies last.

    Args:
        currents: each directory, and the disk with its lock.

    Raises:
        DiskError: a file could not be deleted. The bookie does not start on the remaining files; call this again.
    """
    for current, disk in currents:
        await asyncio.to_thread(_delete_data, current)
        await disk.sync_directory("")
    for _, disk in currents:
        await disk.unlink(VERSION_FILE)
        await disk.sync_directory("")


def _delete_data(current: Path) -> None:
    try:
        for path in sorted(current.iterdir()):
            if path.name.startswith(_KEPT):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise DiskError(f"{current} cannot be erased completely: {error}") from error
