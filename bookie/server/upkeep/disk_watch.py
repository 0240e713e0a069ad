"""Makes a bookie read-only while a disk is nearly full or does not answer, or while it is drained, and then writable.

Three steps (docs/failure-model.md#disk-space): below the threshold plain adds are refused, below a part of it those of
recovery and repair as well, which leaves the rest to checkpoints and collection; and a disk that reports itself full
makes the bookie read-only at any threshold.

A disk may also hang without an error. A change (a write, a sync, a removal) on a journal's disk, or on the disk of the
first ledger directory, which has the index, makes the bookie read-only if it lasts for ``STALL_READ_ONLY_S``. After
``STALL_FATAL_S`` the process ends, so its ledgers are repaired from other copies. Nothing of the hanging write to a
journal was acknowledged, and data for a ledger directory is still in a journal. Removals and marks count as well: a
checkpoint waits for them, and of several journals one may have no writes (docs/failure-model.md#R133).

Read-only is announced in ZooKeeper before plain adds are refused, and adds are accepted before writable is announced:
the bookie does not refuse a writer that chose it by its registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookie.model.errors import BkhealError
from bookie.runtime.clock import Clock
from bookie.server.service import BookieService
from bookie.server.upkeep.registration_keeper import RegistrationKeeper
from bookie.storage.port import SILENT_S, Disk, StalledDiskError
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""At 400 MB/s a disk loses 2 GB between two looks: thresholds should be higher."""
_SPACE_DEADLINE_S: Final = 5.0
ANNOUNCE_DEADLINE_S: Final = 5.0
"""Deadline for the announcement in ZooKeeper; a disk that is filling up leaves no more time."""
_RETURN_FACTOR: Final = 1.25
"""Free space must exceed the threshold by this much before the bookie is writable again, or it would flap."""
_RECOVERY_FACTOR: Final = 0.4
"""Recovery and repair may continue down to this part of the threshold: their copies are needed more than new data."""
_FULL_HOLD_S: Final = 60.0
"""Time without a full disk before the bookie is writable again: only a write shows whether there is space for the next
one."""


STALL_READ_ONLY_S: Final = 15.0
"""As long as clients wait for an add. A disk that needs this time for a write of 4 MiB is of no use to them."""
STALL_FATAL_S: Final = SILENT_S
_LOOK_S_MAX: Final = 2 * INTERVAL_S
"""Longest counted time between two looks. A process may be stopped (SIGSTOP, a paused machine), and its writing threads
with it."""


def should_be_read_only(was_read_only: bool, free_bytes: int, read_only_below_bytes: int) -> bool:
    """Whether a bookie with this much free space (on the fuller of its disks) should take no plain adds. 0: never."""
    if was_read_only:
        return free_bytes < read_only_below_bytes * _RETURN_FACTOR
    return free_bytes < read_only_below_bytes


async def free_bytes(disks: Sequence[Disk]) -> int:
    """Free space of the fullest disk. Of several ledger directories the one with the most free space counts.

    Raises:
        DiskError: the device does not answer.
    """
    return min([await disk.room() for disk in disks])


