"""Power loss at every disk operation of seeded histories, and again during the recovery from it.

After each one, every acknowledged entry is served, no entry is served that was never sent, no entry is reported as
damaged, and the store continues to work. The faults are those that a disk may cause without damage; damage has its own
tests.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typing_extensions import override

from bookie.model.errors import BkhealError, FatalError
from bookie.model.ids import EntryId, LedgerId
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import MARK_KEY, CheckpointMark
from bookie.storage.disks.memory import MemoryDisk, Operation
from bookie.storage.entry_logs.entry_log import EntryLogWriter
from bookie.storage.journal.journal import Journal
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.storage.write_cache import WriteCache
from bookie.wire.port import AddBatch, Status
from tests.seeds import seeds
from tests.worlds.machine import SMALL, WRITES, Machine, PowerSwitch, entry, key_of

LEDGERS = [LedgerId(number) for number in (3, 7, 11)]
ENTRIES = range(40)


@dataclass
class Known:
    """The entries that a client sent, and those acknowledged to it; and the states of ledgers."""

    sent: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    limbo: set[int] = field(default_factory=set)
    asked_limbo: set[int] = field(default_factory=set)
    with_key: set[int] = field(default_factory=set)

    def copy(self) -> Known:
        """Return the current state."""
        sent = {place: set(entries) for place, entries in self.sent.items()}
        sets = map(set, (self.fenced, self.limbo, self.asked_limbo, self.with_key))
        return Known(sent, dict(self.acknowledged), *sets)


async def history(machine: Machine, known: Known, seed: int) -> None:
    """Run a client's requests: adds, overwrites, fences, limbo, checkpoints, and clean restarts."""
    rng = random.Random(seed)
    for _ in range(3):
        store = await machine.open()
        for _ in range(8):
            steps = [step(store, known, rng) for _ in range(rng.randint(1, 4))]
            for result in await asyncio.gather(*steps, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, DiskFullError):
                    raise result
        await store.close()
        machine.index = machine.index.restarted()
        machine.index.before = machine.journal.before


async def step(store: LedgerStorage, known: Known, rng: random.Random) -> None:
    ledger_id = rng.choice(LEDGERS)
    match rng.choice(("add", "add", "add", "add", "fence", "limbo", "checkpoint", "read")):
        case "add":
            await add(store, known, rng, ledger_id)
        case "fence":
            if (await store.fence(ledger_id, key_of(ledger_id))).status is Status.OK:
                known.fenced.add(ledger_id)
                known.with_key.add(ledger_id)
        case "limbo":
            if rng.random() < 0.3:
                known.asked_limbo.add(ledger_id)
                await store.set_limbo([ledger_id])
                known.limbo.add(ledger_id)
        case "checkpoint":
            await store.checkpoint()
        case "read":
            await store.read(ledger_id, [EntryId(rng.choice(ENTRIES))])


async def add(store: LedgerStorage, known: Known, rng: random.Random, ledger_id: LedgerId) -> None:
    numbers = rng.sample(ENTRIES, rng.randint(1, 4))
    entries = {number: entry(ledger_id, number, rng.randbytes(rng.choice((0, 3, 90)))) for number in numbers}
    for number, data in entries.items():
        known.sent.setdefault((ledger_id, number), set()).add(data)
    is_recovery = rng.random() < 0.7
    reply = await store.add(AddBatch(ledger_id, key_of(ledger_id), list(entries.values()), is_recovery))
    if reply.status is Status.OK:
        known.with_key.add(ledger_id)
        for number, data in entries.items():
            known.acknowledged[ledger_id, number] = data


