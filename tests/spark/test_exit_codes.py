"""The exit codes of an audit by its command, in the Spark session of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.exit_codes import ExitCode
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        yield place


def audit(place: Place, *options: str) -> int:
    """Run ``bkheal audit run`` in this process."""
    words = ["run", "--metadata-uri", place.uri, "--report-dir", str(place.report_dir), *options]
    return CliRunner().invoke(audit_cli.app, words).exit_code


def test_the_exit_code_of_an_audit_shows_what_it_found(place: Place, running: None) -> None:
    place.create({1: closed("x:1", "y:1")})
    assert audit(place, "--fail-on", "no-live-copy", "--missing-share-max", "1") == ExitCode.FINDINGS
    assert audit(place, "--missing-share-max", "1") == ExitCode.OK
    assert place.marked() == {1: ["x:1", "y:1"]}
    assert audit(place, "--missing-share-max", "0.1") == ExitCode.HELD
