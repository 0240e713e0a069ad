"""Summaries that are read back from their files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.bookies.registration import BookieState
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.counts import DriverMarksCounts, SnapshotCounts
from spark_jobs.report.decoding import DamagedReportError, decode_summary
from spark_jobs.report.summary import RunSummary
from tests.worlds import report as world


@pytest.mark.parametrize(
    "summary",
    [
        world.CLEAN, world.UNDER_REPLICATED, world.NO_LIVE_COPY, world.HELD, world.INCOMPLETE, world.WAITING,
        world.PLACEMENT, world.REPLICAS, world.REFERENCES, world.MANY, world.ATTACK,
        replace(world.CLEAN, snapshot=SnapshotCounts("/data/snapshot.5", 4_000, 30, 2, 1)),
        replace(world.CLEAN, driver_marks=DriverMarksCounts(900, 7, 1_000, 2_000, "marking was disabled")),
    ],
)  # fmt: skip
def test_a_summary_is_read_back_as_written(summary: RunSummary) -> None:
    assert decode_summary(json.loads(json.dumps(summary.to_json()))) == summary


def document() -> dict[str, Any]:
    parsed = json.loads(json.dumps(world.NO_LIVE_COPY.to_json()))
    assert isinstance(parsed, dict)
    return parsed


def test_a_file_from_before_there_were_several_checks_is_of_the_bookie_check() -> None:
    old = document()
    for name in ("run_kind", "dry_run", "waiting", "placement", "replicas", "references"):
        del old[name]
    for name in ("ledgers_waiting", "held_back", "withdrawn", "damage_marked", "repaired_early"):
        del old["published"][name]
    summary = decode_summary(old)
    assert (summary.kind, summary.is_dry_run) == (RunKind.BOOKIES, False)
    old["published"]["outcome"] = "dry run"
    assert decode_summary(old).is_dry_run


def test_a_replicas_report_from_before_there_were_samples_has_none() -> None:
    old = json.loads(json.dumps(world.REPLICAS.to_json()))
    del old["replicas"]["sampled"]
    counts = decode_summary(old).replicas
    assert counts is not None
    assert counts.sampled == ()


def test_fields_added_by_a_newer_version_are_ignored() -> None:
    newer = document() | {"new": 1}
    newer["bookies"][0]["new"] = newer["counts"]["new"] = newer["cluster"]["new"] = "?"
    assert decode_summary(newer) == world.NO_LIVE_COPY


OPTIONAL = {"run_kind", "dry_run", "waiting", "placement", "replicas", "references", "lint", "verdict", "complete"}


@pytest.mark.parametrize("name", sorted(set(document()) - OPTIONAL))
@pytest.mark.parametrize("value", [None, 7, "?", [7], {"a": {}}])
def test_a_damaged_file_is_refused_and_never_partly_read(name: str, value: object) -> None:
    if (name, value) in (
        ("held_because", None),
        ("snapshot", None),
        ("inventory", None),
        ("held_because", "?"),
        ("run_id", "?"),
        ("kind", "?"),
    ):
        return
    with pytest.raises(DamagedReportError):
        decode_summary(document() | {name: value})


def test_numbers_of_the_wrong_type_are_refused() -> None:
    for wrong in ("9", 1.5, True, None):
        damaged = document()
        damaged["bookies"][0]["ledgers"] = wrong
        with pytest.raises(DamagedReportError):
            decode_summary(damaged)


def test_a_report_from_before_there_were_reasons_has_the_delay_as_its_reason() -> None:
    old = json.loads(json.dumps(world.WAITING.to_json()))
    del old["published"]["held_back"]
    for name in ("reason", "detail", "critical_until"):
        del old["waiting"][0][name]
    summary = decode_summary(old)
    assert summary.published.held_back == {"delay": 452}
    assert (summary.waiting[0].reason, summary.waiting[0].critical_until_ms) == ("delay", 0)


def test_severities_and_states_have_the_names_of_the_api_and_older_reports_are_read() -> None:
    """Reports had ``CRITICAL`` and ``UNREGISTERED``; the API, the metrics and the commands use other names."""
    parsed = json.loads(json.dumps(world.NO_LIVE_COPY.to_json()))
    assert {item["severity"] for item in parsed["findings"]} <= {level.label for level in Severity}
    assert {item["state"] for item in parsed["bookies"]} <= {state.label for state in BookieState}
    for item in [*parsed["findings"], *parsed["worst_ledgers"]]:
        item["severity"] = item["severity"].upper()
    for item in parsed["bookies"]:
        item["state"] = {"lost": "UNREGISTERED"}.get(item["state"], item["state"].upper())
    assert decode_summary(parsed) == world.NO_LIVE_COPY
