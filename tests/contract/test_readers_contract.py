"""Runs that divide the limits on reading: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bookie.metadata.access import current_access, set_current_access
from bookie.metadata.port import MetadataStore, Stat
from bookie.metadata.runs.readers import Readers
from spark_jobs.pacing.sharing import JOIN_S, UNKNOWN, Sharing, join
from tests.contract.conftest import Backend
from tests.worlds.clocks import ManualClock


@pytest.fixture(autouse=True)
def own_state_root(base: str) -> Iterator[None]:
    """Use a separate state root for each test, because the readers of all clusters share one node."""
    before = current_access()
    set_current_access(replace(before, state_root=f"{base}/own"))
    yield
    set_current_access(before)


async def joined(store: MetadataStore, run_id: str, *, has_rates: bool = False) -> tuple[Sharing, float]:
    """Join as a run, and return its count and the seconds it waited."""
    clock = ManualClock(turns=1)
    return await join(Readers(store, run_id), run_id, clock, has_rates=has_rates), clock.now_s


async def stat(store: MetadataStore) -> Stat | None:
    return await Readers(store, "any").stat()


async def test_each_run_counts_the_runs_that_are_still_reading(backend: Backend, store: MetadataStore) -> None:
    first, waited_s = await joined(store, "r1", has_rates=True)
    assert (first.count, waited_s) == (1, 0.0)
    other = await backend.open()
    second, waited_s = await joined(other, "r2", has_rates=True)
    assert (second.count, waited_s) == (2, JOIN_S)  # after this wait the first run has counted again
    await first.follow(await stat(store))
    assert first.count == 2
    await other.close()
    await store.sync(first.path)
    await first.follow(await stat(store))
    assert first.count == 1


async def test_runs_with_limits_based_on_latency_do_not_wait(backend: Backend, store: MetadataStore) -> None:
    await joined(store, "r1")
    assert (await joined(await backend.open(), "r2"))[1] == 0.0


async def test_a_task_recreates_the_node_that_its_driver_lost(backend: Backend, store: MetadataStore) -> None:
    await joined(store, "r1")
    driver, task = await backend.open(), await backend.open()
    await joined(driver, "r2")
    await backend.expire(driver)
    of_task = Sharing(Readers(task, "r2"), "r2", known=2)
    await task.sync(of_task.path)
    await of_task.follow(await stat(task))
    assert of_task.count == 2  # a run always counts itself
    assert set(await Readers(store, "r1").runs() or ()) == {"r1", "r2"}


async def test_a_denied_list_does_not_change_the_count(backend: Backend, store: MetadataStore) -> None:
    first, _ = await joined(store, "r1")
    await joined(await backend.open(), "r2")
    await first.follow(await stat(store))
    backend.deny(first.path)
    await joined_in_vain(await backend.open())
    await first.follow(Stat(0, 0, 0, 0, 0, 7, 7, 0))  # the list has changed
    assert first.count == 2


async def joined_in_vain(store: MetadataStore) -> None:
    """Join as a run that may not list the others; it does not assume to be the only one."""
    sharing, waited_s = await joined(store, "r3", has_rates=True)
    assert (sharing.count, waited_s) == (UNKNOWN, JOIN_S)
