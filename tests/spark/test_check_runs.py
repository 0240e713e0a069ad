"""Runs of every kind on a real ZooKeeper: placement, the delay of lost bookies, gates, and concurrent runs."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, Endpoint, ServiceInfo, encode_service_info
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.layout import bookie_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.isolation import POLICY_KEY
from bookie.model.metadata import LedgerMetadata
from bookie.model.run import RunKind, RunState
from bookie.model.severity import Severity
from bookie.model.spread import PlacementPolicy
from bookie.runtime.clock import SystemClock
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.replicas.task import COUNTS_DDL
from spark_jobs.report import writing as report
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.report.files import TASKS
from spark_jobs.report.findings.limited import LIMITED
from spark_jobs.report.summary import Verdict
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.kinds import bookie_run, placement_run, replica_run
from spark_jobs.runs.marking.publish import publish
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from spark_jobs.runs.prerequisites import NoTopologyError
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.run import run_check
from spark_jobs.runs.spark_tasks import spark_tasks
from spark_jobs.settings import AuditSettings, FailOn
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

HOUR_MS = 3_600_000
TOPOLOGY = {"a:1": "/r1", "b:1": "/r1", "c:1": "/r2", "d:1": "/r3"}
LEDGERS = {
    1: closed("a:1", "c:1"),
    2: closed("a:1", "b:1"),
    3: closed("c:1", "x:1"),
    10_001: closed("b:1", "a:1"),
}

UNREACHABLE_BOOKIE = encode_service_info(ServiceInfo((Endpoint("bookie", "127.0.0.1", 1, PROTOCOL_APACHE),)))


class Later(SystemClock):
    """A clock that is two hours ahead."""

    def epoch_ms(self) -> int:
        return super().epoch_ms() + 2 * HOUR_MS


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """A cluster in which two ledgers are in a single rack, and one names the bookie x, which no longer exists."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register(*TOPOLOGY)
        for bookie in TOPOLOGY:  # addresses without a process, so that no names are looked up
            path = bookie_path(place.cluster.root, BookieId(bookie), is_read_only=False)
            place.do(place.store.set(path, UNREACHABLE_BOOKIE, ANY_VERSION))
        place.create(LEDGERS)
        yield place


def store_topology(place: Place, **more: str) -> None:
    text = json.dumps({**TOPOLOGY, "x:1": "/r2", **more})
    place.do(TopologyStore(place.store, place.cluster).write(text))


def of_groups(metadata: LedgerMetadata, groups: str) -> LedgerMetadata:
    """Return the metadata with the custom metadata of a namespace with these bookie groups."""
    name = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
    policy = {"policyClass": name, "properties": {"isolationBookieGroups": groups}}
    return replace(metadata, custom=(("application", b"pulsar"), (POLICY_KEY, json.dumps(policy).encode())))


def check_time(place: Place, kind: CheckKind) -> int:
    return place.do(CheckTimes(place.store, place.cluster).read(kind))


def test_misplaced_ensembles_are_counted_and_nothing_is_marked(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_run, "CHUNK_LEDGERS", 1)  # one chunk per node of the tree
    store_topology(place, **{"x:1": "/r9"})
    events: list[ProgressEvent] = []
    result = run_check(spark, RunKind.PLACEMENT, AuditSettings(place.uri, place.report_dir), events.append)

    summary = result.summary
    assert (summary.kind, summary.verdict, summary.is_complete) == (RunKind.PLACEMENT, Verdict.MISPLACED, True)
    assert summary.placement is not None
    assert (summary.placement.fragments, summary.placement.misplaced_ledgers) == (4, 2)
    assert summary.placement.topology.endswith("ledgers")
    assert {worst.ledger_id for worst in summary.worst_ledgers} == {2, 10_001}
    assert (place.marked(), summary.published.outcome) == ({}, PublishOutcome.NOTHING_TO_PUBLISH)
    assert (result.exit_code(FailOn.UNDER_REPLICATED), result.exit_code(FailOn.ANY)) == (
        ExitCode.OK,
        ExitCode.FINDINGS,
    )
    assert check_time(place, CheckKind.PLACEMENT) == summary.finished_ms
    assert check_time(place, CheckKind.ALL_LEDGERS) == -1
    found = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    assert {(row["ledger_id"], row["kind"]) for row in found} == {(2, "MISPLACED"), (10_001, "MISPLACED")}
    assert [(event.done, event.total) for event in events if event.phase is Phase.CHECK] == [(0, 4), (3, 4)]


