"""The store of one bookie, with durable entries, fences and keys; the interface for request handlers.

The invariant: a request succeeds only after the sync of the journal batch that contains it (J1), and an acknowledged
entry is served until it is collected, even after kill -9 or a power loss (I15). The answer "absent" is given only for
entries that were never stored here or whose ledger was collected (S6, I13).

An add is written to the journal and synced, put in the write cache, and acknowledged. Later a checkpoint writes the
cache to an entry log, syncs it, and then writes the index entries and the checkpoint mark; only then may journal files
be deleted. So at any time, every acknowledged entry is in the journal after this mark, or in a synced log to which the
index refers. After a crash the journal is replayed from this mark, which is safe because storing an entry twice has no
effect.

The fences and adds of a ledger have one order: that of its journal. There is no yield between the checks of a request
and its enqueuing, and adds are refused as soon as a fence is enqueued. A fence is answered when it is durable (I11),
and so after all adds before it: the greatest entry in its answer takes them into account.

Requests never raise: each gets a reply with a ``Status``. If the store can no longer give these guarantees, ``fatal``
completes, and the process must exit. The store does not verify entry digests (this needs the ledger's password), and
uses no other bookie and no metadata.

J rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bookie.model.errors import FatalError
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.human import agreeing, counted
from bookie.storage.add_queue import AddQueue
from bookie.storage.add_request import check_add, check_ledger
from bookie.storage.entry_logs.collection import Collection, CollectionMark, CollectionMarks
from bookie.storage.entry_logs.compaction import CompactionResult, Compactor
from bookie.storage.errors import UnsupportedFormatError
from bookie.storage.flushing import Flusher
from bookie.storage.inspection import LedgerEnds, LedgerStatus
from bookie.storage.journal.journal import JournalBusyError, JournalStoppedError
from bookie.storage.opening import Parts, open_parts
from bookie.storage.port import PROBE_FILE, Disk, DiskError, DiskFullError, EntryIndex
from bookie.storage.read_ahead import ReadAhead
from bookie.storage.read_cache import ReadCache, WatchedIndex
from bookie.storage.reading import EntryReader, absent_since
from bookie.storage.scrubbing import ScrubStep, scrub
from bookie.storage.settings import StorageSettings
from bookie.storage.writing import RecordWriter
from bookie.wire.port import READ_ENTRIES_MAX, AddBatch, AddReply, FenceReply, ListReply, ReadReply, Status

_log = logging.getLogger(__name__)

_LIMBO_CHUNK: Final = 1000
"""Ledgers put in limbo at a time: enough to fill a group commit, few enough to bound the number of tasks."""

REQUEST_FAILURES: Final = (DiskError, UnsupportedFormatError, JournalBusyError, JournalStoppedError)
"""The errors that fail one request: an unreadable index, an unreadable ledger state, a full queue, a stopped
journal."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The bytes in memory that wait to be written to the disks."""

    journal_bytes: int
    """Records that wait for the journal."""
    cache_bytes: int
    """Entries that are not in the entry logs yet, with their overhead."""
    is_flushing: bool


