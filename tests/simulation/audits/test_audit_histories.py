"""Audits of a cluster that changes at random find and mark what a plain reference does, whatever happened before.

The searches report the seed of a failing history, and the steps that suffice for the failure.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.compute as pc
import pytest

from bookie.model.run import Ended
from bookie.wire.port import Status
from spark_jobs.checks import placement_rules
from spark_jobs.checks.placement_rules import PlacementRules
from spark_jobs.checks.replicas import asking
from spark_jobs.checks.replicas.verdict import _Fragment
from spark_jobs.datasource import incremental
from spark_jobs.image.carried import divided
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.kinds import replica_run
from spark_jobs.runs.marking import withdrawal
from spark_jobs.runs.reading import snapshot_reading
from tests.simulation.audits.history import AUDITS, CHANGES, OTHER_AUDITS, Step, failure_text, play, steps_of
from tests.simulation.audits.kinds import replacements
from tests.simulation.audits.process import without_spark

GATE_SEEDS = (2, 4, 5, 7, 9)
GATE_ROUNDS = 6
SEEDS = 20
"""Number of histories in one of the long tests: about 20 s."""
SEEDS_PER_PLANTED_DEFECT = 600


@pytest.fixture(autouse=True)
def in_this_process() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with without_spark(replacements()):
            yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", GATE_SEEDS)
def test_a_history_of_audits_agrees_with_the_reference(seed: int) -> None:
    assert failure_text(seed, GATE_ROUNDS) == ""


@pytest.mark.parametrize("seed", GATE_SEEDS)
def test_a_history_of_placement_and_replicas_checks_agrees_with_the_reference(seed: int) -> None:
    assert failure_text(seed, GATE_ROUNDS, OTHER_AUDITS) == ""


def test_a_run_that_reads_its_metadata_again_marks_no_more_than_its_limit() -> None:
    assert play(7, [Step(0, "lose"), Step(1, "limited")]).problem == ""


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_000 + 10 * SEEDS, SEEDS))
def test_many_histories_of_audits_agree_with_the_reference(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        verdict = play(seed, steps_of(seed))
        if verdict.problem:
            pytest.fail(failure_text(seed))
        counts.update(verdict.counts)
    for reached in (*CHANGES, *AUDITS, "carried", "image marks", "withdrawn"):
        assert counts[reached], f"no history reached: {reached}"


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_000 + 5 * SEEDS, SEEDS))
def test_many_histories_of_placement_and_replicas_checks_agree_with_the_reference(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        verdict = play(seed, steps_of(seed, audits=OTHER_AUDITS))
        if verdict.problem:
            pytest.fail(failure_text(seed, audits=OTHER_AUDITS))
        counts.update(verdict.counts)
    for reached in (*OTHER_AUDITS, *RESULTS):
        assert counts[reached], f"no history reached: {reached}"


RESULTS = (
    *("misplaced", "placement marks", "lacking", "accepted entries", "damaged entries", "unknown entries"),
    *("lost", "no_live_copy", "critical", "below_write_quorum"),
)
"""What the histories of the other checks must reach."""
PLANTED: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "a bookie that came and went is ignored": (ClusterView, "who_left", lambda self, then: ""),
    "new ledgers since a snapshot are ignored": (snapshot_reading, "_has_no_new_ledger", lambda part, stat: True),
    "ledgers on lost bookies are carried over": (
        incremental,
        "divided",
        lambda rows, live: divided(rows, frozenset(pc.list_flatten(rows["bookies"]).to_pylist())),
    ),
    "marks of deleted ledgers stay": (withdrawal, "why_ended", lambda task, ledger, staying: None),
    "marks are withdrawn without a proof": (withdrawal, "why_ended", lambda task, ledger, staying: Ended.REPLACED),
}
"""Defects of the audit engine that the histories must find."""
_OF = PlacementRules.of
PLANTED_IN_OTHERS: dict[str, tuple[object, str, Any]] = {
    "copies outside their groups are no finding": (placement_rules, "forbidden_members", lambda *_: ()),
    "every misplaced ledger counts as fixable": (PlacementRules, "_is_fixable", lambda *_: True),
    "domains of lost bookies do not count": (
        PlacementRules,
        "of",
        lambda policy, topology, known, bookies: _OF(policy, topology, bookies.registered, bookies),
    ),
    "unknown entries are absent": (asking, "_LACKING_STATUSES", frozenset(Status)),
    "an accepted loss covers entries that a bookie has": (_Fragment, "_lists", lambda self, position: False),
    "a check with unknown answers is complete": (replica_run, "_unknown_answer_problems", lambda counts: ()),
}
"""The same for placement and entries."""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    assert any(play(seed, steps_of(seed)).problem for seed in range(SEEDS_PER_PLANTED_DEFECT)), name


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED_IN_OTHERS)
def test_a_defect_planted_in_the_other_checks_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED_IN_OTHERS[name])
    histories = (steps_of(seed, audits=OTHER_AUDITS) for seed in range(SEEDS_PER_PLANTED_DEFECT))
    assert any(play(seed, steps).problem for seed, steps in enumerate(histories)), name