async def check(machine: Machine, known: Known) -> None:
    """Check a restarted store against the known entries: the oracle of these tests."""
    store = await machine.open()
    for ledger_id in LEDGERS:
        reply = await store.read(ledger_id, [EntryId(number) for number in ENTRIES])
        assert reply.status is Status.OK
        found = {result.entry_id: result for result in reply.results}
        for number in ENTRIES:
            result = found[EntryId(number)]
            place = (ledger_id, number)
            if result.status is Status.OK:
                assert result.packet in known.sent[place], f"{place} was never sent"
            else:
                assert place not in known.acknowledged, f"{place} was acknowledged and is {result.status.name}"
                is_limbo = ledger_id in known.limbo or (
                    ledger_id in known.asked_limbo and result.status is Status.LIMBO
                )
                assert result.status is Status.LIMBO if is_limbo else result.status.is_absent
        served = {number for number in ENTRIES if found[EntryId(number)].status is Status.OK}
        assert set((await store.list_entries(ledger_id)).entries) == served
        last = (await store.read_last(ledger_id)).results[0]
        assert last.entry_id == max(served, default=-1)
        await check_state(store, known, ledger_id)
    await store.close()
    assert not any(disk.syncs_after_failure for disk in machine.more_journals)
    assert machine.journal.syncs_after_failure == machine.ledgers.syncs_after_failure == 0


async def check_state(store: LedgerStorage, known: Known, ledger_id: LedgerId) -> None:
    new = [entry(ledger_id, 1000, b"new")]
    if ledger_id in known.with_key:
        reply = await store.add(AddBatch(ledger_id, b"wrong", new, is_recovery=True))
        assert reply.status is Status.UNAUTHORIZED
    if ledger_id in known.fenced | known.limbo:
        reply = await store.add(AddBatch(ledger_id, key_of(ledger_id), new))
        is_limbo = ledger_id in known.limbo or (ledger_id in known.asked_limbo and reply.status is Status.LIMBO)
        assert reply.status is (Status.LIMBO if is_limbo else Status.FENCED)


def settings_of(seed: int) -> StorageSettings:
    """Return settings with which every other history ends an entry log at its first sync, so a flush fills several."""
    return replace(SMALL, entry_log_bytes=1) if seed % 2 else SMALL


async def moments(
    seed: int,
    take: Callable[[Machine, int], Machine],
    settings: StorageSettings = SMALL,
    directories: int = 1,
    journals: int = 1,
) -> list[tuple[Machine, Known]]:
    """Return the result of ``take`` before each operation and after the last one, with what the client knew then."""
    more = [MemoryDisk() for _ in range(directories - 1)]
    more_journals = [MemoryDisk() for _ in range(journals - 1)]
    machine = Machine(settings=settings, more=more, more_journals=more_journals)
    known, found = Known(), list[tuple[Machine, Known]]()

    def note() -> None:
        found.append((take(machine, seed * 1000 + len(found)), known.copy()))

    assert await machine.run(history(machine, known, seed), PowerSwitch(None, before_each=note))
    note()
    return found


@pytest.mark.parametrize("seed", seeds(0, 6, in_gate=2))
async def test_power_loss_at_every_operation_loses_nothing_acknowledged(seed: int) -> None:
    lost = await moments(seed, Machine.after_power_loss, settings_of(seed))
    assert len(lost) > 100
    for machine, known in lost:
        await check(machine, known)


@pytest.mark.parametrize("seed", seeds(6, 12, in_gate=1))
async def test_power_loss_with_several_ledger_directories_loses_nothing_acknowledged(seed: int) -> None:
    lost = await moments(seed, Machine.after_power_loss, settings_of(seed), directories=3)
    for machine, known in lost[seed % 3 :: 3]:
        await check(machine, known)


def has_files(disk: MemoryDisk) -> bool:
    return any(path.endswith(".journal") for path in disk.paths())


@pytest.mark.parametrize("seed", seeds(12, 18, in_gate=1))
async def test_power_loss_with_a_journal_for_each_ledger_loses_nothing_acknowledged(seed: int) -> None:
    """The ledgers 3, 7 and 11 are spread over three journals."""
    found = await moments(seed, Machine.after_power_loss, settings_of(seed), journals=3)
    used = {number for each, _ in found for number, disk in enumerate(each.more_journals) if has_files(disk)}
    assert used == {0, 1}
    for machine, known in found[seed % 6 :: 6]:
        await check(machine, known)


WRITTEN = WRITES | {Operation.UNLINK, Operation.SYNC_DIRECTORY}


