"""Run many histories on all cores: their failures, their faults, and whether a seed gives the same history again."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TextIO

from tests.simulation.defects import DEFECTS
from tests.simulation.history import Outcome, run_history

CHUNK: Final = 16
"""The number of seeds per job of a process. A multiple of the number of profiles is best."""
TWICE_EVERY: Final = 50
"""One seed in this many runs twice, and must give exactly the same history."""

PLANTED_TURNS_MAX: Final = 150_000
"""A history with a planted defect counts as endless earlier than others, because some defects make it endless. A
history that has as many turns without the defect proves nothing about it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Some seeds to run."""

    seeds: tuple[int, ...]
    profile: str | None = None
    defect: str | None = None
    is_stopping_at_first: bool = False


def run_job(job: Job) -> list[Outcome]:
    """Run a job in this process; every ``TWICE_EVERY``-th seed twice."""
    outcomes = []
    for seed in job.seeds:
        outcome = run_one(seed, job.profile, job.defect)
        if seed % TWICE_EVERY == 0 and job.defect is None:
            again = run_one(seed, job.profile, job.defect)
            if (again.digest, again.events) != (outcome.digest, outcome.events):
                raise AssertionError(f"seed {seed} did not repeat itself: the simulation is not deterministic")
        outcomes.append(outcome)
        if job.is_stopping_at_first and outcome.violations:
            break
    return outcomes


def run_one(seed: int, profile: str | None = None, defect: str | None = None, *, is_recording: bool = False) -> Outcome:
    """Run one seed, with a planted defect if one is named."""
    if defect is None:
        return run_history(seed, profile, is_recording=is_recording)
    return run_history(
        seed, profile, is_recording=is_recording, planted=DEFECTS[defect].plant, turns_max=PLANTED_TURNS_MAX
    )


def run_seeds(seeds: Sequence[int], profile: str | None, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of ``seeds`` as soon as they are known, from ``jobs`` processes."""
    chunks = [Job(tuple(seeds[start : start + CHUNK]), profile) for start in range(0, len(seeds), CHUNK)]
    for outcomes in run_jobs(chunks, jobs):
        yield from outcomes


def run_jobs(chunks: Iterable[Job], jobs: int) -> Iterator[list[Outcome]]:
    """Yield the results of jobs, in the order of the jobs."""
    assert os.environ.get("PYTHONHASHSEED") == "0", "set PYTHONHASHSEED=0: the order of sets is part of a history"
    if jobs <= 1:
        yield from map(run_job, chunks)
        return
    with worker_processes(jobs) as pool:
        yield from pool.map(run_job, chunks)


def worker_processes(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of processes that end with this one, also if it is killed."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


@dataclass(slots=True)
class Summary:
    """The total of many histories."""

    histories: int = 0
    counted: int = 0
    failures: list[Outcome] = field(default_factory=list)
    by_profile: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    fault_points: Counter[str] = field(default_factory=Counter)
    acked: list[int] = field(default_factory=list)
    fired: list[int] = field(default_factory=list)
    virtual_s: float = 0.0
    busy_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)

    def take(self, outcome: Outcome) -> None:
        """Count one history."""
        self.histories += 1
        self.counted += outcome.is_counted
        self.by_profile[outcome.profile] += 1
        self.faults.update(outcome.faults)
        self.fault_points.update(outcome.fault_points.keys())
        self.acked.append(outcome.acked)
        self.fired.append(outcome.faults_fired)
        self.virtual_s += outcome.virtual_s
        self.busy_s += outcome.real_s
        if outcome.violations:
            self.failures.append(outcome)

    def figures(self) -> dict[str, float]:
        """Return the summary for programs."""
        return {
            "histories": self.histories,
            "counted": self.counted,
            "acked_median": statistics.median(self.acked),
            "faults_median": statistics.median(self.fired),
            "per_minute_and_core": round(60 * self.histories / max(self.busy_s, 1e-9)),
        }

    def lines(self) -> list[str]:
        """Return the summary for people."""
        wall_s = time.perf_counter() - self.started_s
        rate = 60 * self.histories / max(self.busy_s, 1e-9)
        failed = Counter(outcome.profile for outcome in self.failures)
        times = self.virtual_s / max(self.busy_s, 1e-9)
        profiles = (f"{name} {count} ({failed[name]} failed)" for name, count in sorted(self.by_profile.items()))
        points = (f"{name} {100 * n / self.histories:.0f}%" for name, n in sorted(self.fault_points.items()))
        speed = f"{rate:.0f} a minute and core, {times:.0f} times real time"
        return [
            f"{self.histories} histories in {wall_s:.0f} s ({speed}), {self.counted} of them counted",
            f"acknowledged entries: {_spread(self.acked)}; faults that fired: {_spread(self.fired)}",
            "profiles: " + ", ".join(profiles),
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            "fault points taken in: " + ", ".join(points),
            f"{len(self.failures)} failed",
        ]


def with_progress(outcomes: Iterable[Outcome], total: int, out: TextIO = sys.stderr) -> Iterator[Outcome]:
    """Yield the outcomes, and print the progress from time to time."""
    started_s = shown_s = time.perf_counter()
    failed = 0
    for number, outcome in enumerate(outcomes, 1):
        failed += bool(outcome.violations)
        now_s = time.perf_counter()
        if now_s - shown_s > (1 if out.isatty() else 20) or number == total:
            shown_s = now_s
            left_s = (now_s - started_s) / number * (total - number)
            end = "\r" if out.isatty() and number < total else "\n"
            out.write(f"{number}/{total} histories, {failed} failed, {left_s:.0f} s left{end}")
            out.flush()
        yield outcome


def _spread(values: Sequence[int]) -> str:
    if not values:
        return "none"
    if len(values) < 2:
        return str(values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return f"10% {tenths[0]:.0f}, median {statistics.median(values):.0f}, 90% {tenths[8]:.0f}, most {max(values)}"
