"""``bkheal bookie gc --wait`` and ``--watch`` of a running bookie: the output of each request, and how they end.

The pauses between requests are replaced: in a pause the bookie changes, time passes, or the operator presses Ctrl-C.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.bookie import place, upkeep
from auditor.cli.bookie.upkeep import COLLECTED_WITHIN_S, collected
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from auditor.cli.watching import watched
from bookie.model.exit_codes import ExitCode
from bookie.server.upkeep.scrubber import Scrubber
from bookie.wire.grpc.administration import AdministrationUnavailableError
from tests.contract.test_administration import L1, add, call, command, in_background, until
from tests.worlds.administered import Administered, administered


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path) as made:
        yield made


@dataclass
class Pauses:
    """The time of a command. Each pause runs the next function of ``then``; if none is left, it raises Ctrl-C."""

    then: list[Callable[[], object]] = field(default_factory=list)
    slept_s: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return 1000.0 + sum(self.slept_s)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if not self.then:
            raise KeyboardInterrupt
        self.then.pop(0)()


def nothing() -> None:
    """Leave the bookie as it is."""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    waiting = partial(collected, monotonic_s=made.now_s, sleep=made.sleep)
    monkeypatch.setattr(upkeep, "collected", waiting)
    monkeypatch.setattr(place, "watched", partial(watched, sleep=made.sleep))
    return made


def run_collection(bookie: Administered) -> None:
    """Let the collector of the bookie do the requested work."""
    end = in_background(bookie, bookie.node.collector.run)
    try:
        until(bookie, lambda: not bookie.node.collector.is_pending)
    finally:
        end()


def test_gc_waits_for_the_end_of_the_collection_that_it_started(bookie: Administered, pauses: Pauses) -> None:
    add(bookie, L1, *range(10))  # the ledger has no metadata
    pauses.then = [nothing, lambda: run_collection(bookie)]
    result = command(bookie, "gc", "--major", "--wait", "--interval", "7", "-o", "json")
    assert (result.exit_code, pauses.slept_s) == (ExitCode.OK, [7.0, 7.0])
    found = json.loads(result.stdout)
    assert (found["running"], found["level"], found["collected"], found["stopped"]) == (False, "major", 1, None)
    assert result.stderr.count("garbage collection runs") == 2


def test_a_collection_that_has_not_begun_is_shown_with_its_requested_level(
    bookie: Administered, pauses: Pauses
) -> None:
    pauses.then = [lambda: run_collection(bookie)]
    assert command(bookie, "gc", "--minor", "--wait").exit_code == ExitCode.OK
    for words in (("gc", "--major"), ("gc",)):
        found = json.loads(command(bookie, *words, "-o", "json").stdout)
        shown = (found["running"], found["level"], found["begun_at"], found["finished_at"])
        assert shown == (True, "major", None, None)


def test_gc_stops_waiting_at_its_time_limit_and_the_collection_continues(bookie: Administered, pauses: Pauses) -> None:
    pauses.then = [nothing] * 10
    result = command(bookie, "gc", "--minor", "--wait", "--interval", "4", "--timeout", "10", "-o", "json")
    assert (result.exit_code, pauses.slept_s) == (ExitCode.BUSY, [4.0, 4.0, 2.0])
    assert json.loads(result.stdout)["running"] is True
    assert "the collection did not end within 10 s; it continues" in result.stderr
    assert bookie.node.collector.is_pending
    result = command(bookie, "gc", "--wait", "--timeout", "0")
    assert (result.exit_code, len(pauses.slept_s)) == (ExitCode.BUSY, 3)
    pauses.then = [nothing] * 10
    result = command(bookie, "gc", "--wait", "--interval", "1000")
    assert (result.exit_code, sum(pauses.slept_s[3:])) == (ExitCode.BUSY, COLLECTED_WITHIN_S)


def test_a_time_limit_of_gc_without_a_wait_is_refused(bookie: Administered) -> None:
    assert command(bookie, "gc", "--minor", "--timeout", "10").exit_code == ExitCode.USAGE
    assert not bookie.node.collector.is_pending


def test_gc_that_has_nothing_to_wait_for_ends_at_once(bookie: Administered, pauses: Pauses) -> None:
    result = command(bookie, "gc", "--wait")
    assert (result.exit_code, pauses.slept_s) == (ExitCode.OK, [])
    assert "none has ended" in result.stdout


def test_gc_fails_if_the_collection_that_it_waits_for_ends_early(bookie: Administered, pauses: Pauses) -> None:
    add(bookie, L1, 0)

    def lose_the_cluster() -> None:
        bookie.thread.run(bookie.cluster.store.delete(f"{bookie.cluster.cluster.root}/INSTANCEID"))
        run_collection(bookie)

    pauses.then = [lose_the_cluster]
    result = command(bookie, "gc", "--major", "--wait")
    assert (result.exit_code, len(pauses.slept_s)) == (ExitCode.FAILED, 1)
    assert "it ended early" in result.stdout
    shown = command(bookie, "gc")
    assert (shown.exit_code, "it ended early" in shown.stdout) == (ExitCode.OK, True)


def test_gc_fails_if_the_collection_that_it_waits_for_ends_with_the_process(
    bookie: Administered, pauses: Pauses
) -> None:
    def start_again() -> None:
        bookie.node.collector.asked = None  # as after a restart: no collection has ended in this process

    pauses.then = [start_again]
    result = command(bookie, "gc", "--major", "--wait")
    assert (result.exit_code, "was started again" in result.stderr) == (ExitCode.FAILED, True)


@pytest.mark.parametrize("is_over", [True, False])
def test_gc_fails_if_another_process_has_collected_since(
    bookie: Administered, pauses: Pauses, *, is_over: bool
) -> None:
    def start_again() -> None:
        bookie.node.collector.asked = None
        bookie.node.begun_ms += 1
        bookie.node.collector.start(is_major=False)
        if is_over:
            run_collection(bookie)

    pauses.then = [start_again, nothing]
    result = command(bookie, "gc", "--major", "--wait")
    assert (result.exit_code, "was started again" in result.stderr) == (ExitCode.FAILED, True)
    assert len(pauses.slept_s) == 1


def test_a_bookie_that_stops_answering_ends_the_wait(bookie: Administered, pauses: Pauses) -> None:
    pauses.then = [lambda: setattr(bookie.servicer, "node", None)]
    error = command(bookie, "gc", "--minor", "--wait").exception
    assert isinstance(error, AdministrationUnavailableError)
    assert exit_code_of(error) is ExitCode.UNAVAILABLE


def test_a_wait_of_zero_length_is_wrong_usage() -> None:
    words = ["bookie", "gc", "--at", "h:1", "--wait", "--timeout", "-1"]
    assert CliRunner().invoke(app, words).exit_code == ExitCode.USAGE


def test_status_is_refreshed_until_it_is_interrupted(bookie: Administered, pauses: Pauses) -> None:
    pauses.then = [lambda: add(bookie, L1, 0), lambda: set_read_only(bookie)]
    result = command(bookie, "status", "--watch", "--interval", "3", "-o", "jsonl")
    assert (result.exit_code, pauses.slept_s) == (ExitCode.INTERRUPTED, [3.0, 3.0, 3.0])
    looks = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(look["kind"], look["ledgers"], look["read_only"]) for look in looks] == [
        ("RunningBookie", 0, False),
        ("RunningBookie", 1, False),
        ("RunningBookie", 1, True),
    ]


def test_a_watched_status_prints_one_line_each_time_if_the_output_is_not_a_terminal(
    bookie: Administered, pauses: Pauses
) -> None:
    pauses.then = [lambda: set_read_only(bookie)]
    lines = command(bookie, "status", "--watch").stdout.splitlines()
    assert [("writable" in line, "read-only: operator" in line) for line in lines] == [(True, False), (False, True)]


def test_a_watched_scrub_is_started_once(bookie: Administered, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses.then = [lambda: call(bookie, lambda client: client.force()), nothing]
    starts: list[bool] = []
    monkeypatch.setattr(Scrubber, "start", lambda _, *, from_beginning: starts.append(from_beginning))
    result = command(bookie, "scrub", "--start", "--from-beginning", "--watch", "-o", "jsonl")
    assert result.exit_code == ExitCode.INTERRUPTED
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == ["BookieScrub"] * 3
    assert starts == [True]


def test_a_bookie_that_stops_answering_ends_a_watch(bookie: Administered, pauses: Pauses) -> None:
    pauses.then = [lambda: setattr(bookie.servicer, "node", None)]
    result = command(bookie, "status", "--watch")
    assert isinstance(result.exception, AdministrationUnavailableError)
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("name", ["status", "scrub"])
def test_the_directories_of_a_stopped_bookie_are_not_watched(tmp_path: Path, name: str) -> None:
    places = ["--journal-dir", str(tmp_path), "--ledger-dir", str(tmp_path)]
    assert CliRunner().invoke(app, ["bookie", name, "--watch", *places]).exit_code == ExitCode.USAGE


def set_read_only(bookie: Administered) -> None:
    assert command(bookie, "readonly", "set").exit_code == ExitCode.OK
