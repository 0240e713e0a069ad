"""One-shot runs with other runs: the lock, the record, waiting, cancelling, and signals."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.own_state import own_path
from bookie.metadata.runs.records import RunLane, RunLockedError, Runs
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.runtime.clock import SystemClock
from spark_jobs import audit as audit_module
from spark_jobs.one_shot import run
from spark_jobs.one_shot.keeper import RunKeeper
from spark_jobs.one_shot.run import OneShot, OneShotStoppedError, exit_code_of, run_one_shot
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.life_cycle import RunOutcome, outcome_of_error
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings
from tests.deadlines import PROGRAM_S, STATE_S
from tests.lent_session import lend_session
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """One ledger with a lost bookie."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({1: closed("a:1", "x:1")})
        yield place


def arguments(place: Place, *more: str) -> list[str]:
    return ["--metadata-uri", place.uri, "--report-dir", str(place.report_dir), *more]


def runs_of(place: Place) -> Runs:
    return Runs(place.store, place.cluster.root)


def test_a_run_leaves_a_record_and_no_lock(place: Place, running: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_module.main(arguments(place, "--kind", "bookies", "--quiet")) == ExitCode.OK
    runs = runs_of(place)
    (record,) = place.do(runs.list(10, now_ms=0))
    assert (record.kind, record.cause, record.state) == (RunKind.BOOKIES, RunCause.COMMAND, RunState.DONE)
    assert (record.verdict, record.findings, record.tasks_changed) == ("under-replicated", {"critical": 1}, 1)
    assert Path(record.report).is_file()
    assert place.do(runs.holder(RunLane(RunKind.BOOKIES))) is None
    assert place.do(runs.last_success_ms()) == {RunKind.BOOKIES: record.started_ms}
    capsys.readouterr()

    commands = CliRunner()
    listed = commands.invoke(audit_cli.app, ["list", "--metadata-uri", place.uri, "-o", "json"])
    assert json.loads(listed.stdout)["items"][0]["run_id"] == record.run_id
    shown = commands.invoke(audit_cli.app, ["show", record.run_id, "--metadata-uri", place.uri])
    assert "under-replicated" in shown.stdout
    over = commands.invoke(audit_cli.app, ["cancel", record.run_id, "--metadata-uri", place.uri])
    assert (over.exit_code, "has ended" in over.stderr) == (1, True)
    unknown = commands.invoke(audit_cli.app, ["show", "nothing", "--metadata-uri", place.uri])
    assert (unknown.exit_code, "no run 'nothing' is on record" in unknown.stderr) == (1, True)


def test_a_run_of_a_kind_in_progress_is_busy_and_names_the_holder(
    place: Place, running: None, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = place.do(runs_of(place).acquire(RunLane(RunKind.BOOKIES), "the-other-run", "elsewhere:1"))
    assert audit_module.main(arguments(place)) == ExitCode.BUSY
    reported = capsys.readouterr().err
    assert "the-other-run in elsewhere:1" in reported
    assert audit_module.main(arguments(place, "--wait", "0.3")) == ExitCode.BUSY
    assert place.marked() == {}
    result = CliRunner().invoke(audit_cli.app, ["run", *arguments(place)])
    assert (result.exit_code, "the-other-run" in result.stderr) == (75, True)
    place.do(lease.release())


def test_the_record_of_a_run_that_failed_has_the_exit_code_of_the_process(place: Place, running: None) -> None:
    scheduled = ["run", *arguments(place, "--kind", "placement", "--scheduled")]
    assert CliRunner().invoke(audit_cli.app, scheduled).exit_code == ExitCode.CONFIGURATION
    (record,) = place.do(runs_of(place).list(9, now_ms=0))
    assert (record.state, record.exit_code) == (RunState.FAILED, ExitCode.CONFIGURATION)
    assert "topology" in record.detail


def test_a_run_waits_for_the_end_of_another_of_its_kind(place: Place, running: None) -> None:
    runs = runs_of(place)
    lease = place.do(runs.acquire(RunLane(RunKind.BOOKIES), "the-other-run", "elsewhere:1"))
    ended: list[int] = []
    waiting = threading.Thread(target=lambda: ended.append(audit_module.main(arguments(place, "--wait", "--quiet"))))
    waiting.start()
    assert place.marked() == {}
    place.do(lease.release())
    waiting.join(STATE_S)
    assert (ended, place.marked()) == ([ExitCode.OK], {1: ["x:1"]})


def test_a_signal_ends_the_wait(place: Place) -> None:
    runs = runs_of(place)
    place.do(runs.acquire(RunLane(RunKind.BOOKIES), "the-other-run", "elsewhere:1"))
    settings = AuditSettings(place.uri, place.report_dir)
    shot = OneShot(RunKind.BOOKIES, settings, SessionSettings(), "me", wait_s=STATE_S)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OneShotStoppedError, match="SIGTERM") as stopped:
        run_one_shot(shot, lambda event: os.kill(os.getpid(), signal.SIGTERM) if event.phase is Phase.WAIT else None)
    assert (stopped.value.exit_code, exit_code_of(stopped.value)) == (143, 143)
    assert signal.getsignal(signal.SIGTERM) is before
    assert place.do(runs.list(10, now_ms=0)) == []


def test_signals_that_the_process_ignores_stay_ignored() -> None:
    gate, ignored = RunGate(), (signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}  # as nohup does for SIGHUP
    try:
        with run._signals(gate) as install_handlers:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark installs a handler of its own
            install_handlers()
            for number in ignored:
                os.kill(os.getpid(), number)
            assert gate.stop_reason() is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert gate.stop_reason() is not None
        assert [signal.getsignal(number) for number in ignored] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def two_signals() -> None:
    """Send both in the order of their numbers, in which their handlers run if both are pending."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)


def test_a_second_signal_ends_a_run_at_once_and_the_first_is_the_recorded_reason(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend_session(monkeypatch, spark, two_signals)
    assert audit_module.main(arguments(place, "--quiet")) == 130
    (record,) = place.do(runs_of(place).list(10, now_ms=0))
    assert (record.state, record.exit_code) == (RunState.CANCELLED, 130)
    assert "ended by SIGINT" in record.detail
    assert place.do(runs_of(place).holder(RunLane(RunKind.BOOKIES))) is None


def test_two_signals_end_the_wait(place: Place) -> None:
    place.do(runs_of(place).acquire(RunLane(RunKind.BOOKIES), "the-other-run", "elsewhere:1"))
    shot = OneShot(RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), SessionSettings(), "me", STATE_S)
    with pytest.raises(OneShotStoppedError, match="SIGINT") as stopped:
        run_one_shot(shot, lambda event: two_signals())
    assert exit_code_of(stopped.value) == 130


def test_a_failure_to_print_progress_does_not_end_the_run(place: Place, running: None) -> None:
    def closed_terminal(event: ProgressEvent) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    settings = AuditSettings(place.uri, place.report_dir)
    result = run_one_shot(OneShot(RunKind.BOOKIES, settings, SessionSettings(), "me"), closed_terminal)
    assert (result.exit_code(), place.marked()) == (ExitCode.OK, {1: ["x:1"]})


def a_record(place: Place) -> RunRecord:
    return RunRecord("a-run", RunKind.REPLICAS, RunCause.COMMAND, "me", "here:1", RunState.RUNNING, started_ms=1)


def stopped(gate: RunGate) -> Stop:
    """Wait at the gate as a paused run does, until it stops the run."""
    gate.pause()
    with pytest.raises(RunStoppedError):
        gate.pass_through()
    assert gate.stopped is not None
    return gate.stopped


def test_a_cancel_request_in_the_store_stops_the_run(place: Place) -> None:
    gate, runs = RunGate(), runs_of(place)
    settings = AuditSettings(place.uri, place.report_dir)
    keeper = RunKeeper(settings, a_record(place), gate, SystemClock())
    keeper.begin(0)
    with pytest.raises(RunLockedError, match="a-run"):
        place.do(runs.acquire(RunLane(RunKind.REPLICAS), "second", "there:1"))
    asked = CliRunner().invoke(audit_cli.app, ["cancel", "a-run", "--metadata-uri", place.uri])
    assert (asked.exit_code, "here:1 is asked to end" in asked.stdout) == (0, True)
    stop = stopped(gate)
    assert stop.reason.startswith("cancelled by ")
    assert (stop.state, stop.exit_code) == (RunState.CANCELLED, ExitCode.CANCELLED)
    keeper.end(outcome_of_error(RunStoppedError(), stop))
    assert place.do(runs.holder(RunLane(RunKind.REPLICAS))) is None
    assert place.do(runs.cancel_requested_by("a-run")) is None


def test_a_manual_start_is_recorded_once_before_the_run(place: Place) -> None:
    """This also holds if the run has to wait first. A start by a schedule is not recorded."""
    runs, by = runs_of(place), f"me@{socket.gethostname()}"
    settings = AuditSettings(place.uri, place.report_dir, missing_share_max=0.9)
    changes = ChangeRecords(place.store, place.cluster.root, SystemClock())
    other = place.do(runs.acquire(RunLane(RunKind.REPLICAS), "the-other-run", "elsewhere:1"))
    with pytest.raises(RunLockedError):
        RunKeeper(settings, a_record(place), RunGate(), SystemClock()).begin(0)
    assert place.do(changes.newest(9)) == [], "a run that did not begin is recorded"
    waited = threading.Event()
    keeper = RunKeeper(settings, a_record(place), RunGate(), SystemClock(), lambda event: waited.set())
    begun: list[str] = []
    waiting = threading.Thread(target=lambda: begun.append(keeper.begin(STATE_S)))
    waiting.start()
    assert waited.wait(STATE_S)
    place.do(other.release())
    waiting.join(STATE_S)
    (change,) = place.do(changes.newest(9))
    assert (change.by, change.via, change.action) == (by, "command", "run start")
    assert change.detail == f"{begun[0]} replicas missing_share_max=0.9"
    keeper.end(RunOutcome(RunState.DONE, 0))
    scheduled = replace(a_record(place), run_id="another-run", cause=RunCause.SCHEDULE)
    keeper = RunKeeper(settings, scheduled, RunGate(), SystemClock())
    keeper.begin(0)
    keeper.end(RunOutcome(RunState.DONE, 0))
    assert len(place.do(changes.newest(9))) == 1
    assert {record.cause for record in place.do(runs.list(9, now_ms=0))} == {RunCause.COMMAND, RunCause.SCHEDULE}


def test_a_run_marked_as_abandoned_ends(place: Place) -> None:
    gate, runs = RunGate(), runs_of(place)
    keeper = RunKeeper(AuditSettings(place.uri, place.report_dir), a_record(place), gate, SystemClock())
    keeper.begin(0)
    place.do(place.store.delete(f"{own_path('runs', place.cluster.root)}/locks/replicas"))
    place.do(runs.abandon_orphans(5))
    keeper.on_progress(ProgressEvent(Phase.ASK, 1, 2))
    stop = stopped(gate)
    assert (stop.state, stop.exit_code) == (RunState.ABANDONED, ExitCode.STORE_UNREACHABLE)
    keeper.end(outcome_of_error(RunStoppedError(), stop))
    record = place.do(runs.get("a-run"))
    assert record is not None
    assert record.state is RunState.ABANDONED


def test_a_signal_ends_a_run_cleanly(place: Place, tmp_path: Path) -> None:
    runs = runs_of(place)
    command = [sys.executable, "-m", "auditor.cli.main", "audit", "run", *arguments(place)]

    async def ended() -> int:
        process = ManagedProcess.start("audit", command, log_path=tmp_path / "audit.log")
        async with process:

            async def is_running() -> bool:
                return bool(await runs.list(1, now_ms=0))

            await process.wait_until(is_running, "to record its run", STATE_S)
            os.kill(process.pid, signal.SIGTERM)
            return await process.wait(STATE_S)

    exit_code = place.do(ended())
    (record,) = place.do(runs.list(10, now_ms=0))
    assert (exit_code, record.state, record.exit_code) == (128 + signal.SIGTERM, RunState.CANCELLED, 143)
    assert "ended by SIGTERM" in record.detail
    assert (place.do(runs.holder(RunLane(RunKind.BOOKIES))), place.marked()) == (None, {})


WITH_A_DRIVER_THAT_ENDS = """
import sys
from pyspark import SparkContext
from spark_jobs import audit
from spark_jobs.runs.reading import live_reading
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.session import kill_driver
called = {owner}.{name}
def killing(*arguments, **named):
    kill_driver()
    SparkContext._gateway.proc.wait()
    return called(*arguments, **named)
{owner}.{name} = killing
sys.exit(audit.main(sys.argv[1:]))
"""


def ended_run(place: Place, *command: str) -> RunRecord:
    """Return the record of the run of a command that failed because of Spark."""
    done = subprocess.run(
        [sys.executable, *command, *arguments(place)], capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    (record,) = place.do(runs_of(place).list(10, now_ms=0))
    assert (done.returncode, record.state, record.exit_code) == (ExitCode.INTERNAL, RunState.FAILED, ExitCode.INTERNAL)
    assert done.stderr.rstrip().endswith(record.detail)
    assert place.do(runs_of(place).holder(RunLane(RunKind.BOOKIES))) is None
    return record


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        pytest.param("live_reading", "scan_ledgers", id="before the scan", marks=pytest.mark.long),
        pytest.param("ClusterView", "accepted_losses", id="after the scan"),
    ],
)
def test_the_end_of_sparks_driver_is_the_recorded_reason_of_the_failure(
    place: Place, quick_spark: None, owner: str, name: str
) -> None:
    record = ended_run(place, "-c", WITH_A_DRIVER_THAT_ENDS.format(owner=owner, name=name))
    assert "Spark's driver, a Java process, has ended" in record.detail


@pytest.mark.parametrize("master", ["sprak://master:7077", pytest.param("local[x]", marks=pytest.mark.long)])
def test_an_unusable_master_is_named_and_a_small_cluster_is_marked(
    place: Place, quick_spark: None, master: str
) -> None:
    place.add_cookies("a:1", "b:1", "x:1")
    record = ended_run(place, "-m", "auditor.cli.main", "audit", "run", "--master", master)
    assert record.detail.startswith(f"Spark did not start with the master {master}: ")
    assert "--master" in record.detail
    assert place.marked() == {1: ["x:1"]}
