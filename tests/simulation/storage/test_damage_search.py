"""Random histories with several journals and ledger directories, in which files are damaged or lost and repaired.

A history has several lives of one bookie. A life is a random sequence of requests, collections and compactions. During
it, disks may be full, a ledger directory may fail, and the process may end at any disk operation. After it, a journal
may be damaged and salvaged, the index may be lost and rebuilt, or ledger directories may be missing for a while.

The rules: the last acknowledged version of an entry is served, or its entry is unknown or an error after damage that
explains it; an acknowledged entry is never absent; fences hold; lists agree with reads. At the end, all space can be
given back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.fault_points import inject_faults
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.entry_logs import compaction, entry_log, leftovers
from bookie.storage.errors import DamagedJournalError
from bookie.storage.journal.format import FILE_HEADER_SIZE, Record, RecordKind, decode_records, find_batch_header
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.rebuilding import rebuild
from bookie.storage.salvaging import begin_journals, damage_of, salvage
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.clocks import ManualClock
from tests.worlds.machine import SMALL, WRITES, entry, key_of

LEDGERS = [LedgerId(number) for number in (3, 7, 11, 12)]
ENTRIES = range(14)
EVERY_LOG = 2.0
"""A live share below which every log with a dead byte is compacted."""

Place = tuple[LedgerId, int]


@dataclass
class Book:
    """What clients sent, and what they may rely on."""

    sent: dict[Place, list[bytes]] = field(default_factory=dict)
    """The versions of each entry, in their order."""
    acknowledged: dict[Place, int] = field(default_factory=dict)
    """The last acknowledged version."""
    damaged: set[Place] = field(default_factory=set)
    """Entries that may be unknown, because of a damaged journal."""
    free: set[Place] = field(default_factory=set)
    """Entries that may be absent: collected, or in the last batches of a journal that was cut off (J12)."""
    fenced: set[LedgerId] = field(default_factory=set)
    limbo: set[LedgerId] = field(default_factory=set)
    unsure: set[LedgerId] = field(default_factory=set)
    """Ledgers whose limbo was begun or ended by a request without an answer."""
    marks: dict[LedgerId, int] = field(default_factory=dict)


class Switch:
    """The faults of one life, for the hooks of its disks."""

    def __init__(self, rng: random.Random, *, last: int | None, full: float, failing: str, failing_from: int) -> None:
        self.is_off = asyncio.Event()
        self._rng = rng
        self._last = last
        self._full = full
        self._failing = failing
        self._failing_from = failing_from
        self._count = 0

    def hook(self, name: str) -> Callable[[Operation, str], Awaitable[None]]:
        async def before(operation: Operation, path: str) -> None:
            self._count += 1
            if self._last is not None and self._count > self._last:
                self.is_off.set()
                await asyncio.Event().wait()
            for _ in range(self._rng.choice((1, 1, 1, 4))):
                await asyncio.sleep(0)
            is_change = operation in WRITES | {Operation.UNLINK, Operation.SYNC_DIRECTORY}
            if name == self._failing and self._count >= self._failing_from and is_change:
                raise DiskError("input/output error")
            may_be_full = operation in WRITES and operation is not Operation.SYNC
            if may_be_full and self._rng.random() < self._full:
                raise DiskFullError("no space left")

        return before


class World:
    """The disks of one bookie, and the history on them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.journals = [MemoryDisk() for _ in range(rng.choice((1, 1, 2, 3)))]
        self.directories = [MemoryDisk() for _ in range(rng.choice((1, 1, 2, 3)))]
        self.index = MemoryIndex()
        self.missing: set[int] = set()
        self.book = Book()
        self.versions = 0
        self.is_compacting = False
        self.locks: dict[LedgerId, asyncio.Lock] = {}
        self.settings = replace(
            SMALL,
            entry_log_bytes=rng.choice((1, 500, 1 << 20)),
            compact_bytes_per_s=1 << 40,
            journal_file_bytes=rng.choice((1, 300, 900)),
            cache_bytes_max=rng.choice((1500, 3000, 9000)),
            flush_sync_entries=rng.choice((1, 3)),
            flush_page_entries=rng.choice((1, 2)),
            delete_page_keys=rng.choice((2, 4000)),
        )

    async def ledgers(self) -> SpreadDisk:
        parts = [
            SpreadDirectory(f"/{number}", None, "missing")
            if number in self.missing
            else SpreadDirectory(f"/{number}", disk)
            for number, disk in enumerate(self.directories)
        ]
        return await SpreadDisk.over(parts, ManualClock(turns=1))

    async def open(self) -> LedgerStorage:
        first, *others = self.journals
        self.spread = await self.ledgers()
        return await LedgerStorage.open(
            first, self.spread, self.index, self.settings, ManualClock(turns=1), more_journals=others
        )

    def end_process(self, *, with_power_loss: bool) -> None:
        if with_power_loss:
            self.journals = [disk.crash(self.rng) for disk in self.journals]
            self.directories = [disk.crash(self.rng) for disk in self.directories]
            self.index = self.index.crash(self.rng)
            return
        self.journals = [disk.restarted() for disk in self.journals]
        self.directories = [disk.restarted() for disk in self.directories]
        self.index = self.index.restarted()

    async def run(self, work: Awaitable[None], switch: Switch) -> None:
        """Run ``work`` to its end, or until the switch is off."""
        for number, disk in enumerate(self.journals):
            disk.before = switch.hook(f"journal {number}")
        for number, disk in enumerate(self.directories):
            disk.before = switch.hook(f"directory {number}")
        self.index.before = switch.hook("index")
        earlier = asyncio.all_tasks()
        running, off = asyncio.ensure_future(work), asyncio.ensure_future(switch.is_off.wait())
        await asyncio.wait([running, off], return_when=asyncio.FIRST_COMPLETED)
        error = running.exception() if running.done() else None
        gone = asyncio.all_tasks() - earlier
        for task in gone:
            task.cancel()
        if gone:
            await asyncio.wait(gone)
        if error is not None:
            raise error

    async def live(self) -> None:
        """Run one life, and end its process."""
        rng = self.rng
        switch = Switch(
            random.Random(rng.random()),
            last=rng.choice((None, rng.randrange(30, 700))),
            full=rng.choice((0, 0, 0, 0.02, 0.06)),
            failing=f"directory {rng.randrange(1, 3)}" if rng.random() < 0.3 else "",
            failing_from=rng.randrange(200),
        )
        faults, share = random.Random(rng.random()), rng.choice((0, 0.1, 0.3))
        if rng.random() < 0.15:
            self.index.is_full = lambda: faults.random() < 0.2
        with suppress(DiskError), inject_faults(lambda _: faults.random() < share):
            await self.run(self.requests(), switch)
        self.end_process(with_power_loss=rng.random() < 0.5)

    async def requests(self) -> None:
        store = await self.open()
        self.is_compacting, self.locks = False, {ledger_id: asyncio.Lock() for ledger_id in LEDGERS}
        for _ in range(self.rng.randint(3, 12)):
            await asyncio.gather(*(self.step(store) for _ in range(self.rng.randint(1, 4))))
            if store.fatal.done():
                return
        await (store.close() if self.rng.random() < 0.5 else store.abort())

    async def step(self, store: LedgerStorage) -> None:
        rng, book, ledger_id = self.rng, self.book, self.rng.choice(LEDGERS)
        steps = ("add",) * 8 + (
            "fence",
            "limbo",
            "clear",
            "checkpoint",
            "checkpoint",
            "read",
            "collect",
            "compact",
            "compact",
        )
        with suppress(DiskFullError):
            match rng.choice(steps):
                case "add":
                    async with self.locks[ledger_id]:
                        await self.add(store, ledger_id, rng.sample(ENTRIES, rng.randint(1, 5)), rng.random() < 0.7)
                case "fence" if rng.random() < 0.4:
                    if (await store.fence(ledger_id, key_of(ledger_id))).status is Status.OK:
                        book.fenced.add(ledger_id)
                case "limbo" if rng.random() < 0.2:
                    async with self.locks[ledger_id]:
                        book.unsure.add(ledger_id)
                        await store.set_limbo([ledger_id])
                        book.unsure.discard(ledger_id)
                        book.limbo.add(ledger_id)
                        book.fenced.add(ledger_id)
                case "clear" if ledger_id in book.limbo | book.unsure:
                    async with self.locks[ledger_id]:
                        await self.repair(store, ledger_id)
                case "checkpoint":
                    await store.checkpoint()
                case "read":
                    for first in range(0, len(ENTRIES), 3):
                        await self.check_read(store, ledger_id, ENTRIES[first : first + 3])
                    await store.list_entries(ledger_id)
                case "collect" if rng.random() < 0.35:
                    book.marks[ledger_id] = book.marks.get(ledger_id, 0) + 1
                    book.free |= {(ledger_id, number) for number in ENTRIES}
                    if await store.collect(ledger_id, store.mark(ledger_id)):
                        book.fenced.add(ledger_id)
                case "compact" if not self.is_compacting:
                    self.is_compacting = True
                    try:
                        await store.compact(rng.choice((None, EVERY_LOG)))
                    finally:
                        self.is_compacting = False

    async def add(self, store: LedgerStorage, ledger_id: LedgerId, numbers: Sequence[int], is_recovery: bool) -> bool:
        book = self.book
        self.versions += 1
        size = self.rng.choice((0, 3, 90))
        entries = {number: entry(ledger_id, number, b"%d:" % self.versions + bytes(size)) for number in numbers}
        for number, data in entries.items():
            book.sent.setdefault((ledger_id, number), []).append(data)
        marks, was_fenced = book.marks.get(ledger_id), ledger_id in book.fenced
        reply = await store.add(AddBatch(ledger_id, key_of(ledger_id), list(entries.values()), is_recovery))
        assert reply.status is not Status.UNAUTHORIZED
        if reply.status is not Status.OK:
            return False
        assert is_recovery or not was_fenced, f"ledger {ledger_id} was fenced, and accepts adds"
        for place in ((ledger_id, number) for number in numbers):
            book.acknowledged[place] = len(book.sent[place]) - 1
            if book.marks.get(ledger_id) == marks:
                book.damaged.discard(place)
                book.free.discard(place)
        return True

    async def repair(self, store: LedgerStorage, ledger_id: LedgerId) -> None:
        """Store what is missing again, and end the limbo."""
        wanted = [EntryId(number) for number in ENTRIES if (ledger_id, number) in self.book.acknowledged]
        results = (await store.read(ledger_id, wanted)).results if wanted else []
        missing = [result.entry_id for result in results if result.status is not Status.OK]
        if len(results) < len(wanted) or (missing and not await self.add(store, ledger_id, missing, True)):
            return
        self.book.unsure.add(ledger_id)
        await store.clear_limbo(ledger_id)
        self.book.limbo.discard(ledger_id)
        self.book.unsure.discard(ledger_id)

    async def check_read(self, store: LedgerStorage, ledger_id: LedgerId, numbers: Sequence[int]) -> dict[int, Status]:
        """Read entries, check the answers, and return their statuses."""
        book = self.book
        before = {number: book.acknowledged.get((ledger_id, number)) for number in numbers}
        free = {number for number in numbers if (ledger_id, number) in book.free}
        reply = await store.read(ledger_id, [EntryId(number) for number in numbers])
        if reply.status is not Status.OK:  # the index is full
            return {}
        for result in reply.results:
            place, acknowledged = (ledger_id, result.entry_id), before[result.entry_id]
            is_due = acknowledged is not None and not free & {result.entry_id} and place not in book.free
            if result.status is Status.OK:
                version = book.sent[place].index(result.packet)
                is_old = acknowledged is not None and version < acknowledged and place not in book.damaged
                assert not (is_due and is_old), f"{place} is served in an old version"
            elif result.status is Status.LIMBO:
                assert ledger_id in book.limbo | book.unsure or not self.is_quiet, f"{place} is unknown without a limbo"
                assert not is_due or place in book.damaged or not self.is_quiet, f"{place} is unknown without a reason"
            elif result.status.is_absent:
                assert not is_due, f"{place} was acknowledged and is {result.status.name}"
                assert ledger_id not in book.limbo - book.unsure or not self.is_quiet, f"{place} is absent in limbo"
            else:
                assert self.missing, f"{place} is {result.status.name}"
        return {result.entry_id: result.status for result in reply.results}

    is_quiet = False
    """Whether no requests are running."""

    async def check(self) -> None:
        """Start the bookie, and check everything."""
        store = await self.open()
        self.is_quiet = True
        for ledger_id in LEDGERS:
            found = await self.check_read(store, ledger_id, ENTRIES)
            listed = await store.list_entries(ledger_id)
            stored = {number for number, status in found.items() if status in (Status.OK, Status.IO_ERROR)}
            if self.spread.out_of_use_count:
                assert set(listed.entries) <= stored
            else:
                assert set(listed.entries) == stored
            if ledger_id in self.book.fenced:
                new = AddBatch(ledger_id, key_of(ledger_id), [entry(ledger_id, 1000, b"new")])
                assert (await store.add(new)).status in (Status.FENCED, Status.LIMBO)
        await store.close()
        self.is_quiet = False
        self.end_process(with_power_loss=False)

    async def check_space(self) -> None:
        """Collect everything, and check that no entry log is left."""
        store = await self.open()
        for _ in range(2):
            for ledger_id in LEDGERS:
                assert await store.collect(ledger_id, store.mark(ledger_id))
            await store.checkpoint()
            assert (await store.compact(EVERY_LOG)).kept_damaged == 0
        assert await entry_log.log_ids(self.spread) == []
        await store.close()

    async def damage_journal(self) -> None:
        """Damage a file of a journal after a power loss, and salvage the journals if the bookie does not start."""
        self.end_process(with_power_loss=True)
        which = self.rng.randrange(len(self.journals))
        disk = self.journals[which]
        before = _batches(disk)
        files = [path for path in disk.paths() if path.endswith(".journal") and disk.content(path)]
        kind = self.rng.choice(("flip", "cut", "file", "marks", "everything"))
        if kind in ("flip", "cut", "file") and not files:
            return
        path = self.rng.choice(files) if files else ""
        match kind:
            case "flip":
                disk.flip_bit(path, self.rng.randrange(len(disk.content(path)) * 8))
            case "cut":
                disk.cut(path, self.rng.randrange(len(disk.content(path))))
            case "file":
                disk.lose(path)
            case "marks":
                for each in (each for each in disk.paths() if "mark" in each):
                    disk.overwrite(each, 10, b"rubbish")
            case _:
                for each in disk.paths():
                    disk.lose(each)
        try:
            await (await self.open()).abort()
        except DamagedJournalError:
            self.end_process(with_power_loss=False)
            await self.salvage(which)
            return
        self.end_process(with_power_loss=False)
        left = _batches(disk)
        for record in (record for sequence, records in before.items() if sequence not in left for record in records):
            self.forget(record)  # nothing declared these batches durable (J12)

    def forget(self, record: Record) -> None:
        ledger_id = LedgerId(record.ledger_id)
        if record.kind is RecordKind.ENTRY:
            self.book.free.add((ledger_id, int.from_bytes(record.body[8:16], "big")))
        else:
            self.book.fenced.discard(ledger_id)
            self.book.unsure.add(ledger_id)

    async def salvage(self, which: int) -> None:
        """Salvage the journals, with crashes; journal ``which`` is damaged."""
        epochs = [0]

        async def work() -> None:
            assert await damage_of(self.journals, self.index) is not None
            epochs.append((await salvage(self.journals, await self.ledgers(), self.index, self.settings)).epoch)

        for last in (*(self.rng.randrange(120) for _ in range(self.rng.randrange(3))), None):
            switch = Switch(random.Random(self.rng.random()), last=last, full=0, failing="", failing_from=0)
            await self.run(work(), switch)
            self.end_process(with_power_loss=self.rng.random() < 0.5)
        for disk in self.journals:
            for path in disk.paths():
                disk.lose(path)
        await begin_journals(self.journals, self.index, epochs[-1] + 1)
        self.book.damaged |= {place for place in self.book.sent if place[0] % len(self.journals) == which}
        await self.begin_incarnation()

    async def rebuild(self) -> None:
        self.end_process(with_power_loss=True)
        self.index = MemoryIndex()
        await rebuild(self.journals, await self.ledgers(), self.index)
        await self.begin_incarnation()

    async def begin_incarnation(self) -> None:
        """Put all ledgers in limbo, as a start does with those whose metadata names the bookie."""
        store = await self.open()
        await store.set_limbo(LEDGERS)
        await store.close()
        self.end_process(with_power_loss=False)
        self.book.limbo |= set(LEDGERS)
        self.book.unsure.clear()
        self.book.fenced |= set(LEDGERS)


