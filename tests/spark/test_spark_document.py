"""The cells of ``docs/spark-notebook.md`` run, in their order, against a cluster with lost bookies and its reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark-notebook.md"
CELLS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1", "bk-2:3181")
        place.create(
            {
                1: closed("a:1", "b:1"),
                2: closed("a:1", "x:1"),
                3: closed("bk-1:3181", "bk-2:3181"),
                4: closed("a:1", "c:1"),
            }
        )
        place.damage(4)
        yield place


def test_the_cells_of_the_notebook_run(spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.audit(spark)
    known: dict[str, Any] = {}
    shown = []
    for cell in CELLS:
        code = cell.replace("zk+hierarchical://zk1:2181/ledgers", place.uri)
        code = code.replace("/data/reports", str(place.report_dir))
        exec(compile(code, DOCUMENT.name, "exec"), known)
        shown.append(capsys.readouterr().out)
    assert "1 ledgers are on these bookies only" in shown[3]
    assert re.search(r"\|4 +\|", shown[4]), "the damaged ledger is not shown"
    assert "bk-1:3181" in shown[5]
    assert "no live copy" in shown[6] or "under-replicated" in shown[6]
    assert "0 of the ledgers that it found are repaired or deleted" in shown[7]
    known["ledgers"].unpersist()
