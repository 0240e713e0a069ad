"""Executors of an auditor on a standalone cluster, as its master lists them: a stopping auditor releases them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.auditors import AuditorProcess
from tests.spark.audit_world import Place, closed, opened
from tests.spark.standalone import LOOPBACK, ROOT, StandaloneCluster, executor_conf, started_cluster

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]

SESSION_S = 10
"""A short timeout, for the auditor that is paused until it loses its session; the others have a longer one."""


@pytest.fixture
def cluster(quick_spark: None, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with started_cluster(tmp_path / "spark-cluster") as cluster:
        yield cluster


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number: closed("a:1", "x:1") for number in range(20)})
        yield place


@dataclass
class Leader:
    """An auditor with executors, started for its first run."""

    place: Place
    cluster: StandaloneCluster
    auditor: AuditorProcess

    def run_once(self) -> None:
        """Wait until it leads, and until it has finished a run."""
        auditor = self.auditor
        self.place.do(auditor.ready())
        self.place.do(auditor.process.wait_until(auditor.leads, "an auditor that leads", STATE_S))
        ran = CliRunner().invoke(audit_cli.app, ["run", "--kind", "bookies", "--at", auditor.base, "--wait"])
        assert ran.exit_code == ExitCode.OK, ran.output
        assert self.place.do(self.cores_used()) == 2, "its executors must stay for the next run"

    def java(self) -> psutil.Process:
        """Return the process of its Spark."""
        [java] = [each for each in psutil.Process(self.auditor.process.pid).children() if "java" in each.name()]
        return java

    async def cores_used(self) -> int:
        workers: list[dict[str, Any]] = (await self.cluster.state())["workers"]
        return sum(worker["coresused"] for worker in workers)

    async def until_released(self) -> None:
        """Wait until the master lists no application of it, and every core is free."""

        async def is_given_back() -> bool:
            return not (await self.cluster.state())["activeapps"] and await self.cores_used() == 0

        await self.cluster.workers[0].wait_until(is_given_back, "cores that are free", STATE_S)


@pytest.fixture
def leader(
    place: Place, cluster: StandaloneCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Leader]:
    (conf_dir := tmp_path / "conf").mkdir()
    (conf_dir / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in executor_conf().items()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf_dir))
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    words = ("--spark-master", cluster.url, "--session-timeout-s", str(SESSION_S), "--allow-anonymous-write")
    leader = Leader(place, cluster, AuditorProcess(place.uri, tmp_path, "auditor", *words))
    try:
        leader.run_once()
        yield leader
    finally:
        place.do(leader.auditor.process.stop())


def test_an_auditor_whose_spark_hangs_exits_and_releases_its_executors(leader: Leader) -> None:
    leader.java().suspend()
    assert leader.place.do(leader.auditor.process.wait(PROGRAM_S)) == ExitCode.INTERNAL
    leader.place.do(leader.until_released())


def test_an_auditor_that_lost_its_leadership_releases_its_executors(leader: Leader, tmp_path: Path) -> None:
    """It is suspended for longer than its session lasts; then another one leads."""
    stopped = psutil.Process(leader.auditor.process.pid)
    stopped.suspend()

    async def follow() -> None:
        successor = AuditorProcess(leader.place.uri, tmp_path, "successor")
        async with successor.process:
            await successor.ready()
            await successor.process.wait_until(successor.leads, "another leader", PROGRAM_S)
            assert await leader.cores_used() == 2
            stopped.resume()
            await leader.until_released()
            assert not await leader.auditor.leads()

    try:
        leader.place.do(follow())
    finally:
        stopped.resume()
