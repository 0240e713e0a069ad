"""Maintenance windows: ``/bkheal/maintenance/<ledgers root>/<target>``. While one is open, losses are expected.

A window names bookies taken down by an operator for a limited time: one bookie, or those of a rack. Their losses are
not marked until the window ends (R71). The bookies of a rack are resolved when the window is made. So no process needs
the topology to follow the window, and an operator sees which bookies are meant.

The invariant: a window never holds anything back longer than ``WINDOW_S_MAX`` after it began. It is open from
``since_ms`` until ``until_ms``, by the clock of the reading process. A damaged, over-long, ended or future record is
not a window. So a forgotten or damaged record has two possible effects: marks are late by a bounded time, or early,
which may cause needless copies of a bookie's data.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, child_names, ensure_path, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    BadVersionError,
    Create,
    MetadataStore,
    MultiFailedError,
    NoNodeError,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.times import CLOCK_SKEW_MS_MAX

_log = logging.getLogger(__name__)

WINDOW_S_MAX: Final = 3 * 86_400
"""Work longer than a weekend is not maintenance: the data should be copied."""
WINDOWS_MAX: Final = 100
"""Each check of the lost bookies reads all windows."""
BOOKIES_MAX: Final = 1_000
"""Bookies of one window: its record stays far below the largest node."""


class TooManyWindowsError(ConflictError):
    """The maximum number of windows exists."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """One maintenance window."""

    target: str
    """Key of the window, as the operator gave it: a bookie, or ``rack:`` and the location of a rack."""
    bookies: tuple[BookieId, ...]
    """Bookies with an expected loss; sorted."""
    by: str
    since_ms: int
    until_ms: int
    """Exclusive end, epoch milliseconds."""
    holds_critical: bool = False
    """Whether ledgers with one copy left wait as well."""
    note: str = ""

    def is_open(self, now_ms: int) -> bool:
        """Whether the window is open at ``now_ms``."""
        is_bounded = self.until_ms - self.since_ms <= WINDOW_S_MAX * 1000
        return is_bounded and self.since_ms - CLOCK_SKEW_MS_MAX <= now_ms < self.until_ms


class MaintenanceWindows:
    """The windows of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("maintenance", ledgers_root)

    async def start(self, window: MaintenanceWindow) -> None:
        """Open a window, or replace the one of the same target. Ended windows are removed first. Durable on return.

        Raises:
            TooManyWindowsError: ``WINDOWS_MAX`` other windows exist; nothing was changed.
            StoreUnavailableError: no answer; nothing was changed.
            WriteOutcomeUnknownError: the outcome of every attempt is unknown; starting again is safe.
        """
        path, data = self.path(window.target), encode_record(window, without=["target"])
        await self.remove_ended(window.since_ms)
        for _ in range(WRITE_ATTEMPTS_MAX):
            await ensure_path(self._store, self._parent)
            await self._store.sync(self._parent)
            parent = await self._store.stat(self._parent)
            if parent is None:
                continue
            known = await child_names(self._store, self._parent)
            is_known = _name(window.target) in known
            if not is_known and len(known) >= WINDOWS_MAX:
                raise TooManyWindowsError(
                    f"there are {len(known)} maintenance windows, which is the maximum: end one with "
                    "`bkheal maintenance end`"
                )
            write = SetData(path, data) if is_known else Create(path, data)
            try:
                # The version of the parent grows with each change, so two clients cannot exceed the bound together.
                await self._store.multi([SetData(self._parent, b"", parent.version), write])
                return
            except (MultiFailedError, WriteOutcomeUnknownError) as error:
                _log.info("maintenance windows are read again", extra={"error": str(error)})
        raise WriteOutcomeUnknownError(
            f"maintenance window of {window.target}: the outcome of every attempt is unknown; try again"
        )

    async def end(self, target: str) -> None:
        """End a window. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; ending again is safe.
        """
        await remove(self._store, self.path(target))

    async def open_at(self, now_ms: int) -> Sequence[MaintenanceWindow]:
        """Return the open windows, by target. Writes nothing.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = sorted(await child_names(self._store, self._parent))
        if not names:
            return ()
        nodes = await self._store.get_many_data([f"{self._parent}/{name}" for name in names])
        found = (_decode(unquote(name), data) for name, data in zip(names, nodes, strict=True) if data is not None)
        return tuple(window for window in found if window is not None and window.is_open(now_ms))

    async def remove_ended(self, now_ms: int) -> None:
        """Remove the records of ended windows, unless they were replaced since.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing again is safe.
        """
        names = await child_names(self._store, self._parent)
        nodes = await self._store.get_many([f"{self._parent}/{name}" for name in names])
        for name, node in zip(names, nodes, strict=True):
            window = None if node is None else _decode(unquote(name), node.data)
            if node is None or window is None or window.until_ms > now_ms:
                continue
            try:
                await self._store.delete(f"{self._parent}/{name}", node.stat.version)
            except (NoNodeError, BadVersionError):
                continue

    def path(self, target: str) -> str:
        """Return the path of a target's window."""
        return f"{self._parent}/{_name(target)}"


def _name(target: str) -> str:
    return quote(target, safe="")


def _decode(target: str, data: bytes) -> MaintenanceWindow | None:
    try:
        return decode_record(data, MaintenanceWindow, target=target)
    except UnreadableRecordError as error:
        _log.warning("maintenance window cannot be read and is ignored", extra={"target": target, "error": str(error)})
        return None
