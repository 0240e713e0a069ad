"""The records and the exit code of a one-shot run. The store is in memory, and Spark does not start."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import random
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from bookie.metadata.access import current_access, set_current_access
from bookie.metadata.nodes import put
from bookie.metadata.own_state import own_path, record_path
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.records import RunLockedError, Runs, lane_of
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunCause, RunKind, RunRecord, RunState, new_run_id, started_ms
from bookie.runtime.clock import Clock
from spark_jobs import audit as audit_module
from spark_jobs.one_shot import keeper as keeper_module
from spark_jobs.one_shot import run as run_module
from spark_jobs.one_shot.keeper import WAIT_S_MAX, RunKeeper, non_default_options
from spark_jobs.report.files import ReportDirError
from spark_jobs.runs.gate import RunGate
from spark_jobs.runs.life_cycle import RunLifeCycle, RunOutcome
from spark_jobs.runs.port import Progress
from spark_jobs.runs.prerequisites import ExportError, NoPulsarError, NoTopologyError
from spark_jobs.session import SessionSettings, SparkEndedError
from spark_jobs.settings import AuditSettings
from spark_jobs.snapshot.errors import SnapshotError
from tests.deadlines import STATE_S
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, formatted

T = TypeVar("T")

URI = f"zk+hierarchical://zk:2181{ROOT}"
HERE, DIED = "20270115-000009-here", "20270115-000001-died"
DONE = RunOutcome(RunState.DONE, ExitCode.OK, verdict="clean", is_success=True)


def record(run_id: str, state: RunState = RunState.RUNNING, kind: RunKind = RunKind.BOOKIES) -> RunRecord:
    is_whole = state is RunState.DONE
    return RunRecord(run_id, kind, RunCause.SCHEDULE, "me", "here:1", state, started_ms=1, is_every_ledger=is_whole)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> MemoryCell:
    """Return the server of every session of a run."""
    cell = MemoryCell()
    asyncio.run(_formatted(cell))

    async def connect(hosts: str, **settings: Any) -> MemoryStore:
        return MemoryStore(cell)

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    return cell


async def _formatted(cell: MemoryCell) -> None:
    await formatted(MemoryStore(cell))


def do(cell: MemoryCell, work: Callable[[Runs], Coroutine[Any, Any, T]]) -> T:
    async def done() -> T:
        return await work(Runs(MemoryStore(cell), ROOT))

    return asyncio.run(done())


def states(cell: MemoryCell) -> dict[str, RunState]:
    return {each.run_id: each.state for each in do(cell, lambda runs: runs.list(99, now_ms=0))}


def keeper(path: Path, clock: Clock | None = None, progress: Progress | None = None, **more: Any) -> RunKeeper:
    settings = AuditSettings(URI, path)
    return RunKeeper(settings, record(HERE), RunGate(), clock or ManualClock(turns=1), progress, **more)


def test_the_start_of_a_run_marks_runs_whose_process_died_as_abandoned(cell: MemoryCell, tmp_path: Path) -> None:
    do(cell, lambda runs: runs.write(record(DIED)))
    kept = keeper(tmp_path)
    kept.begin(0)
    assert states(cell) == {HERE: RunState.RUNNING, DIED: RunState.ABANDONED}
    kept.end(DONE)
    assert states(cell)[HERE] is RunState.DONE


def test_an_unreadable_old_record_does_not_prevent_a_start(cell: MemoryCell, tmp_path: Path) -> None:
    do(cell, lambda runs: runs.write(record(DIED)))
    path = f"{own_path('runs', ROOT)}/records/{DIED}"
    cell.deny(path)
    kept = keeper(tmp_path)
    kept.begin(0)
    kept.end(DONE)
    cell.allow(path)
    assert states(cell) == {HERE: RunState.DONE, DIED: RunState.RUNNING}


def test_old_records_are_removed_after_the_end_of_a_run(
    cell: MemoryCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the end of the run, the newest complete run of the kind may be an old one."""
    monkeypatch.setattr(keeper_module, "RUNS_KEPT", 2)
    complete = "20270115-000001-done"
    failed = ["20270115-000002-none", "20270115-000003-none"]

    async def write(runs: Runs) -> None:
        for old in (record(complete, RunState.DONE), *(record(run_id, RunState.FAILED) for run_id in failed)):
            await runs.write(old)

    do(cell, write)
    kept = keeper(tmp_path)
    kept.begin(0)
    assert complete in states(cell)
    kept.end(DONE)
    assert states(cell) == {HERE: RunState.DONE, failed[-1]: RunState.FAILED}


