"""Random histories of runs: the tables contain each kept row once, and the state of each check is that of its runs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.kept import Kept
from spark_jobs.report.counts import UnknownAnswers
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.report.tables.files import day_of
from spark_jobs.report.tables.sql import ask
from tests.worlds import report as world
from tests.worlds.report_tables import Row, finding, run, unreadable, write

RUNS: Final = 8
CLUSTERS: Final = (world.CLEAN.cluster, ClusterName("zk://other/ledgers", "another"))
STATE_OF: Final = {
    RunKind.BOOKIES: "bookies",
    RunKind.EVERYTHING: "bookies",
    RunKind.REPLICAS: "replicas",
}
"""The check whose state a run of a kind continues."""
State = dict[int, tuple[str, str, str | None]]
"""For each unhealthy ledger, the first and the last run that found it, and its severity."""


def drawn_rows(rng: random.Random) -> tuple[Row, ...]:
    rows: list[Row] = []
    for ledger in rng.sample(range(1, 9), rng.randrange(6)):
        for fragment in range(rng.choice([1, 1, 2])):
            row = finding(ledger, "b:3181", severity=rng.choice(list(Severity)), fragment=fragment)
            rows.append({**row, "kind": "LOSS_ACCEPTED"} if rng.random() < 0.1 else row)
        if rng.random() < 0.15:
            rows.append(unreadable(ledger))
    return tuple(rows)


def drawn_run(day: int, rows: tuple[Row, ...], rng: random.Random) -> tuple[RunSummary, bool]:
    """Return a run, and whether it saw every ledger."""
    kind = rng.choice([RunKind.BOOKIES, RunKind.BOOKIES, RunKind.REPLICAS, RunKind.EVERYTHING, RunKind.PLACEMENT])
    of = replace(world.CLEAN, kind=kind, cluster=rng.choice(CLUSTERS))
    if kind is RunKind.REPLICAS:
        of = replace(of, replicas=replace(world.ASKED, unknown=()))
    is_every = rng.random() < 0.6
    if not is_every:
        partial = [replace(of, problems=("some ledgers were not listed",)), replace(of, held_because="brake")]
        if of.replicas is not None:
            partial.append(replace(of, replicas=replace(of.replicas, sample=0.5)))
            partial.append(replace(of, replicas=replace(of.replicas, unknown=(UnknownAnswers("a", "X", 1),))))
        of = rng.choice(partial)
    return run(day, rows, of=of), is_every


def next_state(before: State, summary: RunSummary, rows: tuple[Row, ...], *, is_every: bool) -> State:
    """Return the state after a run, ledger by ledger."""
    worst: dict[int, Severity | None] = {}
    for row in rows:
        rank = row["severity_rank"]
        if row["kind"] == "LOSS_ACCEPTED" or (rank is not None and rank > Severity.BELOW_WRITE_QUORUM):
            continue
        ledger = row["ledger_id"]
        known = worst.get(ledger)
        level = None if rank is None else Severity(rank)
        worst[ledger] = level if known is None else known if level is None else min(level, known)
    after: State = {} if is_every else dict(before)
    for ledger, severity in worst.items():
        first = before[ledger][0] if ledger in before else summary.run_id
        after[ledger] = first, summary.run_id, None if severity is None else severity.label
    return after


def rows_of(report_dir: Path, question: str) -> list[tuple[Any, ...]]:
    return ask(report_dir, question, limit=1000, timeout_s=60).rows


@pytest.mark.parametrize("seed", range(2))
def test_the_tables_of_a_random_history_are_those_of_its_runs(seed: int, tmp_path: Path) -> None:
    check_history(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_060))
def test_the_tables_of_many_random_histories_are_those_of_their_runs(seed: int, tmp_path: Path) -> None:
    check_history(seed, tmp_path)


def check_history(seed: int, report_dir: Path) -> None:
    rng = random.Random(seed)
    kept = Kept(reports_max=rng.choice([1, 3, None]), days_max=rng.choice([1, 3, None]))
    states: dict[tuple[str, str], State] = {}
    written: list[tuple[RunSummary, tuple[Row, ...]]] = []
    for day in range(RUNS):
        rows = drawn_rows(rng)
        summary, is_every = drawn_run(day, rows, rng)
        write(report_dir, summary, rows, kept=kept, parts=rng.choice([1, 2]))
        written.append((summary, rows))
        if summary.kind in STATE_OF:
            key = summary.cluster.instance_id, STATE_OF[summary.kind]
            states[key] = next_state(states.get(key, {}), summary, rows, is_every=is_every)
    newest = written[-1][0].finished_ms
    left = [
        (summary, rows)
        for summary, rows in written
        if kept.days_max is None or day_of(summary.finished_ms) > day_of(newest - kept.days_max * world.DAY_MS)
    ]
    assert sorted(rows_of(report_dir, "SELECT run_id FROM runs")) == sorted((each.run_id,) for each, _ in left), seed
    found = Counter(rows_of(report_dir, "SELECT run_id, ledger_id, lower(kind), severity FROM findings"))
    expected = Counter(
        (summary.run_id, row["ledger_id"], row["kind"].lower(), row["severity"])
        for summary, rows in left
        for row in rows
    )
    assert found == expected, seed
    marked = Counter(rows_of(report_dir, "SELECT run_id, ledger_id FROM tasks"))
    named = {(summary.run_id, row["ledger_id"]) for summary, rows in left for row in rows if row["severity"]}
    assert marked == Counter(named), seed
    columns = "instance_id, run_kind, ledger_id, first_run_id, run_id, severity"
    assert sorted(rows_of(report_dir, f"SELECT {columns} FROM ledgers_unhealthy_since"), key=str) == sorted(
        ((*key, ledger, *each) for key, state in states.items() for ledger, each in state.items()), key=str
    ), seed
