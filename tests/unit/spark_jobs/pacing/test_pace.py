"""The pace of tasks on virtual time: limits hold, and a server with a queue remains usable for other clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bookie.metadata.port import AccessDeniedError, Node, Stat
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from spark_jobs.pacing.budget import FREE, Budget, TaskBudget, task_budget
from spark_jobs.pacing.feedback import FIRST_MEASUREMENTS
from spark_jobs.pacing.pace import CHUNK_MAX, Pace
from spark_jobs.pacing.paced_store import PacedStore
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time

NODE_S = 1 / 100_000
"""The server's time per node."""
TRIP_S = 0.002
DECODE_S = 1 / 30_000
"""A task's time per node."""
SMALL = "/small"


@dataclass
class Server:
    """A server that answers requests one after another, in order of arrival."""

    free_s: float = 0.0
    reads: list[tuple[float, int]] = field(default_factory=list)

    async def serve(self, nodes: int) -> None:
        loop = asyncio.get_running_loop()
        self.reads.append((loop.time(), nodes))
        self.free_s = max(self.free_s, loop.time()) + nodes * NODE_S
        await asyncio.sleep(self.free_s - loop.time() + TRIP_S)


class Slow(MemoryStore):
    """A session with this server."""

    def __init__(self, server: Server, size: int = 200) -> None:
        super().__init__(MemoryCell())
        self.server = server
        self.size = size

    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        await self.server.serve(len(paths))
        return [b"x" * self.size for _ in paths]

    async def get(self, path: str) -> Node:
        await self.server.serve(1)
        return Node(b"", Stat(0, 0, 0, 0, 0, 0, 0, 0))

    async def stat(self, path: str) -> Stat | None:
        await self.server.serve(1)
        return None


async def a_task(server: Server, budget: TaskBudget, nodes: int, decode_s: float = 0.0) -> None:
    """Read as a scan does: up to three chunks at a time; the first is decoded after the next two were requested."""
    store = PacedStore(Slow(server), Pace(VirtualClock(), budget), SMALL)
    ahead: list[asyncio.Task[list[bytes | None]]] = []
    while nodes > 0:
        await store.measure_if_due()
        chunk = min(nodes, store.pace.chunk)
        nodes -= chunk
        ahead.append(asyncio.ensure_future(store.get_many_data([""] * chunk)))
        if len(ahead) > 2:
            await asyncio.sleep(len(await ahead.pop(0)) * decode_s)
    for reading in ahead:
        await reading


async def beside(work: asyncio.Future[list[None]], server: Server) -> list[float]:
    """Return the latencies of another client while ``work`` is in progress."""
    other, latencies, loop = Slow(server), [], asyncio.get_running_loop()
    while not work.done():
        started = loop.time()
        await other.get(SMALL)
        latencies.append(loop.time() - started)
        await asyncio.sleep(0.005)
    return sorted(latencies)


def p99(latencies: Sequence[float]) -> float:
    return latencies[int(0.99 * len(latencies))]