class LedgerStorage:
    """The storage of a bookie: journal, write cache, index and entry logs together.

    All methods may run concurrently.
    """

    def __init__(
        self, parts: Parts, index: WatchedIndex, read_cache: ReadCache, settings: StorageSettings, clock: Clock
    ) -> None:
        self._parts = parts
        self._caches = parts.caches
        self._states = parts.states
        self._journals = parts.journals
        self._index = index
        self._marks: CollectionMarks = {}
        self._add_queue = AddQueue(self._must_adds_wait)
        self._flusher = Flusher(
            parts.checkpointer,
            parts.journals,
            parts.caches,
            settings,
            clock,
            is_full=parts.is_full,
            on_change=self._add_queue.advance,
        )
        self.fatal.add_done_callback(lambda _: self._add_queue.advance())
        self._writer = RecordWriter(
            parts.journals, parts.caches, parts.states, self._marks, self._flusher.stored, self._flusher.not_stored
        )
        self._collection = Collection(parts.checkpointer, parts.states, index, self._marks, settings.delete_page_keys)
        self._compactor = Compactor(parts.disk, index, parts.logs, parts.checkpointer, settings, clock)
        self.read_cache = read_cache
        """The read cache, with its hits and misses."""
        self._reader = EntryReader(
            parts.caches,
            index,
            parts.logs,
            settings.list_page_keys,
            ReadAhead(read_cache, index, parts.logs, settings) if settings.read_cache_bytes_max else None,
        )
        self._takes_no_adds = False
        self._is_closing = False

    @classmethod
    async def open(
        cls,
        journal: Disk,
        ledgers: Disk,
        index: EntryIndex,
        settings: StorageSettings,
        clock: Clock,
        *,
        more_journals: Sequence[Disk] = (),
    ) -> LedgerStorage:
        """Open the store, or create one on empty disks. Everything acknowledged earlier is served again.

        Args:
            journal: the disk of the journal.
            ledgers: the disk of the entry logs.
            index: the entry index.
            settings: the limits of the store.
            clock: time.
            more_journals: the disks of additional journals. Their number and order must never change (R125).

        Raises:
            DamagedJournalError: acknowledged entries cannot be read back.
            WrongJournalError: a disk belongs to another journal.
            LostIndexError: the index does not belong to the other files.
            UnsupportedFormatError: a file was written by a newer version or another program.
            DiskError: a disk failed, or is too full to replay the journal.
        """
        read_cache = ReadCache(settings.read_cache_bytes_max)
        watched = WatchedIndex(index, read_cache)
        parts = await open_parts((journal, *more_journals), ledgers, watched, settings, clock)
        store = cls(parts, watched, read_cache, settings, clock)
        store._flusher.start()
        return store

    @property
    def fatal(self) -> asyncio.Future[FatalError]:
        """Completes with the reason when the store can no longer acknowledge anything. Do not cancel it."""
        return self._journals.fatal

    @property
    def journal_changes(self) -> tuple[int | None, ...]:
        """For each journal, the number of the oldest running change of its disk; None if there is none."""
        return self._journals.oldest_changes

    @property
    def ledger_changes(self) -> tuple[int | None, int | None]:
        """The same as ``journal_changes``, for the entry logs in the first ledger directory and the index there."""
        return self._parts.disk.oldest_change, self._index.changes.oldest

    @property
    def full_journals(self) -> tuple[bool, ...]:
        """For each journal, whether its disk had no space for the last change, as far as is known."""
        return self._journals.full

    async def probe(self) -> None:
        """Write a small file to the first ledger directory. ``ledger_changes`` shows whether this hangs.

        Raises:
            DiskError: the file could not be written.
        """
        await self._parts.disk.replace(PROBE_FILE, b"written to see whether the disk answers\n")

    def fail(self, error: DiskError) -> None:
        """Stop acknowledging, because a check outside the store found that a disk failed."""
        self._journals.stop(error)

    @property
    def is_full(self) -> bool:
        """True if a disk is full: adds are answered with READ_ONLY until it has space again."""
        return self._flusher.is_full

    @property
    def takes_no_adds(self) -> bool:
        """True if all adds are refused, including those of recovery and repair; set by the disk watch.

        Waiting adds are then answered with READ_ONLY at once.
        """
        return self._takes_no_adds

    @takes_no_adds.setter
    def takes_no_adds(self, takes_none: bool) -> None:
        self._takes_no_adds = takes_none
        self._add_queue.advance()

    @property
    def directories_out_of_use(self) -> int:
        """The number of ledger directories that failed, or were missing at the start."""
        return self._parts.disk.out_of_use_count

    @property
    def ledger_count(self) -> int:
        """The number of ledgers that are recorded here because of an entry, a fence or limbo."""
        return self._states.count

    async def add(self, batch: AddBatch) -> AddReply:
        """Store all entries of a batch durably, or none. They replace existing entries with the same id.

        While the ledger disk is behind, a batch with a ``wait`` waits, in the order of arrival, before it is refused
        with TOO_MANY_REQUESTS. The checks follow the wait, so a fence that arrived during the wait is respected.
        """
        if batch.wait is not None and not await self._add_queue.turn(batch.wait):
            return AddReply(Status.SHUTTING_DOWN)
        if (refusal := self._add_refusal()) is not None:
            return refusal
        self._marks.pop(batch.ledger_id, None)
        entries = check_add(batch)
        if isinstance(entries, str):
            return AddReply(Status.BAD_REQUEST, entries)
        try:
            async with self._states.using(batch.ledger_id) as state:
                if not state.accepts(batch.master_key):
                    return AddReply(Status.UNAUTHORIZED, "not the master key of this ledger")
                if state.is_fenced and not batch.is_recovery:
                    # The fence of limbo is no proof of a recovery, and must not end a live writer (R160).
                    return AddReply(Status.LIMBO if state.is_limbo else Status.FENCED)
                # There was no yield since the checks, so a fence comes either before them or after this add.
                error = await self._writer.enqueue_add(state, batch.master_key, entries)
        except REQUEST_FAILURES as failure:
            return AddReply(self._status_of(failure), str(failure))
        return AddReply(self._status_of(error), "" if error is None else str(error))

    async def fence(self, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """Refuse ordinary adds permanently and durably, and return the greatest entry.

        An unknown ledger is created. In limbo ``last_entry`` has the status LIMBO, because there may have been a
        greater entry.
        """
        if (problem := check_ledger(ledger_id, master_key)) is not None:
            return FenceReply(Status.BAD_REQUEST, detail=problem)
        self._marks.pop(ledger_id, None)
        try:
            async with self._states.using(ledger_id) as state:
                if not state.accepts(master_key):
                    return FenceReply(Status.UNAUTHORIZED, detail="not the master key of this ledger")
                if (error := await self._writer.fence(state, master_key)) is not None:
                    return FenceReply(self._status_of(error), detail=str(error))
                last = await self._reader.last(state)
        except REQUEST_FAILURES as failure:
            return FenceReply(self._status_of(failure), detail=str(failure))
        return FenceReply(Status.OK, None if last.status.is_absent else last)

    async def check_key(self, ledger_id: LedgerId, master_key: bytes) -> Status:
        """Return OK or UNAUTHORIZED for a master key, or NO_LEDGER or LIMBO if none is known. Changes nothing."""
        if check_ledger(ledger_id, master_key) is not None:
            return Status.BAD_REQUEST
        try:
            async with self._states.using(ledger_id) as state:
                if not state.is_known or state.master_key is None:
                    return Status.LIMBO if state.is_limbo else Status.NO_LEDGER
                return Status.OK if state.accepts(master_key) else Status.UNAUTHORIZED
        except REQUEST_FAILURES as error:
            return self._status_of(error)

    async def set_limbo(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Put ledgers in limbo durably.

        The status of their missing entries is then LIMBO instead of "absent". They are also fenced, because a fence may
        be among the lost data.

        Raises:
            FatalError: not durable (DiskError, JournalStoppedError).
            JournalBusyError: the queue for the disk is full. Some ledgers may be in limbo; call again.
        """
        remaining = iter(ledger_ids)
        while chunk := list(islice(remaining, _LIMBO_CHUNK)):
            await asyncio.gather(*(self._set_limbo(ledger_id) for ledger_id in chunk))

    async def read(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> ReadReply:
        """Read entries and verify them against the index. Bounds: ``READ_ENTRIES_MAX``, ``READ_BYTES_MAX``."""
        problem = check_ledger(ledger_id)
        if problem is None and len(entry_ids) > READ_ENTRIES_MAX:
            problem = f"{len(entry_ids)} entries in one read, allowed are {READ_ENTRIES_MAX}"
        if problem is None and not all(0 <= entry_id <= LEDGER_ID_MAX for entry_id in entry_ids):
            problem = "negative entry id"
        if problem is not None:
            return ReadReply(Status.BAD_REQUEST, detail=problem)
        try:
            async with self._states.using(ledger_id) as state:
                return ReadReply(Status.OK, await self._reader.entries(state, entry_ids))
        except REQUEST_FAILURES as error:
            return ReadReply(self._status_of(error), detail=str(error))

    async def read_last(self, ledger_id: LedgerId) -> ReadReply:
        """Read the entry with the greatest id, as one result; id -1 and a negative status if there is none.

        In limbo the status is always LIMBO, because there may have been a greater entry.
        """
        if (problem := check_ledger(ledger_id)) is not None:
            return ReadReply(Status.BAD_REQUEST, detail=problem)
        try:
            async with self._states.using(ledger_id) as state:
                return ReadReply(Status.OK, [await self._reader.last(state)])
        except REQUEST_FAILURES as error:
            return ReadReply(self._status_of(error), detail=str(error))

    async def list_entries(self, ledger_id: LedgerId) -> ListReply:
        """List the entries of a ledger, even with status LIMBO or NO_LEDGER. In limbo there may have been more entries.

        Entries in a directory that is out of use are omitted; the status is then CORRUPT, or LIMBO in limbo (R114).
        """
        if (problem := check_ledger(ledger_id)) is not None:
            return ListReply(Status.BAD_REQUEST, detail=problem)
        self._marks.pop(ledger_id, None)
        try:
            async with self._states.using(ledger_id) as state:
                while state.deleting is not None:  # otherwise the list could contain only a part of the entries
                    await state.deleting.wait()
                absent_before = state.absent_status
                runs = await self._reader.runs(ledger_id)
                unreachable = await self._reader.unreachable(ledger_id)
                absent = absent_since(absent_before, state)
                is_limbo = absent is Status.LIMBO
                if not unreachable:
                    return ListReply(Status.OK if state.is_known and not is_limbo else absent, runs)
                are = agreeing(len(unreachable), "is", "are")
                detail = f"{counted(len(unreachable), 'entry')} {are} in a ledger directory that is out of use"
                status = Status.LIMBO if is_limbo else Status.CORRUPT
                return ListReply(status, runs.without(unreachable), detail)
        except REQUEST_FAILURES as error:
            return ListReply(self._status_of(error), detail=str(error))

    async def ledger_ids(self, after: int = -1, limit: int = 1000) -> list[LedgerId]:
        """Return about ``limit`` ids of ledgers stored here greater than ``after``, ascending; empty only at the end.

        Collected ledgers are omitted unless they are in limbo, although their fences are kept.

        Raises:
            DiskError: the index cannot be read.
        """
        return await self._states.page(after, 1 if fault_point("storage.tiny_id_page") else limit)

    async def ledger(self, ledger_id: LedgerId) -> LedgerStatus:
        """Return the state of a ledger and its entries. Unlike ``list_entries``, it does not clear a mark of ``mark``.

        Raises:
            DiskError: the index cannot be read.
        """
        async with self._states.using(ledger_id) as state:
            flags = state.is_known, state.is_fenced, state.is_limbo, state.is_collected
            return LedgerStatus(ledger_id, *flags, await self._reader.runs(ledger_id))

    async def ledger_ends(self, ledger_id: LedgerId) -> LedgerEnds:
        """Return the state of a ledger and its first and last entry, with two reads of the index. It clears no mark.

        Raises:
            DiskError: the index cannot be read.
        """
        async with self._states.using(ledger_id) as state:
            flags = state.is_known, state.is_fenced, state.is_limbo, state.is_collected
            return LedgerEnds(ledger_id, *flags, await self._reader.ends(ledger_id))

    @property
    def memory(self) -> MemoryUse:
        """The bytes in memory that wait to be written to the disks."""
        flushing = self._caches.flushing
        cached = self._caches.active.size + (0 if flushing is None else flushing.size)
        return MemoryUse(self._journals.waiting_bytes, cached, is_flushing=flushing is not None)

    def mark(self, ledger_id: LedgerId) -> CollectionMark:
        """Mark a ledger for ``collect``, replacing any earlier mark. Adds, fences, limbo and listings clear it."""
        mark = self._marks[ledger_id] = CollectionMark()
        return mark

    def is_marked(self, ledger_id: LedgerId, mark: CollectionMark) -> bool:
        """Return whether a mark is still set."""
        return self._marks.get(ledger_id) is mark

    def unmark(self, ledger_id: LedgerId, mark: CollectionMark) -> None:
        """Remove a mark if it is still set."""
        if self.is_marked(ledger_id, mark):
            del self._marks[ledger_id]

    async def collect(self, ledger_id: LedgerId, mark: CollectionMark) -> bool:
        """Delete a ledger's entries permanently if ``mark`` is still set; the ledger stays fenced (S17).

        Returns:
            False if the mark was cleared: some of the entries may have been deleted, and new ones are kept.

        Raises:
            JournalBusyError: the queue for the disk is full.
            DiskFullError: not done, or only in part.
            FatalError: not done, or only in part: a disk failed (DiskError), or the journal has stopped.
        """
        if self._is_closing or not self.is_marked(ledger_id, mark):
            return False
        async with self._states.using(ledger_id) as state:
            if (error := await self._writer.fence_for_collection(state)) is not None:
                raise error
        return await self._flusher.run_noting_full_disk(self._collection.delete(ledger_id, mark))

    def scrub(self, after: tuple[LedgerId, EntryId] | None = None) -> AsyncGenerator[ScrubStep, None]:
        """Verify the entries in the entry logs, from the one after ``after``; see ``bookie.storage.scrubbing``.

        Entries in a directory that is out of use are skipped (R114).
        """
        return scrub(self._index, self._parts.logs, after, is_for_findings=False)

    async def compact(self, below: float | None = None) -> CompactionResult:
        """Free the space of dead bytes in logs with too small a share of live bytes.

        The share must be smaller than ``below``; None: the value of the settings. Only one call at a time.

        Raises:
            DiskFullError: not done, or only in part.
            DiskError: a disk failed.
        """
        return await self._flusher.run_noting_full_disk(self._compactor.run(below))

    async def clear_limbo(self, ledger_id: LedgerId) -> None:
        """End the limbo of a ledger durably. The caller must have restored all its entries here. It stays fenced.

        Raises:
            JournalBusyError: the queue for the disk is full; nothing was changed.
            FatalError: not durable (DiskError, JournalStoppedError).
        """
        async with self._states.using(ledger_id) as state:
            if state.is_limbo and (error := await self._writer.enqueue_limbo_end(state)) is not None:
                raise error

    async def limbo_ids(self, after: int = -1, limit: int = 1000) -> list[LedgerId]:
        """Return about ``limit`` ids of ledgers in limbo greater than ``after``, ascending; empty only at the end.

        Raises:
            DiskError: the index cannot be read.
        """
        return await self._states.page(after, 1 if fault_point("storage.tiny_id_page") else limit, only_limbo=True)

    async def checkpoint(self) -> None:
        """Move all data durable so far from the journal to the entry logs and the index.

        Raises:
            DiskFullError: not done; nothing is lost.
            DiskError: a disk failed; ``fatal`` is complete.
        """
        await self._flusher.checkpoint()

    def end_waits(self) -> None:
        """Answer the waiting adds with SHUTTING_DOWN at once. From now on, no add waits."""
        self._add_queue.close()

    async def close(self) -> None:
        """Finish accepted requests, make a checkpoint, and close the index. New requests get SHUTTING_DOWN."""
        if self._is_closing:
            return
        self._is_closing = True
        self._add_queue.close()
        await self._journals.close()
        await self._parts.checkpointer.settled()
        await self._flusher.stop()
        if not self.fatal.done():
            try:
                await self.checkpoint()
            except DiskError as error:
                _log.error("closed without a checkpoint, the journal keeps it", extra={"error": str(error)})
        await self._reader.close()
        await self._parts.logs.close()
        await self._index.close()

    async def abort(self) -> None:
        """Stop at once, as in a crash: nothing more is written, and no further request succeeds."""
        self._is_closing = True
        self._add_queue.close()
        await self._flusher.stop()
        await self._journals.abort()
        await self._reader.close()
        await self._parts.logs.close()
        await self._index.close()

    async def _set_limbo(self, ledger_id: LedgerId) -> None:
        self._marks.pop(ledger_id, None)
        async with self._states.using(ledger_id) as state:
            if (error := await self._writer.enqueue_limbo(state)) is not None:
                raise error

    def _add_refusal(self) -> AddReply | None:
        if self._is_closing:
            return AddReply(Status.SHUTTING_DOWN)
        if self.fatal.done():
            return AddReply(Status.IO_ERROR, "a disk of this bookie failed")
        if self.is_full or self._takes_no_adds:
            return AddReply(Status.READ_ONLY, "a disk of this bookie is full, or it has too many open files")
        if self._flusher.is_behind:
            return AddReply(Status.TOO_MANY_REQUESTS, "the ledger disk cannot keep up with the journal")
        return None

    def _must_adds_wait(self) -> bool:
        refusal = self._add_refusal()
        return refusal is not None and refusal.status is Status.TOO_MANY_REQUESTS

    def _status_of(self, error: Exception | None) -> Status:
        match error:
            case None:
                return Status.OK
            case JournalBusyError():
                return Status.TOO_MANY_REQUESTS
            case DiskFullError():
                return Status.READ_ONLY
            case _:
                return Status.SHUTTING_DOWN if self._is_closing else Status.IO_ERROR
