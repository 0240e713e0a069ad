"""One cluster has one state root: the same on the twin, the simulator's store and a real ZooKeeper (R90)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.metadata.access import DEFAULT_STATE_ROOT, current_access, set_current_access
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.logs.log_store import LogLists
from bookie.metadata.nodes import child_names, create_with_parents
from bookie.metadata.own_state import StateRootError, claim_state_root, own_path, record_path
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs.locks import RunLane, RunLocks
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from tests.worlds.cluster import formatted

BOOKIE = BookieId("bk1:3181")
LANE = RunLane(RunKind.BOOKIES, is_dry_run=False)


def use_root(path: str) -> None:
    """Act as a process with this ``--state-root``."""
    set_current_access(replace(current_access(), state_root=path))


@pytest.fixture
def other(base: str) -> str:
    return f"{base}/state"


async def test_the_state_is_below_the_root_that_is_given(
    store: MetadataStore, cluster: Cluster, base: str, other: str
) -> None:
    use_root(other)
    await claim_state_root(store, cluster.root)
    await Drains(store, cluster.root).start(Drain(BOOKIE, "me@host", 1000))
    assert own_path("drains", cluster.root).startswith(f"{other}/drains/")
    assert set(await child_names(store, base)) == {"ledgers", "state"}
    assert await open_cluster(store, cluster.root) == cluster


async def test_a_process_with_another_root_is_refused_and_the_right_one_is_named(
    store: MetadataStore, cluster: Cluster, base: str, other: str
) -> None:
    use_root(other)
    await claim_state_root(store, cluster.root)
    for wrong in (DEFAULT_STATE_ROOT, f"{base}/third"):
        use_root(wrong)
        with pytest.raises(StateRootError, match=f"--state-root {other}"):
            await open_cluster(store, cluster.root)
    with pytest.raises(StateRootError, match=f"--state-root {other}"):
        await claim_state_root(store, cluster.root)
    assert await child_names(store, base) == ("ledgers",)


async def test_only_one_of_two_processes_started_with_different_roots_works(
    store: MetadataStore, cluster: Cluster, base: str
) -> None:
    async def start(root: str) -> str:
        use_root(root)  # before the first await, so each process claims its own root
        await claim_state_root(store, cluster.root)
        return root

    ends = await asyncio.gather(*(start(f"{base}/{name}") for name in "abc"), return_exceptions=True)
    [winner] = [end for end in ends if isinstance(end, str)]
    assert [type(end) for end in ends if end != winner] == [StateRootError, StateRootError]
    use_root(winner)
    assert await open_cluster(store, cluster.root) == cluster


async def test_existing_state_below_the_default_root_excludes_other_roots(
    store: MetadataStore, cluster: Cluster, other: str
) -> None:
    await Drains(store, cluster.root).start(Drain(BOOKIE, "me@host", 1000))
    use_root(other)
    with pytest.raises(StateRootError, match=f"{DEFAULT_STATE_ROOT}/drains/"):
        await open_cluster(store, cluster.root)


async def test_a_dry_run_does_not_exclude_other_roots(store: MetadataStore, cluster: Cluster, other: str) -> None:
    await create_with_parents(store, f"{own_path('runs', cluster.root)}/records/x", b"", "/")
    await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "run start", claims_root=False)
    use_root(other)
    assert await open_cluster(store, cluster.root) == cluster


async def test_a_dry_run_adds_no_node_below_the_ledgers_root(
    store: MetadataStore, cluster: Cluster, other: str
) -> None:
    use_root(other)
    before = await child_names(store, cluster.root)
    await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "run start", claims_root=False)
    assert await child_names(store, cluster.root) == before


async def test_the_default_root_adds_no_node_below_the_ledgers_root(store: MetadataStore, cluster: Cluster) -> None:
    before = await child_names(store, cluster.root)
    await claim_state_root(store, cluster.root)
    await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "drain")
    assert await child_names(store, cluster.root) == before


async def test_an_unreadable_record_stops_every_process(store: MetadataStore, cluster: Cluster, other: str) -> None:
    for content in (b"\xff", b"{}", b'{"format": 99, "state_root": "/bkheal"}'):
        await create_with_parents(store, record_path(cluster.root), content, cluster.root)
        for root in (DEFAULT_STATE_ROOT, other):
            use_root(root)
            with pytest.raises(StateRootError, match=record_path(cluster.root)):
                await open_cluster(store, cluster.root)
        await store.delete(record_path(cluster.root))


@pytest.mark.parametrize("below", ["", "/available", "/x/y", "/underreplication/bkheal"])
async def test_a_root_inside_the_ledgers_root_is_refused_before_anything_is_changed(
    below: str, store: MetadataStore, cluster: Cluster, base: str
) -> None:
    use_root(f"{cluster.root}{below}")
    with pytest.raises(StateRootError, match="must not contain each other"):
        await open_cluster(store, cluster.root)
    use_root(f"{base}/new{below}")
    with pytest.raises(StateRootError, match="must not contain each other"):
        await formatted(store, f"{base}/new")
    assert await child_names(store, base) == ("ledgers",)


async def test_a_root_above_the_ledgers_root_is_refused(store: MetadataStore, cluster: Cluster, base: str) -> None:
    use_root(base)
    with pytest.raises(StateRootError, match="must not contain each other"):
        await open_cluster(store, cluster.root)


async def test_an_operators_request_claims_the_root_first(
    store: MetadataStore, cluster: Cluster, base: str, other: str
) -> None:
    use_root(other)
    await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "drain")
    use_root(f"{base}/third")
    with pytest.raises(StateRootError):
        await ChangeRecords(store, cluster.root, SystemClock()).record("me", "command", "drain")
    with pytest.raises(StateRootError):
        await LogLists(store, cluster.root).create("a", {}, 1, "token")
    assert set(await child_names(store, base)) == {"ledgers", "state"}


async def test_runs_with_different_roots_do_not_exclude_each_other(
    store: MetadataStore, cluster: Cluster, base: str
) -> None:
    """This is the reason for the record of the state root."""
    for name in "ab":
        use_root(f"{base}/{name}")
        assert (await RunLocks(store, cluster.root).acquire(LANE, "run", "me:1")).is_held