@pytest.mark.parametrize(("tasks", "ratio"), [(2, 3.5), (16, 6)])
@in_virtual_time
async def test_other_clients_hardly_wait_and_the_server_stays_busy(tasks: int, ratio: float) -> None:
    """The tasks request all that the server can answer and decode at no cost, which is worse than any real cluster."""
    nodes, waited, seconds = 200_000, {}, {}
    for factor in (0.0, 2.0):
        server, loop = Server(), asyncio.get_running_loop()
        budget = Budget(latency_factor=factor).share(tasks, tasks)
        began = loop.time()
        work = asyncio.gather(*(a_task(server, budget, nodes // tasks) for _ in range(tasks)))
        waited[factor] = p99(await beside(work, server))
        await work
        seconds[factor] = loop.time() - began
    idle = TRIP_S + NODE_S
    assert waited[0.0] > 3 * waited[2.0]
    assert waited[2.0] <= ratio * idle
    assert seconds[2.0] <= 1.3 * seconds[0.0]


@in_virtual_time
async def test_decoding_tasks_hardly_delay_others_and_are_hardly_slower() -> None:
    """Three tasks request nine tenths of what the server can answer."""
    waited, seconds = {}, {}
    for factor in (0.0, 2.0):
        server, loop = Server(), asyncio.get_running_loop()
        budget = Budget(latency_factor=factor).share(3, 3)
        began = loop.time()
        work = asyncio.gather(*(a_task(server, budget, 60_000, DECODE_S) for _ in range(3)))
        waited[factor] = p99(await beside(work, server))
        await work
        seconds[factor] = loop.time() - began
    assert waited[0.0] > 25 * (TRIP_S + NODE_S)
    assert waited[2.0] <= 2.5 * (TRIP_S + NODE_S)
    assert seconds[2.0] <= 1.15 * seconds[0.0]


@in_virtual_time
async def test_without_other_clients_a_fast_server_is_used_fully() -> None:
    """The server answers a single task faster than the task decodes, so the budget costs only a few round trips."""
    server = Server()
    store = PacedStore(Slow(server), Pace(VirtualClock(), Budget().share(1, 1)), SMALL)
    for _ in range(100):
        await store.measure_if_due()
        await store.get_many_data([""] * store.pace.chunk)
        await asyncio.sleep(0.03)  # the time to decode
    assert store.pace.chunk > 100


@in_virtual_time
async def test_no_more_nodes_are_read_than_the_rate_allows() -> None:
    server = Server()
    store = PacedStore(Slow(server), Pace(VirtualClock(), TaskBudget(1_000)), SMALL)
    await store.get_many_data([""] * 3_000)
    assert max(nodes for _, nodes in server.reads) == 100
    for number, (at_s, _) in enumerate(server.reads):
        assert sum(nodes for _, nodes in server.reads[:number]) <= 1_000 * (at_s - server.reads[0][0]) + 1e-6


@in_virtual_time
async def test_no_more_bytes_are_read_than_the_rate_allows() -> None:
    server, loop = Server(), asyncio.get_running_loop()
    store = PacedStore(Slow(server, size=10_000), Pace(VirtualClock(), TaskBudget(bytes_per_s=1_000_000)), SMALL)
    began = loop.time()
    await store.get_many_data([""] * 1_000)
    assert loop.time() - began == pytest.approx(10, rel=0.15)
    assert max(nodes for _, nodes in server.reads[10:]) <= 10  # only a few large nodes are requested at a time


@in_virtual_time
async def test_concurrent_requests_each_count_with_their_bytes() -> None:
    pace, loop = Pace(VirtualClock(), TaskBudget(bytes_per_s=1_000)), asyncio.get_running_loop()

    async def read() -> None:
        async with pace.reading(1) as reading:
            await asyncio.sleep(0.1)
            reading.size = 1_000

    began = loop.time()
    await asyncio.gather(*(read() for _ in range(3)))
    await read()
    assert loop.time() - began >= 3


@in_virtual_time
async def test_a_long_list_of_names_does_not_shrink_requests_for_nodes() -> None:
    pace = Pace(VirtualClock(), TaskBudget(latency_factor=2))
    chunk = pace.chunk
    for is_list in (True, False):
        assert pace.chunk == chunk
        async with pace.reading(1, is_list=is_list) as reading:
            reading.size = 1_000_000
    assert pace.chunk < chunk


class Overloaded(Slow):
    """A session that is slow for every small request after the first ones."""

    async def stat(self, path: str) -> Stat | None:
        self.server.reads.append((asyncio.get_running_loop().time(), 1))
        await asyncio.sleep(0.001 if len(self.server.reads) <= FIRST_MEASUREMENTS else 0.1)
        return None


@pytest.mark.parametrize("readers", [1, 2])
@in_virtual_time
async def test_concurrent_runs_divide_the_minimum_rate(readers: int) -> None:
    budget, loop = TaskBudget(latency_factor=2, least_nodes_per_s=100, readers=readers), asyncio.get_running_loop()
    store = PacedStore(Overloaded(Server()), Pace(VirtualClock(), budget), SMALL, measures_itself=True)
    await store.get_many_data([""] * 600)  # measures that the server is slow
    began = loop.time()
    await store.get_many_data([""] * 1_000)
    assert loop.time() - began == pytest.approx(10 * readers, rel=0.1)


class Refusing(Slow):
    """A session that may not read the small node."""

    async def stat(self, path: str) -> Stat | None:
        await self.server.serve(1)
        raise AccessDeniedError(path)


@in_virtual_time
async def test_a_denied_small_node_shows_the_latency_as_well() -> None:
    server = Server()
    store = PacedStore(Refusing(server), Pace(VirtualClock(), TaskBudget(latency_factor=2)), SMALL)
    await store.measure_if_due()
    assert len(server.reads) == FIRST_MEASUREMENTS
    assert len(await store.get_many_data([""] * 10)) == 10


@in_virtual_time
async def test_without_limits_a_request_is_passed_on_unchanged() -> None:
    server = Server()
    store = PacedStore(Slow(server), Pace(VirtualClock(), FREE), SMALL)
    await store.measure_if_due()
    await store.get_many_data([""] * 5_000)
    assert [nodes for _, nodes in server.reads] == [5_000]
    assert store.pace.chunk == CHUNK_MAX


@in_virtual_time
async def test_the_latency_is_measured_after_the_requests_of_the_task() -> None:
    server, loop = Server(), asyncio.get_running_loop()
    pace = Pace(VirtualClock(), TaskBudget(latency_factor=2))
    store = PacedStore(Slow(server), pace, SMALL)
    await store.measure_if_due()  # before the first read
    assert [nodes for _, nodes in server.reads] == [1] * FIRST_MEASUREMENTS
    await asyncio.sleep(1)
    reading = asyncio.ensure_future(store.get_many_data([""] * 100))
    await asyncio.sleep(0)
    began = loop.time()
    await store.measure_if_due()
    assert loop.time() - began == pytest.approx(TRIP_S + 21 * NODE_S)
    assert len(await reading) == 100


def test_all_tasks_together_stay_below_the_limits_of_the_run() -> None:
    assert Budget().share(8, 2).nodes_per_s == 0
    assert Budget(9_000).share(30, 3).nodes_per_s == 3_000  # three tasks run at a time, in this run or another one
    assert Budget(9_000, 6e6).share(30, None) == TaskBudget(300, 2e5, 2.0, 40_000 / 30)
    assert Budget(9_000).share(2, 16) == Budget(9_000).share(2, 2)  # there is nothing to read for the other slots
    assert Budget(9_000).share(0, None).nodes_per_s == 9_000


def test_there_are_no_more_tasks_than_connections() -> None:
    assert Budget().tasks(40) == 40
    assert Budget(connections=8).tasks(40) == 8
    assert Budget(connections=8).tasks(3) == 3


def test_a_budget_is_an_option_of_a_data_source() -> None:
    budget = TaskBudget(1.5, 2e6, 3.0, 4.0, "o1:2181,o2:2181", "c1", "r1", 3)
    assert task_budget(budget.to_text()) == budget
    fields = json.loads(budget.to_text())
    wrong = [("readers", -1), ("nodes_per_s", "x"), ("bytes_per_s", []), ("run_id", 7), ("other", 1)]
    for text in ("", "7", "[]", "{}", *(json.dumps(fields | {name: value}) for name, value in wrong)):
        with pytest.raises(ValueError, match=r".+"):
            task_budget(text)
