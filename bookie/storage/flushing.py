"""The scheduling of checkpoints: when the write cache exceeds its bound, and repeatedly while a disk is full.

The invariant: while a disk is full, the store refuses adds and attempts a checkpoint at intervals until one succeeds,
because only a checkpoint frees journal files. Any other disk failure stops the journal, because entries that cannot
leave the cache would otherwise stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bookie.model.errors import FatalError
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel, guarded
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.journal.journals import Journals
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.write_cache import Caches

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Flusher:
    """Runs the checkpoints of one store when a cache, a full disk or a caller requests them."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        journals: Journals,
        caches: Caches,
        settings: StorageSettings,
        clock: Clock,
        *,
        is_full: bool,
        on_change: Callable[[], None],
    ) -> None:
        """Prepare. If ``is_full`` is set, the first checkpoint is attempted as soon as ``start`` is called.

        ``on_change`` is called when ``is_behind`` becomes false, and when a disk is full.
        """
        checkpointer.on_flushed = on_change
        self._on_change = on_change
        self._checkpointer = checkpointer
        self._journals = journals
        self._caches = caches
        self._settings = settings
        self._clock = clock
        self._is_needed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_full = is_full
        """True if a disk is full."""

    def start(self) -> None:
        """Start running checkpoints when they are needed."""
        if self.is_full:
            self._is_needed.set()
        self._task = guarded("storage flush", self._flush_when_needed())

    async def stop(self) -> None:
        """Cancel a running checkpoint, and run no more except by calls of ``checkpoint``."""
        await cancel(self._task)

    @property
    def is_behind(self) -> bool:
        """True if the active cache exceeds its bound while the other one is still being flushed."""
        return self._caches.flushing is not None and self._is_over_bound()

    async def checkpoint(self) -> None:
        """Move all data durable so far from the journal to the entry logs and the index.

        Raises:
            DiskFullError: not done; nothing is lost.
            DiskError: a disk failed; the journals have stopped.
        """
        try:
            await self.run_noting_full_disk(self._checkpoint())
        except DiskFullError:
            raise
        except DiskError as error:
            self._journals.stop(error)
            raise

    async def run_noting_full_disk(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that writes to a disk. If the disk is full, attempt checkpoints until it has space again.

        Raises:
            DiskFullError: from the work.
        """
        try:
            return await work
        except DiskFullError:
            self._note_full()
            raise

    def stored(self) -> None:
        """Request a checkpoint if the cache exceeds its bound after entries were stored."""
        if self._is_over_bound() or fault_point("storage.flush_now"):
            self._is_needed.set()

    def not_stored(self, error: FatalError) -> None:
        """Record that the journal could not store a batch."""
        if isinstance(error, DiskFullError):
            self._note_full()

    def _note_full(self) -> None:
        self.is_full = True
        self._is_needed.set()  # a flush frees journal files
        self._on_change()

    def _is_over_bound(self) -> bool:
        return self._caches.active.size >= self._settings.cache_bytes_max

    async def _checkpoint(self) -> None:
        sequences = await self._checkpointer.run(lambda: self._journals.durable_sequences)
        await self._journals.trim(sequences)

    async def _flush_when_needed(self) -> None:
        try:
            while True:
                await self._is_needed.wait()
                self._is_needed.clear()
                await self._flush()
        except Exception as error:  # noqa: BLE001 (task boundary: without flushes the store would silently fill up)
            self._journals.stop(error)

    async def _flush(self) -> None:
        await self._has_room_for_checkpoint()
        while self.is_full:
            # Pause after a success too: the journal's disk may be the full one, and only an add shows that.
            await self._clock.sleep(self._settings.flush_retry_s)
            self.is_full = not await self._has_room_for_checkpoint()

    async def _has_room_for_checkpoint(self) -> bool:
        try:
            await self.run_noting_full_disk(self._checkpointer.index.reopen())
            await self.checkpoint()
        except DiskFullError as error:
            _log.error("disk full, only reads are served", extra={"error": str(error)})
            return False
        return True
