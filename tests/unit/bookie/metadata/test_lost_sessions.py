"""A write between the loss of its session and the start of the next one would be sent in the next session (S14)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.layout import task_directory
from bookie.metadata.nodes import ensure_path, parent_of
from bookie.metadata.port import MultiFailedError, Node, Operation, Stat
from bookie.metadata.runs.pulsar_leader import LeaderNode
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import SystemClock
from tests.worlds.cluster import ROOT, formatted, service_info

L7 = LedgerId(7)
BK1 = BookieId("bk1:3181")


async def lose(store: MemoryStore, act: Callable[[], Awaitable[object]]) -> None:
    """End the session of ``store``, and let another client act before the next session begins."""
    store.expire()
    await act()
    asyncio.get_running_loop().call_later(0.01, store.resume)


async def test_a_release_leaves_the_lock_of_the_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    tasks = UnderReplication(store, cluster, SystemClock())
    other = UnderReplication(MemoryStore(store.cell), cluster, SystemClock())
    held = await tasks.locks.lock_unmarked(L7, "us")
    assert held is not None
    stat_of = store.stat

    async def then(path: str) -> Stat | None:
        monkeypatch.undo()
        stat = await stat_of(path)
        await lose(store, lambda: other.locks.lock_unmarked(L7, "them"))
        return stat

    monkeypatch.setattr(store, "stat", then)
    await tasks.locks.release(held)
    assert await other.locks.owners() == {L7: "them"}


async def test_a_completion_leaves_the_task_of_the_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign node in the task's directory makes the completion need a second transaction."""
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    tasks = UnderReplication(store, cluster, SystemClock())
    other = UnderReplication(MemoryStore(store.cell), cluster, SystemClock())
    await tasks.marking.mark(L7, [BK1])
    await store.create(f"{task_directory(ROOT, L7)}/foreign")
    held = await tasks.locks.lock(L7, "us")
    assert held is not None
    multi = store.multi

    async def then(operations: Sequence[Operation]) -> None:
        try:
            await multi(operations)
        except MultiFailedError:
            monkeypatch.undo()
            await lose(store, lambda: other.locks.lock(L7, "them"))
            raise

    monkeypatch.setattr(store, "multi", then)
    assert not await tasks.locks.complete(held)
    assert await other.locks.owners() == {L7: "them"}
    assert await other.read(L7) is not None


async def test_a_bookie_that_stops_leaves_the_registration_of_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    ours, next_one = Registrations(store, cluster), Registrations(MemoryStore(store.cell), cluster)
    await ours.register(BK1, service_info("bk1"), is_read_only=False, takeover_deadline_s=1.0)
    stat_of = store.stat

    async def then(path: str) -> Stat | None:
        monkeypatch.undo()
        stat = await stat_of(path)
        await lose(
            store, lambda: next_one.register(BK1, service_info("bk1"), is_read_only=False, takeover_deadline_s=1.0)
        )
        return stat

    monkeypatch.setattr(store, "stat", then)
    await ours.unregister(BK1)
    assert BK1 in (await next_one.list()).writable


@pytest.mark.parametrize("is_leaving", [True, False])
async def test_a_candidate_leaves_the_node_of_the_next_holder(
    is_leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer to its creation is lost, the candidate's node has version 0, like a node of Pulsar's auditor."""
    store = MemoryStore(MemoryCell())
    await formatted(store)
    pulsar = MemoryStore(store.cell)
    ours = LeaderNode(store, ROOT, "us")
    await ensure_path(store, parent_of(ours.path), ROOT)
    session = store.session
    await store.create(ours.path, b'"bkheal-us"', is_ephemeral=True)
    if is_leaving:
        assert (await ours.take(session)).is_own
    get = store.get

    async def take_lock() -> None:
        await pulsar.create(ours.path, b'"pulsar-auditor"', is_ephemeral=True)
        if is_leaving:  # auditors of bkheal do this
            await pulsar.set(ours.path, b'"pulsar-auditor"', 0)

    async def then(path: str) -> Node:
        monkeypatch.undo()
        node = await get(path)
        await lose(store, take_lock)
        return node

    monkeypatch.setattr(store, "get", then)
    await (ours.leave(session) if is_leaving else ours.take(session))
    assert (await pulsar.get(ours.path)).data == b'"pulsar-auditor"'
