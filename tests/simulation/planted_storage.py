"""Planted defects of the bookie: journal, fences, limbo, collection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack
from typing import Any

from bookie.model.availability import EntryRuns
from bookie.model.ids import LedgerId
from bookie.server.joining import limbo, succession
from bookie.server.service import BookieService
from bookie.server.upkeep import collector
from bookie.server.upkeep.collector_verdict import CollectorVerdict
from bookie.storage import reading, salvaging, writing
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import MARK_KEY, CheckpointMark
from bookie.storage.disks.memory import MemoryDisk, _MemoryFile
from bookie.storage.disks.spread import _SpreadFile
from bookie.storage.entry_logs import compaction, leftovers
from bookie.storage.entry_logs.collection import Collection
from bookie.storage.entry_logs.entry_log import EntryLogs, EntryLogWriter
from bookie.storage.errors import DamagedJournalError
from bookie.storage.journal.replay import JournalReplay
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.port import DirectoryFailedError
from bookie.storage.writing import RecordWriter
from bookie.wire.port import EntryResult, Status
from tests.simulation.planting import Registry, swap

STORAGE_DEFECTS = Registry()
plants = STORAGE_DEFECTS.add


@plants("ack-before-sync", "J1, NATS 2.12.1", "the journal acknowledges records that are written but not synced")
def _(stack: ExitStack) -> None:
    swap(stack, _MemoryFile, "append_and_sync", lambda _: _MemoryFile.append)


@plants("directory-not-synced", "J5", "a new file's name is not made durable")
def _(stack: ExitStack) -> None:
    async def forget(self: MemoryDisk, directory: str) -> None:
        await asyncio.sleep(0)

    swap(stack, MemoryDisk, "sync_directory", lambda _: forget)


@plants("failed-directory-trusted", "R114", "a write that a ledger directory refused counts as done")
def _(stack: ExitStack) -> None:
    def make(noted: Any) -> Any:
        async def trusting(self: _SpreadFile, write: Any) -> Any:
            try:
                return await noted(self, write)
            except DirectoryFailedError:
                return await self.file.size()

        return trusting

    swap(stack, _SpreadFile, "_writing", make)


@plants("lost-directory-listed", "R114", "entries in a ledger directory that is out of use are listed")
def _(stack: ExitStack) -> None:
    async def none(self: reading.EntryReader, ledger_id: LedgerId) -> EntryRuns:
        return EntryRuns()

    swap(stack, reading.EntryReader, "unreachable", lambda _: none)


@plants("log-id-reused", "R114", "if a ledger directory fails to create a log, the next log gets the same id")
def _(stack: ExitStack) -> None:
    def make(create: Any) -> Any:
        async def again(self: EntryLogs, log_id: int) -> EntryLogWriter:
            try:
                created: EntryLogWriter = await create(self, log_id)
            except DirectoryFailedError:
                self.next_id = min(self.next_id, log_id)
                raise
            return created

        return again

    swap(stack, EntryLogs, "create", make)


@plants("fence-in-memory", "BK-500, BP-46 scenario 1", "a fence is answered before it is durable")
def _(stack: ExitStack) -> None:
    async def fence(self: RecordWriter, state: StoredLedgerState, master_key: bytes) -> None:
        state.is_fenced = True

    swap(stack, writing.RecordWriter, "fence", lambda _: fence)


@plants("checkpoint-mark-early", "#3329, #4105", "the checkpoint mark is stored before the entries that it covers")
def _(stack: ExitStack) -> None:
    def make(finish: Any) -> Any:
        async def early(self: Checkpointer, flush: Any) -> tuple[int, ...]:
            mark = CheckpointMark(flush.sequences, self.logs.next_id + 1, flush.ledger_count)
            states = [pair for part in flush.states.parts() for pair in part]
            await self.index.write([*states, (MARK_KEY, mark.encode())])
            return tuple(await finish(self, flush))

        return early

    swap(stack, Checkpointer, "_finish", make)


@plants("torn-tail-refused", "PAR/CTRL, BookieJournalTest", "a journal cut short by a crash counts as damaged")
def _(stack: ExitStack) -> None:
    def make(batches: Any) -> Any:
        async def refuse(self: JournalReplay, mark: Any) -> AsyncIterator[Any]:
            async for records in batches(self, mark):
                yield records
            if self._damage:
                raise DamagedJournalError(f"{self._damage} cannot be read")

        return refuse

    swap(stack, JournalReplay, "batches", make)


@plants("corrupt-is-absent", "#2908", 'a read of an entry that does not verify is answered with "no such entry"')
def _(stack: ExitStack) -> None:
    def make(verified: Any) -> Any:
        def denied(ledger_id: Any, entry_id: Any, location: Any, data: Any) -> EntryResult:
            result: EntryResult = verified(ledger_id, entry_id, location, data)
            return result if result.status is Status.OK else EntryResult(entry_id, Status.NO_ENTRY)

        return denied

    swap(stack, reading, "_verified", make)


@plants("checksum-ignored", "ALICE, NATS bit flips", "stored bytes are served without verifying them")
def _(stack: ExitStack) -> None:
    swap(stack, reading, "is_entry", lambda _: lambda location, data, ledger_id, entry_id: True)


@plants("cut-off-log-kept", "#4607", "an entry log that a power loss has cut off counts as damaged")
def _(stack: ExitStack) -> None:
    async def end_of_file(index: Any, log_id: int) -> None:
        return None

    swap(stack, leftovers, "read_log_end", lambda _: end_of_file)
    swap(stack, compaction, "read_log_end", lambda _: end_of_file)


@plants("limbo-is-absent", "BP-46 scenario 2, #4812", "a bookie on new disks denies entries that the old ones held")
def _(stack: ExitStack) -> None:
    def denied(self: StoredLedgerState) -> Status:
        return Status.NO_ENTRY if self.is_known else Status.NO_LEDGER

    swap(stack, StoredLedgerState, "absent_status", lambda _: property(denied))


@plants("no-limbo", "BP-46", "new disks under an old name serve without checking which ledgers name the bookie")
def _(stack: ExitStack) -> None:
    async def nothing(*arguments: Any, **named: Any) -> int:
        return 0

    swap(stack, limbo, "enter_limbo", lambda _: nothing)


@plants(
    "journal-damage-skipped", "J3, R107", "a damaged part of the journal is skipped, and the rest is served as before"
)
def _(stack: ExitStack) -> None:
    async def as_before(disks: Any, before: str, resumed: Any, rng: Any) -> str:
        await asyncio.sleep(0)
        return before

    swap(stack, succession, "succeed", lambda _: as_before)
    swap(stack, salvaging, "_mark_suspect", lambda _: lambda state, is_collected: None)


@plants("limbo-ends-early", "BP-46", "limbo ends while entries are still missing")
def _(stack: ExitStack) -> None:
    def always(*arguments: Any) -> Generator[None, None, bool]:
        yield
        return True

    swap(stack, collector, "comparing", lambda _: always)


@plants("incarnation-unchecked", "#4812", "requests for the former disks are served by the new ones")
def _(stack: ExitStack) -> None:
    def make(refusal: Any) -> Any:
        return lambda self, incarnation: refusal(self, "")

    swap(stack, BookieService, "_refusal", make)


@plants("two-states-of-a-ledger", "#4701", "a ledger's state is dropped while it is in use")
def _(stack: ExitStack) -> None:
    def drop(self: LedgerStates) -> None:
        for ledger_id in list(self._states):
            if ledger_id not in self._changed and ledger_id not in self._being_saved:
                del self._states[ledger_id]

    swap(stack, LedgerStates, "_forget_surplus", lambda _: drop)


@plants("fence-forgotten", "#4462", "a collected ledger's fence is forgotten with it")
def _(stack: ExitStack) -> None:
    def make(set_collected: Any) -> Any:
        def unfenced(self: Collection, state: StoredLedgerState) -> None:
            set_collected(self, state)
            state.is_fenced = state.is_fence_durable = state.is_collected = False

        return unfenced

    swap(stack, Collection, "_set_collected", make)


@plants(
    "open-ledgers-collected",
    "I16",
    "a ledger is collected as soon as no fragment names the bookie, even if it is not closed",
)
def _(stack: ExitStack) -> None:
    def without_check(metadata: Any, bookie: Any) -> CollectorVerdict:
        if metadata is None:
            return CollectorVerdict.DELETED
        return CollectorVerdict.KEEP if bookie in metadata.members() else CollectorVerdict.SURPLUS

    swap(stack, collector, "verdict", lambda _: without_check)


@plants("only-last-fragment-kept", "I16", "a bookie deletes a ledger in which only older fragments name it")
def _(stack: ExitStack) -> None:
    def make(verdict: Any) -> Any:
        def without_check(metadata: Any, bookie: Any) -> Any:
            if metadata is not None and metadata.is_closed and bookie not in metadata.last_fragment.members:
                return CollectorVerdict.SURPLUS
            return verdict(metadata, bookie)

        return without_check

    swap(stack, collector, "verdict", make)
