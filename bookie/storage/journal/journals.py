"""The journals of one store (rule R125).

All records of a ledger (entries, keys, fences and limbo) are in the journal whose number is the ledger id modulo the
number of journals. So they are ordered, as in a store with one journal. Records of different ledgers need no order.

Each journal writes and syncs independently, so batches on several disks become durable at the same time. If one journal
fails, all of them stop accepting records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookie.model.errors import FatalError
from bookie.storage.journal.journal import Journal, Records
from bookie.storage.port import DiskFullError


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals, in the order of their directories. All of them have the same ``fatal``."""

    each: tuple[Journal, ...]

    @property
    def fatal(self) -> asyncio.Future[FatalError]:
        """Completes with the error after a journal has stopped permanently."""
        return self.each[0].fatal

    @property
    def durable_sequences(self) -> tuple[int, ...]:
        """The sequence of the last synced batch of each journal."""
        return tuple(journal.durable_sequence for journal in self.each)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the records that wait for the disks."""
        return sum(journal.waiting_bytes for journal in self.each)

    @property
    def oldest_changes(self) -> tuple[int | None, ...]:
        """For each journal, the number of the oldest running write, sync or removal; None if there is none."""
        return tuple(journal.oldest_change for journal in self.each)

    @property
    def full(self) -> tuple[bool, ...]:
        """For each journal, whether its disk had no space for the last change, as far as is known."""
        return tuple(journal.is_full for journal in self.each)

    def enqueue(
        self,
        ledger_id: int,
        records: Records,
        on_durable: Callable[[], None],
        on_failed: Callable[[FatalError], None],
    ) -> asyncio.Future[FatalError | None]:
        """Queue records of a ledger; see ``Journal.enqueue``.

        Raises:
            JournalBusyError: the queue of the ledger's journal is full; nothing was queued.
            JournalStoppedError: the journals were closed or have failed; nothing was queued.
        """
        return self.each[ledger_id % len(self.each)].enqueue(records, on_durable, on_failed)

    def start(self) -> None:
        """Start the writing of all journals."""
        for journal in self.each:
            journal.start()

    async def trim(self, sequences: Sequence[int]) -> None:
        """Remove the files covered by a durable checkpoint at the sequence of each journal.

        If a disk is full, the other journals are still trimmed.

        Raises:
            DiskFullError: a mark could not be written.
            DiskError: a mark or a removal could not be made durable.
        """
        full = None
        for journal, sequence in zip(self.each, sequences, strict=True):
            try:
                await journal.trim(sequence)
            except DiskFullError as error:
                full = error
        if full is not None:
            raise full

    def stop(self, error: Exception) -> None:
        """Stop acknowledging: fail the queued records and complete ``fatal``."""
        for journal in self.each:
            journal.stop(error)

    async def close(self) -> None:
        """Accept no more records, write the queued ones, and close the files."""
        for journal in self.each:
            journal.refuse()
        for journal in self.each:
            await journal.close()

    async def abort(self) -> None:
        """Stop without writing the queued records, as in a crash."""
        for journal in self.each:
            journal.refuse()
        for journal in self.each:
            await journal.abort()
