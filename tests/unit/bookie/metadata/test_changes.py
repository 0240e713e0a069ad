"""The record of operators' changes: order, size limit, and unreadable records."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.metadata.tasks import changes as module
from bookie.metadata.tasks.changes import ChangeRecords, OperatorChange
from tests.worlds.clocks import EPOCH_MS, ManualClock


def of(store: MemoryStore) -> ChangeRecords:
    return ChangeRecords(store, "/ledgers", ManualClock())


async def test_records_are_newest_first_despite_clock_changes() -> None:
    cell = MemoryCell()
    for number in range(3):
        await of(MemoryStore(cell)).record("me@host", "command", "recovery disable", str(number))
    found = await of(MemoryStore(cell)).newest(2)
    assert found == [OperatorChange("me@host", "command", "recovery disable", each, EPOCH_MS) for each in ("2", "1")]


async def test_records_of_many_processes_are_all_kept() -> None:
    cell = MemoryCell()
    await asyncio.gather(*(of(MemoryStore(cell)).record("me", "http", "boost", str(each)) for each in range(10)))
    assert {change.detail for change in await of(MemoryStore(cell)).newest(100)} == set(map(str, range(10)))


async def test_the_oldest_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MAX", 5)
    monkeypatch.setattr(module, "_CHANGES_SLACK", 2)
    changes = of(MemoryStore(MemoryCell()))
    for number in range(30):
        await changes.record("me", "http", "boost", str(number))
        assert len(await changes.newest(100)) <= 7
    assert [change.detail for change in await changes.newest(3)] == ["29", "28", "27"]


async def test_a_damaged_record_is_shown_as_unreadable() -> None:
    store = MemoryStore(MemoryCell())
    await of(store).record("me", "http", "boost")
    await store.create("/bkheal/changes/ledgers/0000000002", b"{")
    await of(store).record("me", "http", "throttle set")
    assert [change.action for change in await of(store).newest(9)] == ["throttle set", "unreadable", "boost"]


async def test_without_an_answer_from_the_store_nothing_is_recorded() -> None:
    async def silent(operation: str, path: str) -> Fault:
        return Fault.FAIL_BEFORE

    store = MemoryStore(MemoryCell(), fault_hook=silent)
    with pytest.raises(StoreUnavailableError):
        await of(store).record("me", "http", "boost")