def _batches(disk: MemoryDisk) -> dict[int, list[Record]]:
    """Return the records of each intact batch, by its sequence."""
    found: dict[int, list[Record]] = {}
    for path in (path for path in disk.paths() if path.endswith(".journal")):
        data, offset = disk.content(path), FILE_HEADER_SIZE
        while (header := find_batch_header(data, offset, None)) is not None:
            records = decode_records(data, header)
            if records is not None:
                found[header.sequence] = records
            offset = header.offset + 1 if records is None else header.end
    return found


LONG = [
    pytest.param(range(each, each + 50), marks=[pytest.mark.long, pytest.mark.timeout(600)])
    for each in range(2, 302, 50)
]


@pytest.mark.parametrize("seeds", [range(2), *LONG])
async def test_no_history_of_crashes_damage_and_repairs_loses_an_entry(
    seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compaction, leftovers):  # a log has many windows
        monkeypatch.setattr(module, "_WINDOW_BYTES", 400)
    for seed in seeds:
        world = World(seed)
        for _ in range(world.rng.randint(3, 9)):
            with suppress(BkhealError):
                await world.live()
            world.missing = set()
            await world.check()
            match world.rng.choice(("journal", "index", "missing", "")):
                case "journal":
                    await world.damage_journal()
                case "index" if world.rng.random() < 0.5:
                    await world.rebuild()
                case "missing":
                    world.missing = {each for each in range(1, len(world.directories)) if world.rng.random() < 0.6}
                case _:
                    continue
            await world.check()
        world.missing = set()
        await world.check_space()
