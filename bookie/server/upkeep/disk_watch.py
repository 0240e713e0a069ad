"""The watch that makes a bookie read-only while a disk is nearly full or does not answer, or during a drain.

There are three steps (docs/failure-model.md#disk-space). Below the threshold, plain adds are refused. Below a part of
it, adds of recovery and repair are refused as well, which leaves the rest to checkpoints and collection. A disk that
reports itself full makes the bookie read-only at any threshold.

A disk may also hang without an error. The watch measures changes (writes, syncs and removals) on the disk of each
journal, and on that of the first ledger directory, which has the index. If a change lasts for ``STALL_READ_ONLY_S``,
the bookie becomes read-only. After ``STALL_FATAL_S`` the process ends, so that its ledgers are repaired from other
copies. Data of a hanging write to a journal was not acknowledged, and data for a ledger directory is still in a
journal. Removals and writes of marks count as well: a checkpoint waits for them, and one of several journals may have
no other writes (docs/failure-model.md#R133). The watch writes a small file to the first ledger directory from time to
time. Otherwise a bookie without adds would never change anything there, and would stay registered although all reads
hang (docs/failure-model.md#R162).

The bookie registers as read-only before it refuses plain adds, and accepts adds before it registers as writable. So it
does not refuse a writer that chose it because of its registration.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bookie.model.errors import BkhealError
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel, guarded
from bookie.server.service import BookieService
from bookie.server.upkeep.registration_keeper import RegistrationKeeper
from bookie.storage.port import DISK_SILENCE_S_MAX, Disk, DiskError, DiskFullError, StalledDiskError
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""Interval of the checks. At 400 MB/s, 2 GB are written to a disk in this time: thresholds should be higher."""
_SPACE_DEADLINE_S: Final = 5.0
ANNOUNCE_DEADLINE_S: Final = 5.0
"""Deadline for the change of the registration. A disk that is filling up leaves no more time."""
_RETURN_FACTOR: Final = 1.25
"""Free space must exceed the threshold by this factor before the bookie is writable again. This prevents flapping."""
_RECOVERY_FACTOR: Final = 0.4
"""Recovery and repair may continue down to this part of the threshold, because their copies are more important than new
data."""
_FULL_HOLD_S: Final = 60.0
"""Time without a full disk before the bookie is writable again, because only a write shows whether there is space for
the next one."""


STALL_READ_ONLY_S: Final = 15.0
"""Duration of a change that makes the bookie read-only: as long as clients wait for an add. A disk that takes this long
for a write of 4 MiB is of no use to them."""
STALL_FATAL_S: Final = DISK_SILENCE_S_MAX
_PROBE_INTERVAL_S: Final = 30.0
"""Interval between two writes that only show whether the disk answers. Each costs a few syncs."""
_CHECK_INTERVAL_S_MAX: Final = 2 * INTERVAL_S
"""The longest time that counts between two checks. A process may be stopped (SIGSTOP, a paused machine), including its
writing threads."""


class ReadOnlyReason(enum.StrEnum):
    """Why a bookie is read-only, in the words of its state."""

    OPERATOR = "operator"
    """An operator requested it."""
    DRAIN = "drain"
    """The bookie is drained."""
    STALLED_DISK = "stalled-disk"
    """A write has not ended for ``STALL_READ_ONLY_S``."""
    DISK_FULL = "disk-full"
    """A disk reported that it was full, at most ``_FULL_HOLD_S`` ago."""
    DISK_SPACE = "disk-space"
    """Free space is below the threshold."""


_NO_REQUESTS: Final[Mapping[ReadOnlyReason, Callable[[], bool]]] = MappingProxyType({})


def should_be_read_only(was_read_only: bool, free_bytes: int, read_only_below_bytes: int) -> bool:
    """Return whether a bookie with this much space on its fullest disk refuses plain adds. Threshold 0: never."""
    if was_read_only:
        return free_bytes < read_only_below_bytes * _RETURN_FACTOR
    return free_bytes < read_only_below_bytes


