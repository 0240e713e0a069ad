"""The driver's requests to a cluster between its Spark jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.migration import migration_path
from bookie.metadata.nodes import put
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.connect import PacedConnection
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.pacing.budget import Budget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.reading.completeness import NO_TOTALS, ScanTotals, problems
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


LEDGER = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("a:1"),)),))


def create(world: World, ids: Iterable[int]) -> None:
    ledgers = LedgerStore(world.store, world.view.cluster, random.Random(1))
    world.runner.run(ledgers.create_many([(LedgerId(number), LEDGER) for number in ids]))


def delete(world: World, ids: Iterable[int]) -> None:
    ledgers = LedgerStore(world.store, world.view.cluster, random.Random(1))
    for number in ids:
        world.runner.run(ledgers.delete(LedgerId(number)))


def listed(world: World, plan: Sequence[LeafParent]) -> ScanTotals:
    """Return the counts of a scan that lists the nodes of the plan now."""
    counts = [len(ids) for ids in world.view.ledgers_under([parent.path for parent in plan])]
    by_path = {parent.path: (count,) for parent, count in zip(plan, counts, strict=True)}
    return replace(NO_TOTALS, ledgers=sum(counts), listed=by_path)


def test_ledgers_created_after_the_listing_do_not_make_a_scan_incomplete(world: World) -> None:
    create(world, range(20))
    plan = world.view.leaf_parents()
    delete(world, range(5))
    totals = listed(world, plan)
    create(world, range(20, 23))
    assert problems(plan, totals, world.view.count_planned(plan, totals)) == ()
    delete(world, range(5, 23))
    create(world, range(20))
    assert problems(plan, totals, world.view.count_planned(plan, totals)) == (), "the node was created again"


def test_ledgers_that_a_scan_did_not_list_make_it_incomplete(world: World) -> None:
    create(world, range(20))
    plan = world.view.leaf_parents()
    totals = replace(NO_TOTALS, ledgers=15, listed={plan[0].path: (15,)})
    delete(world, range(2))
    create(world, [20])
    (problem,) = problems(plan, totals, world.view.count_planned(plan, totals))
    assert problem == "3 ledgers exist and were not listed, under /ledgers/00/0000"


def test_other_nodes_beside_ledgers_do_not_make_a_scan_incomplete(world: World) -> None:
    create(world, range(20))
    world.runner.run(put(world.store, f"{ROOT}/00/0000/other", b""))
    plan = world.view.leaf_parents()
    totals = listed(world, plan)
    assert (plan[0].planned, totals.ledgers) == (21, 20)
    assert problems(plan, totals, world.view.count_planned(plan, totals)) == ()


def test_nodes_that_only_lost_ledgers_are_not_listed_again(world: World) -> None:
    """Their names could be those of most ledgers of the cluster, and would all be in the driver's memory."""
    create(world, (leaf * 10_000 + number for leaf in range(5) for number in range(10)))
    plan = world.view.leaf_parents()
    delete(world, (leaf * 10_000 for leaf in range(5)))
    totals = listed(world, plan)
    delete(world, (leaf * 10_000 + 1 for leaf in range(5)))
    requests: list[str] = []

    async def note(operation: str, path: str) -> Fault | None:
        requests.append(operation)
        return None

    world.store.fault_hook = note
    assert problems(plan, totals, world.view.count_planned(plan, totals)) == ()
    assert requests == ["sync", "get_many"]
