"""The line of idle workers, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import Any

from bookie.metadata.cluster import Cluster
from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.standby import LOOKOUTS, Place, StandbyWorkers


async def placed(line: StandbyWorkers, name: str) -> Place:
    place = await line.place(name)
    assert place is not None
    return place


async def test_workers_are_called_from_the_end_of_the_line_and_lookouts_are_not(
    store: MetadataStore, cluster: Cluster
) -> None:
    line = StandbyWorkers(store, cluster.root)
    assert await line.call(5) == 0
    names = [await line.enter(f"w{number}") for number in range(LOOKOUTS + 3)]
    places = [await placed(line, name) for name in names]
    assert [place.position for place in places] == list(range(LOOKOUTS + 3))
    assert [place.in_front for place in places] == ["", *names[:-1]]
    assert {place.size for place in places} == {LOOKOUTS + 3}
    waiting = [asyncio.create_task(line.wait_moved(place)) for place in places[LOOKOUTS:]]
    assert await line.call(1) == 1
    await waiting[-1]
    assert not waiting[0].done()
    assert not waiting[1].done()
    assert await line.call(100) == 2
    await asyncio.gather(*waiting)
    assert await line.call(100) == 0
    assert [await line.place(name) for name in names[LOOKOUTS:]] == [None] * 3
    assert (await placed(line, names[0])).size == LOOKOUTS


async def test_the_end_of_a_worker_is_noticed_by_the_one_behind_it(
    store: MetadataStore, backend: Any, cluster: Cluster
) -> None:
    other: MetadataStore = await backend.open()
    line, theirs = StandbyWorkers(store, cluster.root), StandbyWorkers(other, cluster.root)
    first, second = await theirs.enter("first"), await line.enter("second")
    place = await placed(line, second)
    assert (place.position, place.in_front) == (1, first)
    waiting = asyncio.create_task(line.wait_moved(place))
    await other.close()
    await waiting
    assert (await placed(line, second)).position == 0
    await line.leave(second)
    await line.leave(second)
    assert await line.place(second) is None
