"""The disks of one bookie, and a power switch to stop its process before any disk operation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.port import Disk, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from tests.worlds.clocks import ManualClock
from tests.worlds.entries import raw_entry

WRITES = frozenset({Operation.CREATE, Operation.APPEND, Operation.SYNC, Operation.REPLACE, Operation.INDEX_WRITE})
SMALL = StorageSettings(
    journal_batch_bytes=400,
    journal_file_bytes=900,
    cache_bytes_max=3000,
    flush_page_entries=2,
    flush_sync_entries=3,
    ledgers_in_memory=1,
    open_logs=1,
    list_page_keys=3,
    read_cache_bytes_max=3000,
    read_ahead_bytes=400,
    read_ahead_entries=3,
)
"""Small settings, so that a short history reaches every limit many times."""


class PowerSwitch:
    """A ``before`` hook to stop the process after the operation with a given number. On request, disks become full.

    Attributes:
        count: number of operations so far, including the present one.
        before_each: called before each operation.
    """

    def __init__(
        self,
        last: int | None,
        *,
        full_seed: int | None = None,
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        self.count = 0
        self.before_each = before_each
        self._full = None if full_seed is None else random.Random(full_seed)
        self.trace: list[tuple[Operation, str]] = []
        self.is_off = asyncio.Event()
        self._last = last

    async def __call__(self, operation: Operation, path: str) -> None:
        self.before_each()
        self.count += 1
        self.trace.append((operation, path))
        if self._last is not None and self.count > self._last:
            self.is_off.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self._full is not None and operation in WRITES and self._full.random() < 0.05:
            raise DiskFullError("no space left")


@dataclass
class Machine:
    """The disks of one bookie and the process on it."""

    journal: MemoryDisk = field(default_factory=MemoryDisk)
    ledgers: MemoryDisk = field(default_factory=MemoryDisk)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    settings: StorageSettings = SMALL
    more: list[MemoryDisk] = field(default_factory=list)
    """The ledger directories other than the first one."""
    more_journals: list[MemoryDisk] = field(default_factory=list)

    async def run(self, work: Coroutine[Any, Any, None], switch: PowerSwitch) -> bool:
        """Run ``work`` to its end or to the loss of power. Return whether it ended."""
        for disk in (self.journal, self.ledgers, *self.more, *self.more_journals):
            disk.before = switch
        self.index.before = switch
        earlier = asyncio.all_tasks()
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(switch.is_off.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        is_done = tasks[0].done()
        if is_done:
            tasks[0].result()
        gone = asyncio.all_tasks() - earlier
        for task in gone:
            task.cancel()
        if gone:
            await asyncio.wait(gone)
        return is_done

    def after_power_loss(self, seed: int) -> Machine:
        """Return the machine after a power loss at this moment. The original can continue."""
        rng = random.Random(seed)
        return replace(
            self,
            journal=self.journal.crash(rng),
            ledgers=self.ledgers.crash(rng),
            index=self.index.crash(rng),
            more=[disk.crash(rng) for disk in self.more],
            more_journals=[disk.crash(rng) for disk in self.more_journals],
        )

    def after_kill(self) -> Machine:
        """Return the machine after a kill of the process at this moment. The original can continue."""
        return replace(
            self,
            journal=self.journal.restarted(),
            ledgers=self.ledgers.restarted(),
            index=self.index.restarted(),
            more=[disk.restarted() for disk in self.more],
            more_journals=[disk.restarted() for disk in self.more_journals],
        )

    async def open(self) -> LedgerStorage:
        clock, ledgers = ManualClock(turns=1), cast(Disk, self.ledgers)
        if self.more:
            disks = enumerate([self.ledgers, *self.more])
            ledgers = await SpreadDisk.over([SpreadDirectory(f"/{number}", disk) for number, disk in disks], clock)
        return await LedgerStorage.open(
            self.journal, ledgers, self.index, self.settings, clock, more_journals=self.more_journals
        )


def key_of(ledger_id: int) -> bytes:
    return b"key of %d" % ledger_id


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    return raw_entry(ledger_id, entry_id, payload, last_add_confirmed=-1)
