"""The exit codes for scripts: of commands with findings, and of commands with unfinished work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from bookie.model.exit_codes import ExitCode as ReplicatorExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.deadlines import PROGRAM_S
from tests.lent_session import lend_session
from tests.spark.audit_world import Place, closed, opened

pytestmark = pytest.mark.integration


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        yield place


def audit(place: Place, *options: str) -> int:
    """Run ``bkheal audit run`` in this process."""
    words = ["run", "--metadata-uri", place.uri, "--report-dir", str(place.report_dir), *options]
    return CliRunner().invoke(audit_cli.app, words).exit_code


def test_the_exit_code_of_an_audit_shows_what_it_found(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend_session(monkeypatch, spark)
    place.create({1: closed("x:1", "y:1")})
    assert audit(place, "--fail-on", "no-live-copy", "--missing-share-max", "1") == ExitCode.FINDINGS
    assert audit(place, "--missing-share-max", "1") == ExitCode.OK
    assert place.marked() == {1: ["x:1", "y:1"]}
    assert audit(place, "--missing-share-max", "0.1") == ExitCode.HELD


async def replicate_once(place: Place, directory: Path, name: str) -> int:
    words = [sys.executable, "-m", "replicator", "--metadata-uri", place.uri, "--once"]
    return await ManagedProcess.start(name, words, log_path=directory / f"{name}.log").wait(PROGRAM_S)


def test_a_replicator_changes_nothing_while_repair_is_disabled_and_reports_remaining_work(
    place: Place, tmp_path: Path
) -> None:
    deleted = LedgerId(7)  # a worker would end the task of this ledger at once
    place.do(place.tasks.initialize())
    place.do(place.tasks.marking.mark(deleted, [BookieId("x:1")]))
    place.do(place.tasks.switches.disable())
    assert place.do(replicate_once(place, tmp_path, "disabled")) == ReplicatorExitCode.BUSY
    assert place.marked() == {deleted: ["x:1"]}
    place.do(place.tasks.switches.enable())
    assert place.do(replicate_once(place, tmp_path, "enabled")) == ReplicatorExitCode.OK
    assert place.marked() == {}
