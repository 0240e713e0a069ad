"""Facts that a command prints for people have words, units and times, and no names of fields or JSON."""

from __future__ import annotations

from dataclasses import replace

from auditor.cli.audit.runs import run_lines
from auditor.cli.dead_letters.command import letter_lines
from auditor.cli.ledgers.entries import describe
from auditor.operating.copied_bytes import copied_bytes
from auditor.operating.dead_letters import dead_letter_row
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.ids import LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.severity import Severity
from bookie.model.times import rfc3339
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.ledgers import make_metadata

RUN = RunRecord("20261130T150834Z-4f5085", RunKind.BOOKIES, RunCause.COMMAND, "me", "here:1", RunState.DONE)


def values(lines: list[str]) -> dict[str, str]:
    return {line[:14].strip(): line[14:].strip() for line in lines}


def test_the_figures_of_a_run() -> None:
    image = {"marked": 1, "written_from_ms": EPOCH_MS, "written_ledgers": 192, "written_bytes": 2048}
    findings = {"critical": 13, "no_live_copy": 4}
    run = replace(RUN, image=image, tasks_changed=17, findings=findings, held_back={"delay": 2})
    shown = values(run_lines(run.to_json()))
    assert (shown["findings"], shown["held back"]) == ("critical: 13, no_live_copy: 4", "delay: 2")
    assert shown["new marks"] == "17"
    assert all(text in shown["image"] for text in ("1 ledger ", "192 ledgers", "2.0 KiB", "T", "Z"))


def test_a_run_after_a_loss_has_the_bookie_in_its_cause_and_its_auditor_as_owner() -> None:
    run = replace(RUN, cause=RunCause.BOOKIE_LOSS, owner="bk1:3181", process="auditor-0:12")
    shown = values(run_lines(run.to_json()))
    assert (shown["cause"], shown["owner"]) == ("loss of bk1:3181", "auditor-0:12")
    shown = values(run_lines(RUN.to_json()))
    assert (shown["cause"], shown["owner"]) == ("command", "me")


def test_facts_that_say_nothing_are_left_out() -> None:
    image = {"marked": 0, "written_from_ms": 0, "written_ledgers": 0, "written_bytes": 0}
    assert "image" not in values(run_lines(replace(RUN, image=image).to_json()))


def test_a_phase_counts_only_if_its_size_is_known() -> None:
    assert "done" not in values(run_lines(RUN.to_json()))
    shown = values(run_lines(replace(RUN, state=RunState.RUNNING, phase="check", done=3, total=10).to_json()))
    assert (shown["phase"], shown["done"], shown["total"]) == ("check", "3", "10")


def test_the_age_of_a_parked_task_has_a_unit() -> None:
    parked = ParkedTask(
        ledger_id=LedgerId(7),
        reason=ParkReason.NO_LIVE_COPY,
        detail="no copy",
        since_ms=EPOCH_MS,
        bookies_seen=frozenset(),
        task_version=0,
    )
    lines = letter_lines(dead_letter_row(parked, ["a", "b"], EPOCH_MS + 7_500_000))
    assert {"age: 2 h 5 min", "missing: a, b"} <= set(lines)
    assert not any("_" in line.partition(":")[0] or "seconds" in line for line in lines)


def test_the_creation_of_a_ledger_is_a_time_with_its_zone() -> None:
    metadata = make_metadata((0, "a b"), quorum=(2, 2), last=1)
    assert describe(7, replace(metadata, ctime_ms=EPOCH_MS))["created"] == rfc3339(EPOCH_MS)
    assert describe(7, replace(metadata, ctime_ms=None))["created"] is None  # Apache's client does not store it
    assert describe(7, replace(metadata, ctime_ms=1 << 62))["created"] is None


def test_only_ledgers_with_a_copy_left_are_to_be_copied() -> None:
    copied = {level.label: copied_bytes(level.label, 2048).endswith("to copy") for level in Severity}
    assert {label for label, is_copied in copied.items() if not is_copied} == {"lost", "no_live_copy"}