def test_bookies_missing_from_the_topology_make_the_run_partial(spark: SparkSession, place: Place) -> None:
    text = json.dumps({name: where for name, where in TOPOLOGY.items() if name != "a:1"})
    file = place.report_dir.parent / "topology.json"
    file.write_text(text)
    result = place.check(spark, RunKind.PLACEMENT, topology_file=file)
    assert result.summary.placement is not None
    assert result.summary.placement.unknown_bookies == ("a:1", "x:1")
    assert (result.exit_code(), result.summary.placement.misplaced_ledgers) == (ExitCode.PARTIAL, 0)
    assert check_time(place, CheckKind.PLACEMENT) == -1


def test_a_placement_run_without_a_topology_is_refused(spark: SparkSession, place: Place) -> None:
    with pytest.raises(NoTopologyError, match="there is no topology"):
        place.check(spark, RunKind.PLACEMENT)
    assert not place.report_dir.exists() or list(place.report_dir.iterdir()) == []


def test_misplaced_ledgers_that_a_move_would_improve_are_marked_only_on_demand(
    spark: SparkSession, place: Place
) -> None:
    grouped = {name: {"rack": where} for name, where in TOPOLOGY.items()}
    groups = {"red": {"a:1": grouped["a:1"], "c:1": grouped["c:1"]}, "blue": {"d:1": grouped["d:1"]}}
    place.do(TopologyStore(place.store, place.cluster).write(json.dumps({"b:1": "/r1", "x:1": "/r2", **groups})))
    place.create({20: of_groups(closed("a:1", "d:1"), "red"), 21: of_groups(closed("a:1", "c:1"), "red")})
    dry = place.check(spark, RunKind.PLACEMENT, mark_misplaced=True, is_dry_run=True)
    assert (place.marked(), dry.summary.published.outcome) == ({}, PublishOutcome.DRY_RUN)
    assert check_time(place, CheckKind.PLACEMENT) == -1
    assert dry.summary.placement is not None
    assert dry.summary.placement.outside_groups_fragments == 1
    found = pq.read_table(dry.summary_path.parent / report.FINDINGS).to_pylist()
    assert [row["detail"] for row in found if row["ledger_id"] == 20] == ["d:1 outside the bookie groups red"]
    policy = PlacementPolicy(min_racks=2, is_strict=True)
    place.check(spark, RunKind.PLACEMENT, mark_misplaced=True, placement_policy=policy)
    assert place.marked() == {2: [], 3: [], 20: [], 10_001: []}


def test_a_lost_bookie_causes_marks_after_its_delay(spark: SparkSession, place: Place) -> None:
    place.add_cookies("a:1", "x:1")
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    down = FirstSeenDown(place.store, place.cluster.root)

    dry = place.audit(spark, is_dry_run=True)
    assert [bookie.bookie_id for bookie in dry.summary.waiting] == ["x:1"]
    assert place.do(down.read()) == {}, "a dry run recorded the loss"

    first = place.audit(spark)
    assert (place.marked(), first.summary.published.ledgers_waiting) == ({}, 1)
    (waiting,) = first.summary.waiting
    assert (waiting.ledgers, waiting.until_ms - waiting.first_seen_down_ms) == (1, HOUR_MS)
    (row,) = pq.read_table(first.summary_path.parent / report.FINDINGS).to_pylist()
    assert row["detail"].startswith("waiting until 20")

    settings = AuditSettings(place.uri, place.report_dir)
    later = run_check(spark, RunKind.BOOKIES, settings, clock=Later())
    assert (place.marked(), later.summary.waiting) == ({3: ["x:1"]}, ())
    assert place.do(down.read())[BookieId("x:1")].audited_ms == later.summary.finished_ms


