"""A journal whose end was written but not synced when its process was killed, and a ledger disk without space.

The replay of the next start reads that end from memory, and only a checkpoint would make it durable.
"""

from __future__ import annotations

import asyncio

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.memory import Operation
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


@pytest.mark.parametrize("seed", range(8))
async def test_what_a_start_on_a_full_disk_serves_is_durable(seed: int) -> None:
    machine = await killed_before_a_sync()
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
