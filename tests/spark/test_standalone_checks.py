"""The three checks on a standalone cluster, by ``bkheal audit run --master``, with real bookies."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.run import RunKind
from tests.deadlines import PROGRAM_S
from tests.sessions import LONG_SESSION_S
from tests.spark.audit_world import closed
from tests.spark.standalone import (
    StandaloneCluster,
    build_wheel,
    driver_environment,
    executor_conf,
    make_environment,
    started_cluster,
)

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.long]

ENTRIES = 10
IN_ONE_RACK, NOT_WRITTEN, WITH_LOST_BOOKIE = LedgerId(100), LedgerId(200), LedgerId(300)


async def create(uri: str, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
    async with await connect(uri) as client:
        await LedgerStore(client.store, client.cluster, random.Random(1)).create_many([(ledger_id, metadata)])


async def marked(uri: str) -> dict[LedgerId, Sequence[BookieId]]:
    async with await connect(uri) as client:
        return {task.ledger_id: sorted(task.missing) for task in await client.ports.tasks.list()}


def test_each_check_finds_marks_and_reports(quick_spark: None, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", build_wheel(tmp_path))
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("".join(f"{key} {text}\n" for key, text in executor_conf().items()))

    def audit(spark: StandaloneCluster, uri: str, kind: RunKind, *more: str) -> Any:
        words = ["audit", "run", "--kind", kind.value, "--metadata-uri", uri, "--master", spark.url, "--output", "json"]
        ended = subprocess.run(
            [str(python.parent / "bkheal"), *words, "--report-dir", str(tmp_path / "reports"), *more],
            env={**os.environ, **driver_environment(python), "SPARK_CONF_DIR": str(settings)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
        assert ended.returncode == ExitCode.OK, ended.stderr
        summary = json.loads(ended.stdout)
        assert (tmp_path / "reports" / summary["run_id"] / "report.html").is_file()
        return summary

    with started_cluster(tmp_path / "spark-cluster") as spark, asyncio.Runner() as runner:
        started = EmbeddedCluster.start(
            tmp_path / "bookies", bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
        )
        bookkeeper = runner.run(started)
        try:
            uri = bookkeeper.metadata_uri
            names = [bookie.bookie_id for bookie in bookkeeper.bookies]
            racks = tmp_path / "topology.json"
            racks.write_text(json.dumps(dict(zip(names, ("/one", "/two", "/two"), strict=True))))

            runner.run(create(uri, IN_ONE_RACK, closed(*names[1:], last=ENTRIES - 1)))
            placement = audit(spark, uri, RunKind.PLACEMENT, "--topology-file", str(racks))
            assert (placement["verdict"], placement["placement"]["misplaced_ledgers"]) == ("misplaced", 1)
            assert runner.run(marked(uri)) == {}

            runner.run(create(uri, NOT_WRITTEN, closed(*names, last=ENTRIES - 1)))
            replicas = audit(spark, uri, RunKind.REPLICAS)
            assert (replicas["verdict"], replicas["replicas"]["absent"]) == ("entries lost", 4 * ENTRIES)
            assert runner.run(marked(uri)) == {IN_ONE_RACK: sorted(names[1:]), NOT_WRITTEN: sorted(names)}

            runner.run(create(uri, WITH_LOST_BOOKIE, closed(names[0], "127.0.0.1:9")))
            bookies = audit(spark, uri, RunKind.BOOKIES)
            assert (bookies["verdict"], bookies["published"]["tasks_changed"]) == ("under-replicated", 1)
            assert runner.run(marked(uri))[WITH_LOST_BOOKIE] == ["127.0.0.1:9"]
        finally:
            runner.run(bookkeeper.stop())
