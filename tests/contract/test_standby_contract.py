"""The nodes of standby workers, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import Any

from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.standby import WATCHING_MAX, Place, StandbyWorkers


async def placed(workers: StandbyWorkers, name: str) -> Place:
    place = await workers.place(name)
    assert place is not None
    return place


async def test_the_last_standby_workers_are_called_and_watching_ones_are_not(
    store: MetadataStore, cluster: Cluster
) -> None:
    workers = StandbyWorkers(store, cluster.root)
    assert await workers.call(5) == 0
    names = [await workers.enter(f"w{number}") for number in range(WATCHING_MAX + 3)]
    places = [await placed(workers, name) for name in names]
    assert [place.position for place in places] == list(range(WATCHING_MAX + 3))
    assert [place.previous for place in places] == ["", *names[:-1]]
    assert {place.size for place in places} == {WATCHING_MAX + 3}
    waiting = [asyncio.create_task(workers.wait_place_changed(place)) for place in places[WATCHING_MAX:]]
    assert await workers.call(1) == 1
    await waiting[-1]
    assert not waiting[0].done()
    assert not waiting[1].done()
    assert await workers.call(100) == 2
    await asyncio.gather(*waiting)
    assert await workers.call(100) == 0
    assert [await workers.place(name) for name in names[WATCHING_MAX:]] == [None] * 3
    assert (await placed(workers, names[0])).size == WATCHING_MAX


async def test_the_end_of_a_standby_worker_moves_the_next_one_up(
    store: MetadataStore, backend: Any, cluster: Cluster
) -> None:
    other: MetadataStore = await backend.open()
    workers, theirs = StandbyWorkers(store, cluster.root), StandbyWorkers(other, cluster.root)
    first, second = await theirs.enter("first"), await workers.enter("second")
    place = await placed(workers, second)
    assert (place.position, place.previous) == (1, first)
    waiting = asyncio.create_task(workers.wait_place_changed(place))
    await other.close()
    await waiting
    assert (await placed(workers, second)).position == 0
    await workers.leave(second)
    await workers.leave(second)
    assert await workers.place(second) is None
