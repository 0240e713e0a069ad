"""The background scrub of a running bookie: every entry in its logs is verified from time to time, and slowly.

The invariant: a scrub itself only reads and reports. A damaged entry is offered to the repair of the bookie
(``damage_repair``), which replaces it or leaves it as it is: CORRUPT for every reader, so other copies are used. A pass
goes on after a restart where it ended, to a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server.metrics import DAMAGED, REPLACED, SCRUB_FINISHED, SCRUBBED_BYTES, SCRUBBED_ENTRIES
from bookie.storage.port import Disk, DiskFullError
from bookie.storage.scrubbing import DamagedEntry, ScrubStep
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

PROGRESS_FILE: Final = "scrub-progress"
"""In the ledger directory. It may be deleted: the pass begins again then."""
START_S: Final = 60.0
"""Before the first pass of a process, which has enough to do at its start; a shorter interval counts instead."""
_SAVE_S: Final = 60.0
"""Between two writes of the progress."""
_RETRY_S: Final = 60.0
"""After an error of the disk."""
_LOOK_S: Final = 3600.0
"""The longest wait between two looks at the clock, which may jump."""
_LOGGED_MAX: Final = 100
"""Damaged entries of one pass that are logged one by one."""
REPAIRED_MAX: Final = 1000
"""Damaged entries of one pass that are offered to the repair. A disk with more of them is failing."""

Repair: TypeAlias = Callable[[Sequence[DamagedEntry]], Awaitable[int]]
"""Replaces damaged entries if it can, and returns how many it did; see ``DamageRepair.repair``."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The pass that goes on, or the last one."""

    begun_ms: int
    """Epoch milliseconds."""
    ledger_id: LedgerId | None = None
    """The last entry that was verified; None: nothing was yet, or the pass has ended."""
    entry_id: EntryId | None = None
    damaged: int = 0
    """Damaged entries found so far."""
    finished_ms: int = 0
    """When the pass ended; 0: it goes on."""
    replaced: int = 0
    """Of the damaged entries, those that were replaced by good copies of other bookies."""

    @property
    def after(self) -> tuple[LedgerId, EntryId] | None:
        """The entry after which it continues."""
        return None if self.ledger_id is None or self.entry_id is None else (self.ledger_id, self.entry_id)


class Scrubber:
    """The scrubs of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        disk: Disk,
        bookie: BookieId,
        metrics: MetricSet,
        clock: Clock,
        *,
        interval_s: float,
        bytes_per_s: float,
        repair: Repair | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            storage: the storage to verify.
            disk: the ledger directory, for the progress.
            bookie: for logs.
            metrics: those of the process.
            clock: time.
            interval_s: between the beginnings of two passes.
            bytes_per_s: the most that is read, on average.
            repair: for damaged entries; None: they are only reported.
        """
        self._storage = storage
        self._disk = disk
        self._bookie = bookie
        self._clock = clock
        self._interval_s = interval_s
        self._bytes_per_s = bytes_per_s
        self._repair = repair
        self._entries = metrics.counter(SCRUBBED_ENTRIES)
        self._bytes = metrics.counter(SCRUBBED_BYTES)
        self._damaged = metrics.gauge(DAMAGED)
        self._replaced = metrics.counter(REPLACED)
        self._finished = metrics.gauge(SCRUB_FINISHED)

    async def run(self) -> None:
        """Pass after pass; ends by cancellation alone."""
        progress: ScrubProgress | None = None
        await self._clock.sleep(min(START_S, self._interval_s))
        while True:
            try:
                if progress is None:
                    progress = await self._load()
                if progress.finished_ms:
                    await self._wait_due(progress)
                    progress = ScrubProgress(self._clock.epoch_ms())
                progress = await self.run_pass(progress)
            except BkhealError as error:
                _log.warning("scrub interrupted", extra={"bookie_id": self._bookie, "error": str(error)})
                progress = None
                await self._clock.sleep(_RETRY_S)

    async def run_pass(self, progress: ScrubProgress) -> ScrubProgress:
        """Verify everything after ``progress``; return the progress of the ended pass.

        Raises:
            DiskError: the index cannot be read, or the disk fails; not if it is full.
        """
        saved_s = self._clock.monotonic_s()
        async with aclosing(self._storage.scrub(progress.after)) as steps:
            async for step in steps:
                replaced = await self._replace(step.damaged[: max(REPAIRED_MAX - progress.damaged, 0)])
                progress = self._count(progress, step, replaced)
                if self._clock.monotonic_s() - saved_s >= _SAVE_S:
                    await self._save(progress)
                    saved_s = self._clock.monotonic_s()
                await self._clock.sleep(step.bytes / self._bytes_per_s)
        progress = replace(progress, ledger_id=None, entry_id=None, finished_ms=self._clock.epoch_ms())
        await self._save(progress)
        self._show(progress)
        level = logging.ERROR if progress.damaged else logging.INFO
        _log.log(
            level,
            "scrub ended",
            extra={"bookie_id": self._bookie, "damaged": progress.damaged, "replaced": progress.replaced},
        )
        return progress

    async def _replace(self, damaged: Sequence[DamagedEntry]) -> int:
        if not damaged or self._repair is None:
            return 0
        replaced = await self._repair(damaged)
        self._replaced.inc(replaced)
        return replaced

    def _count(self, progress: ScrubProgress, step: ScrubStep, replaced: int) -> ScrubProgress:
        self._entries.inc(step.entries)
        self._bytes.inc(step.bytes)
        for found in step.damaged[: max(_LOGGED_MAX - progress.damaged, 0)]:
            _log.error("damaged entry", extra={"bookie_id": self._bookie, "found": str(found)})
        ledger_id, entry_id = step.last
        damaged, replaced = progress.damaged + len(step.damaged), progress.replaced + replaced
        if step.damaged:
            self._damaged.set(damaged - replaced)
        return replace(progress, ledger_id=ledger_id, entry_id=entry_id, damaged=damaged, replaced=replaced)

    def _show(self, progress: ScrubProgress) -> None:
        self._damaged.set(progress.damaged - progress.replaced)
        if progress.finished_ms:
            self._finished.set(progress.finished_ms / 1000)

    async def _wait_due(self, progress: ScrubProgress) -> None:
        while True:
            left_s = progress.begun_ms / 1000 + self._interval_s - self._clock.epoch_ms() / 1000
            if left_s <= 0:
                return
            await self._clock.sleep(min(left_s, _LOOK_S))

    async def _load(self) -> ScrubProgress:
        """The progress that an earlier process has left; that of a new pass if there is none, or it is unreadable."""
        new = ScrubProgress(self._clock.epoch_ms())
        try:
            file = await self._disk.open(PROGRESS_FILE)
        except FileNotFoundError:
            return new
        try:
            [data] = await file.read([(0, await file.size())])
            progress = decode_record(data, ScrubProgress)
        except UnreadableRecordError as error:
            _log.warning("scrub begins again", extra={"bookie_id": self._bookie, "error": str(error)})
            return new
        finally:
            await file.close()
        self._show(progress)
        return progress

    async def _save(self, progress: ScrubProgress) -> None:
        try:
            await self._disk.replace(PROGRESS_FILE, encode_record(progress))
        except DiskFullError as error:  # a restart begins the pass again
            _log.info("progress of the scrub not written", extra={"bookie_id": self._bookie, "error": str(error)})
