"""The lock of a ledger without a mark, as collectors take it, on the twin and on ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import lock_path
from bookie.metadata.port import MetadataStore, MultiFailedError, Node
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import SystemClock

L7 = LedgerId(7)


@pytest.fixture
def tasks(store: MetadataStore, cluster: Cluster) -> UnderReplication:
    return UnderReplication(store, cluster, SystemClock())


async def test_a_ledger_that_is_not_marked_is_locked_and_released(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    with pytest.raises(MultiFailedError):
        await store.multi([tasks.locks.check(L7)])
    held = await tasks.locks.lock_unmarked(L7, "us")
    assert held is not None
    stat = await store.stat(lock_path(cluster.root, L7))
    assert stat is not None
    assert stat.ephemeral_owner == store.session.session_id
    await store.multi([tasks.locks.check(L7)])
    assert await tasks.locks.lock_unmarked(L7, "us") is None
    await tasks.locks.release(held)
    await tasks.locks.release(held)
    assert await tasks.locks.locked() == frozenset()
    again = await tasks.locks.lock_unmarked(L7, "us")
    assert again is not None
    await tasks.locks.release(held)  # the earlier lock, whose release has no effect
    assert await tasks.locks.locked() == {L7}


async def test_the_check_of_our_lock_fails_for_a_lock_created_by_apache(
    store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    await tasks.initialize()
    await store.create(lock_path(cluster.root, L7), b"", is_ephemeral=True)
    with pytest.raises(MultiFailedError):
        await store.multi([tasks.locks.check(L7)])


async def test_the_lock_is_the_same_as_the_workers(backend: Any, cluster: Cluster, tasks: UnderReplication) -> None:
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    await tasks.initialize()
    await tasks.marking.mark(L7, [BookieId("bk1:3181")])
    held = await tasks.locks.lock_unmarked(L7, "us")
    assert held is not None
    assert await other.locks.lock(L7, "worker") is None
    await tasks.locks.release(held)
    task = await other.locks.lock(L7, "worker")
    assert task is not None
    assert await tasks.locks.lock_unmarked(L7, "us") is None
    assert await other.locks.complete(task)


async def test_the_holders_of_locks_are_listed(backend: Any, cluster: Cluster, tasks: UnderReplication) -> None:
    assert await tasks.locks.owners() == {}
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    assert await tasks.locks.lock_unmarked(L7, "us") is not None
    assert await other.locks.lock_unmarked(LedgerId(8), "") is not None
    assert await tasks.locks.owners() == {L7: "us", 8: ""}


async def test_the_lock_ends_with_its_session(
    backend: Any, store: MetadataStore, cluster: Cluster, tasks: UnderReplication
) -> None:
    held = await tasks.locks.lock_unmarked(L7, "us")
    assert held is not None
    await backend.expire(store)
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    theirs = await other.locks.lock_unmarked(L7, "them")
    assert theirs is not None
    await tasks.locks.release(held)
    assert await tasks.locks.locked() == {L7}


async def test_a_session_that_ends_during_completion_keeps_the_task_and_the_lock_of_the_next_holder(
    backend: Any, store: MetadataStore, cluster: Cluster, tasks: UnderReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks.initialize()
    await tasks.marking.mark(L7, [BookieId("bk1:3181")])
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    held = await tasks.locks.lock(L7, "us")
    assert held is not None
    read, theirs = store.get_many_current, []

    async def then_lose_the_session(paths: Sequence[str]) -> list[Node | None]:
        nodes = await read(paths)
        await backend.expire(store)
        theirs.append(await other.locks.lock(L7, "them"))
        return nodes

    monkeypatch.setattr(store, "get_many_current", then_lose_the_session)
    assert not await tasks.locks.complete(held)
    assert theirs[0] is not None
    assert await tasks.read(L7) is not None
    assert await tasks.locks.owners() == {L7: "them"}
    assert await other.locks.complete(theirs[0])
