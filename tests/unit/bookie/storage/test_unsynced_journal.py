"""A journal whose end was written but not synced when its process ended, and a ledger disk without space.

The replay of the next start reads that end from memory, and only a checkpoint would make it durable. If a sync of it
has failed, another sync succeeds and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.memory import Operation
from bookie.storage.port import DiskError
from bookie.wire.port import AddBatch, Status
from tests.worlds.machine import Machine, entry, key_of

LEDGER = LedgerId(7)


async def killed_before_a_sync() -> Machine:
    """Return the disks of a bookie that was killed between the write and the sync of entry 1."""
    machine, is_stuck = Machine(), asyncio.Event()

    async def before(operation: Operation, path: str) -> None:
        if is_stuck.is_set() and operation is Operation.SYNC:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    machine.journal.before = before
    store = await machine.open()
    assert (await store.add(AddBatch(LEDGER, key_of(LEDGER), [entry(LEDGER, 0, b"zero")]))).status is Status.OK
    is_stuck.set()
    adding = asyncio.create_task(store.add(AddBatch(LEDGER, key_of(LEDGER), [entry(LEDGER, 1, b"one")])))
    for _ in range(20):
        await asyncio.sleep(0)
    killed = machine.after_kill()
    adding.cancel()
    await store.abort()
    return killed


async def failed_at_a_sync() -> Machine:
    """Return the disks of a bookie that ended because the sync of entry 1 failed."""
    machine, is_failing = Machine(), False

    async def before(operation: Operation, path: str) -> None:
        if is_failing and operation is Operation.SYNC:
            raise DiskError("input/output error")

    machine.journal.before = before
    store = await machine.open()
    assert (await store.add(AddBatch(LEDGER, key_of(LEDGER), [entry(LEDGER, 0, b"zero")]))).status is Status.OK
    is_failing = True
    failed = await store.add(AddBatch(LEDGER, key_of(LEDGER), [entry(LEDGER, 1, b"one")]))
    assert failed.status is Status.IO_ERROR
    await store.abort()
    return machine.after_kill()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ended", [killed_before_a_sync, failed_at_a_sync])
async def test_what_a_start_on_a_full_disk_serves_is_durable(
    ended: Callable[[], Awaitable[Machine]], seed: int
) -> None:
    machine = await ended()
    machine.ledgers.capacity_bytes = machine.ledgers.used_bytes()
    store = await machine.open()
    assert store.is_full
    entries = [EntryId(0), EntryId(1)]
    assert [result.status for result in (await store.read(LEDGER, entries)).results] == [Status.OK] * 2
    assert (await store.fence(LEDGER, key_of(LEDGER))).status is Status.OK
    machine = machine.after_power_loss(seed)
    await store.abort()
    machine.ledgers.capacity_bytes = 1 << 40
    store = await machine.open()
    assert [result.status for result in (await store.read(LEDGER, entries)).results] == [Status.OK] * 2
    await store.abort()


async def test_repeated_starts_on_a_full_disk_write_the_end_of_the_journal_once() -> None:
    machine = await failed_at_a_sync()
    machine.ledgers.capacity_bytes = machine.ledgers.used_bytes()
    sizes = []
    for _ in range(3):
        store = await machine.open()
        assert store.is_full
        await store.abort()
        machine = machine.after_kill()
        sizes.append(machine.journal.used_bytes())
    assert len(set(sizes)) == 1


async def test_a_start_without_space_on_either_disk_serves_the_end_of_the_journal() -> None:
    machine = await killed_before_a_sync()
    for disk in (machine.journal, machine.ledgers):
        disk.capacity_bytes = disk.used_bytes()
    store = await machine.open()
    assert (store.is_full, store.full_journals) == (True, (True,))
    assert (await store.read(LEDGER, [EntryId(1)])).results[0].status is Status.OK
    machine.journal.capacity_bytes = machine.ledgers.capacity_bytes = 1 << 40
    assert (await store.fence(LEDGER, key_of(LEDGER))).status is Status.OK
    for seed in range(8):
        after = machine.after_power_loss(seed)
        again = await after.open()
        assert (await again.read(LEDGER, [EntryId(1)])).results[0].status is Status.OK
        await again.abort()
    await store.abort()
