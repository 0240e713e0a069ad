"""The search for planted defects, and the published table with the first failing seed of each defect."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.simulation.defects import DEFECTS, SEARCHED_FROM, SEARCHED_IN
from tests.simulation.runner import PLANTED_TURNS_MAX, run_one, worker_processes

FOUND: Final = Path(__file__).with_name("detections.json")
TABLE: Final = Path(__file__).parents[2] / "docs" / "simulation-defects.md"
NEIGHBOURS: Final = 60
"""How many other histories to try if the recorded one no longer shows its defect, to find out what changed. Half of
them use its profile, half the profiles that their seeds draw."""
REFRESH: Final = (
    "run `make simulate-defects` and commit tests/simulation/detections.json and docs/simulation-defects.md"
)


@dataclass(frozen=True, slots=True)
class Found:
    """The first detection of a defect: the first seed from 0 on, the profile of its history, and the broken rule."""

    name: str
    seed: int
    profile: str
    rule: str

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.profile}) breaks {self.rule}"


Search = tuple[str, tuple[int, ...] | range, str | None]
"""A defect, the seeds to run in order, and their profile (None: each seed draws its own)."""


def look_for(work: Search) -> Found | None:
    """Run seeds with the planted defect until it breaks a rule that holds without it.

    A history that fails an assertion of the code itself shows nothing about the rules, so another one must show it.
    """
    name, seeds, profile = work
    for seed in seeds:
        try:
            outcome = run_one(seed, profile, name)
        except AssertionError:
            continue
        if outcome.violations and _holds(seed, profile):
            return Found(name, seed, outcome.profile, outcome.violations[0].rule)
    return None


@functools.lru_cache(maxsize=4096)
def _holds(seed: int, profile: str | None) -> bool:
    """Whether this history ends in time, and breaks no rule, without a defect.

    Several defects share a history, so this is cached.
    """
    outcome = run_one(seed, profile)
    return not outcome.violations and outcome.turns < PLANTED_TURNS_MAX


def search(names: Sequence[str], seeds_max: int, jobs: int) -> dict[str, Found | None]:
    """Look for each defect from its first seed on, and print each result at once."""
    results = {}
    works: list[Search] = []
    for name in names:
        first = SEARCHED_FROM.get(name, 0)
        works.append((name, range(first, first + seeds_max), SEARCHED_IN.get(name)))
    for name, found in _in_parallel(works, jobs):
        results[name] = found
        sys.stderr.write(f"{len(results)}/{len(names)} {name}: {found or f'not found in {seeds_max} histories'}\n")
        sys.stderr.flush()
    return results


def record(results: dict[str, Found | None]) -> None:
    """Write the results of a search to the records and to the published table."""
    known = {**read_found(), **results}
    items = [asdict(found) for _, found in sorted(known.items()) if found is not None and found.name in DEFECTS]
    FOUND.write_text("[\n" + ",\n".join(f" {json.dumps(item)}" for item in items) + "\n]\n")
    TABLE.write_text(table())


def differences(results: dict[str, Found | None]) -> list[str]:
    """Return the differences between the records and the search, a line for each defect."""
    known = read_found()
    return [
        f"{name}: search: {found or 'not found'}, record: {known.get(name) or 'not found'}"
        for name, found in results.items()
        if found != known.get(name)
    ]


def outdated(names: Sequence[str], jobs: int, records: Path = FOUND) -> dict[str, str]:
    """Return the defects with a wrong record, and the reason for each.

    A record is right if its history breaks exactly the recorded rule with the defect, and none without it. Another seed
    does not help, because the published table would be wrong. The seeds after it only add detail to the message.
    """
    known = read_found(records)
    wrong = {name: "it was never found" for name in names if name not in known}
    recorded = [known[name] for name in names if name in known]
    again = dict(_in_parallel([(one.name, (one.seed,), one.profile) for one in recorded], jobs))
    drifted = [one for one in recorded if again[one.name] != one]
    near: dict[str, Found | None] = {}
    for profile_of in (lambda one: one.profile, lambda _: None):
        left = [one for one in drifted if near.get(one.name) is None]
        behind = [(one.name, range(one.seed + 1, one.seed + 1 + NEIGHBOURS // 2), profile_of(one)) for one in left]
        near.update(_in_parallel(behind, jobs))
    for one in drifted:
        now, other = again[one.name], near[one.name]
        reported = f"recorded is that {one}, and it {'breaks none' if now is None else f'breaks {now.rule}'}"
        if other is None:
            wrong[one.name] = (
                f"{reported}; {NEIGHBOURS} histories with the seeds after it do not show the defect either"
            )
        else:
            wrong[one.name] = f"{reported}; {other}: the histories have shifted"
    return wrong


def read_found(records: Path = FOUND) -> dict[str, Found]:
    """Return the results of the last search."""
    return {item["name"]: Found(**item) for item in json.loads(records.read_text())}


def table() -> str:
    """Return the published table."""
    known = read_found()
    lines = [
        "# Planted defects",
        "",
        "Generated by `make simulate-defects`. Each defect is switched on alone in the real code, and histories run",
        "from seed 0 on (70000000000, if only later histories can show it) until a general oracle reports a violation.",
        "No oracle was written for a defect. A rare defect is searched for in one profile, every other one in the",
        "profiles that the seeds draw. The tests run each history of this table with its defect and without it: with",
        "the defect it must break exactly this rule, and without it no rule. So the table always matches the code of",
        "the same commit. Rules are explained in [invariants.md](invariants.md),",
        "[failure-model.md](failure-model.md) and [simulation.md](simulation.md). A number such as #1591 is an issue",
        "or pull request of Apache BookKeeper on GitHub.",
        "",
        "| defect | what is wrong | reference | first seed that shows it | profile | rule that broke |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(DEFECTS):
        defect, found = DEFECTS[name], known.get(name)
        where = "not found | |" if found is None else f"{found.seed} | {found.profile} | {found.rule}"
        lines.append(f"| `{name}` | {defect.text} | {defect.reference} | {where} |")
    return "\n".join(lines) + "\n"


def _in_parallel(works: Sequence[Search], jobs: int) -> Iterator[tuple[str, Found | None]]:
    """Yield the name and the result of each defect as soon as it is known."""
    if jobs <= 1:
        yield from ((work[0], look_for(work)) for work in works)
        return
    with worker_processes(jobs) as pool:
        running = {pool.submit(look_for, work): work[0] for work in works}
        yield from ((running[done], done.result()) for done in as_completed(running))
