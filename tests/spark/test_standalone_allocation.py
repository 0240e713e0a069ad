"""Audits on a standalone cluster with speculation, and with dynamic allocation: the marks are those of a quiet run."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.runs.records import Runs
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunState
from tests.deadlines import PROGRAM_S, STATE_S
from tests.spark import standing_driver
from tests.spark.audit_world import Place, closed, opened
from tests.spark.standalone import (
    StandaloneCluster,
    build_wheel,
    driver_environment,
    make_environment,
    started_cluster,
    submitted,
)
from tests.spark.standing_driver import PAUSED_LINE

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]

LOST, MOVED = range(0, 20_000, 1000), range(1, 20_000, 1000)
"""Ids of ledgers under two metadata nodes, which two tasks read."""
RATE = 5.0
"""Nodes per second for all tasks together, so that each task reads for several seconds."""
IDLE = "10s"
"""After this time dynamic allocation ends an idle executor; it is longer than a pause between two stages of an audit
on a busy machine."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with bkheal from a wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return make_environment(folder / "environment", build_wheel(folder))


@pytest.fixture(scope="module")
def cluster(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster whose workers have different hosts, as Spark starts no second attempt on the host of the first one."""
    with started_cluster(tmp_path_factory.mktemp("spark-cluster"), ("127.0.0.1", "127.0.0.2")) as cluster:
        yield cluster


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number: closed("a:1", "x:1") for number in LOST})
        place.create({number: closed("a:1", "b:1") for number in MOVED})
        yield place


@pytest.fixture
def started(place: Place) -> Iterator[list[ManagedProcess]]:
    """The drivers that a test has started; they are stopped at its end."""
    processes: list[ManagedProcess] = []
    yield processes
    for process in processes:
        place.do(process.stop())


def driver(
    cluster: StandaloneCluster, place: Place, python: Path, folder: Path, script: Sequence[str], **conf: str
) -> ManagedProcess:
    options = [word for name, value in conf.items() for word in ("--conf", f"spark.{name.replace('_', '.')}={value}")]
    audit = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--quiet"]
    return ManagedProcess.start(
        "audit",
        submitted(cluster, Path(script[0]), *script[1:], *audit, options=options),
        log_path=folder / "audit.log",
        environment=driver_environment(python),
        directory=folder,
    )


def until(is_reached: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + STATE_S
    while not is_reached():
        assert time.monotonic() < end_s, f"timed out waiting for {what}"
        time.sleep(0.02)


def move(place: Place) -> None:
    """Register a new bookie, and move fragments to it, in the ledgers of both tasks."""
    place.register("n:1")
    for number in MOVED:
        path = ledger_path(place.cluster.kind, place.cluster.root, number)
        place.do(place.store.set(path, encode(closed("n:1", "b:1")), -1))


def assert_as_quiet(place: Place, process: ManagedProcess) -> None:
    exit_code = place.do(process.wait(PROGRAM_S))
    log = process.log_path.read_text()
    assert exit_code == ExitCode.OK, log
    assert place.marked() == {number: ["x:1"] for number in LOST}, log
    (record,) = place.do(Runs(place.store, place.cluster.root).list(9, now_ms=0))
    assert (record.state, record.ledgers) == (RunState.DONE, len(LOST) + len(MOVED))


def readers(cluster: StandaloneCluster, port: int) -> set[psutil.Process]:
    """Return the executor processes with a connection to ZooKeeper."""
    found = set[psutil.Process]()
    for executor in cluster.executors():
        for process in executor.children(recursive=True):
            try:
                connections = process.net_connections("tcp")
            except psutil.Error:  # the process has ended
                continue
            if any(one.raddr and one.raddr.port == port for one in connections):
                found.add(process)
    return found


def test_results_read_twice_by_speculative_tasks_are_not_mixed(
    cluster: StandaloneCluster,
    place: Place,
    python: Path,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    started: list[ManagedProcess],
) -> None:
    """One of two tasks is suspended until a second attempt has read the same nodes and the bookies were listed."""
    (events := tmp_path / "events").mkdir()
    go = tmp_path / "go"
    process = driver(
        cluster,
        place,
        python,
        tmp_path,
        [standing_driver.__file__, "2", str(go), "--metadata-rate", str(RATE), "--no-with-image"],
        speculation="true",
        speculation_interval="100ms",
        speculation_multiplier="1.1",
        speculation_quantile="0.5",
        speculation_minTaskRuntime="100ms",
        eventLog_enabled="true",
        eventLog_compress="false",
        eventLog_dir=f"file://{events}",
    )
    started.append(process)
    until(lambda: len(readers(cluster, zookeeper.port)) == 2, "two reading tasks")
    slow = readers(cluster, zookeeper.port).pop()
    slow.suspend()
    try:
        place.do(process.wait_for_line(PAUSED_LINE, PROGRAM_S))
        move(place)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark ends unnecessary processes
            slow.resume()
    go.touch()
    assert_as_quiet(place, process)
    lines = [line for file in events.rglob("events_*") for line in file.read_text().splitlines()]
    tasks = [event["Task Info"] for event in map(json.loads, lines) if event["Event"] == "SparkListenerTaskStart"]
    assert any(task["Speculative"] for task in tasks)


def test_metadata_lost_with_executors_removed_by_dynamic_allocation_is_read_again(
    cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path, started: list[ManagedProcess]
) -> None:
    """A timeout for executors with cached data, which Spark does not have by default, ends them during the run."""
    go = tmp_path / "go"
    process = driver(
        cluster,
        place,
        python,
        tmp_path,
        [standing_driver.__file__, "2", str(go), "--no-with-image"],
        dynamicAllocation_enabled="true",
        dynamicAllocation_shuffleTracking_enabled="true",
        dynamicAllocation_shuffleTracking_timeout=IDLE,
        dynamicAllocation_minExecutors="0",
        dynamicAllocation_maxExecutors="2",
        dynamicAllocation_executorIdleTimeout=IDLE,
        dynamicAllocation_cachedExecutorIdleTimeout=IDLE,
        executor_cores="1",
    )
    started.append(process)
    place.do(process.wait_for_line(PAUSED_LINE, PROGRAM_S))
    until(lambda: not cluster.executors(), "only executors that have ended")
    move(place)
    go.touch()
    assert_as_quiet(place, process)
    assert "metadata was lost with an executor, so it is read again" in process.log_path.read_text()
