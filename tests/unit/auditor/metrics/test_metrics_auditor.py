"""An auditor exports the live backlog, its runs and its cluster; a follower omits the metrics of the leader."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from auditor.api.control import Backlog, LostBookie, ServiceStatus, SeverityBacklog
from auditor.metrics import definitions as names
from auditor.metrics.export import MetricsExportError, export_to_file, gateway_problem, push
from auditor.metrics.service_metrics import AuditorMetrics, result_of, state_values
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.severity import Severity
from bookie.runtime.telemetry.metrics import SESSION, render
from tests.worlds.clocks import EPOCH_MS, ManualClock

NOW_MS = EPOCH_MS
RECORD = RunRecord(
    "20261120T101500Z-0a1b2c",
    RunKind.BOOKIES,
    RunCause.SCHEDULE,
    "auditor-1",
    "auditor-1/7",
    RunState.DONE,
    started_ms=NOW_MS - 60_000,
    finished_ms=NOW_MS - 30_000,
    exit_code=0,
    verdict="clean",
    ledgers=1000,
)
STATUS = ServiceStatus(
    version="1",
    process="auditor-1",
    is_leader=True,
    leader="auditor-1",
    is_store_connected=True,
    metadata_uri="zk://h/ledgers",
    instance_id="i",
    is_recovery_enabled=True,
    lost_bookie_delay_s=600,
    writable=("a", "b"),
    read_only=("c",),
    lost=(LostBookie("d", NOW_MS - 5000, 0),),
)
BACKLOG = Backlog(
    counted_ms=NOW_MS - 2000,
    severities={
        Severity.CRITICAL: SeverityBacklog(3, 4096, NOW_MS - 90_000),
        Severity.BELOW_WRITE_QUORUM: SeverityBacklog(1, 100, 0),
    },
    healthy=SeverityBacklog(2, 0, NOW_MS - 1000),
    unreadable=5,
    parked={ParkReason.NO_CANDIDATE_BOOKIE: 4},
    locked=1,
)


def test_bookies_and_racks_are_exported_under_their_counted_names() -> None:
    shown = Shown(replace(STATUS, backlog=replace(BACKLOG, by_bookie={"bk1:3181": 7, "other": 2}, by_rack={"/r1": 8})))
    assert shown.value("bkheal_underreplicated_bookie_ledgers", bookie="bk1:3181") == 7
    assert shown.value("bkheal_underreplicated_bookie_ledgers", bookie="other") == 2
    assert shown.value("bkheal_underreplicated_rack_ledgers", rack="/r1") == 8
    shown.auditor.show(replace(STATUS, backlog=BACKLOG))
    assert shown.value("bkheal_underreplicated_bookie_ledgers", bookie="bk1:3181") is None


def test_namespaces_are_exported_if_the_record_names_them() -> None:
    name = "bkheal_audit_last_run_namespace_findings"
    labels = {"kind": "bookies", "severity": "no_live_copy", "namespace": "t/n"}
    last = replace(RECORD, namespaces={"no_live_copy": {"t/n": 3, "other": 4}})
    shown = Shown(replace(STATUS, results={RunKind.BOOKIES: [last]}))
    assert shown.value(name, **labels) == 3
    assert shown.value(name, **labels | {"namespace": "other"}) == 4
    shown.auditor.show(replace(STATUS, results={RunKind.BOOKIES: [RECORD]}))
    assert shown.value(name, **labels) is None


class Shown:
    def __init__(self, status: ServiceStatus | None = None, **options: bool) -> None:
        self.auditor = AuditorMetrics("1", ManualClock(), **options)
        if status is not None:
            self.auditor.show(status)

    def value(self, name: str, **labels: str) -> float | None:
        return self.auditor.registry.get_sample_value(name, labels)


def test_the_backlog_is_shown_by_severity() -> None:
    shown = Shown(replace(STATUS, backlog=BACKLOG))
    assert shown.value(names.MARKED_LEDGERS, severity="critical") == 3
    assert shown.value(names.MARKED_BYTES, severity="critical") == 4096
    assert shown.value(names.MARKED_AGE, severity="critical") == 90
    assert shown.value(names.MARKED_AGE, severity="below_write_quorum") == 0  # the age is unknown
    assert shown.value(names.MARKED_LEDGERS, severity="lost") == 0
    assert shown.value(names.MARKED_LEDGERS, severity="healthy") == 2
    assert shown.value(names.MARKED_LEDGERS, severity="unreadable") == 5
    assert shown.value(names.PARKED, reason="no_candidate_bookie") == 4
    assert shown.value(names.PARKED, reason="no_live_copy") == 0
    assert shown.value(names.LOCKED) == 1
    assert shown.value(names.COUNTED) == NOW_MS / 1000 - 2


def test_repairable_ledgers_are_exported_next_to_marked_ones() -> None:
    repairable = {Severity.CRITICAL: SeverityBacklog(2, 1000, 0)}
    shown = Shown(replace(STATUS, backlog=replace(BACKLOG, repairable=repairable)))
    assert shown.value(names.REPAIRABLE_LEDGERS, severity="critical") == 2
    assert shown.value(names.REPAIRABLE_BYTES, severity="critical") == 1000
    assert shown.value(names.REPAIRABLE_LEDGERS, severity="below_write_quorum") == 0
    assert shown.value(names.REPAIRABLE_LEDGERS, severity="no_live_copy") is None  # there is no source to copy from


@pytest.mark.parametrize(
    ("leader", "is_leader", "is_connected", "expected"),
    [
        ("auditor-1", True, True, 0),
        ("apache-bookie:3181", False, True, 1),
        ("", False, True, 0),
        ("apache-bookie:3181", False, False, 0),  # unknown
    ],
)
def test_a_candidate_exports_whether_another_auditor_leads(
    leader: str, is_leader: bool, is_connected: bool, expected: int
) -> None:
    status = replace(STATUS, leader=leader, is_leader=is_leader, is_store_connected=is_connected)
    assert Shown(status).value(names.OTHER_AUDITOR_LEADS) == expected


def test_a_backlog_that_was_never_counted_is_not_exported_as_zero() -> None:
    shown = Shown(STATUS)
    assert shown.value(names.MARKED_LEDGERS, severity="lost") is None
    assert shown.value(names.RECOVERY_ENABLED) == 1


def test_the_state_of_the_cluster_is_exported() -> None:
    shown = Shown(replace(STATUS, held_because="9 of 10 bookies are gone", is_recovery_enabled=False))
    assert [shown.value(names.BOOKIES, state=state) for state in names.BOOKIE_STATES] == [2, 1, 1]
    assert (shown.value(names.BRAKE_HELD), shown.value(names.RECOVERY_ENABLED)) == (1, 0)
    assert shown.value(names.LOST_BOOKIE_DELAY) == 600
    assert shown.value(SESSION) == 1


def test_followers_omit_metrics_that_only_the_leader_has() -> None:
    status = replace(STATUS, backlog=BACKLOG, last={RunKind.BOOKIES: RECORD}, period_s={RunKind.BOOKIES: 3600.0})
    shown = Shown(status)
    text = render(shown.auditor.registry).body.decode()
    assert {definition.name.removesuffix("_total") for definition in names.AUDITOR} <= {one.name for one in parse(text)}
    shown.auditor.show(replace(status, is_leader=False))
    follower = {one.name for one in parse(render(shown.auditor.registry).body.decode())}
    missing = {
        definition.name for definition in names.AUDITOR if definition.name.removesuffix("_total") not in follower
    }
    assert missing == {definition.name for definition in names.AUDITOR if definition.is_leader_only}
    assert shown.value(names.LEADER) == 0
    assert shown.value(names.PERIOD, kind="bookies") == 3600
    assert shown.value(names.LEADERSHIP_CHANGES) == 2


def test_the_cluster_is_not_exported_before_its_first_status() -> None:
    shown = Shown()
    assert shown.value(names.LEADER) is None
    assert shown.value(names.RUNS, kind="bookies", result="clean") == 0
    assert shown.value(SESSION) == 0


def test_a_run_in_progress_is_shown() -> None:
    running = replace(RECORD, state=RunState.RUNNING, started_ms=NOW_MS - 8000, finished_ms=0, done=30, total=120)
    paused = replace(running, kind=RunKind.REPLICAS, state=RunState.PAUSED, total=0, pause_ends_ms=9_000)
    shown = Shown(replace(STATUS, running=(running, paused), paused_kinds={RunKind.PLACEMENT: KindPause("me", 7_000)}))
    assert [shown.value(names.RUNNING, kind=kind) for kind in names.KINDS] == [1, 0, 1, 0, 0]
    assert [shown.value(names.PAUSED, kind=kind) for kind in names.KINDS] == [0, 1, 1, 0, 0]
    assert [shown.value(names.PAUSE_ENDS, kind=kind) for kind in names.KINDS] == [0, 7, 9, 0, 0]
    assert shown.value(names.RUNNING_SECONDS, kind="bookies") == 8
    assert shown.value(names.PROGRESS, kind="bookies") == 0.25
    assert shown.value(names.PROGRESS, kind="replicas") == 0
    assert shown.value(names.LAST_START, kind="bookies") == NOW_MS / 1000 - 8
    dry = replace(running, is_dry_run=True, state=RunState.PAUSED, started_ms=1, done=60, pause_ends_ms=9_000)
    for both in ((running, dry), (dry, running)):
        shown = Shown(replace(STATUS, running=both))
        assert [shown.value(name, kind="bookies") for name in (names.RUNNING_SECONDS, names.PAUSED)] == [8, 0]
        assert shown.value(names.PROGRESS, kind="bookies") == 0.25
    shown = Shown(replace(STATUS, running=(replace(running, is_dry_run=True),)))
    assert (shown.value(names.RUNNING, kind="bookies"), shown.value(names.LAST_START, kind="bookies")) == (1, 0)


def test_checks_without_their_own_schedule_are_paused_with_the_run_of_everything() -> None:
    schedules = {RunKind.EVERYTHING: "24h", RunKind.BOOKIES: "1h"}
    status = replace(STATUS, schedules=schedules, paused_kinds={RunKind.EVERYTHING: KindPause("me", 7_000)})
    shown = Shown(status)
    assert {kind: shown.value(names.PAUSED, kind=kind) for kind in names.KINDS} == {
        "bookies": 0,
        "placement": 1,
        "replicas": 0,
        "references": 0,
        "everything": 1,
    }
    assert shown.value(names.PAUSE_ENDS, kind="placement") == 7
    shown = Shown(replace(status, paused_kinds={RunKind.BOOKIES: KindPause("me", 9_000)}))
    assert [shown.value(names.PAUSED, kind=kind) for kind in ("bookies", "placement", "everything")] == [1, 1, 1]
    shown = Shown(replace(status, schedules={RunKind.BOOKIES: "1h"}))
    assert [shown.value(names.PAUSED, kind=kind) for kind in ("bookies", "placement", "everything")] == [0, 0, 1]


def test_the_image_of_a_run_of_everything_is_shown_until_a_newer_bookies_run() -> None:
    image = {"marked": 1, "written_from_ms": 5_000, "written_ledgers": 77, "written_bytes": 888}
    everything = replace(RECORD, kind=RunKind.EVERYTHING, image=image, started_ms=RECORD.started_ms + 1)
    last = {RunKind.EVERYTHING: everything, RunKind.BOOKIES: RECORD}
    shown = Shown(replace(STATUS, last=last))
    assert (shown.value(names.IMAGE_READ, kind="bookies"), shown.value(names.IMAGE_LEDGERS, kind="bookies")) == (5, 77)
    newer = replace(RECORD, started_ms=RECORD.started_ms + 2)
    shown = Shown(replace(STATUS, last=last | {RunKind.BOOKIES: newer}))
    assert shown.value(names.IMAGE_LEDGERS, kind="bookies") == 0


def test_results_of_earlier_processes_are_shown_from_their_records() -> None:
    held = replace(RECORD, kind=RunKind.REPLICAS, exit_code=6, verdict="held", findings={"CRITICAL": 7})
    last = {RunKind.BOOKIES: RECORD, RunKind.REPLICAS: held}
    complete = replace(held, exit_code=0, verdict="clean", findings={"CRITICAL": 2, "LOST": 1})
    results = {RunKind.REPLICAS: [held, complete]}
    success_ms = {RunKind.REPLICAS: NOW_MS - 10_000_000}
    shown = Shown(replace(STATUS, last=last, last_complete=last, results=results, last_success_ms=success_ms))
    assert shown.value(names.LAST_DURATION, kind="bookies") == 30
    assert Shown(replace(STATUS, last=last)).value(names.LAST_DURATION, kind="bookies") == 0, "there is no complete run"
    assert shown.value(names.LAST_LEDGERS, kind="bookies") == 1000
    assert shown.value(names.LAST_COMPLETION, kind="bookies") == NOW_MS / 1000 - 30
    assert shown.value(names.LAST_SUCCESS, kind="replicas") == NOW_MS / 1000 - 10_000
    assert shown.value(names.LAST_SUCCESS, kind="placement") == 0
    assert shown.value(names.LAST_FINDINGS, kind="replicas", severity="critical") == 7
    assert shown.value(names.LAST_FINDINGS, kind="replicas", severity="lost") == 1
    assert [shown.value(names.LAST_HELD, kind=kind) for kind in names.KINDS] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({}, "clean"),
        ({"exit_code": 0, "findings": {"critical": 2}}, "findings"),
        ({"exit_code": 1, "findings": {"critical": 2}}, "findings"),
        ({"findings": {"critical": 0}}, "clean"),
        ({"exit_code": 6}, "held"),
        ({"verdict": "held"}, "held"),
        ({"exit_code": 5, "findings": {"critical": 2}}, "partial"),
        ({"state": RunState.FAILED}, "failed"),
        ({"state": RunState.ABANDONED}, "failed"),
        ({"state": RunState.ABANDONED, "exit_code": ExitCode.STORE_UNREACHABLE}, "failed"),
        ({"state": RunState.ABANDONED, "exit_code": ExitCode.CANCELLED}, "cancelled"),
        ({"state": RunState.CANCELLED}, "cancelled"),
    ],
)
def test_runs_are_counted_by_result(changes: dict[str, Any], result: str) -> None:
    record = replace(RECORD, **changes)
    assert result_of(record) == result
    shown = Shown()
    shown.auditor.run_ended(record)
    shown.auditor.run_ended(replace(record, is_dry_run=True))
    counted = {one: shown.value(names.RUNS, kind="bookies", result=one) for one in names.RESULTS}
    assert counted == {one: float(one == result) for one in names.RESULTS}
    assert shown.value(f"{names.DURATION}_sum", kind="bookies") == 30


def test_events_of_the_service_are_counted() -> None:
    shown = Shown()
    shown.auditor.detected(42.0)
    for is_leader in (True, True, False):
        shown.auditor.leads(is_leader)
    shown.auditor.run_ended(RECORD)
    assert shown.value(f"{names.TIME_TO_DETECT}_sum") == 42
    assert shown.value(names.LEADERSHIP_CHANGES) == 2
    assert shown.value(names.RUNS, kind="bookies", result="clean") == 1


def test_apaches_metric_names_show_the_same_values() -> None:
    name = "auditor_NUM_UNDER_REPLICATED_LEDGERS"
    findings = {"no_live_copy": 1, "critical": 2, "below_ack_quorum": 3, "below_write_quorum": 4}
    results = {RunKind.REPLICAS: [replace(RECORD, kind=RunKind.REPLICAS, findings=findings)]}
    status = replace(STATUS, backlog=BACKLOG, results=results)
    assert Shown(status).value(name, success="true", quantile="0.5") is None
    shown = Shown(status, has_apache_names=True)
    assert shown.value(name, success="true", quantile="0.5") == shown.value(f"{name}_count", success="true") == 11
    assert shown.value("auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE_sum", success="true") == 4196
    prefix = "auditor_NUM_LEDGERS_HAVING_"
    assert shown.value(f"{prefix}NO_REPLICA_OF_AN_ENTRY") == 1
    assert shown.value(f"{prefix}LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY") == 5
    assert shown.value(f"{prefix}LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY") == 4
    shown.auditor.run_ended(RECORD)
    assert shown.value("auditor_AUDIT_BOOKIES_TIME_sum", success="true") == 30_000
    assert shown.value("auditor_NUM_LEDGERS_CHECKED") == 1000
    shown.auditor.show(replace(status, is_leader=False))
    assert shown.value(f"{name}_count", success="true") is None
    assert list(parse(render(shown.auditor.registry).body.decode()))


def values_in(text: str) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels.values()): one.value for family in parse(text) for one in family.samples}


def test_a_metrics_file_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    path = tmp_path / "bookies.prom"
    export_to_file(replace(RECORD, findings={"critical": 2}, namespaces={"critical": {"t/n": 2}}), path)
    values = values_in(path.read_text())
    assert values[names.LAST_SUCCESS, "bookies"] == RECORD.started_ms / 1000
    assert values[names.LAST_FINDINGS, "bookies", "critical"] == 2
    assert {key[0] for key in values} == names.LAST_RUN
    assert {key[1] for key in values} == {"bookies"}
    failed = replace(RECORD, state=RunState.FAILED, finished_ms=NOW_MS, exit_code=70)
    for no_success in (failed, replace(RECORD, is_every_ledger=False, finished_ms=NOW_MS)):
        export_to_file(no_success, path)
        values = values_in(path.read_text())
        assert values[names.LAST_SUCCESS, "bookies"] == RECORD.started_ms / 1000
        assert values[names.LAST_COMPLETION, "bookies"] == NOW_MS / 1000
        assert values[names.LAST_DURATION, "bookies"] == 30
    with pytest.raises(MetricsExportError, match="nothing"):
        export_to_file(RECORD, tmp_path / "nothing" / "x.prom")


@pytest.mark.parametrize("good", ["gateway", "gateway:9091/x", "https://u:a%40b@gateway", "http://[::1]:9091"])
def test_the_address_of_a_pushgateway_may_lack_its_scheme(good: str) -> None:
    assert gateway_problem(good) is None


@pytest.mark.parametrize(
    "wrong",
    ["", "http://", "ftp://a", "http:/gateway", "http//gateway", "a b", "a/b c", "a:x", "a:0", "u:secret@a:x"],
)
def test_a_malformed_address_of_a_pushgateway_is_known_before_a_run(wrong: str) -> None:
    problem = gateway_problem(wrong)
    assert problem is not None
    assert "secret" not in problem


def test_a_metrics_file_keeps_the_findings_of_the_last_complete_run(tmp_path: Path) -> None:
    path = tmp_path / "bookies.prom"
    failed = replace(RECORD, state=RunState.FAILED, exit_code=70, findings={}, held_back={})
    export_to_file(failed, path)
    assert names.LAST_FINDINGS not in {key[0] for key in values_in(path.read_text())}, "unknown is not zero"
    export_to_file(replace(RECORD, findings={"lost": 2, "critical": 1}, held_back={"delay": 3}), path)
    incomplete = replace(RECORD, is_every_ledger=False, findings={"lost": 1, "critical": 5}, held_back={})
    for record, critical in ((failed, 1), (incomplete, 5), (failed, 5)):
        export_to_file(record, path)
        values = values_in(path.read_text())
        assert values[names.LAST_FINDINGS, "bookies", "lost"] == 2
        assert values[names.LAST_FINDINGS, "bookies", "critical"] == critical
        assert values[names.LAST_HELD_BACK, "bookies", "delay"] == 3
    export_to_file(replace(RECORD, findings={}, held_back={}), path)
    assert not values_in(path.read_text())[names.LAST_FINDINGS, "bookies", "lost"]


def test_a_dry_run_does_not_count_as_a_success(tmp_path: Path) -> None:
    path = tmp_path / "bookies.prom"
    dry = replace(RECORD, is_dry_run=True, started_ms=NOW_MS, finished_ms=NOW_MS, findings={"critical": 3})
    export_to_file(dry, path)
    values = values_in(path.read_text())
    assert values[names.LAST_FINDINGS, "bookies", "critical"] == 3
    assert not {names.LAST_SUCCESS, names.LAST_DURATION} & {key[0] for key in values}, "unknown is not zero"
    for record in (RECORD, dry):
        export_to_file(record, path)
    values = values_in(path.read_text())
    assert values[names.LAST_SUCCESS, "bookies"] == RECORD.started_ms / 1000
    assert values[names.LAST_DURATION, "bookies"] == 30
    assert values[names.LAST_FINDINGS, "bookies", "critical"] == 3


class Gateway(BaseHTTPRequestHandler):
    pushed: ClassVar[list[tuple[str, str, str, str]]] = []
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.pushed.append((self.command, self.path, self.headers.get("Authorization", ""), body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_metrics_of_a_run_are_pushed_by_cluster_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        host = f"127.0.0.1:{server.server_address[1]}"
        push(RECORD, f"http://prometheus:s%40cret@{host}", "east")
        push(replace(RECORD, state=RunState.FAILED), host, "east")
        push(replace(RECORD, is_dry_run=True), host, "east")
        monkeypatch.setattr(Gateway, "status", 500)
        with pytest.raises(MetricsExportError, match=host) as raised:
            push(RECORD, f"http://prometheus:s%40cret@{host}", "east")
        assert "cret" not in str(raised.value)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (method, path, access, good), (_, _, no_access, failed), (*_, dry), _ = Gateway.pushed
    assert (method, path) == ("POST", "/metrics/job/bkheal_audit/cluster/east/kind/bookies")
    assert access == "Basic cHJvbWV0aGV1czpzQGNyZXQ="
    assert not no_access
    for name in (names.LAST_SUCCESS, names.LAST_DURATION, names.LAST_FINDINGS, names.LAST_HELD_BACK):
        assert (name in good, name in failed) == (True, False)
    assert (names.LAST_SUCCESS in dry, names.LAST_DURATION in dry, names.LAST_FINDINGS in dry) == (False, False, True)
    with pytest.raises(MetricsExportError, match="refused"):
        push(RECORD, host, "east")
    for wrong in ("http://bad host:x/", "file:///etc/passwd", "http://u:secret@:1/"):
        with pytest.raises(MetricsExportError) as raised:
            push(RECORD, wrong, "east")
        assert "secret" not in str(raised.value)


def test_held_back_ledgers_are_shown_by_reason() -> None:
    window = MaintenanceWindow("rack:/r1", (BookieId("a"), BookieId("b")), "ops", NOW_MS, NOW_MS + 60_000)
    lost = (
        LostBookie("a", NOW_MS - 1000, NOW_MS + 60_000, NOW_MS, "maintenance", "rack:/r1"),
        LostBookie("b", NOW_MS - 1000, NOW_MS + 9_000, NOW_MS, "delay"),
        LostBookie("c", NOW_MS - 1000, NOW_MS - 1, NOW_MS - 1, "delay"),
        LostBookie("d", NOW_MS - 1000, 0),
    )
    record = replace(RECORD, held_back={"delay": 3, "maintenance": 4})
    longer = MaintenanceWindow("z", (BookieId("z"),), "ops", NOW_MS, NOW_MS + 90_000)
    status = replace(STATUS, windows=(window, longer), lost=lost, results={RunKind.BOOKIES: [record]})
    values = state_values(status, NOW_MS)
    assert values[names.WINDOWS,] == 2
    assert values[names.WINDOWS_END,] == (NOW_MS + 90_000) / 1000
    assert values[names.WINDOWS_NEXT_END,] == (NOW_MS + 60_000) / 1000
    assert (values[names.HELD_BACK_BOOKIES, "delay"], values[names.HELD_BACK_BOOKIES, "maintenance"]) == (1, 1)
    assert values[names.LAST_HELD_BACK, "bookies", "maintenance"] == 4


def test_the_image_of_the_last_run_is_shown_with_its_marks() -> None:
    image = {"marked": 3, "written_from_ms": NOW_MS - 5_000, "written_ledgers": 40, "written_bytes": 900}
    values = state_values(replace(STATUS, last={RunKind.BOOKIES: replace(RECORD, image=image)}), NOW_MS)
    assert values[names.LAST_IMAGE_MARKS, "bookies"] == 3
    assert values[names.IMAGE_READ, "bookies"] == (NOW_MS - 5_000) / 1000
    assert (values[names.IMAGE_LEDGERS, "bookies"], values[names.IMAGE_BYTES, "bookies"]) == (40, 900)


def test_withdrawn_marks_are_shown_by_reason() -> None:
    record = replace(RECORD, withdrawn={"replaced": 3, "ledger_deleted": 4})
    values = state_values(replace(STATUS, last={RunKind.BOOKIES: record}), NOW_MS)
    assert values[names.LAST_WITHDRAWN, "bookies", "replaced"] == 3
    assert values[names.LAST_WITHDRAWN, "bookies", "ledger_deleted"] == 4
