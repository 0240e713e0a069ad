"""Concurrent runs share the limits. A run counts itself as the only one only if that is proven."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from bookie.metadata.port import AccessDeniedError, MetadataStore, Stat, WriteOutcomeUnknownError
from bookie.metadata.runs.readers import Readers
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from spark_jobs.pacing.budget import Budget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.pacing.sharing import COUNT_INTERVAL_S, Sharing, readers_sharing_limits
from tests.unit.spark_jobs.pacing.test_pace import Server, Slow
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time


class Scripted(Readers):
    """A session that returns ``answer``, or raises it."""

    def __init__(self, answer: Collection[str] | Exception | None, joining: Exception | None = None) -> None:
        super().__init__(MemoryStore(MemoryCell()), "me")
        self.answer, self.joining = answer, joining
        self.lists = self.joins = 0

    async def runs(self) -> Collection[str] | None:
        self.lists += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def join(self) -> None:
        self.joins += 1
        if self.joining is not None:
            raise self.joining


def state(number: int) -> Stat:
    return Stat(0, 1, 1, 0, 0, 0, number, 0)


def test_a_run_always_counts_itself() -> None:
    assert readers_sharing_limits([], "me") == 1
    assert readers_sharing_limits(["me"], "me") == 1
    assert readers_sharing_limits(["other", "me"], "me") == 2
    assert readers_sharing_limits(["other", "another"], "me") == 3


@pytest.mark.parametrize("answer", [AccessDeniedError("no"), None])
async def test_a_failed_count_keeps_the_last_value(answer: Exception | None) -> None:
    sharing = Sharing(Scripted(answer), "me", known=5)
    await sharing.follow(state(1))
    await sharing.follow(None)
    assert sharing.count == 5


async def test_names_are_listed_only_after_a_change() -> None:
    readers = Scripted(["me", "other"])
    sharing = Sharing(readers, "me", known=1)
    for number in (1, 1, 1, 2, 2):
        await sharing.follow(state(number))
    assert (sharing.count, readers.lists, readers.joins) == (2, 2, 0)
    await sharing.follow(replace(state(2), czxid=7))
    assert readers.lists == 3, "the node was created again"


@pytest.mark.parametrize(("error", "joins"), [(AccessDeniedError("no"), 1), (WriteOutcomeUnknownError("lost"), 3)])
async def test_a_missing_node_is_created_again_and_a_lost_answer_is_harmless(error: Exception, joins: int) -> None:
    readers = Scripted(["other"], error)
    sharing = Sharing(readers, "me", known=1)
    for _ in range(3):
        await sharing.follow(state(1))
    assert (sharing.count, readers.joins) == (2, joins)


@pytest.mark.parametrize("factor", [0.0, 2.0])
@in_virtual_time
async def test_a_run_halves_its_rate_soon_after_another_one_started(factor: float) -> None:
    server, cell, loop = Server(), MemoryCell(), asyncio.get_running_loop()
    budget = Budget(1_000, latency_factor=factor, run_id="r1")
    store = paced(Listed(server, cell), budget)
    began = loop.time()
    await store.get_many_data([""] * 2_000)
    assert loop.time() - began == pytest.approx(2, rel=0.1)
    await Readers(MemoryStore(cell), "r2").join()
    came = loop.time()
    await store.get_many_data([""] * 2_000)
    assert 4 * 0.85 - COUNT_INTERVAL_S <= loop.time() - came <= 4.2
    assert store.readers == 2


@in_virtual_time
async def test_the_total_rate_of_two_runs_stays_below_the_limit() -> None:
    server, cell, loop = Server(), MemoryCell(), asyncio.get_running_loop()
    for name in ("r1", "r2"):
        await Readers(MemoryStore(cell), name).join()
    stores = [
        paced(Listed(server, cell), Budget(1_000, latency_factor=0, run_id=name, readers=2)) for name in ("r1", "r2")
    ]
    began = loop.time()
    await asyncio.gather(*(store.get_many_data([""] * 1_000) for store in stores))
    assert loop.time() - began == pytest.approx(2, rel=0.15)


def paced(store: MetadataStore, budget: Budget) -> PacedStore:
    sharing = Sharing(Readers(store, budget.run_id), budget.run_id, budget.readers)
    return PacedStore(store, Pace(VirtualClock(), budget.whole, 1), "/small", sharing, measures_itself=True)


class Listed(Slow):
    """A session that sends requests about readers to a store."""

    def __init__(self, server: Server, cell: MemoryCell) -> None:
        super().__init__(server)
        self._real = MemoryStore(cell)
        for name in ("children", "create"):
            setattr(self, name, getattr(self._real, name))

    async def stat(self, path: str) -> Stat | None:
        await self.server.serve(1)
        return await self._real.stat(path)


def test_connections_are_divided_and_each_run_gets_at_least_one() -> None:
    assert Budget(connections=8, readers=2).tasks(40) == 4
    assert Budget(connections=8, readers=3).tasks(40) == 2
    assert Budget(connections=2, readers=5).tasks(40) == 1
    assert Budget(readers=5).tasks(40) == 40
