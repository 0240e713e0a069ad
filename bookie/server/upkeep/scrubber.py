"""The background scrub of a running bookie, which slowly verifies all entries in its logs from time to time.

The invariant: the scrub itself only reads and reports. A damaged entry is passed to the repair of the bookie
(``damage_repair``), which replaces it or leaves it unchanged. An unchanged entry is CORRUPT for every reader, so
readers use other copies. Remaining damage is noted (``bookie.server.damaged_entries``), even after a restart, for
audits and repairs. After a restart, a pass continues where it ended; at most the last minute is repeated. An operator
can begin, interrupt and continue a pass.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol, TypeAlias

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.runtime.clock import Clock
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server.damaged_entries import DamagedEntries
from bookie.server.metrics import DAMAGED, REPLACED, SCRUB_FINISHED, SCRUBBED_BYTES, SCRUBBED_ENTRIES
from bookie.server.upkeep.pauses import Pause
from bookie.storage.port import Disk, DiskError, DiskFullError
from bookie.storage.scrubbing import DamagedCopy, ScrubStep
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

PROGRESS_FILE: Final = "scrub-progress"
"""The file with the progress, in the ledger directory. It may be deleted; the pass then begins again."""
START_S: Final = 60.0
"""Pause before the first pass of a process, which has other work at its start. A shorter interval of scrubs replaces
it."""
_SAVE_INTERVAL_S: Final = 60.0
"""Interval between two writes of the progress."""
_RETRY_S: Final = 60.0
"""Pause after an error of the disk."""
_CHECK_INTERVAL_S_MAX: Final = 3600.0
"""The longest wait between two reads of the clock, which may jump."""
_LOGGED_MAX: Final = 100
"""The most damaged entries of one pass that are logged individually."""
REPAIRED_MAX: Final = 1000
"""The most damaged entries of one pass that are passed to the repair. A disk with more of them is failing."""

UNREPAIRED_MAX: Final = 1000
"""The most damaged entries that are stored with the progress, about 20 bytes each."""


class Verifies(Protocol):
    """The part of ``BookieService`` that a scrubber needs."""

    @property
    def damaged(self) -> DamagedEntries:
        """The known damaged entries."""
        ...

    async def verify(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Note which of these entries are damaged."""
        ...


class ScrubPhase(enum.Enum):
    """The current activity of a scrubber."""

    WAITING = "waiting"
    """It waits until the next pass is due."""
    RUNNING = "running"
    STOPPED = "stopped"
    """It is stopped until an operator starts it, or until the next start of the process."""


