"""The exit codes for scripts: of commands with findings, and of commands with unfinished work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.deadlines import PROGRAM_S
from tests.spark.audit_world import Place, opened

pytestmark = pytest.mark.integration


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        yield place


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
    assert place.do(replicate_once(place, tmp_path, "disabled")) == ExitCode.BUSY
    assert place.marked() == {deleted: ["x:1"]}
    place.do(place.tasks.switches.enable())
    assert place.do(replicate_once(place, tmp_path, "enabled")) == ExitCode.OK
    assert place.marked() == {}
