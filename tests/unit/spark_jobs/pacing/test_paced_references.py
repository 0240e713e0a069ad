"""The references check keeps the pace, for nodes of Pulsar and for its second check, on the store in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import Children, Node
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import LedgerId
from spark_jobs.checks.references.second_look import SecondLookSettings, check_again
from spark_jobs.datasource import references
from spark_jobs.datasource.options import InvalidOptionError
from spark_jobs.datasource.references import (
    ReferencePartition,
    ReferenceReader,
    TopicShare,
    reference_batches,
    reference_options,
)
from spark_jobs.pacing.budget import Budget, TaskBudget
from spark_jobs.pacing.feedback import NODES_PER_REQUEST_MIN
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT, formatted
from tests.worlds.pulsar_nodes import MESSAGES, ML, ledger, managed, put_node
from tests.worlds.virtual_time import in_virtual_time

RATE = 1_000


class Timed(MemoryStore):
    """A store that records the time and size of each request for nodes."""

    def __init__(self, cell: MemoryCell) -> None:
        super().__init__(cell)
        self.asked: list[tuple[float, int]] = []

    def _note(self, paths: Sequence[str]) -> None:
        self.asked.append((asyncio.get_running_loop().time(), len(paths)))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._note(paths)
        return await super().get_many(paths)

    async def children_many(self, paths: Sequence[str]) -> list[Children | None]:
        self._note(paths)
        return await super().children_many(paths)

    def check_rate(self, nodes_min: int) -> None:
        assert sum(nodes for _, nodes in self.asked) >= nodes_min
        for number, (at_s, _) in enumerate(self.asked):
            assert sum(nodes for _, nodes in self.asked[:number]) <= RATE * (at_s - self.asked[0][0]) + 1e-6


def paced(store: MemoryStore) -> PacedStore:
    return PacedStore(store, Pace(VirtualClock(), TaskBudget(RATE)), ROOT)


@in_virtual_time
async def test_pulsars_nodes_are_read_at_the_limited_rate() -> None:
    store = Timed(MemoryCell())
    for number in range(200):
        await put_node(store, f"/managed-ledgers/t/n/persistent/topic-{number}", managed(number))
    share = TopicShare("", "managed-ledgers/t/n/persistent", 0, 1)
    rows = [row async for batch in reference_batches(paced(store), [share]) for row in batch.to_pylist()]
    assert len(rows) == 200
    store.check_rate(400)  # each topic is read, and the subscriptions of each are listed


@in_virtual_time
async def test_the_second_check_keeps_the_rate() -> None:
    store = Timed(MemoryCell())
    cluster = await formatted(store)
    await put_node(store, f"/managed-ledgers/{ML}", managed())
    ledgers = LedgerStore(store, cluster, random.Random(1))
    await ledgers.create_many([(LedgerId(number), ledger(MESSAGES)) for number in range(300)])
    store.asked.clear()
    settings = SecondLookSettings("zk://h:1/ledgers", 1, ("",), 1 << 60)
    rows = [{"ledger_id": number, "verdict": "UNREFERENCED", "by": None} for number in range(300)]
    seen = await check_again(paced(store), cluster, settings, rows)
    assert {each["verdict"] for each in seen} == {"UNREFERENCED"}
    store.check_rate(600)  # the metadata, and the nodes again


@in_virtual_time
async def test_reading_pulsars_nodes_measures_the_latency_and_reads_more_while_it_is_low() -> None:
    store = Timed(MemoryCell())
    for number in range(5_000):
        await put_node(store, f"/managed-ledgers/t/n/persistent/topic-{number}", managed(number))
    store.asked.clear()
    reading = PacedStore(store, Pace(VirtualClock(), TaskBudget(20 * RATE, latency_factor=2.0)), ROOT)
    async for _ in reference_batches(reading, [TopicShare("", "managed-ledgers/t/n/persistent", 0, 1)]):
        pass
    assert max(nodes for _, nodes in store.asked) > NODES_PER_REQUEST_MIN


@pytest.mark.parametrize(("slots_max", "divided_by"), [("1", 1), ("2", 2), ("9", 3)])
def test_topics_are_divided_into_shares_and_tasks(
    monkeypatch: pytest.MonkeyPatch, slots_max: str, divided_by: int
) -> None:
    """A namespace with many topics has several shares. The budget counts the tasks that read at the same time."""

    @asynccontextmanager
    async def connected(*_: object, **more: object) -> AsyncIterator[SimpleNamespace]:
        store = MemoryStore(MemoryCell())
        for number in range(10):
            await put_node(store, f"/managed-ledgers/t/large/persistent/topic-{number}", managed(number))
        await put_node(store, "/managed-ledgers/t/small/persistent/topic", managed(10))
        yield SimpleNamespace(store=store)

    monkeypatch.setattr(references, "connected_at_pace", connected)
    monkeypatch.setattr(references, "TOPICS_PER_SHARE", 3)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    budget = Budget(9_000, 9e6).whole
    given = {"metadata_uri": "zk://h:1/ledgers", "budget": budget.to_text(), "slots_max": slots_max}
    planned = ReferenceReader(reference_options(given | {"partitions_max": "3"})).partitions()
    parts = [part for part in planned if isinstance(part, ReferencePartition)]
    assert len(parts) == len(planned) == 3
    shares = sorted((each.parent, each.share, each.shares) for part in parts for each in part.shares)
    large, small = (f"managed-ledgers/t/{name}/persistent" for name in ("large", "small"))
    assert shares == [*((large, share, 4) for share in range(4)), (small, 0, 1)]
    assert {part.budget for part in parts} == {budget.divided(divided_by)}


def test_each_root_of_pulsar_is_read_once() -> None:
    given = {"metadata_uri": "zk://h:1/ledgers", "pulsar_roots": "/a/, /b ,/a,,/"}
    assert reference_options(given).roots == ("/a", "/b", "")


def test_the_budget_of_a_run_is_divided_among_the_tasks_that_read_pulsars_nodes() -> None:
    given = {"metadata_uri": "zk://h:1/ledgers", "budget": Budget(8_000, 4e6).whole.to_text()}
    options = reference_options(given | {"slots_max": "4", "partitions_max": "2"})
    assert (options.slots_max, options.partitions_max) == (4, 2)
    assert options.budget.divided(4) == TaskBudget(2_000, 1e6, 2.0, 10_000)
    assert reference_options(given).slots_max is None
    assert ReferencePartition((), options.budget.divided(0)).budget == options.budget
    with pytest.raises(InvalidOptionError, match="budget"):
        reference_options(given | {"budget": "fast"})