def test_a_ledger_with_one_copy_left_is_marked_without_the_delay(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1")
    place.create({4: replace(closed("a:1", "c:1", "x:1"), write_quorum=3)})
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    result = place.audit(spark, critical_delay_s=0.0)
    assert place.marked() == {3: ["x:1"]}
    assert result.summary.published.held_back == {"delay": 1}
    assert result.summary.waiting[0].ledgers == 2
    rows = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    details = {row["ledger_id"]: row["detail"] for row in rows}
    assert (details[3], str(details[4])[:13]) == (None, "waiting until")
    noted = place.do(FirstSeenDown(place.store, place.cluster.root).read())[BookieId("x:1")]
    assert (noted.audited_ms, noted.critical_audited_ms) == (0, result.summary.finished_ms)


def test_a_limited_run_marks_the_worst_and_the_next_run_continues(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1")
    place.create({number: closed("a:1", "x:1") for number in (4, 5)})
    place.create({6: replace(closed("a:1", "c:1", "x:1"), write_quorum=3)})
    marked: list[set[int]] = []
    explained: list[set[int]] = []
    for _ in range(2):
        result = place.audit(spark, marks_max=2)
        marked.append(set(place.marked()))
        rows = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
        explained.append({row["ledger_id"] for row in rows if "(limit)" in (row["detail"] or "")})
        held = result.summary.published.held_back
        assert (place.audited(), held) == (set(), {"limit": 4 - len(marked[-1])}) or not held
    assert marked == [{3, 4}, {3, 4, 5, 6}], "ledgers with one copy left must be marked first"
    assert explained == [{5, 6}, set()]
    assert place.audited() == {"x:1"}


@pytest.mark.parametrize(
    ("lacking", "marked", "limited"),
    [
        ({2: Severity.BELOW_WRITE_QUORUM, 3: Severity.BELOW_ACK_QUORUM, 10_001: Severity.CRITICAL}, 10_001, 2),
        ({2: Severity.CRITICAL, 10_001: Severity.NO_LIVE_COPY}, 2, 10_001),  # a critical ledger does not wait
    ],
)
def test_a_limited_replicas_check_marks_the_worst_of_all_its_chunks(
    spark: SparkSession,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    lacking: Mapping[int, Severity],
    marked: int,
    limited: int,
) -> None:
    monkeypatch.setattr(replica_run, "CHUNK_LEDGERS", 1)  # one chunk per node of the tree
    monkeypatch.setattr(replica_run.ReplicaRun, "_ask", functools.partialmethod(_lacking_copies, lacking))
    place.do(place.tasks.marking.mark(LedgerId(3), [BookieId("c:1")]))
    result = place.check(spark, RunKind.REPLICAS, marks_max=1)
    assert place.marked().keys() == {3, marked}
    findings = result.summary_path.parent / report.FINDINGS
    details = {row["ledger_id"]: row["detail"] for row in spark.read.parquet(str(findings)).collect()}
    assert details == dict.fromkeys(lacking) | {limited: LIMITED}
    assert result.summary.published.held_back == {"limit": 1}


def _lacking_copies(
    self: replica_run.ReplicaRun, severities: Mapping[int, Severity], scan: LedgerScan, bookies: Bookies
) -> DataFrame:
    """Return a finding for each of these ledgers, in place of the answers of bookies."""
    ranks = " ".join(f"WHEN {ledger_id} THEN {severity.value}" for ledger_id, severity in severities.items())
    values = {
        "kind": f"'{FindingKind.MISSING_ENTRIES.value}'",
        "ledger_id": "ledger_id",
        "missing": "slice(fragments[0].members, 1, 1)",
        "severity_rank": f"CASE ledger_id {ranks} END",
        "bytes_estimate": "1",
    }
    columns = [column.split() for column in FINDING_DDL.split(",")]
    expressions = [f"CAST({values.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in columns]
    found = scan.suspects.where(f"ledger_id IN ({', '.join(map(str, severities))})").selectExpr(*expressions)
    kind = COUNTS_DDL.strip().removeprefix("counts ")
    return found.selectExpr("*", f"CAST(NULL AS {kind}) AS counts")


def test_a_maintenance_window_holds_marks_back_and_the_report_has_the_reason(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1")
    now_ms = SystemClock().epoch_ms()
    window = MaintenanceWindow("rack:/r2", (BookieId("x:1"),), "me@host", now_ms, now_ms + HOUR_MS, holds_critical=True)
    windows = MaintenanceWindows(place.store, place.cluster.root)
    place.do(windows.start(window))
    result = place.audit(spark, critical_delay_s=0.0)
    assert (place.marked(), result.summary.published.held_back) == ({}, {"maintenance": 1})
    (waiting,) = result.summary.waiting
    assert (waiting.reason, waiting.detail, waiting.until_ms) == (
        "maintenance",
        "rack:/r2, by me@host",
        window.until_ms,
    )
    (row,) = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    assert row["detail"].endswith("(maintenance: rack:/r2, by me@host)")
    place.do(windows.start(replace(window, holds_critical=False)))
    place.audit(spark, critical_delay_s=0.0)
    assert place.marked() == {3: ["x:1"]}


def test_marks_whose_reason_has_ended_are_withdrawn_by_a_run_but_not_by_a_dry_run(
    spark: SparkSession, place: Place
) -> None:
    """Ledger 1 names only registered bookies, ledger 3 still names x, and ledger 9 was deleted."""
    marks = {1: ["y:1"], 2: [], 3: ["x:1"], 9: ["x:1"]}
    for ledger_id, missing in marks.items():
        place.do(place.tasks.marking.mark(LedgerId(ledger_id), list(map(BookieId, missing))))
    place.audit(spark, is_dry_run=True)
    assert place.marked() == marks
    result = place.audit(spark)
    assert place.marked() == {2: [], 3: ["x:1"]}
    assert result.summary.published.withdrawn == {"replaced": 1, "ledger_deleted": 1}


def test_ledgers_with_recorded_damage_are_marked_and_counted(spark: SparkSession, place: Place) -> None:
    """Ledger 1 is closed and names only registered bookies."""
    notes = DamageNotes(place.store, place.cluster.root)
    place.do(notes.add(LedgerId(1), [BookieId("a:1")]))
    assert place.audit(spark, is_dry_run=True).summary.published.damage_marked == 0
    result = place.audit(spark)
    assert place.marked() == {1: ["a:1"], 3: ["x:1"]}
    assert (result.summary.published.ledgers, result.summary.published.damage_marked) == (1, 1)
    tasks = pq.read_table(result.summary_path.parent / TASKS).to_pylist()
    assert {row["ledger_id"]: row["missing"] for row in tasks} == place.marked()
    assert place.audit(spark).summary.published.damage_marked == 0


@pytest.mark.long
def test_the_delay_restarts_for_a_bookie_that_returned_before_its_end(spark: SparkSession, place: Place) -> None:
    place.add_cookies("x:1")
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    place.audit(spark)
    place.register("x:1")
    place.audit(spark)
    place.unregister("x:1")
    result = run_check(spark, RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), clock=Later())
    assert ([bookie.bookie_id for bookie in result.summary.waiting], place.marked()) == (["x:1"], {})


def test_a_stop_ends_a_run_before_its_next_phase(spark: SparkSession, place: Place) -> None:
    gate = RunGate()

    def stop(event: ProgressEvent) -> None:
        if event.phase is Phase.CHECK:
            gate.stop(Stop("enough", RunState.CANCELLED))

    with pytest.raises(RunStoppedError, match="enough"):
        run_check(spark, RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), stop, gate=gate)
    assert place.marked() == {}


def test_a_stop_ends_marking_between_two_batches(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_run, "publish", functools.partial(publish, batch_size=1))
    place.create(dict.fromkeys(range(20, 25), LEDGERS[3]))
    gate = RunGate()

    class Twice(RunGate):
        passed = 0

        def pass_through(self) -> None:
            gate.pass_through()
            if marked := place.marked():
                gate.stop(Stop(f"{len(marked)} are enough", RunState.CANCELLED))
            gate.pass_through()

    with pytest.raises(RunStoppedError, match="1 are enough"):
        run_check(spark, RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), gate=Twice())
    assert len(place.marked()) == 1, "the mark before the stop must stay"


def test_a_stop_cancels_a_spark_job_in_the_middle_and_no_other(spark: SparkSession) -> None:
    gate, stuck = RunGate(), threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def forever(batches: Iterator[object]) -> Iterator[object]:
        import time

        while True:
            time.sleep(0.1)
            yield from ()

    def run() -> None:
        with spark_tasks(spark, Phase.ASK, "stuck", lambda event: None, gate, pool="replicas"):
            stuck.set()
            spark.range(1).mapInArrow(forever, "id bigint").collect()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        assert stuck.wait(60)
        with spark_tasks(spark, Phase.CHECK, "other", lambda event: None, RunGate(), pool="bookies"):
            while not tracker.getActiveJobsIds() or not tracker.getJobIdsForGroup("stuck"):
                pass
            gate.stop(Stop("cancelled by a test", RunState.CANCELLED))
            assert spark.range(1000).repartition(2).count() == 1000
        with pytest.raises(RunStoppedError, match="cancelled by a test"):
            running.result(60)


def test_two_concurrent_runs_of_different_kinds_do_not_mix(spark: SparkSession, place: Place) -> None:
    store_topology(place)
    settings = AuditSettings(place.uri, place.report_dir)
    kinds = [RunKind.BOOKIES, RunKind.PLACEMENT, RunKind.REPLICAS]
    phases: dict[RunKind, list[Phase]] = {kind: [] for kind in kinds}

    def run(kind: RunKind) -> Verdict:
        result = run_check(spark, kind, settings, lambda event: phases[kind].append(event.phase), run_id=kind.value)
        return result.summary.verdict

    with ThreadPoolExecutor(len(kinds)) as threads:
        verdicts = dict(zip(kinds, threads.map(run, kinds), strict=True))
    # No process listens at the addresses of these bookies, so their entries are unknown.
    assert verdicts == {
        RunKind.BOOKIES: Verdict.UNDER_REPLICATED,
        RunKind.PLACEMENT: Verdict.MISPLACED,
        RunKind.REPLICAS: Verdict.INCOMPLETE,
    }
    assert place.marked() == {3: ["x:1"]}
    assert Phase.ASK in phases[RunKind.REPLICAS]
    assert Phase.ASK not in phases[RunKind.BOOKIES]
    groups = {kind: set(spark.sparkContext.statusTracker().getJobIdsForGroup(kind.value)) for kind in kinds}
    assert all(groups.values())
    assert sum(map(len, groups.values())) == len(set().union(*groups.values()))


def test_a_dry_run_does_not_queue_with_the_runs_that_mark(spark: SparkSession, place: Place) -> None:
    """Jobs of one pool run one after another, so the reaction to a loss would wait for the dry run."""
    pools: dict[bool, set[str]] = {False: set(), True: set()}
    for is_dry_run, seen in pools.items():
        settings = AuditSettings(place.uri, place.report_dir, is_dry_run=is_dry_run)

        def note(event: ProgressEvent, seen: set[str] = seen) -> None:
            pool = spark.sparkContext.getLocalProperty("spark.scheduler.pool")
            if event.phase is Phase.CHECK and pool is not None:  # the thread that reports progress has no pool
                seen.add(pool)

        run_check(spark, RunKind.BOOKIES, settings, note)
    assert pools[False]
    assert pools[True]
    assert pools[False].isdisjoint(pools[True])


def test_bookies_that_cannot_answer_make_the_run_partial_and_nothing_is_marked(
    spark: SparkSession, place: Place
) -> None:
    result = place.check(spark, RunKind.REPLICAS, sample_seed=1)
    summary = result.summary
    assert summary.replicas is not None
    assert {each.status for each in summary.replicas.unknown} == {"UNREACHABLE"}
    assert (summary.replicas.ledgers, summary.replicas.sample_seed, summary.replicas.absent) == (4, 1, 0)
    assert (result.exit_code(), place.marked()) == (ExitCode.PARTIAL, {})
    assert check_time(place, CheckKind.REPLICAS) == -1


def test_only_ledgers_in_the_range_and_the_sample_are_checked(spark: SparkSession, place: Place) -> None:
    open_ledger = LedgerMetadata(2, 2, 2, closed("a:1", "b:1").fragments)
    place.create({30: open_ledger})
    ranged = place.check(spark, RunKind.REPLICAS, ledger_min=2, ledger_max=3).summary
    assert ranged.replicas is not None
    assert (ranged.replicas.ledgers, ranged.counts.ledgers) == (2, 2)
    sampled = place.check(spark, RunKind.REPLICAS, sample=1e-9, sample_seed=3).summary
    assert sampled.replicas is not None
    assert (sampled.replicas.ledgers, sampled.is_complete) == (0, True)
    assert check_time(place, CheckKind.REPLICAS) == -1


def test_a_replicas_run_whose_last_write_fails_keeps_what_it_found(spark: SparkSession, place: Place) -> None:
    place.damage(1)

    def fill(event: ProgressEvent) -> None:
        """Prevent the writing of the table of bookies, by a directory with its name."""
        for run in place.report_dir.glob("2*") if event.phase is Phase.ASK else ():
            (run / report.BOOKIES).mkdir(exist_ok=True)

    result = run_check(spark, RunKind.REPLICAS, AuditSettings(place.uri, place.report_dir), fill)
    findings = result.summary_path.parent / report.FINDINGS
    assert [row["ledger_id"] for row in pq.read_table(findings).to_pylist()] == [1]
    assert not result.summary_path.exists()
    assert (result.summary.counts.ledgers, result.summary.counts.unreadable) == (4, 1)
    assert f"the findings of this run that were written are in {findings}" in result.report_problem
    assert result.exit_code() is ExitCode.PARTIAL, "the result must be that not every bookie answered"


def test_a_replicas_run_that_cannot_write_its_report_still_marks(spark: SparkSession, place: Place) -> None:
    place.report_dir.write_text("a file where the directory should be")
    result = place.check(spark, RunKind.REPLICAS)
    assert (result.summary.counts.ledgers, result.report_problem != "") == (4, True)
    store_topology(place)
    with pytest.raises(report.ReportDirError):  # the report is the only purpose of this run
        place.check(spark, RunKind.PLACEMENT)
