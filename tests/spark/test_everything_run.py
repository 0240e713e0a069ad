"""The bookie check, the placement check and the metadata lint with one read of the metadata, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from auditor.bench.zookeeper_counters import counters
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.layout import ledger_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId
from bookie.model.isolation import POLICY_KEY
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.model.run import RunKind, RunState
from bookie.runtime.clock import SystemClock
from spark_jobs.report import writing as report
from spark_jobs.report.console import table
from spark_jobs.report.counts import RackNumber, RackPair
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.runs.life_cycle import outcome_of
from spark_jobs.runs.reading import ledger_scan
from spark_jobs.runs.reading.ledger_scan import Collected
from spark_jobs.runs.run import run_check
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

GROUPS = {"red": {"a:1": {"rack": "/r1"}, "b:1": {"rack": "/r1"}}, "blue": {"c:1": {"rack": "/r2"}}, "x:1": "/r2"}
"""A topology as Pulsar writes it: the racks of ``TOPOLOGY``, with groups."""
TOPOLOGY = {"a:1": "/r1", "b:1": "/r1", "c:1": "/r2", "x:1": "/r2"}
NO_LAST_ENTRY = b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 2\nlength: 0\nstate: CLOSED\n"


def recovering(*members: str) -> LedgerMetadata:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, members)))
    return LedgerMetadata(len(members), 2, 2, (fragment,), LedgerState.IN_RECOVERY)


def asking_for(groups: str) -> tuple[tuple[str, bytes], ...]:
    """Return the custom metadata of a ledger whose namespace has these bookie groups."""
    name = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
    policy = {"policyClass": name, "properties": {"isolationBookieGroups": groups}}
    return ("application", b"pulsar"), (POLICY_KEY, json.dumps(policy).encode())


LEDGERS = {
    1: replace(closed("a:1", "c:1"), custom=asking_for("red")),
    2: closed("a:1", "b:1"),
    3: closed("c:1", "x:1"),
    4: closed("a:1", "a:1"),
    5: recovering("b:1", "c:1"),
    10_001: replace(closed("b:1", "c:1"), length=0),
}


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """The bookie x is lost; placement and metadata have faults; the bookie y, also lost, never had a ledger."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1", "y:1")
        place.create(LEDGERS)
        yield place


def store_topology(place: Place) -> None:
    place.do(TopologyStore(place.store, place.cluster).write(json.dumps(TOPOLOGY)))


def findings(place: Place, summary: RunSummary) -> set[tuple[int | None, str]]:
    found = pq.read_table(place.report_dir / summary.run_id / report.FINDINGS).to_pylist()
    return {(row["ledger_id"], row["kind"]) for row in found}


def check_time(place: Place) -> int:
    return place.do(CheckTimes(place.store, place.cluster).read(CheckKind.PLACEMENT))


