"""The estimated end of the phase of a run."""

from __future__ import annotations

from dataclasses import replace

from bookie.model.run import RunCause, RunKind, RunRecord, RunState

BEGUN = RunRecord("a-run", RunKind.REPLICAS, RunCause.HTTP, "me", "a/1", RunState.RUNNING, started_ms=1_000)


def at(record: RunRecord, phase: str, done: int, total: int, now_ms: int) -> RunRecord:
    return replace(record.with_progress(phase, done, total, now_ms), updated_ms=now_ms)


def test_a_phase_is_measured_from_its_own_beginning() -> None:
    """If it were extrapolated from the start of the run, each phase after the first would seem to last far too long."""
    scanned = at(at(BEGUN, "scan", 0, 10, 1_000), "scan", 10, 10, 101_000)
    asking = at(scanned, "ask", 0, 100, 101_000)
    assert asking.eta_ms is None
    assert at(asking, "ask", 50, 100, 106_000).eta_ms == 111_000


def test_progress_before_the_first_measurement_does_not_count() -> None:
    first = at(BEGUN, "ask", 40, 100, 11_000)
    assert first.eta_ms is None
    assert at(first, "ask", 60, 100, 21_000).eta_ms == 41_000


def test_a_phase_that_comes_again_is_measured_from_its_new_start() -> None:
    asked = at(at(BEGUN, "ask", 0, 100, 1_000), "ask", 50, 100, 51_000)
    again = at(asked, "ask", 10, 100, 60_000)
    assert again.eta_ms is None
    assert at(again, "ask", 20, 100, 61_000).eta_ms == 69_000


def test_the_same_progress_changes_nothing() -> None:
    looked = BEGUN.with_progress("ask", 5, 10, 2_000)
    assert looked.with_progress("ask", 5, 10, 9_000) == looked


def test_a_record_of_an_earlier_release_is_measured_from_the_start_of_its_run() -> None:
    record = replace(BEGUN, phase="scan", done=5, total=10, updated_ms=6_000)
    assert record.eta_ms == 11_000
    assert replace(record, state=RunState.DONE).eta_ms is None
