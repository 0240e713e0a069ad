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
from spark_jobs.datasource import incremental
from spark_jobs.image.carried import divided
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.marking import withdrawal
from spark_jobs.runs.reading import snapshot_reading
from tests.simulation.audits.history import AUDITS, CHANGES, Step, failure_text, play, steps_of
from tests.simulation.audits.process import without_spark

GATE_SEEDS = (2, 4, 5, 7, 9)
GATE_ROUNDS = 6
SEEDS = 20
"""Number of histories in one of the long tests: about 20 s."""
SEEDS_PER_PLANTED_DEFECT = 120


@pytest.fixture(autouse=True)
def in_this_process() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with without_spark():
            yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", GATE_SEEDS)
def test_a_history_of_audits_agrees_with_the_reference(seed: int) -> None:
    assert failure_text(seed, GATE_ROUNDS) == ""


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


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    assert any(play(seed, steps_of(seed)).problem for seed in range(SEEDS_PER_PLANTED_DEFECT)), name
