"""A run of everything requests lists of ledgers from bookies: one of bkheal over gRPC, and others that have none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typing_extensions import override

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo, encode_service_info
from bookie.metadata.layout import bookie_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import create_with_parents
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from bookie.runtime.access.tokens import Role, make_token
from bookie.runtime.clock import SystemClock
from bookie.runtime.ports import free_loopback_port
from spark_jobs.checks.inventory.verdict import CopyNotJudged
from spark_jobs.report import writing as report
from spark_jobs.report.console import table
from spark_jobs.report.counts import InventoryCounts
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.runs.run import run_check
from spark_jobs.settings import AuditSettings
from tests.contract.test_administration import add, damage
from tests.spark.audit_world import Place, closed, opened
from tests.unit.bookie.storage.test_rebuilding import KEY
from tests.worlds.administered import READ, US, Administered, administered

pytestmark = [pytest.mark.spark, pytest.mark.integration]

LEDGERS = {
    11: closed(US, "a:1", last=2),
    12: closed("a:1", "c:1"),
    13: LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BookieId("a:1"), BookieId("c:1"))),)),
    14: closed("a:1", "c:1"),
    15: closed("a:1", "c:1"),
    16: closed("a:1", "c:1"),
}


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "c:1")
        place.add_cookies("a:1", "c:1", US)
        yield place


def register(place: Place, bookie: str, port: int) -> None:
    info = ServiceInfo((Endpoint("bookie", "127.0.0.1", port, "bookie-grpc"),))
    path = bookie_path(place.cluster.root, BookieId(bookie), is_read_only=False)
    place.do(place.store.create(path, encode_service_info(info), is_ephemeral=True))


def fill(place: Place, bookie: Administered) -> None:
    """Fill a bookie. Ledger 11 has a damaged entry, 14 is marked, 15 is unreadable, 20 is deleted, 22 only fenced."""
    register(place, US, bookie.port)
    place.create(LEDGERS | {20: closed(US, "a:1")})
    place.do(LedgerStore(place.store, place.cluster, random.Random(1)).delete(LedgerId(20)))
    root = place.cluster.root
    place.do(create_with_parents(place.store, task_path(root, 14), b'replica: "x:1"\n', root))
    place.damage(15)
    for ledger_id in (11, 12, 13, 14, 15, 20, 21):
        add(bookie, LedgerId(ledger_id), 0, 1, 2)
    bookie.thread.run(bookie.node.storage.fence(LedgerId(22), KEY))
    bookie.thread.run(bookie.node.storage.checkpoint())
    damage(bookie, 1)
    bookie.thread.run(bookie.node.service.verify(LedgerId(11), [EntryId(1)]))


def findings(place: Place, summary: RunSummary) -> dict[tuple[int, str], dict[str, Any]]:
    found = pq.read_table(place.report_dir / summary.run_id / report.FINDINGS).to_pylist()
    return {(row["ledger_id"], row["kind"]): row for row in found}


def inventory_of(summary: RunSummary) -> InventoryCounts:
    assert summary.inventory is not None
    return summary.inventory


@pytest.mark.long
def test_ledgers_on_bookies_are_compared_with_the_metadata(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    with administered(tmp_path) as bookie:
        fill(place, bookie)
        summary = place.check(spark, RunKind.EVERYTHING, is_dry_run=True, inventory_grace_s=0).summary
    counts = inventory_of(summary)
    assert (counts.over_replicated, counts.unowned, counts.damaged) == (1, 2, 1)
    assert dict(counts.not_judged) == {CopyNotJudged.OPEN.value: 1, CopyNotJudged.REPAIR.value: 1}
    ours = next(each for each in counts.bookies if each.bookie_id == US)
    assert (ours.state, ours.ledgers, ours.over_replicated, ours.unowned, ours.damaged_entries) == (
        "listed",
        8,
        1,
        2,
        1,
    )
    assert [(each.bookie_id, each.state) for each in counts.unknown] == [("a:1", "not offered"), ("c:1", "not offered")]
    found = findings(place, summary)
    assert set(found) == {
        (11, "KNOWN_DAMAGE"),
        (12, "OVER_REPLICATED_LEDGER"),
        (15, "UNREADABLE_METADATA"),
        (20, "UNOWNED_LEDGER"),
        (21, "UNOWNED_LEDGER"),
    }
    assert found[11, "KNOWN_DAMAGE"]["detail"] == f"{US} has 1 damaged entry: 1"
    surplus = found[12, "OVER_REPLICATED_LEDGER"]
    assert (surplus["detail"], surplus["state"], surplus["severity"]) == (f"on {US}", "CLOSED", None)
    assert [(part.check, part.problem) for part in summary.parts if part.check == "inventory"] == [("inventory", "")]
    assert decode_summary(json.loads(json.dumps(summary.to_json()))) == summary


@pytest.mark.long
def test_recent_changes_have_no_verdict_and_an_unreachable_bookie_is_named(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    register(place, "silent:3181", free_loopback_port(random.Random()))
    with administered(tmp_path) as bookie:
        fill(place, bookie)
        summary = place.check(spark, RunKind.EVERYTHING, is_dry_run=True).summary
        without = place.check(spark, RunKind.EVERYTHING, is_dry_run=True, with_inventory=False).summary
    counts = inventory_of(summary)
    assert (counts.over_replicated, counts.unowned) == (0, 0)
    assert dict(counts.not_judged) == {
        CopyNotJudged.CHANGED.value: 1,
        CopyNotJudged.DELETED.value: 2,
        CopyNotJudged.OPEN.value: 1,
        CopyNotJudged.REPAIR.value: 1,
    }
    (problem,) = [part.problem for part in summary.parts if part.check == "inventory"]
    assert problem.startswith("the ledgers of 1 bookie are not all known: silent:3181 (no answer: ")
    assert (summary.verdict, without.inventory) == (Verdict.INCOMPLETE, None)
    assert {part.check for part in without.parts} == {"bookies", "metadata", "placement"}
    for text in (US, "silent:3181", CopyNotJudged.CHANGED.value):
        assert text in table(summary)


@pytest.mark.long
@pytest.mark.parametrize("later_s", [0, 3600])
def test_a_deletion_is_reported_after_the_grace_time_without_times_in_the_metadata(
    spark: SparkSession, place: Place, tmp_path: Path, later_s: int
) -> None:
    """Apache's client writes no time of creation by default."""

    class Later(SystemClock):
        @override
        def epoch_ms(self) -> int:
            return super().epoch_ms() + 1000 * later_s

    with administered(tmp_path) as bookie:
        fill(place, bookie)
        place.create({50_000: closed("a:1", "c:1")})
        settings = AuditSettings(place.uri, place.report_dir, is_dry_run=True, inventory_grace_s=1800)
        summary = run_check(spark, RunKind.EVERYTHING, settings, clock=Later()).summary
    counts = inventory_of(summary)
    assert (counts.unowned, counts.not_judged.get(CopyNotJudged.DELETED.value, 0)) == ((2, 0) if later_s else (0, 2))


