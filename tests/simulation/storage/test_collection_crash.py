"""Power loss at every disk operation of histories that collect ledgers and compact entry logs.

A collection keeps the entries acknowledged after their ledger was marked. Those acknowledged before may be absent, or
may reappear. Other ledgers lose nothing, and a collected ledger stays fenced. After all ledgers are collected, no entry
log is left.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.index_format import dead_key, entry_range, unpack_dead, unpack_location
from bookie.storage.disks.memory import Operation
from bookie.storage.entry_logs import compaction, entry_log, leftovers
from bookie.storage.entry_logs.collection import Collection
from bookie.storage.entry_logs.compaction import Compactor
from bookie.storage.port import DiskFullError
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.seeds import seeds
from tests.worlds.machine import SMALL, Machine, PowerSwitch, entry, key_of

LEDGERS = [LedgerId(number) for number in (3, 7, 11)]
ENTRIES = range(30)
EVERY_LOG = 2.0
"""A live share below which every log with a dead byte is compacted."""


@dataclass
class Book:
    """The entries that a client sent to one bookie, and those that the bookie must serve."""

    sent: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    must: dict[tuple[int, int], bytes] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    collected: set[int] = field(default_factory=set)

    def copy(self) -> Book:
        """Return the current state."""
        sent = {place: set(entries) for place, entries in self.sent.items()}
        return Book(sent, dict(self.must), dict(self.marks), set(self.collected))

    def mark(self, ledger_id: int) -> None:
        """Record a mark: entries acknowledged before it may be deleted from now on."""
        self.marks[ledger_id] = self.marks.get(ledger_id, 0) + 1
        for place in [place for place in self.must if place[0] == ledger_id]:
            del self.must[place]


async def history(machine: Machine, book: Book, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        store = await machine.open()
        for _ in range(6):
            steps = [step(store, book, rng) for _ in range(rng.randint(1, 4))]
            for result in await asyncio.gather(*steps, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, DiskFullError):
                    raise result
            with suppress(DiskFullError):
                await store.compact()
        await store.close()
        machine.index = machine.index.restarted()
        machine.index.before = machine.journal.before


async def step(store: LedgerStorage, book: Book, rng: random.Random) -> None:
    ledger_id = rng.choice(LEDGERS)
    match rng.choice(("add", "add", "add", "add", "collect", "checkpoint", "list", "read")):
        case "add":
            await add(store, book, rng, ledger_id)
        case "collect":
            book.mark(ledger_id)
            if await store.collect(ledger_id, store.mark(ledger_id)):
                book.collected.add(ledger_id)
        case "checkpoint":
            await store.checkpoint()
        case "list":
            await store.list_entries(ledger_id)
        case "read":
            reply = await store.read(ledger_id, [EntryId(number) for number in ENTRIES])
            assert {result.status for result in reply.results} <= {Status.OK, Status.NO_ENTRY, Status.NO_LEDGER}


async def add(store: LedgerStorage, book: Book, rng: random.Random, ledger_id: LedgerId) -> None:
    numbers = rng.sample(ENTRIES, rng.randint(1, 8))
    entries = {number: entry(ledger_id, number, rng.randbytes(rng.choice((0, 3, 90)))) for number in numbers}
    for number, data in entries.items():
        book.sent.setdefault((ledger_id, number), set()).add(data)
    marks = book.marks.get(ledger_id, 0)
    reply = await store.add(AddBatch(ledger_id, key_of(ledger_id), list(entries.values()), is_recovery=True))
    if reply.status is Status.OK and book.marks.get(ledger_id, 0) == marks:
        book.must |= {(ledger_id, number): data for number, data in entries.items()}


async def check(machine: Machine, book: Book) -> None:
    store = await machine.open()
    for _ in range(2):
        for ledger_id in LEDGERS:
            reply = await store.read(ledger_id, [EntryId(number) for number in ENTRIES])
            served = set()
            for result in reply.results:
                place = (ledger_id, result.entry_id)
                if result.status is Status.OK:
                    assert result.packet in book.sent[place], f"{place} was never sent"
                    served.add(result.entry_id)
                else:
                    assert result.status.is_absent, f"{place} is {result.status.name}"
                    assert place not in book.must, f"{place} was acknowledged and is {result.status.name}"
            assert set((await store.list_entries(ledger_id)).entries) == served
            if ledger_id in book.collected:
                new = AddBatch(ledger_id, key_of(ledger_id), [entry(ledger_id, 1000, b"new")])
                assert (await store.add(new)).status is Status.FENCED
            if served:
                assert ledger_id in await store.ledger_ids()
        await store.checkpoint()
        await store.compact()
    for ledger_id in LEDGERS:  # all entries that reappeared can be collected again
        assert await store.collect(ledger_id, store.mark(ledger_id))
        assert not (await store.list_entries(ledger_id)).entries
    assert await store.ledger_ids() == []
    await store.checkpoint()
    await store.compact()
    assert await entry_log.log_ids(machine.ledgers) == [], "the space of deleted entries is not released"
    await store.close()
    assert machine.journal.syncs_after_failure == machine.ledgers.syncs_after_failure == 0


@pytest.mark.parametrize("seed", seeds(0, 6, in_gate=2))
async def test_power_loss_at_every_operation_loses_nothing_that_was_not_collected(seed: int) -> None:
    machine, book, lost = Machine(), Book(), list[tuple[Machine, Book]]()

    def note() -> None:
        lost.append((machine.after_power_loss(seed * 1000 + len(lost)), book.copy()))

    assert await machine.run(history(machine, book, seed), PowerSwitch(None, before_each=note))
    for each, known in lost[::2]:
        await check(each, known)


@pytest.mark.parametrize("seed", seeds(0, 20, in_gate=5))
async def test_a_history_of_kills_power_losses_and_full_disks_loses_nothing_that_was_not_collected(seed: int) -> None:
    rng = random.Random(seed)
    machine, book = Machine(), Book()
    for life in range(8):
        switch = PowerSwitch(rng.randrange(300), full_seed=rng.choice((None, seed + life)))
        with suppress(DiskFullError):  # too full for the store to be opened
            await machine.run(history(machine, book, seed * 100 + life), switch)
        machine = machine.after_power_loss(rng.randrange(1 << 30)) if rng.random() < 0.5 else machine.after_kill()
        await check(machine.after_kill(), book)


@dataclass
class Turns:
    """A ``before`` hook that lets other tasks run for some turns of the loop, as disks do."""

    rng: random.Random

    async def __call__(self, operation: Operation, path: str) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)


async def busy(store: LedgerStorage, ledger_id: LedgerId, rng: random.Random, must: dict[int, bytes]) -> None:
    """Add, overwrite, flush and collect entries of one ledger. After each step exactly ``must`` is served."""
    for step_number in range(40):
        entries = {number: entry(ledger_id, number, b"%d" % step_number * 30) for number in rng.sample(ENTRIES, 8)}
        reply = await store.add(AddBatch(ledger_id, key_of(ledger_id), list(entries.values()), is_recovery=True))
        assert reply.status in (Status.OK, Status.TOO_MANY_REQUESTS)
        if reply.status is Status.OK:
            must |= entries
        if reply.status is not Status.OK or rng.random() < 0.3:
            await store.checkpoint()
        if rng.random() < 0.1 and await store.collect(ledger_id, store.mark(ledger_id)):
            must.clear()
        assert await served(store, ledger_id) == must


async def served(store: LedgerStorage, ledger_id: LedgerId) -> dict[int, bytes]:
    reply = await store.read(ledger_id, [EntryId(number) for number in ENTRIES])
    assert {result.status for result in reply.results} <= {Status.OK, Status.NO_ENTRY, Status.NO_LEDGER}
    return {result.entry_id: result.packet for result in reply.results if result.status is Status.OK}


async def uncounted_bytes(machine: Machine) -> dict[int, int]:
    """Return the bytes of each log that the index neither refers to nor counts as dead."""
    left = {
        log_id: len(machine.ledgers.content(entry_log.log_path(log_id))) - entry_log.HEADER_SIZE
        for log_id in await entry_log.log_ids(machine.ledgers)
    }
    for ledger_id in LEDGERS:
        for _, value in await machine.index.range(*entry_range(ledger_id), 1000):
            place = unpack_location(value)
            left[place.log_id] -= place.size + entry_log.RECORD_HEADER_SIZE
    for log_id in left:
        [dead] = await machine.index.get_many([dead_key(log_id)])
        left[log_id] -= unpack_dead(dead)
    return left


@pytest.mark.parametrize("seed", seeds(0, 20, in_gate=5))
async def test_concurrent_compaction_keeps_the_newest_entries_and_counts_every_dead_byte(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compaction, leftovers):  # a log has many windows
        monkeypatch.setattr(module, "_WINDOW_BYTES", 400)
    rng = random.Random(seed)
    machine = Machine(settings=replace(SMALL, compact_bytes_per_s=1 << 40))
    machine.journal.before = machine.ledgers.before = machine.index.before = Turns(rng)
    store = await machine.open()
    must: dict[LedgerId, dict[int, bytes]] = {ledger_id: {} for ledger_id in LEDGERS}
    working = [asyncio.ensure_future(busy(store, ledger_id, rng, must[ledger_id])) for ledger_id in LEDGERS]
    removed_logs = 0
    while not all(work.done() for work in working):
        removed_logs += (await store.compact(EVERY_LOG)).removed_logs
        await asyncio.sleep(0)
    await asyncio.gather(*working)
    assert removed_logs > 10
    await store.checkpoint()
    assert set((await uncounted_bytes(machine)).values()) <= {0}
    await store.abort()
    store = await machine.after_kill().open()
    assert {ledger_id: await served(store, ledger_id) for ledger_id in LEDGERS} == must
    await store.close()


async def test_the_oracle_sees_a_collection_that_ignores_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: entries added between the mark and the deletion are deleted."""

    async def always(self: Collection, ledger_id: LedgerId, mark: Any) -> bool:
        page: bool | bytes = entry_range(ledger_id)[0]
        while not isinstance(page, bool):
            self.marks[ledger_id] = mark
            page = await self._delete_page(ledger_id, mark, page)
        return page

    monkeypatch.setattr(Collection, "delete", always)
    assert await planted_fault_is_found()


async def test_the_oracle_sees_a_log_removed_before_its_entries_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: compaction copies nothing."""

    async def nothing(self: Compactor, log_id: int, size: int) -> int:
        return 0

    monkeypatch.setattr(Compactor, "_move_live", nothing)
    assert await planted_fault_is_found()


async def test_the_oracle_sees_copies_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the index names copies that are not durable."""

    async def no_sync(self: Any) -> None:
        self.unsynced_bytes = 0

    monkeypatch.setattr("bookie.storage.entry_logs.entry_log.EntryLogWriter.sync", no_sync)
    assert await planted_fault_is_found()


async def planted_fault_is_found() -> bool:
    for last in reversed(range(20, 600, 5)):  # long histories first, as they are the most likely to show the fault
        for seed in range(6):
            machine, book = Machine(), Book()
            try:
                await machine.run(history(machine, book, seed), PowerSwitch(last))
                await check(machine.after_power_loss(seed * 1000 + last), book)
            except Exception:  # noqa: BLE001 (any error shows that the fault was found)
                return True
    return False
