"""``bkheal audit shadow`` as an operator runs it, with an auditor that marks everything and one that misses a mark."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.model.ids import BookieId, LedgerId
from tests.deadlines import PROGRAM_S
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """Twenty ledgers with a lost bookie, twenty without, and a leading auditor."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        pairs = [random.Random(1).sample(["a:1", "b:1", "c:1"], 2) for _ in range(20)]
        place.create({number: closed(*pair) for number, pair in enumerate(pairs)})
        place.create({100 + number: closed(pair[0], "x:1") for number, pair in enumerate(pairs)})
        place.do(place.tasks.initialize())
        election = f"{place.cluster.root}/underreplication/auditorelection"
        place.do(place.store.create(election))
        place.do(place.store.create(f"{election}/V_0000000000", b'bookieId: "apache:3181"\n', is_ephemeral=True))
        yield place


def shadow(place: Place, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")}
    environment |= {"BKHEAL_METADATA_URI": place.uri}
    command = [sys.executable, "-m", "auditor.cli.main", "audit", "shadow", "--report-dir", str(place.report_dir)]
    return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, timeout=PROGRAM_S)


def mark(place: Place, *numbers: int) -> None:
    place.do(place.tasks.marking.mark_many([(LedgerId(number), [BookieId("x:1")]) for number in numbers]))


@pytest.mark.long  # a process with its own Spark; tests/spark/test_shadow.py tests the comparison
@pytest.mark.usefixtures("quick_spark")
def test_the_exit_code_shows_that_both_sides_differ(place: Place) -> None:
    """``tests/spark/test_shadow.py`` checks the exit code for equal sides, in an existing Spark session."""
    mark(place, *range(100, 119))
    first = shadow(place, "-o", "json")
    assert first.returncode == 1, first.stderr
    document = json.loads(first.stdout)
    assert (document["apiVersion"], document["kind"]) == ("bkheal/v1", "AuditShadow")
    assert (document["agree"], document["only_here"], document["unexplained"]) == (19, 1, 1)
    assert [item["ledger_id"] for item in document["items"]] == [119]
    assert Path(document["table"]).parent.name == document["run_id"]
    assert "Traceback" not in first.stderr
    assert len(place.marked()) == 19


def test_wrong_usage_is_reported_in_one_line_and_starts_nothing(place: Place) -> None:
    refused = shadow(place, "--missing-share-max", "2")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert not place.report_dir.exists()


def test_the_help_describes_the_output_and_the_exit_codes() -> None:
    command = [sys.executable, "-m", "auditor.cli.main", "audit", "shadow", "--help"]
    reported = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_S, env={**os.environ, "COLUMNS": "200"}
    )
    for text in ("only here", "only there", "docs/migration.md", "Exit codes", "shadow.parquet"):
        assert text in reported.stdout
