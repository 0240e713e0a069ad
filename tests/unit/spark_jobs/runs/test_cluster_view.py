"""The driver's requests to a cluster between its Spark jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bookie.metadata.migration import migration_path
from bookie.metadata.nodes import put
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import SystemClock
from spark_jobs.connect import PacedConnection
from spark_jobs.pacing.budget import Budget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.runs.cluster_view import ClusterView
from tests.worlds.cluster import ROOT, formatted

GONE = LedgerId(7)
"""A marked ledger that does not exist."""


@dataclass(frozen=True)
class World:
    runner: asyncio.Runner
    store: MemoryStore
    view: ClusterView
    tasks: UnderReplication

    def set_phase(self, phase: str) -> None:
        data = f'{{"phase": "{phase}", "targetUrl": "oxia://o:6648"}}'.encode()
        self.runner.run(put(self.store, migration_path(ROOT), data))

    def marked(self) -> list[LedgerId]:
        return [task.ledger_id for task in self.runner.run(self.tasks.list())]


@pytest.fixture
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        store, clock = MemoryStore(MemoryCell()), SystemClock()
        cluster = runner.run(formatted(store))
        connection = PacedConnection(PacedStore(store, Pace(clock), ROOT), cluster)
        view = ClusterView(runner, connection, clock, Budget())
        view.mark([(GONE, (BookieId("x:1"),))])
        yield World(runner, store, view, UnderReplication(store, cluster, clock))


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING", "COMPLETED", "A_LATER_ONE"])
def test_no_mark_is_made_or_withdrawn_while_the_metadata_is_migrated(world: World, phase: str) -> None:
    world.set_phase(phase)
    with pytest.raises(StoreUnavailableError, match="migrat"):
        world.view.mark([(LedgerId(8), (BookieId("x:1"),))])
    with pytest.raises(StoreUnavailableError, match="migrat"):
        world.view.withdraw_step(None, 10, frozenset())
    assert world.marked() == [GONE]


def test_marks_are_withdrawn_after_a_failed_migration(world: World) -> None:
    world.set_phase("FAILED")
    world.view.withdraw_step(None, 10, frozenset())
    assert world.marked() == []
