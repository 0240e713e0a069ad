"""ZooKeeper fails over, or ends sessions, during a run: the marks are those of a quiet run, or there are none."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.port import StoreUnavailableError
from bookie.model.errors import TransientError
from bookie.model.exit_codes import ExitCode
from spark_jobs.one_shot.run import exit_code_of
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.snapshot.errors import SnapshotError
from tests.deadlines import STATE_S
from tests.ensemble import Ensemble, started_ensemble
from tests.sessions import end_sessions, sessions_of
from tests.spark.audit_world import Place, after_listing, closed, opened
from tests.worlds.admin_server import Answer, serving

pytestmark = [pytest.mark.spark, pytest.mark.integration]

_LEAF = 10_000
LEDGERS = {leaf * _LEAF + number: closed("a:1", "b:1") for leaf in range(2) for number in range(600)}
LOST = {leaf * _LEAF + number: ["x:1"] for leaf in range(2) for number in range(0, 600, 40)}
RATE = 200.0
"""Nodes per second for all tasks, which then read for about six seconds."""


def fill(place: Place) -> None:
    place.register("a:1", "b:1")
    place.create(LEDGERS | {ledger_id: closed("a:1", "x:1") for ledger_id in LOST})


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        fill(place)
        yield place


def readers(ports: Sequence[int]) -> dict[int, int]:
    """Return the connections of Spark's Python worker processes to these ports, by port."""
    found = dict[int, int]()
    for process in psutil.Process().children(recursive=True):
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:  # the process has ended
            continue
        for one in connections:
            if one.raddr and one.raddr.port in ports and one.status == psutil.CONN_ESTABLISHED:
                found[one.raddr.port] = found.get(one.raddr.port, 0) + 1
    return found


@contextmanager
def once_tasks_read(ports: Sequence[int], act: Callable[[dict[int, int]], None]) -> Iterator[None]:
    """Run ``act`` during the block, when two tasks are connected to these ports. Fail if this does not happen."""
    done, end_s = list[bool](), time.monotonic() + STATE_S

    def watch() -> None:
        while time.monotonic() < end_s:
            found = readers(ports)
            if sum(found.values()) >= 2:
                act(found)
                done.append(True)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join(STATE_S)
    assert done, "two tasks never read at the same time"


def assert_complete(place: Place, summary: RunSummary) -> None:
    assert place.marked() == LOST
    assert (summary.verdict, summary.is_complete, summary.counts.ledgers) == (
        Verdict.UNDER_REPLICATED,
        True,
        len(LEDGERS),
    )


@pytest.mark.long
def test_sessions_of_tasks_that_end_during_a_read_change_no_mark(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, place: Place
) -> None:
    ended = list[int]()

    def expire(_: dict[int, int]) -> None:
        async def end() -> None:
            for process in psutil.Process().children(recursive=True):
                ended.extend(await sessions_of(zookeeper, process))
            await end_sessions(zookeeper, list(set(ended)))

        asyncio.run(end())

    with once_tasks_read([zookeeper.port], expire):
        summary = place.audit(spark, metadata_rate=RATE).summary
    assert len(set(ended)) >= 2
    assert_complete(place, summary)


@pytest.mark.long
@pytest.mark.parametrize("listing", [1, 2])
def test_a_run_whose_driver_loses_its_session_marks_everything_or_nothing(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, place: Place, monkeypatch: pytest.MonkeyPatch, listing: int
) -> None:
    """The fault is after the first listing of the bookies, or between the reading of the metadata and the marks."""
    me = psutil.Process(os.getpid())
    before, ended = set(asyncio.run(sessions_of(zookeeper, me))), list[int]()

    def expire() -> None:
        async def end() -> None:
            ended.extend(set(await sessions_of(zookeeper, me)) - before)
            await end_sessions(zookeeper, ended)

        asyncio.run(end())

    after_listing(monkeypatch, listing, expire)
    failure: StoreUnavailableError | None = None
    try:
        assert_complete(place, place.audit(spark).summary)
    except StoreUnavailableError as error:
        failure = error
    assert ended
    if failure is not None:
        assert exit_code_of(failure) is ExitCode.STORE_UNREACHABLE
        assert place.marked() == {}
    assert_complete(place, place.audit(spark).summary)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with started_ensemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


@pytest.fixture
def shared(ensemble: Ensemble, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(ensemble.connect_string, fresh_root, tmp_path) as place:
        fill(place)
        yield place


@pytest.mark.long
def test_tasks_continue_at_another_server_if_theirs_is_killed(
    spark: SparkSession, ensemble: Ensemble, shared: Place
) -> None:
    quiet = shared.audit(spark, is_dry_run=True).summary
    killed = list[int]()

    def kill(found: dict[int, int]) -> None:
        killed.append(max(found, key=lambda port: found[port]))
        [server] = [server for server in ensemble.servers if server.port == killed[0]]
        server.process.kill9()

    with once_tasks_read([server.port for server in ensemble.servers], kill):
        summary = shared.audit(spark, metadata_rate=RATE).summary
    assert_complete(shared, summary)
    assert summary.severities == quiet.severities
    for server in ensemble.servers:
        if server.port in killed:
            shared.do(server.process.stop())
            server.start()
            shared.do(server.wait())


@pytest.mark.long
def test_a_snapshot_from_before_the_last_election_is_refused(
    spark: SparkSession, ensemble: Ensemble, shared: Place
) -> None:
    files = [file for server in ensemble.servers for file in server.launch.directory.rglob("snapshot.*")]
    with (
        serving(Answer(files[0].read_bytes(), headers={"last_zxid": "0x5"})) as url,
        pytest.raises(SnapshotError, match="epoch 0"),
    ):
        shared.audit(spark, snapshot_url=url)
    assert shared.marked() == {}


@pytest.mark.long
def test_a_run_fails_completely_if_the_ensemble_loses_its_majority_and_the_next_one_marks(
    spark: SparkSession, ensemble: Ensemble, shared: Place
) -> None:
    lost = ensemble.servers[:2]

    def kill(_: dict[int, int]) -> None:
        for server in lost:
            server.process.kill9()

    with (
        once_tasks_read([server.port for server in ensemble.servers], kill),
        pytest.raises(TransientError) as failed,
    ):
        shared.audit(spark, metadata_rate=RATE, connect_timeout_s=2.0)
    assert exit_code_of(failed.value) is ExitCode.STORE_UNREACHABLE
    for server in lost:
        shared.do(server.process.stop())
        server.start()
    for server in ensemble.servers:
        shared.do(server.wait())
    assert shared.marked() == {}
    assert_complete(shared, shared.audit(spark).summary)
