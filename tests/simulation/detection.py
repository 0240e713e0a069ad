"""Searching for planted defects, and the published table of how many seeds each one took."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from tests.simulation.defects import DEFECTS
from tests.simulation.runner import run_one

FOUND: Final = Path(__file__).with_name("detections.json")
TABLE: Final = Path(__file__).parents[2] / "docs" / "simulation-defects.md"


@dataclass(frozen=True, slots=True)
class Found:
    """Where a defect showed itself: after how many seeds from 0 on, and which rule it broke."""

    name: str
    seeds: int
    rule: str
    text: str


def look_for(name: str, seeds: Iterable[int]) -> Found | None:
    """Run ``seeds`` with the defect planted until a rule is broken that holds without it."""
    for count, seed in enumerate(seeds, 1):
        outcome = run_one(seed, None, name)
        if outcome.violations and not run_one(seed).violations:
            first = outcome.violations[0]
            return Found(name, max(count, seed + 1), first.rule, f"seed {seed}, profile {outcome.profile}")
    return None


def search(names: Sequence[str], seeds_max: int, jobs: int) -> list[str]:
    """Look for each defect from seed 0 on, note what was found, and return those that were not."""
    known = read_found()
    missed = []
    for name, found in _in_parallel(_search_one, [(name, seeds_max) for name in names], jobs):
        if found is None:
            missed.append(name)
            known.pop(name, None)
        else:
            known[name] = found
        shown = "not found" if found is None else f"{found.rule} after {found.seeds} seeds ({found.text})"
        sys.stderr.write(f"{name}: {shown}\n")
        sys.stderr.flush()
        _write_found(known)
    return missed


def check_found(names: Sequence[str], jobs: int) -> list[str]:
    """Look again where each defect was found: first that very seed, then the range around it."""
    known = read_found()
    unknown = [name for name in names if name not in known]
    work = [(name, known[name].seeds) for name in names if name in known]
    return unknown + [name for name, found in _in_parallel(_check_one, work, jobs) if found is None]


def read_found() -> dict[str, Found]:
    """What the last search found."""
    if not FOUND.exists():
        return {}
    return {item["name"]: Found(**item) for item in json.loads(FOUND.read_text())}


def table() -> str:
    """The published table."""
    known = read_found()
    lines = [
        "# Planted defects",
        "",
        "Made by `make simulate-defects`: each defect is switched on alone in the real code, and histories run from",
        "seed 0 on until a general oracle objects. No oracle was written for a defect.",
        "",
        "| defect | what is wrong | reference | seeds to detection | rule that broke |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(DEFECTS):
        defect, found = DEFECTS[name], known.get(name)
        seeds, rule = ("not found", "") if found is None else (str(found.seeds), found.rule)
        lines.append(f"| `{name}` | {defect.text} | {defect.reference} | {seeds} | {rule} |")
    return "\n".join(lines) + "\n"


def write_table() -> None:
    """Write the published table anew."""
    TABLE.write_text(table())


def _search_one(work: tuple[str, int]) -> tuple[str, Found | None]:
    name, seeds_max = work
    return name, look_for(name, range(seeds_max))


def _check_one(work: tuple[str, int]) -> tuple[str, Found | None]:
    name, seeds = work
    return name, look_for(name, chain([seeds - 1], range(2 * seeds + 300)))


def _in_parallel(act: object, work: Sequence[tuple[str, int]], jobs: int) -> Iterable[tuple[str, Found | None]]:
    assert callable(act)
    if jobs <= 1:
        yield from map(act, work)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(act, work)


def _write_found(known: dict[str, Found]) -> None:
    items = [
        {"name": name, "seeds": known[name].seeds, "rule": known[name].rule, "text": known[name].text}
        for name in sorted(known)
    ]
    FOUND.write_text(json.dumps(items, indent=1) + "\n")
