"""Comparison of the cookies in a bookie's directories with the one in ZooKeeper. Nothing is changed.

The directories are read without a lock, so the bookie may be running. Apache's bookies keep the same file in the same
place.

Source: docs/formats.md#cookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.cookies import Cookie, InvalidCookieError, decode_cookie
from bookie.model.errors import PermanentError
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE

_FILE_BYTES_MAX: Final = 1 << 20


class UnreadableDirectoryError(PermanentError):
    """The identity files of a directory cannot be read."""


@dataclass(frozen=True, slots=True)
class DirectoryCookie:
    """The cookie of one directory. ``cookie`` and ``problem`` are None if there is no file ``VERSION``."""

    directory: str
    cookie: Cookie | None
    problem: str | None
    """The reason why the file is not a cookie."""
    incarnation: str | None
    """None if there is none, as in directories of Apache's bookies."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One field of one directory that differs from ZooKeeper. A value of None is missing."""

    directory: str
    field: str
    found: str | None
    expected: str | None


async def directory_cookies(directories: Sequence[Path]) -> list[DirectoryCookie]:
    """Read the cookie of each directory, in this order.

    Raises:
        UnreadableDirectoryError: a file exists and cannot be read: its content is unknown.
    """
    return await asyncio.to_thread(lambda: [_read(directory) for directory in directories])


def mismatches(
    found: DirectoryCookie, stored: Cookie, instance_id: str, last_incarnation: str | None
) -> list[Mismatch]:
    """Return the fields in which a directory differs from ZooKeeper; empty if it belongs to this bookie.

    Args:
        found: the cookie of the directory.
        stored: the cookie in ZooKeeper.
        instance_id: the instance id of the cluster.
        last_incarnation: the latest incarnation of this bookie in the cluster; None for Apache's bookies.
    """
    here = found.directory
    if found.cookie is None:
        return [Mismatch(here, "VERSION", found.problem or "there is no such file", "a cookie")]
    ours = found.cookie
    pairs = [
        ("bookie_id", str(ours.bookie_id), str(stored.bookie_id)),
        ("journal_dirs", ",".join(ours.journal_dirs), ",".join(stored.journal_dirs)),
        ("ledger_dirs", ",".join(ours.ledger_dirs), ",".join(stored.ledger_dirs)),
        ("index_dirs", ",".join(_index_dirs(ours)), ",".join(_index_dirs(stored))),
        ("instance_id", ours.instance_id or None, stored.instance_id or None),
        ("instance_id of the cluster", ours.instance_id or None, instance_id or None),
        ("incarnation", found.incarnation, last_incarnation),
    ]
    return [Mismatch(here, name, value, expected) for name, value, expected in pairs if value != expected]


def _index_dirs(cookie: Cookie) -> tuple[str, ...]:
    return cookie.ledger_dirs if cookie.index_dirs is None else cookie.index_dirs


def _read(directory: Path) -> DirectoryCookie:
    version, incarnation = _content(directory, VERSION_FILE), _content(directory, INCARNATION_FILE)
    text = None if incarnation is None else incarnation.decode(errors="replace").strip()
    try:
        cookie = None if version is None else decode_cookie(version)
    except InvalidCookieError as error:
        return DirectoryCookie(str(directory), None, str(error), text)
    return DirectoryCookie(str(directory), cookie, None, text)


def _content(directory: Path, name: str) -> bytes | None:
    path = directory / CURRENT / name
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableDirectoryError(f"{path} cannot be read: {error.strerror}") from error