@pytest.mark.long
def test_a_bookie_that_requires_a_token_is_unknown_without_it_and_compared_with_it(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    file, wrong = tmp_path / "inventory-token", make_token("nobody", Role.READ)

    def audit(token: str) -> RunSummary:
        file.write_text(token)
        settings = {"is_dry_run": True, "inventory_grace_s": 0, "inventory_token_file": file}
        return place.check(spark, RunKind.EVERYTHING, **settings).summary

    with administered(tmp_path, allow_anonymous_read=False) as bookie:
        fill(place, bookie)
        refused, listed = audit(wrong.token), audit(READ.token)
    counts = inventory_of(refused)
    ours = next(each for each in counts.bookies if each.bookie_id == US)
    assert (ours.state, ours.ledgers, counts.unowned, counts.over_replicated) == ("refused", 0, 0, 0)
    (problem,) = [part.problem for part in refused.parts if part.check == "inventory"]
    assert problem.startswith(f"the ledgers of 1 bookie are not all known: {US} (refused: ")
    assert refused.verdict is Verdict.INCOMPLETE
    counts = inventory_of(listed)
    assert (counts.over_replicated, counts.unowned, counts.damaged) == (1, 2, 1)
    assert [(part.check, part.problem) for part in listed.parts if part.check == "inventory"] == [("inventory", "")]
    texts = [path.read_text(errors="replace") for path in place.report_dir.rglob("*") if path.is_file()]
    assert texts
    assert not any(token in text for text in texts for token in (wrong.token, READ.token))