class DiskWatch:
    """Compares free space with the threshold, for as long as ``run`` runs."""

    def __init__(
        self,
        disks: Sequence[Disk],
        storage: LedgerStorage,
        service: BookieService,
        keeper: RegistrationKeeper,
        clock: Clock,
        *,
        read_only_below_bytes: int,
        is_read_only_requested: Callable[[], bool] = lambda: False,
        journal_paths: Sequence[Path] = (),
        ledger_path: Path | None = None,
    ) -> None:
        """Prepare to look.

        Args:
            disks: those whose free space counts.
            storage: the storage to watch and to stop.
            service: becomes read-only.
            keeper: announces it.
            clock: time.
            read_only_below_bytes: the threshold.
            is_read_only_requested: called at each look; returns whether an operator made the bookie read-only or
                drains it.
            journal_paths: the directories of the journals, for messages; empty: they have none.
            ledger_path: the first ledger directory, for messages.
        """
        self._disks = disks
        self._storage = storage
        self._service = service
        self._keeper = keeper
        self._clock = clock
        self._read_only_below_bytes = read_only_below_bytes
        self._is_read_only_requested = is_read_only_requested
        self._is_low = service.is_read_only and not is_read_only_requested()
        self._is_stalled = False
        self._looking = asyncio.Lock()
        self._was_full_at_s: float | None = None
        self._looked_s = clock.monotonic_s()
        """Time of the last look at changes."""
        self._changes: dict[int, tuple[int, float]] = {}
        """For each journal, the entry logs and the index: the change seen at the last look, and for how long."""
        self._journal_paths = journal_paths
        self._ledger_path = ledger_path

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the disks keep the bookie read-only, as of the last look."""
        found = {
            "stalled-disk": self._is_stalled,
            "disk-full": self._was_full_lately(),
            "disk-space": self._is_low,
        }
        return tuple(name for name, is_so in found.items() if is_so)

    def journal_problem(self, number: int) -> str:
        """Return why the disk of a journal (from 0) keeps the bookie read-only, as last seen; empty: it does not."""
        is_full = self._storage.full_journals[number] and self._was_full_lately()
        return _stall(self._stalled_s(number)) or ("full" if is_full else "")

    @property
    def ledger_problem(self) -> str:
        """Why the disk of the first ledger directory keeps the bookie read-only; empty: it does not."""
        journals = len(self._storage.journal_changes)
        return _stall(max((self._stalled_s(number) for number in self._changes if number >= journals), default=0.0))

    async def run(self) -> None:
        """Look periodically until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Look once and switch the mode if necessary."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        self._look_at_changes()
        which = max(self._changes, key=self._stalled_s, default=0)
        stalled_s = self._stalled_s(which)
        if stalled_s >= STALL_FATAL_S:
            name = self._name(which)
            self._storage.fail(StalledDiskError(f"a write to the disk of {name} has not ended for {stalled_s:.0f} s"))
            return
        await self._look_at_space()
        was_read_only = self._service.is_read_only
        self._is_stalled = stalled_s >= STALL_READ_ONLY_S
        is_read_only = self._is_stalled or self._was_full_lately() or self._is_low or self._is_read_only_requested()
        if is_read_only == was_read_only:
            return
        _log.warning(
            "read-only mode changes",
            extra={"is_read_only": is_read_only, "stalled_s": stalled_s, "problems": self._problems()},
        )
        if not is_read_only:
            self._service.is_read_only = False
        await self._keeper.switch(is_read_only=is_read_only, deadline_s=ANNOUNCE_DEADLINE_S)
        self._service.is_read_only = is_read_only

    async def _look_at_space(self) -> None:
        try:
            async with asyncio.timeout(_SPACE_DEADLINE_S):
                free = await free_bytes(self._disks)
        except (BkhealError, TimeoutError) as error:  # unrelated to space; a broken disk shows in the next write
            _log.warning("free space is unknown", extra={"error": str(error) or "the disk does not answer"})
            return
        self._storage.takes_no_adds = should_be_read_only(
            self._storage.takes_no_adds, free, int(self._read_only_below_bytes * _RECOVERY_FACTOR)
        )
        self._is_low = should_be_read_only(self._is_low, free, self._read_only_below_bytes)

    def _look_at_changes(self) -> None:
        now_s, seen = self._clock.monotonic_s(), self._changes
        passed_s, self._looked_s, self._changes = min(now_s - self._looked_s, _LOOK_S_MAX), now_s, {}
        for number, change in enumerate((*self._storage.journal_changes, *self._storage.ledger_changes)):
            if change is not None:
                before, stalled_s = seen.get(number, (None, 0.0))
                self._changes[number] = change, stalled_s + passed_s if before == change else 0.0

    def _stalled_s(self, number: int) -> float:
        """Return how long the looks have seen the same change."""
        return self._changes.get(number, (0, 0.0))[1]

    def _name(self, number: int) -> str:
        if number >= len(self._storage.journal_changes):
            return str(self._ledger_path or "the first ledger directory")
        return str(self._journal_paths[number]) if self._journal_paths else f"journal {number + 1}"

    def _problems(self) -> str:
        found = [(str(path), self.journal_problem(number)) for number, path in enumerate(self._journal_paths)]
        found.append((str(self._ledger_path), self.ledger_problem))
        return "; ".join(f"{path}: {problem}" for path, problem in found if problem)

    def _was_full_lately(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._storage.is_full:
            self._was_full_at_s = now_s
        return self._was_full_at_s is not None and now_s - self._was_full_at_s < _FULL_HOLD_S


def _stall(stalled_s: float) -> str:
    return f"a write has not ended for {stalled_s:.0f} s" if stalled_s >= STALL_READ_ONLY_S else ""