@pytest.mark.long
def test_a_full_check_reads_once_and_finds_the_same_as_the_single_checks(
    spark: SparkSession, place: Place, zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.do(TopologyStore(place.store, place.cluster).write(json.dumps(GROUPS)))
    readings: list[Collected] = []
    real = ledger_scan.collected

    def collected(*arguments: Any) -> Collected:
        readings.append(real(*arguments))
        return readings[-1]

    monkeypatch.setattr(ledger_scan, "collected", collected)
    packets: dict[RunKind, int] = {}

    def run(kind: RunKind, **settings: Any) -> RunSummary:
        before = asyncio.run(counters(zookeeper.port)).received
        summary = place.check(spark, kind, missing_share_max=1.0, recovery_age_max_s=3600, **settings).summary
        packets[kind] = asyncio.run(counters(zookeeper.port)).received - before
        return summary

    single = [run(RunKind.BOOKIES, is_dry_run=True), run(RunKind.PLACEMENT)]
    readings.clear()
    summary = run(RunKind.EVERYTHING, is_dry_run=True)

    assert [list(reading.totals.listed.values()) for reading in readings] == [[(5,), (1,)]], (
        "a node was not listed exactly once"
    )
    assert packets[RunKind.EVERYTHING] < packets[RunKind.BOOKIES] + packets[RunKind.PLACEMENT]
    faults = {(4, "DUPLICATE_MEMBER"), (10_001, "LENGTH_MISMATCH")}
    cookie = {(None, "DANGLING_COOKIE")}
    assert findings(place, summary) == findings(place, single[0]) | findings(place, single[1]) | faults | cookie
    assert {count.severity.label: count.ledgers for count in summary.severities} == {"critical": 1, "misplaced": 4}
    assert (summary.verdict, summary.is_complete) == (Verdict.UNDER_REPLICATED, True)
    assert [(part.check, part.problem) for part in summary.parts] == [
        ("bookies", ""),
        ("metadata", ""),
        ("inventory", ""),
        ("placement", ""),
    ]
    assert summary.lint is not None
    assert (dict(summary.lint.faults), summary.lint.dangling_cookies) == (
        {"DUPLICATE_MEMBER": 1, "LENGTH_MISMATCH": 1},
        ("y:1",),
    )
    assert summary.placement is not None
    assert single[1].placement == summary.placement
    assert (summary.placement.outside_groups_fragments, summary.placement.misplaced_fragments) == (1, 4)
    assert summary.placement.rack_numbers == (RackNumber(1, 3, 3, 3000), RackNumber(2, 3, 3, 1000))
    assert summary.placement.racks == (
        RackPair("/r1", "/r1", 2, 2, 2000),
        RackPair("/r1", "/r2", 3, 3, 1000),
        RackPair("/r2", "/r2", 1, 1, 1000),
    )
    assert decode_summary(json.loads(json.dumps(summary.to_json()))) == summary
    for text in ("DUPLICATE_MEMBER", "y:1", "/r1   /r2"):
        assert text in table(summary)
    page = (place.report_dir / summary.run_id / "report.html").read_text()
    for text in ("Checks of this run", "Racks by pairs", "LENGTH_MISMATCH", "Outside their groups"):
        assert text in page


def test_a_full_check_counts_as_each_check_that_it_contains(spark: SparkSession, place: Place) -> None:
    store_topology(place)
    place.do(place.tasks.switches.set_lost_bookie_delay_s(0))
    result = place.check(spark, RunKind.EVERYTHING, mark_misplaced=True, missing_share_max=1.0)
    assert place.marked() == {2: [], 3: ["x:1"], 4: []}
    assert place.audited() == {"x:1", "y:1"}
    assert check_time(place) == result.summary.finished_ms
    assert result.summary.image.written_ledgers == len(LEDGERS)
    outcome = outcome_of(result.summary, result.summary_path)
    assert (outcome.state, outcome.is_success) == (RunState.DONE, True)
    assert outcome.also_done == (RunKind.BOOKIES, RunKind.PLACEMENT)


class Later(SystemClock):
    """A clock that is two hours ahead."""

    def epoch_ms(self) -> int:
        return super().epoch_ms() + 7_200_000


def test_an_impossible_check_does_not_prevent_the_others(spark: SparkSession, place: Place) -> None:
    """The run has no topology, and unreadable metadata, whose fault is reported and causes no mark."""
    place.do(place.tasks.switches.set_lost_bookie_delay_s(0))
    path = ledger_path(place.cluster.kind, place.cluster.root, 1)
    segment = b'segment {\n  ensembleMember: "a:1"\n  ensembleMember: "c:1"\n  firstEntryId: 0\n}\n'
    place.do(place.store.set(path, NO_LAST_ENTRY + segment, ANY_VERSION))
    settings = AuditSettings(place.uri, place.report_dir, missing_share_max=1.0, recovery_age_max_s=3600)
    result = run_check(spark, RunKind.EVERYTHING, settings, clock=Later())
    summary = result.summary
    assert (summary.verdict, result.exit_code()) == (Verdict.INCOMPLETE, ExitCode.PARTIAL)
    assert summary.incomplete_reasons[0].startswith("placement: there is no topology")
    assert (place.marked(), place.audited(), check_time(place)) == ({3: ["x:1"]}, {"x:1", "y:1"}, -1)
    outcome = outcome_of(summary, result.summary_path)
    assert (outcome.is_success, outcome.also_done) == (False, (RunKind.BOOKIES,))
    assert "placement: there is no topology" in outcome.detail

    found = findings(place, summary)
    assert {each for each in found if each[0] == 1} == {(1, "UNREADABLE_METADATA"), (1, "NO_LAST_ENTRY")}
    assert (5, "STUCK_RECOVERY") in found, "a recovery that has not changed for two hours was not found"
    lint = summary.lint
    assert lint is not None
    assert (lint.faults["STUCK_RECOVERY"], lint.dangling_cookies) == (1, ())
    assert lint.cookies_not_judged == "1 ledger cannot be read, and may name any bookie"
