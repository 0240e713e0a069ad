"""The results of audits on a standalone cluster after executors or workers end, or after the audit is cancelled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.runs.records import RunLane, Runs
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind, RunState
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

LEDGERS = 20
_LEAF = 10_000
"""Distance of the ids of two metadata nodes; the ledgers are read in two partitions."""
READ_AGAIN = "metadata was lost with an executor, so it is read again"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with bkheal from a wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return make_environment(folder / "environment", build_wheel(folder))


@pytest.fixture
def cluster(quick_spark: None, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with started_cluster(tmp_path / "spark-cluster") as cluster:
        yield cluster


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """Ledgers under two metadata nodes, all with the same lost bookie."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number * _LEAF // 10: closed("a:1", "x:1") for number in range(LEDGERS)})
        yield place


class StandingRun:
    """An audit by spark-submit with a pause after it has listed the bookies for the n-th time."""

    def __init__(
        self,
        cluster: StandaloneCluster,
        place: Place,
        python: Path,
        folder: Path,
        *,
        listing: int,
    ) -> None:
        self._place = place
        self._go = folder / "go"
        script = Path(standing_driver.__file__)
        audit = ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "--quiet"]
        self.process = ManagedProcess.start(
            "audit",
            submitted(cluster, script, str(listing), str(self._go), *audit),
            log_path=folder / "audit.log",
            environment=driver_environment(python),
            directory=folder,
        )
        found = place.do(self.process.wait_for_line(rf"{PAUSED_LINE}, code of (\S+)", PROGRAM_S))
        assert Path(found[1]).is_relative_to(python.parent.parent), "the code is not that of the wheel"

    def resume(self) -> int:
        """Continue the audit, and return its exit code."""
        self._go.touch()
        return self._place.do(self.process.wait(PROGRAM_S))

    @property
    def log(self) -> str:
        return self.process.log_path.read_text()


@pytest.fixture
def standing(cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path) -> Iterator[list[StandingRun]]:
    """The runs that a test has started; they are stopped at its end."""
    started: list[StandingRun] = []
    yield started
    for run in started:
        place.do(run.process.stop())


def assert_everything_is_marked(place: Place, run: StandingRun, exit_code: int) -> None:
    assert exit_code == ExitCode.OK, run.log
    assert place.marked() == {number * _LEAF // 10: ["x:1"] for number in range(LEDGERS)}
    [summary] = place.report_dir.glob("*/summary.json")
    assert json.loads(summary.read_text())["published"]["ledgers"] == LEDGERS
    (record,) = place.do(Runs(place.store, place.cluster.root).list(9, now_ms=0))
    assert (record.state, record.ledgers) == (RunState.DONE, LEDGERS)


def test_metadata_lost_with_its_executors_is_read_again(
    cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path, standing: list[StandingRun]
) -> None:
    run = StandingRun(cluster, place, python, tmp_path, listing=2)
    standing.append(run)
    killed = cluster.executors()
    assert len(killed) == 2
    for executor in killed:
        executor.kill()
    psutil.wait_procs(killed, STATE_S)
    assert_everything_is_marked(place, run, run.resume())
    assert READ_AGAIN in run.log


def test_an_audit_continues_without_a_killed_worker(
    cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path, standing: list[StandingRun]
) -> None:
    run = StandingRun(cluster, place, python, tmp_path, listing=2)
    standing.append(run)
    worker = cluster.workers[0]
    worker.kill9()

    async def is_noticed() -> bool:
        return len(await cluster.alive()) == 1

    place.do(run.process.wait_until(is_noticed, "a master that has noticed the end of the worker", STATE_S))
    assert_everything_is_marked(place, run, run.resume())


def test_a_cancelled_audit_releases_its_executors(
    cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path, standing: list[StandingRun]
) -> None:
    run = StandingRun(cluster, place, python, tmp_path, listing=1)
    standing.append(run)

    async def are_started() -> bool:
        return len(cluster.executors()) == 2

    place.do(run.process.wait_until(are_started, "two executors", STATE_S))
    paused = cluster.executors()
    for executor in paused:
        executor.suspend()  # executors that the run starts later would not end by themselves
    runs = Runs(place.store, place.cluster.root)
    (record,) = place.do(runs.list(9, now_ms=0))
    asked = CliRunner().invoke(audit_cli.app, ["cancel", record.run_id, "--metadata-uri", place.uri])
    assert asked.exit_code == ExitCode.OK, asked.output
    exit_code = run.resume()
    for executor in paused:
        executor.resume()
    assert exit_code == ExitCode.CANCELLED, run.log
    assert place.marked() == {}
    assert place.do(runs.holder(RunLane(RunKind.BOOKIES))) is None
    (record,) = place.do(runs.list(9, now_ms=0))
    assert record.state is RunState.CANCELLED

    async def are_free() -> bool:
        workers = (await cluster.state())["workers"]
        return [worker["coresused"] for worker in workers] == [0, 0]

    place.do(cluster.workers[0].wait_until(are_free, "workers without executors", STATE_S))