@pytest.mark.parametrize("step", [31, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", range(2))
async def test_a_ledger_directory_that_fails_at_any_write_loses_nothing_acknowledged(seed: int, step: int) -> None:
    for first in itertools.count(seed, step):
        machine, known = Machine(settings=settings_of(seed), more=[MemoryDisk(), MemoryDisk()]), Known()
        switch = PowerSwitch(None)
        running = asyncio.create_task(machine.run(history(machine, known, seed), switch))
        await asyncio.sleep(0)  # the run installs the switch at each disk
        machine.more[0].before = failing(switch, first)
        assert await running
        await check(machine.after_kill(), known)
        await check(machine.after_power_loss(seed * 1000 + first), known)
        if switch.count < first:
            return


def failing(switch: PowerSwitch, first: int) -> Callable[[Operation, str], Awaitable[None]]:
    """Return a hook that makes the writes of a disk fail from the given operation on."""

    async def before(operation: Operation, path: str) -> None:
        await switch(operation, path)
        if switch.count >= first and operation in WRITTEN:
            raise DiskError("input/output error")

    return before


@pytest.mark.parametrize("seed", seeds(0, 6, in_gate=2))
async def test_a_kill_at_any_operation_and_a_later_power_loss_lose_nothing(seed: int) -> None:
    killed = await moments(seed, lambda machine, _: machine.after_kill())
    for number, (machine, known) in enumerate(killed[::3]):
        await check(machine.after_kill(), known)
        await check(machine.after_power_loss(seed * 1000 + number), known)


@pytest.mark.parametrize("seed", seeds(0, 6, in_gate=2))
async def test_power_loss_on_disks_that_are_sometimes_full_loses_nothing(seed: int) -> None:
    for last in itertools.count(seed, 7):
        machine, known = Machine(settings=settings_of(seed)), Known()
        try:
            is_done = await machine.run(history(machine, known, seed), PowerSwitch(last, full_seed=seed))
        except DiskFullError:
            return  # too full for the store to be opened
        await check(machine.after_power_loss(seed * 1000 + last), known)
        if is_done:
            return


@pytest.mark.parametrize("seed", seeds(0, 4, in_gate=1))
async def test_power_loss_during_recovery_loses_nothing(seed: int) -> None:
    for first, (crashed, known) in enumerate((await moments(seed, Machine.after_power_loss))[seed::17]):
        for second in itertools.count():
            machine = crashed.after_kill()
            is_recovered = await machine.run(recover(machine), PowerSwitch(second))
            await check(machine.after_power_loss(seed + first * 1000 + second), known)
            if is_recovered:
                break


@pytest.mark.parametrize("seed", seeds(0, 40, in_gate=10))
async def test_a_history_of_kills_power_losses_and_full_disks_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    machine, known = Machine(settings=settings_of(seed)), Known()
    for life in range(8):
        switch = PowerSwitch(rng.randrange(150), full_seed=rng.choice((None, seed + life)))
        with suppress(DiskFullError):  # too full for the store to be opened
            await machine.run(history(machine, known, seed * 100 + life), switch)
        machine = machine.after_power_loss(rng.randrange(1 << 30)) if rng.random() < 0.5 else machine.after_kill()
        await check(machine.after_kill(), known)


class FailingSyncs(PowerSwitch):
    """A switch that also makes syncs of the journal fail from an operation on, so the process has to end."""

    def __init__(self, last: int, first_failing: int) -> None:
        super().__init__(last)
        self._first_failing = first_failing

    @override
    async def __call__(self, operation: Operation, path: str) -> None:
        await super().__call__(operation, path)
        if operation is Operation.SYNC and path.startswith("journal/") and self.count >= self._first_failing:
            raise DiskError("input/output error")


@pytest.mark.parametrize("seed", seeds(0, 40, in_gate=10))
async def test_a_history_of_failed_syncs_full_ledger_disks_and_power_losses_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    machine, known = Machine(settings=settings_of(seed)), Known()
    for life in range(8):
        if rng.random() < 0.5:
            machine.ledgers.capacity_bytes = machine.ledgers.used_bytes()
        last = rng.randrange(150)
        with suppress(BkhealError):
            await machine.run(history(machine, known, seed * 100 + life), FailingSyncs(last, rng.randrange(2 * last)))
        machine = machine.after_power_loss(rng.randrange(1 << 30)) if rng.random() < 0.5 else machine.after_kill()
        machine.ledgers.capacity_bytes = 1 << 40
        await check(machine.after_kill(), known)


async def recover(machine: Machine) -> None:
    await machine.open()


async def test_an_overwritten_entry_never_returns_to_an_earlier_version_after_a_crash() -> None:
    """The last acknowledged version or a newer one is served, wherever older versions are stored."""
    versions = [entry(7, 1, b"version %d" % number) for number in range(4)]

    async def overwrite(machine: Machine, done: list[int]) -> None:
        store = await machine.open()
        for number, version in enumerate(versions):
            assert (await store.add(AddBatch(LEDGERS[1], b"key", [version]))).status is Status.OK
            done.append(number)
            await store.checkpoint()

    for last in itertools.count():
        machine, done = Machine(), list[int]()
        is_done = await machine.run(overwrite(machine, done), PowerSwitch(last))
        store = await machine.after_power_loss(last).open()
        [result] = (await store.read(LEDGERS[1], [EntryId(1)])).results
        if done:
            assert result.packet in versions[done[-1] :], f"after {last} operations"
        await store.close()
        if is_done:
            break


async def test_crashes_cover_every_step_of_a_checkpoint() -> None:
    """The histories above stop between each pair of steps whose order matters."""
    machine, switch = Machine(), PowerSwitch(None)
    await machine.run(history(machine, Known(), 1), switch)
    places = [(operation, path.partition("/")[0]) for operation, path in switch.trace]
    for pair in (
        (Operation.CREATE, "entries"),
        (Operation.SYNC_DIRECTORY, "entries"),
        (Operation.APPEND, "entries"),
        (Operation.SYNC, "entries"),
        (Operation.INDEX_WRITE, "index"),
        (Operation.UNLINK, "journal"),
        (Operation.SYNC_DIRECTORY, "journal"),
        (Operation.REPLACE, "journal"),
        (Operation.CREATE, "journal"),
    ):
        assert pair in places


async def test_the_oracle_sees_a_journal_that_is_trimmed_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: files are deleted that the checkpoint does not cover."""
    trim = Journal.trim
    monkeypatch.setattr(Journal, "trim", lambda self, sequence: trim(self, self.durable_sequence))
    assert await planted_fault_is_found()


async def test_the_oracle_sees_a_mark_that_is_ahead_of_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the index's mark is written before the entries."""
    write_entries = Checkpointer._write_entries

    async def mark_first(self: Checkpointer, flush: Any, cache: WriteCache) -> None:
        mark = CheckpointMark(flush.sequences, self.logs.next_id + 1, flush.ledger_count)
        states = [pair for part in flush.states.parts() for pair in part]
        await self.index.write([*states, (MARK_KEY, mark.encode())])
        await write_entries(self, flush, cache)

    monkeypatch.setattr(Checkpointer, "_write_entries", mark_first)
    assert await planted_fault_is_found()


async def test_the_oracle_sees_an_index_that_is_ahead_of_the_entry_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: entry logs are never synced."""

    async def no_sync(self: EntryLogWriter) -> None:
        self.unsynced_bytes = 0

    monkeypatch.setattr(EntryLogWriter, "sync", no_sync)
    assert await planted_fault_is_found()


async def test_the_oracle_sees_a_mark_that_covers_more_than_the_flushed_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the mark covers more entries than the flushed cache contains."""
    begin = Checkpointer._begin
    monkeypatch.setattr(
        Checkpointer, "_begin", lambda self, sequences: begin(self, tuple(each + 1 for each in sequences))
    )
    assert await planted_fault_is_found()


async def test_the_oracle_sees_an_acknowledgement_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a sync that does nothing."""

    async def no_sync(self: Any) -> None:
        return

    monkeypatch.setattr("bookie.storage.disks.memory._MemoryFile.sync", no_sync)
    assert await planted_fault_is_found()


async def test_the_oracle_sees_a_missing_directory_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: names are never made durable."""

    async def no_sync(self: MemoryDisk, directory: str) -> None:
        return

    monkeypatch.setattr(MemoryDisk, "sync_directory", no_sync)
    assert await planted_fault_is_found()


async def planted_fault_is_found() -> bool:
    for seed in range(3):
        for last in range(20, 400, 3):
            machine, known = Machine(), Known()
            try:
                is_done = await machine.run(history(machine, known, seed), PowerSwitch(last))
                await check(machine.after_power_loss(seed * 1000 + last), known)
            except (AssertionError, FatalError):
                return True
            if is_done:
                break
    return False
