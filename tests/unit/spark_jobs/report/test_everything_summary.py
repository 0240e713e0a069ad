"""A run with several checks: each check is complete or incomplete on its own, and has counts of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.metadata.bookies.registration import Bookies
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import RunKind, RunState
from bookie.model.severity import Severity
from spark_jobs.report.console import table
from spark_jobs.report.counts import (
    CheckPart,
    InventoryCounts,
    LintCounts,
    PublishOutcome,
    PublishResult,
    SeverityCount,
    SnapshotCounts,
)
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.page.words import headline
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.runs.kinds.everything import dangling_cookies
from spark_jobs.runs.life_cycle import outcome_of
from spark_jobs.runs.outcome import ScanResult
from spark_jobs.runs.reading.completeness import NO_TOTALS
from spark_jobs.settings import FailOn
from tests.worlds import report as world

PATH = Path("reports/run/summary.json")
DONE = (CheckPart("bookies"), CheckPart("metadata"), CheckPart("inventory"), CheckPart("placement"))
WHOLE = replace(world.EVERYTHING, parts=DONE)
KINDS = (RunKind.BOOKIES, RunKind.PLACEMENT)


def test_a_summary_is_read_back_as_written() -> None:
    assert decode_summary(json.loads(json.dumps(world.EVERYTHING.to_json()))) == world.EVERYTHING


def test_an_incomplete_check_prevents_only_its_own_success() -> None:
    run = world.EVERYTHING
    assert (run.is_read, run.is_complete, run.verdict) == (True, False, Verdict.INCOMPLETE)
    assert run.exit_code() is ExitCode.PARTIAL
    outcome = outcome_of(run, PATH)
    assert (outcome.is_success, outcome.also_done) == (False, (RunKind.BOOKIES,))
    assert outcome.record_fields()["contained_done"] == (RunKind.BOOKIES,)
    assert outcome.detail == "placement: 7 fragments were not judged: their bookies have no location"


def test_a_complete_run_counts_as_a_success_of_each_of_its_checks() -> None:
    outcome = outcome_of(WHOLE, PATH)
    assert (outcome.is_success, outcome.also_done) == (True, KINDS)


def test_a_cookie_is_unused_only_if_every_ledger_was_read_in_this_run() -> None:
    lost = frozenset({BookieId("a:1"), BookieId("b:1"), BookieId("c:1")})
    live = Bookies(frozenset({BookieId("c:1")}), frozenset())
    scanned = ScanResult(replace(NO_TOTALS, ledgers=1, ledgers_by_bookie={"a:1": 1}), live, ())
    assert dangling_cookies(lost, scanned) == (["b:1"], "")
    for unsure in (
        replace(scanned, problems=("3 ledgers exist and were not listed",)),
        replace(scanned, totals=replace(scanned.totals, unreadable=1)),
        replace(scanned, snapshot=SnapshotCounts("snapshot.1", 1, 1, 0, 0)),
    ):
        found, why_not = dangling_cookies(lost, unsure)
        assert (found, bool(why_not)) == ((), True)


@pytest.mark.parametrize(
    ("run", "counts"),
    [
        (replace(WHOLE, problems=("3 ledgers exist and were not listed",)), ()),
        (replace(WHOLE, held_because="3 of 4 bookies are missing"), ()),
        (replace(WHOLE, is_dry_run=True), ()),
        (replace(WHOLE, published=PublishResult(PublishOutcome.DISABLED)), ()),
        (replace(world.CLEAN, kind=RunKind.BOOKIES), ()),
    ],
)
def test_a_problem_of_all_checks_is_a_success_of_none(run: RunSummary, counts: tuple[RunKind, ...]) -> None:
    assert outcome_of(run, PATH).also_done == counts


@pytest.mark.parametrize(
    ("asked", "is_every_ledger"),
    [
        ({}, True),
        ({"sample": 0.01}, False),
        ({"ledger_min": 5}, False),
        ({"ledger_max": 5}, False),
    ],
)
def test_a_replicas_check_of_some_ledgers_does_not_count_for_the_schedule(
    asked: dict[str, Any], is_every_ledger: bool
) -> None:
    run = replace(world.CLEAN, kind=RunKind.REPLICAS, replicas=replace(world.ASKED, absent=0, unknown=(), **asked))
    outcome = outcome_of(run, PATH)
    assert (outcome.is_success, outcome.is_every_ledger) == (is_every_ledger, is_every_ledger)
    assert (outcome.state, outcome.exit_code) == (RunState.DONE, ExitCode.OK)


def test_a_placement_check_without_a_report_is_not_a_success() -> None:
    assert outcome_of(WHOLE, PATH, "the disk is full").also_done == (RunKind.BOOKIES,)


@pytest.mark.parametrize(
    ("severities", "faults", "verdict"),
    [
        ((), {}, Verdict.CLEAN),
        ((), {"LENGTH_MISMATCH": 1}, Verdict.FAULTY_METADATA),
        ((Severity.MISPLACED,), {"LENGTH_MISMATCH": 1}, Verdict.MISPLACED),
        ((Severity.MISPLACED,), {"DUPLICATE_MEMBER": 1}, Verdict.FAULTY_METADATA),
        ((Severity.CRITICAL,), {"DUPLICATE_MEMBER": 1}, Verdict.UNDER_REPLICATED),
    ],
)
def test_a_fault_is_a_verdict_if_no_copy_is_missing(
    severities: tuple[Severity, ...], faults: dict[str, int], verdict: Verdict
) -> None:
    counts = tuple(SeverityCount(severity, 1, 1, 0) for severity in severities)
    run = replace(WHOLE, severities=counts, lint=LintCounts(faults), inventory=None)
    assert run.verdict is verdict
    assert (run.exit_code(FailOn.ANY) is ExitCode.FINDINGS) == (run.verdict is not Verdict.CLEAN)


@pytest.mark.parametrize(
    ("severities", "counts", "verdict", "fails"),
    [
        ((), InventoryCounts(0.0), Verdict.CLEAN, False),
        ((), InventoryCounts(0.0, not_judged={"open": 3}), Verdict.CLEAN, False),
        ((), InventoryCounts(0.0, over_replicated=1), Verdict.SURPLUS, False),
        ((), InventoryCounts(0.0, unowned=1), Verdict.SURPLUS, False),
        ((Severity.MISPLACED,), InventoryCounts(0.0, unowned=1), Verdict.MISPLACED, True),
        ((), InventoryCounts(0.0, unowned=1, damaged=1), Verdict.DAMAGED, True),
        ((Severity.CRITICAL,), InventoryCounts(0.0, damaged=1), Verdict.UNDER_REPLICATED, True),
    ],
)
def test_superfluous_copies_are_not_a_failure_but_damaged_ones_are(
    severities: tuple[Severity, ...], counts: InventoryCounts, verdict: Verdict, fails: bool
) -> None:
    found = tuple(SeverityCount(severity, 1, 1, 0) for severity in severities)
    run = replace(WHOLE, severities=found, lint=LintCounts(), inventory=counts)
    assert (run.verdict, run.exit_code(FailOn.ANY) is ExitCode.FINDINGS) == (verdict, fails)
    assert headline(run).text


def test_the_text_has_a_section_for_each_check() -> None:
    text = table(world.EVERYTHING)
    for part in (
        "incomplete  placement: 7 fragments",
        "DUPLICATE_MEMBER   error",
        "racks of an ensemble",
        "inventory   2 of 3 bookies listed their ledgers",
        f"unknown     the ledgers of {world.bookie_name(2)}, not offered: it speaks",
        "surplus     4 ledgers",
        "unowned     2 ledgers",
        "damaged     1 ledger with damaged",
        "not judged  5 ledgers",
        "last collection",
        "more pairs",
    ):
        assert part in text