Repair: TypeAlias = Callable[[Sequence[DamagedCopy]], Awaitable[int]]
"""A function that replaces damaged entries if possible, and returns their number; see ``DamageRepair.repair``."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the running pass or the last one."""

    begun_ms: int
    """Start of the pass in epoch milliseconds."""
    ledger_id: LedgerId | None = None
    """The ledger of the last verified entry; None if nothing was verified yet or the pass has ended."""
    entry_id: EntryId | None = None
    damaged: int = 0
    """The number of damaged entries found so far."""
    finished_ms: int = 0
    """End of the pass in epoch milliseconds; 0 if it is not complete."""
    replaced: int = 0
    """The number of damaged entries that were replaced by good copies from other bookies."""
    entries: int = 0
    """The number of verified entries; ``bytes`` is their size."""
    bytes: int = 0
    unrepaired: tuple[tuple[LedgerId, EntryId], ...] = ()
    """The known damaged entries that were not replaced, ascending, at most ``UNREPAIRED_MAX``."""

    @property
    def after(self) -> tuple[LedgerId, EntryId] | None:
        """The entry after which the pass continues; None: it begins with the first one."""
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
        service: Verifies | None = None,
    ) -> None:
        """Prepare to scrub.

        Args:
            storage: the storage to verify.
            disk: the ledger directory, which has the progress.
            bookie: the id of the bookie, for logs.
            metrics: the metrics of the process.
            clock: time.
            interval_s: the time between the beginnings of two passes.
            bytes_per_s: the limit of the average read rate.
            repair: replaces damaged entries; None: they are only reported.
            service: notes the entries that are still damaged after a repair; None: they are not noted.
        """
        self.progress: ScrubProgress | None = None
        """The progress of the running pass or the last one; None if it is not loaded yet."""
        self.phase = ScrubPhase.WAITING
        self._storage = storage
        self._disk = disk
        self._bookie = bookie
        self._clock = clock
        self._interval_s = interval_s
        self._bytes_per_s = bytes_per_s
        self._repair = repair
        self._service = service
        self._pause = Pause(clock)
        self._is_start_asked = self._is_stop_asked = False
        self._is_pass_asked = False
        """Whether a new pass must begin, even if an earlier one was interrupted."""
        self._entries = metrics.counter(SCRUBBED_ENTRIES)
        self._bytes = metrics.counter(SCRUBBED_BYTES)
        self._damaged = metrics.gauge(DAMAGED)
        self._replaced = metrics.counter(REPLACED)
        self._finished = metrics.gauge(SCRUB_FINISHED)

    async def run(self) -> None:
        """Run passes until cancelled."""
        await self._pause.rest(min(START_S, self._interval_s))
        while True:
            try:
                await self._advance()
            except BkhealError as error:
                _log.warning("scrub interrupted", extra={"bookie_id": self._bookie, "error": str(error)})
                self.progress, self.phase = None, ScrubPhase.WAITING
                await self._pause.rest(_RETRY_S)

    def start(self, *, from_beginning: bool = False) -> None:
        """Continue an interrupted pass, or begin the next one now. With ``from_beginning``, always begin a new one."""
        self._is_stop_asked = False
        self._is_pass_asked = self._is_pass_asked or from_beginning
        self._is_start_asked = self.phase is not ScrubPhase.RUNNING
        self._pause.end()

    def stop(self) -> None:
        """Interrupt the pass after its current step, which takes a few seconds at most."""
        self._is_stop_asked = True
        self._pause.end()

    async def _advance(self) -> None:
        """Take the next step: load the progress, wait, or run a pass."""
        progress = self.progress = self.progress or await self._load()
        self.phase = ScrubPhase.STOPPED if self._is_stop_asked else ScrubPhase.WAITING
        passed_ms = self._clock.epoch_ms() - progress.begun_ms
        left_s = self._interval_s - passed_ms / 1000
        is_asked = self._is_start_asked or self._is_pass_asked
        # If the pass began in the future, the clock was ahead then, and the next pass is due.
        is_waiting = progress.finished_ms > 0 and passed_ms >= 0 and left_s > 0 and not is_asked
        if self._is_stop_asked or is_waiting:
            await self._pause.rest(_CHECK_INTERVAL_S_MAX if self._is_stop_asked else min(left_s, _CHECK_INTERVAL_S_MAX))
            return
        if self._is_pass_asked or progress.finished_ms:
            progress = ScrubProgress(self._clock.epoch_ms())
        self._is_start_asked = self._is_pass_asked = False
        self.phase = ScrubPhase.RUNNING
        self.progress = await self.run_pass(progress)

    async def run_pass(self, progress: ScrubProgress) -> ScrubProgress:
        """Verify all entries after ``progress``, and return the new progress.

        The pass has ended unless it was interrupted.

        Raises:
            DiskError: the index cannot be read, or the disk fails. A full disk is not an error.
        """
        saved_s = self._clock.monotonic_s()
        async with aclosing(self._storage.scrub(progress.after)) as steps:
            async for step in steps:
                replaced = await self._replace(step.damaged[: max(REPAIRED_MAX - progress.damaged, 0)])
                await self._note((found.ledger_id, found.entry_id) for found in step.damaged)
                progress = self.progress = self._count(progress, step, replaced)
                if (
                    self._clock.monotonic_s() - saved_s >= _SAVE_INTERVAL_S
                    or self._is_stop_asked
                    or self._is_pass_asked
                ):
                    await self._save(progress)
                    saved_s = self._clock.monotonic_s()
                await self._pause.rest(step.bytes / self._bytes_per_s)
                if self._is_stop_asked or self._is_pass_asked:
                    return progress
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

    async def _note(self, damaged: Iterable[tuple[LedgerId, EntryId]]) -> None:
        """Note which of these entries are still damaged. They must be ordered by ledger."""
        if self._service is not None:
            for ledger_id, found in groupby(damaged, lambda each: each[0]):
                await self._service.verify(ledger_id, [entry_id for _, entry_id in found])

    async def _replace(self, damaged: Sequence[DamagedCopy]) -> int:
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
        return replace(
            progress,
            ledger_id=ledger_id,
            entry_id=entry_id,
            damaged=damaged,
            replaced=replaced,
            entries=progress.entries + step.entries,
            bytes=progress.bytes + step.bytes,
        )

    def _show(self, progress: ScrubProgress) -> None:
        self._damaged.set(progress.damaged - progress.replaced)
        if progress.finished_ms:
            self._finished.set(progress.finished_ms / 1000)

    async def _load(self) -> ScrubProgress:
        """Return the saved progress of an earlier process, or that of a new pass if none can be read.

        Raises:
            DiskFullError: too many files are open.
        """
        new = ScrubProgress(self._clock.epoch_ms())
        try:
            progress = decode_record(await self._read_progress(), ScrubProgress)
        except FileNotFoundError:
            return new
        except DiskFullError:
            raise
        except (UnreadableRecordError, DiskError) as error:  # for example a bad sector; the next record replaces it
            _log.warning(
                "the scrub starts from the beginning, as its recorded progress cannot be read",
                extra={"bookie_id": self._bookie, "error": str(error)},
            )
            return new
        self._show(progress)
        await self._note(progress.unrepaired)
        return progress

    async def _read_progress(self) -> bytes:
        file = await self._disk.open(PROGRESS_FILE)
        try:
            [data] = await file.read([(0, await file.size())])
            return data
        finally:
            await file.close()

    async def _save(self, progress: ScrubProgress) -> None:
        if self._service is not None:
            known = self._service.damaged.ledgers(UNREPAIRED_MAX)
            left = tuple((ledger_id, entry_id) for ledger_id, entry_ids in known for entry_id in entry_ids)
            progress = replace(progress, unrepaired=left)
        try:
            await self._disk.replace(PROGRESS_FILE, encode_record(progress))
        except DiskFullError as error:  # after a restart, more of the pass is repeated
            _log.info("progress of the scrub not written", extra={"bookie_id": self._bookie, "error": str(error)})
