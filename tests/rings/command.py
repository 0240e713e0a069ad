"""The command line of the test runner: ``gate``, ``stress`` and ``long``.

``gate`` runs every ring once, several pytest processes at a time. ``stress`` runs the rings that start processes
several times while busy loops take the cores. ``long`` runs the suites that search, measure or build for a long time.
Each exits with 0 if everything passed, 1 if something failed or no test passed, 2 for bad arguments. A ring that
exceeds its budget is reported, but does not fail the run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.rings.lanes import LANES, Lanes
from tests.rings.load import busy
from tests.rings.plan import Ring, files_of, load_rings, parts_of
from tests.rings.results import (
    PartResult,
    closing_line,
    over_budget,
    skip_reasons,
    slowest,
    table,
    totals,
)
from tests.rings.suites import load_suites, run_suites

STRESSED: Final = ("integration", "apache", "contract", "spark", "chart")
"""The rings that start processes."""
_LOG_LINES: Final = 25
_FRESH: Final = -1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands and exit."""
    options = _parser().parse_args(arguments)
    try:
        sys.exit(options.act(options))
    except KeyboardInterrupt:
        sys.exit("interrupted: what was started has been ended")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    names = [ring.name for ring in load_rings()]
    gate = commands.add_parser("gate", help="run every ring once, side by side")
    gate.add_argument("--only", choices=names, action="append", help="only this ring (may be repeated)")
    gate.add_argument("--lanes", type=_positive, default=LANES, help="pytest processes at a time (default %(default)s)")
    gate.add_argument("--logs", type=Path, help="folder for logs, made empty (default: a new temporary folder)")
    gate.add_argument(
        "--shuffle",
        type=int,
        nargs="?",
        const=_FRESH,
        metavar="SEED",
        help="files in a random order (default: a new one)",
    )
    gate.add_argument(
        "pytest", nargs="*", metavar="-- OPTION", help="options for pytest, after --, for example: -- -m long"
    )
    gate.set_defaults(act=_gate)
    stress = commands.add_parser("stress", help="run rings several times while other processes keep the cores busy")
    stress.add_argument("--only", choices=names, action="append", help=f"default: {', '.join(STRESSED)}")
    stress.add_argument("--rounds", type=_positive, default=3, help="how often (default %(default)s)")
    stress.add_argument("--busy", type=_positive, default=2, help="busy loops beside the tests (default %(default)s)")
    stress.add_argument("--lanes", type=_positive, default=LANES)
    stress.set_defaults(act=_stress)
    suites = [suite.name for suite in load_suites()]
    long = commands.add_parser("long", help="run the suites that search, measure or build")
    long.add_argument("suites", nargs="*", metavar="SUITE", help=f"default: all of {', '.join(suites)}")
    long.add_argument("--list", action="store_true", help="print what each suite does and how long it takes")
    long.set_defaults(act=_long)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _gate(options: argparse.Namespace) -> int:
    directory = options.logs or Path(tempfile.mkdtemp(prefix="bkheal-tests-"))
    if directory.exists() and any(directory.iterdir()):
        print(f"{directory} is not empty: name a new folder", file=sys.stderr)
        return 2
    lanes = Lanes(directory, options.lanes, options.pytest, emit=_emit)
    seed = random.SystemRandom().randrange(1 << 32) if options.shuffle == _FRESH else options.shuffle
    if seed is not None:
        print(f"files in a random order; the same again with --shuffle {seed}", flush=True)
    return _run(_chosen(options.only), lanes, has_budget=seed is None and not options.pytest, shuffle_seed=seed)


def _stress(options: argparse.Namespace) -> int:
    rings = _chosen(options.only or STRESSED)
    worst = 0
    with busy(options.busy):
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, with {options.busy} busy loops", flush=True)
            lanes = Lanes(Path(tempfile.mkdtemp(prefix="bkheal-stress-")), options.lanes, emit=_emit)
            worst = max(worst, _run(rings, lanes, has_budget=False))
    return worst


def _long(options: argparse.Namespace) -> int:
    suites = load_suites()
    if unknown := set(options.suites) - {suite.name for suite in suites}:
        print(f"no suite is called {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    chosen = [suite for suite in suites if not options.suites or suite.name in options.suites]
    if options.list:
        print("\n".join(f"{suite.name:<18} {suite.minutes:4} min  {suite.what}" for suite in chosen))
        return 0
    return run_suites(chosen, emit=_emit)


def _chosen(names: Sequence[str] | None) -> Sequence[Ring]:
    return [ring for ring in load_rings() if not names or ring.name in names]


def _run(rings: Sequence[Ring], lanes: Lanes, *, has_budget: bool, shuffle_seed: int | None = None) -> int:
    began_s = time.monotonic()
    parts = [part for ring in rings for part in parts_of(ring, _in_order(files_of(ring.name), shuffle_seed))]
    print(f"{len(parts)} pytest processes, {lanes.count} at a time; logs in {lanes.directory}", flush=True)
    results = asyncio.run(lanes.run(parts))
    ring_totals = totals(rings, results)
    too_slow = over_budget(ring_totals) if has_budget else []
    _print_block("Skipped", skip_reasons(results))
    _print_block("Slowest tests", slowest(results))
    _print_block("Time of each ring", table(ring_totals))
    _print_failures(results, lanes.directory)
    _print_block("Over budget", too_slow)
    print(closing_line(results, time.monotonic() - began_s), flush=True)
    has_run = any(result.count("passed") for result in results)
    if not has_run:
        print("no test passed: a run that judges nothing is a failure", file=sys.stderr)
    return 0 if has_run and not any(result.has_failed for result in results) else 1


def _in_order(files: Sequence[Path], shuffle_seed: int | None) -> Sequence[Path]:
    return files if shuffle_seed is None else random.Random(shuffle_seed).sample(files, len(files))


def _print_failures(results: Sequence[PartResult], directory: Path) -> None:
    for result in results:
        if not result.has_failed:
            continue
        home = directory / result.name
        print(f"\nFailed in {result.name}; output in {home / 'pytest.log'}, logs of its processes below {home / 'tmp'}")
        for failure in result.failures:
            print(f"  FAILED {failure.test} ({failure.when})\n    " + failure.reason.replace("\n", "\n    "))
        if result.is_broken:
            tail = (home / "pytest.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
            print(f"  pytest ended with exit code {result.exit_code}; its last lines:\n    " + "\n    ".join(tail))


def _print_block(title: str, lines: Sequence[str]) -> None:
    if lines:
        print(f"\n{title}\n" + "\n".join(f"  {line}" for line in lines))


def _emit(line: str) -> None:
    print(line, flush=True)
