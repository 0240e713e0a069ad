"""A session that ends between the read of a node and the write that follows, which is then sent in the next one (S14).

The node of the next owner has the same version as that of the former one, so only the session distinguishes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from bookie.metadata.bookies.registration import BookieIdInUseError, Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import task_directory
from bookie.metadata.nodes import ensure_path, parent_of
from bookie.metadata.port import MetadataStore, MultiFailedError, Node, Operation, Stat
from bookie.metadata.runs.locks import RunLane, RunLocks
from bookie.metadata.runs.pulsar_leader import LeaderNode
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from tests.contract.conftest import Backend
from tests.deadlines import STATE_S

L7 = LedgerId(7)


@pytest.fixture
def tasks(store: MetadataStore, cluster: Cluster) -> UnderReplication:
    return UnderReplication(store, cluster, SystemClock())


@pytest.fixture
def after_get(
    backend: Backend, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Awaitable[object]]], None]:
    """End the session of ``store`` after its next read of a node, and run ``act`` before the read returns."""

    def plan(act: Callable[[], Awaitable[object]]) -> None:
        get = store.get

        async def then(path: str) -> Node:
            monkeypatch.undo()
            node = await get(path)
            await backend.expire(store)
            await act()
            return node

        monkeypatch.setattr(store, "get", then)

    return plan


async def test_a_release_does_not_delete_the_lock_of_the_next_owner(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    tasks: UnderReplication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await tasks.initialize()
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    held = await tasks.locks.lock_unmarked(L7, "us")
    assert held is not None
    stat_of = store.stat

    async def then(path: str) -> Stat | None:
        monkeypatch.undo()
        stat = await stat_of(path)
        await backend.expire(store)
        assert await other.locks.lock_unmarked(L7, "them") is not None
        return stat

    monkeypatch.setattr(store, "stat", then)
    await tasks.locks.release(held)
    assert await tasks.locks.owners() == {L7: "them"}


async def test_a_completion_with_a_foreign_node_keeps_the_task_of_the_next_owner(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    tasks: UnderReplication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Because of the foreign node in the task's directory, the completion needs a second transaction."""
    await tasks.initialize()
    await tasks.marking.mark(L7, [BookieId("bk1:3181")])
    await store.create(f"{task_directory(cluster.root, L7)}/foreign")
    other = UnderReplication(await backend.open(), cluster, SystemClock())
    held = await tasks.locks.lock(L7, "us")
    assert held is not None
    multi = store.multi

    async def then(operations: Sequence[Operation]) -> None:
        try:
            await multi(operations)
        except MultiFailedError:
            monkeypatch.undo()
            await backend.expire(store)
            assert await other.locks.lock(L7, "them") is not None
            raise

    monkeypatch.setattr(store, "multi", then)
    assert not await tasks.locks.complete(held)
    assert await tasks.locks.owners() == {L7: "them"}
    assert await tasks.read(L7) is not None


async def test_the_end_of_a_run_does_not_delete_the_lock_of_the_next_run(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    after_get: Callable[[Callable[[], Awaitable[object]]], None],
) -> None:
    lane = RunLane(RunKind.BOOKIES)
    ours, others = RunLocks(store, cluster.root), RunLocks(await backend.open(), cluster.root)
    lease = await ours.acquire(lane, "run-1", "us")
    after_get(lambda: others.acquire(lane, "run-2", "them"))
    await lease.release()
    holder = await others.holder(lane)
    assert holder is not None
    assert holder.run_id == "run-2"


async def test_a_former_leader_does_not_delete_the_node_of_the_next_one(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    after_get: Callable[[Callable[[], Awaitable[object]]], None],
) -> None:
    their_store = await backend.open()
    ours, theirs = LeaderNode(store, cluster.root, "us"), LeaderNode(their_store, cluster.root, "them")
    await ensure_path(store, parent_of(ours.path), cluster.root)
    session = store.session
    assert (await ours.take(session)).is_own
    after_get(lambda: theirs.take(their_store.session))
    await ours.leave(session)
    holder = await theirs.holder(their_store.session)
    assert holder is not None
    assert holder.is_own


async def test_a_candidate_does_not_overwrite_the_node_of_pulsars_auditor(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    after_get: Callable[[Callable[[], Awaitable[object]]], None],
) -> None:
    """The answer to the creation of the candidate's own node was lost, so the node has version 0, like Pulsar's."""
    pulsar = await backend.open()
    ours = LeaderNode(store, cluster.root, "us")
    await ensure_path(store, parent_of(ours.path), cluster.root)
    session = store.session
    await store.create(ours.path, b'"bkheal-us"', is_ephemeral=True)
    after_get(lambda: pulsar.create(ours.path, b'"pulsar-auditor"', is_ephemeral=True))
    await ours.take(session)
    assert (await pulsar.get(ours.path)).data == b'"pulsar-auditor"'


async def test_a_bookie_does_not_overwrite_the_registration_of_the_next_owner(
    backend: Backend,
    store: MetadataStore,
    cluster: Cluster,
    after_get: Callable[[Callable[[], Awaitable[object]]], None],
) -> None:
    bookie = BookieId("bk1:3181")
    ours, theirs = Registrations(store, cluster), Registrations(await backend.open(), cluster)
    first, moved, others = (ServiceInfo((Endpoint("bookie", "10.0.0.1", port, "bookie-grpc"),)) for port in (1, 2, 3))
    await ours.register(bookie, first, is_read_only=False, takeover_deadline_s=STATE_S)
    after_get(lambda: theirs.register(bookie, others, is_read_only=False, takeover_deadline_s=STATE_S))
    with pytest.raises(BookieIdInUseError):
        await ours.register(bookie, moved, is_read_only=False, takeover_deadline_s=2)
    assert await theirs.service_info(bookie) == others