async def free_bytes(disks: Sequence[Disk]) -> int:
    """Return the free bytes of the fullest disk. Among several ledger directories, the emptiest one counts.

    Raises:
        DiskError: the device does not answer.
    """
    return min([await disk.room() for disk in disks])


class DiskWatch:
    """Checks the disks periodically while ``run`` is running."""

    def __init__(
        self,
        disks: Sequence[Disk],
        storage: LedgerStorage,
        service: BookieService,
        keeper: RegistrationKeeper,
        clock: Clock,
        *,
        read_only_below_bytes: int,
        requests: Mapping[ReadOnlyReason, Callable[[], bool]] = _NO_REQUESTS,
        journal_paths: Sequence[Path] = (),
        ledger_path: Path | None = None,
    ) -> None:
        """Prepare the checks.

        Args:
            disks: the disks whose free space is compared with the threshold.
            storage: the storage, which is watched and stopped.
            service: is set to read-only.
            keeper: changes the registration.
            clock: time.
            read_only_below_bytes: the threshold of free space.
            requests: the reasons other than disks, and for each one whether it applies now.
            journal_paths: the directories of the journals, for messages; may be empty.
            ledger_path: the first ledger directory, for messages.
        """
        self._disks = disks
        self._storage = storage
        self._service = service
        self._keeper = keeper
        self._clock = clock
        self._read_only_below_bytes = read_only_below_bytes
        self._requests = requests
        self._is_low = service.is_read_only and not self._requested()
        self._is_stalled = False
        self._free_bytes: int | None = None
        """The free bytes at the last check that could read them; None: there was no such check."""
        self._space_unknown_because = ""
        self._looking = asyncio.Lock()
        self._was_full_at_s: float | None = None
        self._looked_s = clock.monotonic_s()
        """Time of the last check of changes."""
        self._changes: dict[int, tuple[int, float]] = {}
        """For each journal, the entry logs and the index: the oldest change at the last check, and how long it was
        seen."""
        self._journal_paths = journal_paths
        self._ledger_path = ledger_path
        self._probe_problem = ""

    @property
    def reasons(self) -> tuple[ReadOnlyReason, ...]:
        """The reasons why the bookie is read-only: current requests, and the disks as of the last check."""
        found = {
            ReadOnlyReason.STALLED_DISK: self._is_stalled,
            ReadOnlyReason.DISK_FULL: self._was_recently_full(),
            ReadOnlyReason.DISK_SPACE: self._is_low,
        }
        return (*self._requested(), *(reason for reason, is_so in found.items() if is_so))

    def _requested(self) -> tuple[ReadOnlyReason, ...]:
        return tuple(reason for reason, is_requested in self._requests.items() if is_requested())

    def journal_problem(self, number: int) -> str:
        """Return why the disk of journal ``number`` (from 0) keeps the bookie read-only; empty if it does not."""
        is_full = self._storage.full_journals[number] and self._was_recently_full()
        return _stall_problem(self._stalled_s(number)) or ("full" if is_full else "")

    @property
    def ledger_problem(self) -> str:
        """Why the disk of the first ledger directory keeps the bookie read-only; empty if it does not."""
        journals = len(self._storage.journal_changes)
        return _stall_problem(
            max((self._stalled_s(number) for number in self._changes if number >= journals), default=0.0)
        )

    async def run(self) -> None:
        """Check periodically until cancelled."""
        probing = guarded("disk probe", self._probe())
        try:
            while True:
                await self._clock.sleep(INTERVAL_S)
                await self.check()
        finally:
            await cancel(probing)

    async def check(self) -> None:
        """Check once, and switch the mode if necessary."""
        async with self._looking:
            await self._check()

    async def _check(self) -> None:
        if self._storage.fatal.done():
            return
        self._check_stalls()
        which = max(self._changes, key=self._stalled_s, default=0)
        stalled_s = self._stalled_s(which)
        if stalled_s >= STALL_FATAL_S:
            name = self._name(which)
            self._storage.fail(StalledDiskError(f"a write to the disk of {name} has not ended for {stalled_s:.0f} s"))
            return
        await self._check_disk_space()
        was_read_only = self._service.is_read_only
        self._is_stalled = stalled_s >= STALL_READ_ONLY_S
        reasons = self.reasons
        is_read_only = bool(reasons)
        if is_read_only == was_read_only:
            return
        fields = {
            "reasons": ", ".join(reasons),
            "free_bytes": self._free_bytes,
            "read_only_below_bytes": self._read_only_below_bytes,
            "stalled_s": stalled_s,
            "problems": self._problems(),
        }
        _log.warning("bookie becomes read-only" if is_read_only else "bookie becomes writable", extra=fields)
        if not is_read_only:
            self._service.is_read_only = False
        await self._keeper.switch(is_read_only=is_read_only, deadline_s=ANNOUNCE_DEADLINE_S)
        self._service.is_read_only = is_read_only

    async def _probe(self) -> None:
        """Write to the first ledger directory periodically, one write at a time. The checks detect one that hangs."""
        while True:
            await self._clock.sleep(_PROBE_INTERVAL_S)
            problem = ""
            try:
                await self._storage.probe()
            except DiskFullError:  # the next write of data shows it, too
                pass
            except DiskError as error:  # a disk that can only be read still serves reads; the next checkpoint fails
                problem = str(error)
            if problem and not self._probe_problem:
                _log.warning("the ledger disk cannot be written", extra={"error": problem})
            self._probe_problem = problem

    async def _check_disk_space(self) -> None:
        try:
            async with asyncio.timeout(_SPACE_DEADLINE_S):
                free = await free_bytes(self._disks)
        except (BkhealError, TimeoutError) as error:  # says nothing about space; the next write shows a broken disk
            reason = str(error) or "the disk does not answer"
            if reason != self._space_unknown_because:
                self._space_unknown_because = reason
                _log.warning("free space is unknown", extra={"error": reason})
            return
        if self._space_unknown_because:
            self._space_unknown_because = ""
            _log.warning("free space is known again")
        self._storage.takes_no_adds = should_be_read_only(
            self._storage.takes_no_adds, free, int(self._read_only_below_bytes * _RECOVERY_FACTOR)
        )
        self._is_low = should_be_read_only(self._is_low, free, self._read_only_below_bytes)
        self._free_bytes = free

    def _check_stalls(self) -> None:
        now_s, seen = self._clock.monotonic_s(), self._changes
        passed_s, self._looked_s, self._changes = min(now_s - self._looked_s, _CHECK_INTERVAL_S_MAX), now_s, {}
        for number, change in enumerate((*self._storage.journal_changes, *self._storage.ledger_changes)):
            if change is not None:
                before, stalled_s = seen.get(number, (None, 0.0))
                self._changes[number] = change, stalled_s + passed_s if before == change else 0.0

    def _stalled_s(self, number: int) -> float:
        """Return for how long the checks have seen the same change."""
        return self._changes.get(number, (0, 0.0))[1]

    def _name(self, number: int) -> str:
        if number >= len(self._storage.journal_changes):
            return str(self._ledger_path or "the first ledger directory")
        return str(self._journal_paths[number]) if self._journal_paths else f"journal {number + 1}"

    def _problems(self) -> str:
        found = [(str(path), self.journal_problem(number)) for number, path in enumerate(self._journal_paths)]
        found.append((str(self._ledger_path), self.ledger_problem))
        return "; ".join(f"{path}: {problem}" for path, problem in found if problem)

    def _was_recently_full(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._storage.is_full:
            self._was_full_at_s = now_s
        return self._was_full_at_s is not None and now_s - self._was_full_at_s < _FULL_HOLD_S


def _stall_problem(stalled_s: float) -> str:
    return f"a write has not ended for {stalled_s:.0f} s" if stalled_s >= STALL_READ_ONLY_S else ""
