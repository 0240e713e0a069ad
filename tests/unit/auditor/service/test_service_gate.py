"""The gate of a run, called from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunState
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.port import RunStoppedError
from tests.deadlines import STATE_S


@contextmanager
def passing(gate: RunGate) -> Iterator[tuple[threading.Event, list[str]]]:
    """Start a thread that passes the gate."""
    is_through, stopped = threading.Event(), list[str]()

    def run() -> None:
        try:
            gate.pass_through()
        except RunStoppedError as error:
            stopped.append(str(error))
        is_through.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield is_through, stopped
    thread.join(STATE_S)
    assert not thread.is_alive()


def test_an_open_gate_lets_a_run_pass() -> None:
    gate = RunGate(lambda: "")
    gate.pass_through()
    assert gate.stop_reason() is None


def test_a_paused_run_waits_until_it_is_resumed() -> None:
    gate = RunGate(lambda: "")
    gate.pause()
    with passing(gate) as (is_through, stopped):
        assert not is_through.wait(0.05)
        assert gate.stop_reason() is None
        gate.resume()
        assert is_through.wait(STATE_S)
    assert stopped == []


def test_a_paused_run_can_be_stopped_and_the_first_reason_is_kept() -> None:
    gate = RunGate(lambda: "")
    gate.pause()
    with passing(gate) as (is_through, stopped):
        gate.stop(Stop("cancelled by me", RunState.CANCELLED))
        gate.stop(Stop("something else", RunState.ABANDONED))
        assert is_through.wait(STATE_S)
    assert stopped == ["cancelled by me"]
    assert gate.stop_reason() == "cancelled by me"
    assert gate.stopped == Stop("cancelled by me", RunState.CANCELLED)


def test_a_run_that_lost_the_leadership_stops_permanently_even_while_paused() -> None:
    reasons = [""]
    gate = RunGate(lambda: reasons[0])
    gate.pause()
    with passing(gate) as (is_through, stopped):
        reasons[0] = "no leader any more"
        assert is_through.wait(STATE_S)
    reasons[0] = ""
    with pytest.raises(RunStoppedError, match="no leader any more"):
        gate.pass_through()
    assert stopped == ["no leader any more"]
    assert gate.stopped == Stop("no leader any more", RunState.ABANDONED, ExitCode.STORE_UNREACHABLE)
