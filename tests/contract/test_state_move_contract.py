"""Moving the state to another root, on the twin, the simulator's store and a real ZooKeeper (R98)."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.access import DEFAULT_STATE_ROOT, current_access, set_current_access
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import PROPERTY_INCARNATION, Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.nodes import child_names, put
from bookie.metadata.own_state import KINDS, StateRootError, claim_state_root, own_path, record_path, state_path
from bookie.metadata.port import MetadataStore, StoreUnavailableError
from bookie.metadata.runs.election import election_path
from bookie.metadata.runs.locks import RunLane, RunLocks
from bookie.metadata.state_move import move_state
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.runtime.configuration.settings import ConfigurationError
from tests.deadlines import STATE_S
from tests.worlds.cluster import formatted

BOOKIE = BookieId("bk1:3181")


def use_root(path: str) -> None:
    """Act as a process with this ``--state-root``."""
    set_current_access(replace(current_access(), state_root=path))


@pytest.fixture
def roots(base: str) -> tuple[str, str]:
    """Two state roots that only this test uses."""
    return f"{base}/one", f"{base}/two"


async def fill(store: MetadataStore, root: str) -> dict[str, bytes]:
    """Write state of several kinds and depths below the root of this process; return its nodes, without the root."""
    await Drains(store, root).start(Drain(BOOKIE, "me@host", 1000))
    await ChangeRecords(store, root, SystemClock()).record("me", "command", "drain")
    await put(store, f"{own_path('runs', root)}/records/a/b", b"deep")
    return await state_below(store, current_access().state_root, root)


async def state_below(store: MetadataStore, state_root: str, root: str) -> dict[str, bytes]:
    found = {}
    paths = [state_path(state_root, kind, root) for kind in KINDS]
    while paths:
        path = paths.pop()
        if await store.stat(path) is None:
            continue
        found[path.removeprefix(state_root)] = (await store.get(path)).data
        paths += [f"{path}/{name}" for name in await child_names(store, path)]
    return found


async def test_the_state_is_moved_and_only_the_new_root_works(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str], base: str
) -> None:
    use_root(roots[0])
    before = await fill(store, cluster.root)
    assert await move_state(store, cluster, *roots) == len(before)
    assert await state_below(store, roots[1], cluster.root) == before
    assert set(await child_names(store, base)) == {"ledgers", "two"}
    with pytest.raises(StateRootError, match=f"--state-root {roots[1]}"):
        await open_cluster(store, cluster.root)
    use_root(roots[1])
    assert await open_cluster(store, cluster.root) == cluster
    assert BOOKIE in await Drains(store, cluster.root).read()


async def test_a_move_is_recorded_before_it_starts_unless_it_is_refused(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str]
) -> None:
    use_root(roots[0])
    await fill(store, cluster.root)

    async def begin() -> None:
        assert await state_below(store, roots[1], cluster.root) == {}
        await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "cluster move-state")

    held = await RunLocks(store, cluster.root).acquire(RunLane(RunKind.BOOKIES, is_dry_run=False), "run", "me:1")
    with pytest.raises(StateRootError):
        await move_state(store, cluster, *roots, begin)
    await RunLocks(store, cluster.root).release(held)
    await move_state(store, cluster, *roots, begin)
    use_root(roots[1])
    actions = [change.action for change in await ChangeRecords(store, cluster.root, SystemClock()).newest(9)]
    assert actions == ["cluster move-state", "drain"]


async def test_the_state_can_be_moved_from_the_default_root_and_back(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str]
) -> None:
    before = await fill(store, cluster.root)
    await move_state(store, cluster, DEFAULT_STATE_ROOT, roots[0])
    assert await state_below(store, DEFAULT_STATE_ROOT, cluster.root) == {}
    use_root(roots[0])
    assert await open_cluster(store, cluster.root) == cluster
    await move_state(store, cluster, roots[0], DEFAULT_STATE_ROOT)
    assert await store.stat(record_path(cluster.root)) is None
    use_root(DEFAULT_STATE_ROOT)
    assert await open_cluster(store, cluster.root) == cluster
    assert await state_below(store, DEFAULT_STATE_ROOT, cluster.root) == before


async def test_the_state_of_another_cluster_is_not_moved(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str], base: str
) -> None:
    other = await formatted(store, f"{base}/other")
    use_root(roots[0])
    await fill(store, cluster.root)
    before = await fill(store, other.root)
    await move_state(store, cluster, *roots)
    assert await state_below(store, roots[0], other.root) == before
    assert await open_cluster(store, other.root) == other


async def test_running_processes_are_named_and_nothing_is_moved(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str]
) -> None:
    use_root(roots[0])
    await claim_state_root(store, cluster.root)
    await fill(store, cluster.root)

    async def refused(why: str) -> None:
        before = await state_below(store, roots[0], cluster.root)
        with pytest.raises(StateRootError, match=why):
            await move_state(store, cluster, *roots)
        assert await state_below(store, roots[0], cluster.root) == before
        assert await state_below(store, roots[1], cluster.root) == {}
        assert await open_cluster(store, cluster.root) == cluster

    held = await RunLocks(store, cluster.root).acquire(RunLane(RunKind.BOOKIES, is_dry_run=False), "run", "me:1")
    assert held.is_held
    await refused("stop the audits: ")
    await held.release()
    vote = f"{election_path(cluster.root)}/V_0000000001"
    await put(store, vote, b'bookieId: "auditor-1"\n')
    await refused("stop the auditors: auditor-1")
    await store.delete(vote)
    tasks = UnderReplication(store, cluster, SystemClock())
    lock = await tasks.locks.lock_unmarked(LedgerId(1), "us")
    assert lock is not None
    await refused("stop the replicators, with locks: urL0000000001")
    await tasks.locks.release(lock)
    info = ServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-grpc"),), ((PROPERTY_INCARNATION, "u-1"),))
    await Registrations(store, cluster).register(BOOKIE, info, is_read_only=False, takeover_deadline_s=STATE_S)
    await refused("stop the bookies: bk1:3181")


async def test_an_unsuitable_place_for_the_state_is_refused(
    store: MetadataStore, cluster: Cluster, roots: tuple[str, str], base: str
) -> None:
    use_root(roots[0])
    before = await fill(store, cluster.root)
    await put(store, state_path(f"{base}/used", "drains", cluster.root), b"")
    for target, why in (
        (roots[0], "the state root is .* already"),
        (f"{roots[0]}/below", "must not contain each other"),
        (cluster.root, "must not contain each other"),
        (f"{base}/used", "exists already"),
    ):
        with pytest.raises(StateRootError, match=why):
            await move_state(store, cluster, roots[0], target)
    with pytest.raises(ConfigurationError, match="not a path of plain names"):
        await move_state(store, cluster, roots[0], "/a/../b")
    with pytest.raises(StateRootError, match=f"is below {roots[0]}"):
        await move_state(store, cluster, roots[1], f"{base}/third")
    assert await state_below(store, roots[0], cluster.root) == before
    assert await open_cluster(store, cluster.root) == cluster


class Ending(MemoryStore):
    """A session that ends before its n-th write, as if its process were killed."""

    def __init__(self, cell: MemoryCell, writes: int) -> None:
        super().__init__(cell)
        self._writes = writes

    def _count(self) -> None:
        self._writes -= 1
        if self._writes < 0:
            raise StoreUnavailableError("the process ended")

    async def create(self, path: str, data: bytes = b"", **options: Any) -> str:
        self._count()
        return await super().create(path, data, **options)

    async def set(self, path: str, data: bytes, version: int) -> Any:
        self._count()
        return await super().set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        self._count()
        await super().delete(path, version)

    async def multi(self, operations: Any) -> None:
        self._count()
        await super().multi(operations)


async def is_to_be_continued(store: MetadataStore, cluster: Cluster, source: str, target: str) -> bool:
    """Return whether the cluster does not use the new root yet; a process of either root is refused, or finds all."""
    before = await state_below(store, source, cluster.root)
    works = []
    for root in (source, target):
        use_root(root)
        with contextlib.suppress(StateRootError):
            await open_cluster(store, cluster.root)
            works.append(root)
            assert (await state_below(store, root, cluster.root)).keys() >= before.keys()
    assert works in ([source], [target], [])
    return works != [target]


@pytest.mark.parametrize(
    ("source", "target"), [(DEFAULT_STATE_ROOT, "/two"), ("/one", "/two"), ("/one", DEFAULT_STATE_ROOT)]
)
async def test_an_interrupted_move_can_be_repeated_and_no_process_starts_before(source: str, target: str) -> None:
    ended = 0
    for writes in range(200):
        cell = MemoryCell()
        store = MemoryStore(cell)
        cluster = await formatted(store, "/ledgers")
        use_root(source)
        before = await fill(store, cluster.root)
        mover = Ending(cell, writes)
        try:
            await move_state(mover, cluster, source, target)
        except StoreUnavailableError:
            ended += 1
        else:
            break
        await mover.close()
        if await is_to_be_continued(store, cluster, source, target):
            await move_state(store, cluster, source, target)
        assert await state_below(store, target, cluster.root) == before
        assert await state_below(store, source, cluster.root) == {}
        use_root(target)
        assert await open_cluster(store, cluster.root) == cluster
    assert ended > 20