@pytest.mark.parametrize(("noted", "kept"), [(b"4", 4), (b"damaged", 5), (b"3", 3)], ids=["more", "unknown", "fewer"])
def test_a_run_outside_the_service_keeps_as_many_records_as_the_auditor(
    cell: MemoryCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bytes, kept: int
) -> None:
    monkeypatch.setattr(keeper_module, "RUNS_KEPT", 2)

    async def write(runs: Runs) -> None:
        for number in range(1, 5):
            await runs.write(record(f"20270115-00000{number}-none", RunState.FAILED))
        await runs.note_kept(9)

    do(cell, write)
    asyncio.run(put(MemoryStore(cell), f"{own_path('runs', ROOT)}/kept", noted))
    run = keeper(tmp_path)
    run.begin(0)
    run.end(DONE)
    assert len(states(cell)) == kept


@pytest.mark.parametrize("is_dry_run", [False, True], ids=["marks", "dry run"])
def test_only_a_run_that_may_mark_records_the_state_root_of_the_cluster(
    cell: MemoryCell, tmp_path: Path, is_dry_run: bool
) -> None:
    set_current_access(replace(current_access(), state_root="/elsewhere"))
    settings = AuditSettings(URI, tmp_path, is_dry_run=is_dry_run)
    kept = RunKeeper(settings, replace(record(HERE), is_dry_run=is_dry_run), RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert (cell.stat(record_path(ROOT)) is None) is is_dry_run


def test_the_record_of_the_start_of_a_dry_run_does_not_record_the_state_root(cell: MemoryCell, tmp_path: Path) -> None:
    set_current_access(replace(current_access(), state_root="/elsewhere"))
    by_hand = replace(record(HERE), cause=RunCause.COMMAND, is_dry_run=True)
    kept = RunKeeper(AuditSettings(URI, tmp_path, is_dry_run=True), by_hand, RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert cell.stat(record_path(ROOT)) is None


def test_a_start_whose_change_record_is_uncertain_is_aborted(
    cell: MemoryCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **more: object) -> None:
        raise WriteOutcomeUnknownError("no answer")

    monkeypatch.setattr(ChangeRecords, "record", lost)
    by_hand = replace(record(HERE), cause=RunCause.COMMAND)
    with pytest.raises(StoreUnavailableError, match="the run was not started"):
        RunKeeper(AuditSettings(URI, tmp_path), by_hand, RunGate(), ManualClock(turns=1)).begin(0)
    assert states(cell) == {}
    shadow = RunKeeper(AuditSettings(URI, tmp_path), by_hand, RunGate(), ManualClock(turns=1), is_change=False)
    shadow.begin(0)
    shadow.end(DONE)
    assert states(cell) == {HERE: RunState.DONE}, "the start of a run in shadow mode is not recorded as a change"


@pytest.mark.parametrize(
    ("kind", "error"), [(RunKind.PLACEMENT, NoTopologyError), (RunKind.REFERENCES, NoPulsarError)], ids=str
)
def test_a_run_that_could_only_fail_is_refused_before_it_is_on_record_unless_a_schedule_starts_it(
    cell: MemoryCell, tmp_path: Path, kind: RunKind, error: type[Exception]
) -> None:
    by_hand = replace(record(HERE, kind=kind), cause=RunCause.COMMAND)
    with pytest.raises(error):
        RunKeeper(AuditSettings(URI, tmp_path), by_hand, RunGate(), ManualClock(turns=1)).begin(0)
    assert (states(cell), asyncio.run(ChangeRecords(MemoryStore(cell), ROOT, ManualClock()).newest(9))) == ({}, [])
    scheduled = replace(by_hand, cause=RunCause.SCHEDULE)
    kept = RunKeeper(AuditSettings(URI, tmp_path), scheduled, RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert states(cell) == {HERE: RunState.DONE}


@pytest.mark.parametrize("kind", [RunKind.BOOKIES, RunKind.REPLICAS], ids=str)
def test_a_dry_run_without_a_place_for_its_report_is_refused_before_it_is_on_record(
    cell: MemoryCell, tmp_path: Path, kind: RunKind
) -> None:
    (tmp_path / "file").touch()
    settings = AuditSettings(URI, tmp_path / "file" / "reports", is_dry_run=True)
    by_hand = replace(record(HERE, kind=kind), cause=RunCause.COMMAND, is_dry_run=True)
    with pytest.raises(ReportDirError, match="--report-dir"):
        RunKeeper(settings, by_hand, RunGate(), ManualClock(turns=1)).begin(0)
    assert (states(cell), asyncio.run(ChangeRecords(MemoryStore(cell), ROOT, ManualClock()).newest(9))) == ({}, [])
    marking = replace(settings, is_dry_run=False)
    kept = RunKeeper(marking, replace(by_hand, is_dry_run=False), RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert states(cell) == {HERE: RunState.DONE}, "a run that marks needs no report"


def test_a_references_run_that_cannot_write_its_file_of_ids_is_refused_before_it_is_on_record(
    cell: MemoryCell, tmp_path: Path
) -> None:
    asyncio.run(MemoryStore(cell).create("/managed-ledgers"))
    by_hand = replace(record(HERE, kind=RunKind.REFERENCES), cause=RunCause.COMMAND)
    for file in (tmp_path / "absent" / "ids.txt", tmp_path):
        settings = AuditSettings(URI, tmp_path / "reports", export=file)
        with pytest.raises(ExportError, match="--export"):
            RunKeeper(settings, by_hand, RunGate(), ManualClock(turns=1)).begin(0)
    assert (states(cell), list(tmp_path.iterdir())) == ({}, [])
    settings = AuditSettings(URI, tmp_path / "reports", export=tmp_path / "ids.txt")
    kept = RunKeeper(settings, by_hand, RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert states(cell) == {HERE: RunState.DONE}
    assert not (tmp_path / "ids.txt").exists()


@pytest.mark.parametrize("content", [b"", b"text", b"ZKLG", b"\x1f\x8bdamaged"], ids=repr)
def test_a_run_from_a_file_that_is_no_snapshot_is_refused_before_it_is_on_record(
    cell: MemoryCell, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    settings = AuditSettings(URI, tmp_path, snapshot=tmp_path / "file")
    by_hand = replace(record(HERE), cause=RunCause.COMMAND)
    with pytest.raises(SnapshotError):
        RunKeeper(settings, by_hand, RunGate(), ManualClock(turns=1)).begin(0)
    assert (states(cell), asyncio.run(ChangeRecords(MemoryStore(cell), ROOT, ManualClock()).newest(9))) == ({}, [])


def test_a_placement_run_begins_with_a_topology(cell: MemoryCell, tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text('{"b:1": "/r1"}')
    by_hand = replace(record(HERE, kind=RunKind.PLACEMENT), cause=RunCause.COMMAND)
    settings = AuditSettings(URI, tmp_path, topology_file=file)
    kept = RunKeeper(settings, by_hand, RunGate(), ManualClock(turns=1))
    kept.begin(0)
    kept.end(DONE)
    assert states(cell) == {HERE: RunState.DONE}


def test_the_recorded_options_are_switches_and_numbers_that_differ_from_their_defaults(tmp_path: Path) -> None:
    settings = AuditSettings(URI, tmp_path, is_dry_run=True, missing_share_max=0.25, report_store="s3://a/b")
    assert non_default_options(settings) == {"missing_share_max": 0.25}


@pytest.mark.parametrize("wait_s", [math.inf, math.nan])
def test_the_wait_for_the_previous_run_is_bounded(cell: MemoryCell, tmp_path: Path, wait_s: float) -> None:
    asyncio.run(_locked(MemoryStore(cell)))
    clock, waits, ended = ManualClock(), threading.Event(), threading.Event()

    def begin() -> None:
        with pytest.raises(RunLockedError, match="the-other-run"):
            keeper(tmp_path, clock, lambda event: waits.set()).begin(wait_s)
        ended.set()

    waiting = threading.Thread(target=begin, daemon=True)
    waiting.start()
    assert waits.wait(STATE_S)
    clock.now_s = WAIT_S_MAX
    assert ended.wait(STATE_S)


async def _locked(store: MemoryStore) -> None:
    await Runs(store, ROOT).acquire(lane_of(record(HERE)), "the-other-run", "elsewhere:1")


@pytest.mark.parametrize("cause", [RunCause.SCHEDULE, RunCause.COMMAND])
def test_a_run_is_dated_from_the_end_of_its_wait(cell: MemoryCell, tmp_path: Path, cause: RunCause) -> None:
    """The wait is no part of its duration, and its report and image are newer than those of the run before."""
    other, waits, begun = MemoryStore(cell), threading.Event(), list[str]()
    asyncio.run(_locked(other))
    clock = ManualClock(turns=1)
    mine = replace(record(new_run_id(clock.epoch_ms(), random.Random(1))), cause=cause)
    kept = RunKeeper(AuditSettings(URI, tmp_path), mine, RunGate(), clock, lambda event: waits.set())
    beginning = threading.Thread(target=lambda: begun.append(kept.begin(WAIT_S_MAX)), daemon=True)
    beginning.start()
    assert waits.wait(STATE_S)
    clock.now_s = 3600
    began_ms = clock.epoch_ms()
    cell.close_session(other.session.session_id)
    beginning.join(STATE_S)
    [run_id] = begun
    ended = kept.end(DONE)
    assert (ended.run_id, ended.started_ms, started_ms(run_id)) == (run_id, began_ms, began_ms // 1000 * 1000)
    stored = do(cell, lambda runs: runs.list(9, now_ms=0))
    assert [(each.run_id, each.started_ms) for each in stored] == [(run_id, began_ms)]
    changes = asyncio.run(ChangeRecords(MemoryStore(cell), ROOT, clock).newest(9))
    assert [run_id in change.detail for change in changes] == [True] * (cause is RunCause.COMMAND)


Ending = Callable[..., None]


@pytest.fixture
def ending(cell: MemoryCell, monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Make Spark fail in runs of this process, after a signal to the process if one is given."""

    def prepare(error: BaseException, number: int | None = None) -> None:
        def session(settings: SessionSettings) -> AbstractContextManager[Callable[[], SparkSession]]:
            if number is not None:
                os.kill(os.getpid(), number)
            raise error

        monkeypatch.setattr(run_module, "starting_session", session)

    return prepare


def test_a_run_whose_spark_was_ended_by_the_same_signal_is_recorded_as_ended_by_it(
    cell: MemoryCell, ending: Ending, tmp_path: Path
) -> None:
    """A supervisor sends the signal to every process of a service, including the Java process of Spark."""
    ending(SparkEndedError("Spark's driver has ended"), signal.SIGTERM)
    arguments = ["--metadata-uri", URI, "--report-dir", str(tmp_path), "--quiet"]
    assert audit_module.main(arguments) == 128 + signal.SIGTERM
    (found,) = do(cell, lambda runs: runs.list(9, now_ms=0))
    assert (found.state, found.exit_code) == (RunState.CANCELLED, 128 + signal.SIGTERM)
    assert "SIGTERM" in found.detail


def test_a_second_signal_while_the_end_is_recorded_does_not_change_the_exit_code(
    cell: MemoryCell, ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = RunLifeCycle.end

    async def ends(life: RunLifeCycle, outcome: RunOutcome) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await end(life, outcome)

    monkeypatch.setattr(RunLifeCycle, "end", ends)
    ending(SparkEndedError("Spark's driver has ended"), signal.SIGTERM)
    try:
        code = audit_module.main(["--metadata-uri", URI, "--report-dir", str(tmp_path), "--quiet"])
    except KeyboardInterrupt:
        pytest.fail("the second signal left a traceback")
    assert code == 128 + signal.SIGTERM


def failures() -> list[Exception]:
    return [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("unexpected")]


@pytest.mark.parametrize("error", failures(), ids=["full disk", "unexpected"])
def test_an_unexpected_error_has_the_exit_code_of_its_record(
    cell: MemoryCell, ending: Ending, tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code must not be the one for findings."""
    ending(error)
    arguments = ["--metadata-uri", URI, "--report-dir", str(tmp_path)]
    assert audit_module.main([*arguments, "--fail-on", "critical"]) == ExitCode.INTERNAL
    assert str(error) in capsys.readouterr().err
    done = CliRunner().invoke(audit_cli.app, ["run", *arguments, "--fail-on", "critical"])
    assert done.exit_code == ExitCode.INTERNAL
    shadow = CliRunner().invoke(audit_cli.app, ["shadow", *arguments])
    assert shadow.exit_code == ExitCode.INTERNAL
    found = do(cell, lambda runs: runs.list(9, now_ms=0))
    assert [(each.state, each.exit_code) for each in found] == [(RunState.FAILED, ExitCode.INTERNAL)] * 3
