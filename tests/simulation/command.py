"""The command line of the simulator: ``run``, ``replay`` and ``defects``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from tests.simulation.defects import DEFECTS
from tests.simulation.detection import FOUND, REFRESH, differences, outdated, record, search
from tests.simulation.history import Outcome
from tests.simulation.profiles import FIRST_WITH_LOST_WRITES, NAMED
from tests.simulation.progress import noting, read_progress
from tests.simulation.runner import Summary, run_one, run_seeds, with_progress

CORPUS: Final = Path(__file__).with_name("corpus.json")
"""Seeds that failed in the past. Every long run includes them, the gate those without ``is_long``: a case that repeats
another, that found an error of the simulator only, or whose history takes seconds and has a test of the gate."""


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands. Exit with 1 if a rule was broken, or a planted defect was not found."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.simulation", *(sys.argv[1:] if arguments is None else arguments)]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    options = _parser().parse_args(arguments)
    sys.exit(options.act(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    names = [profile.name for profile in NAMED]
    run = commands.add_parser(
        "run",
        help="run many histories and print their results",
        description=f"Run many histories. A fresh seed that fails is kept in tests/simulation/{CORPUS.name}: commit it "
        "with the repair. With --first nothing is written.",
    )
    run.add_argument("--seeds", type=int, default=1000, help="how many (default %(default)s)")
    run.add_argument("--first", type=int, default=None, help="first seed (default: a fresh one each time)")
    run.add_argument("--profile", choices=names, help="one profile instead of all in turn")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    run.add_argument("--progress", type=Path, help="file of what has run; the same command continues it. Needs --first")
    run.add_argument("--output", choices=("text", "json"), default="text")
    run.set_defaults(act=_run)
    replay = commands.add_parser("replay", help="run some seeds again, with a readable trace")
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, action="append", help="a seed (may be repeated)")
    which.add_argument("--corpus", action="store_true", help=f"every seed that once failed, of {CORPUS.name}")
    replay.add_argument("--gate", action="store_true", help="with --corpus: only the seeds that the gate runs")
    replay.add_argument("--profile", choices=names)
    replay.add_argument("--defect", choices=sorted(DEFECTS), help="with a planted defect")
    replay.add_argument("--trace", action="store_true", help="print every event")
    replay.add_argument("--grep", default="", help="only events that contain this text, such as a ledger or bookie")
    replay.set_defaults(act=_replay)
    defects = commands.add_parser("defects", help="plant each known defect in turn and look for it")
    defects.add_argument("--only", choices=sorted(DEFECTS), action="append", help="only this one (may be repeated)")
    defects.add_argument("--seeds-max", type=int, default=5000, help="give up after so many (default %(default)s)")
    defects.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    how = defects.add_mutually_exclusive_group()
    how.add_argument("--known", action="store_true", help="only check that each record holds exactly; writes nothing")
    defects.add_argument("--records", type=Path, default=FOUND, help="with --known: the records (default %(default)s)")
    how.add_argument("--outdated", action="store_true", help="search only for those whose record does not hold")
    how.add_argument("--compare", action="store_true", help="search, write nothing, and fail if a record differs")
    defects.set_defaults(act=_defects)
    return parser


def _run(options: argparse.Namespace) -> int:
    is_fresh = options.first is None
    if is_fresh and options.progress is not None:
        print("--progress needs --first: a fresh seed cannot be continued", file=sys.stderr)
        return 2
    first = FIRST_WITH_LOST_WRITES + int.from_bytes(os.urandom(4), "big") if is_fresh else options.first
    print(f"seeds {first} to {first + options.seeds - 1}", file=sys.stderr)
    summary = Summary()
    digests = {}
    seeds = range(first, first + options.seeds)
    done = [] if options.progress is None else read_progress(options.progress)
    for outcome in done:
        summary.take(outcome)
        digests[outcome.seed] = f"{outcome.digest:08x}"
    left = [seed for seed in seeds if seed not in digests]
    outcomes = run_seeds(left, options.profile, options.jobs)
    if options.progress is not None:
        outcomes = noting(outcomes, options.progress)
    for outcome in with_progress(outcomes, len(left)):
        summary.take(outcome)
        digests[outcome.seed] = f"{outcome.digest:08x}"
        if outcome.violations:
            print(f"seed {outcome.seed} ({outcome.profile}): {outcome.violations[0]}", file=sys.stderr)
            if is_fresh:
                _keep(outcome)
    if options.output == "json":
        failures = [{"seed": o.seed, "profile": o.profile, "rule": str(o.violations[0])} for o in summary.failures]
        print(json.dumps({**summary.figures(), "failures": failures, "digests": digests}))
    else:
        print("\n".join(summary.lines()))
        for outcome in summary.failures[:5]:
            which = f"--seed {outcome.seed} --profile '{outcome.profile}'"
            print(f"  again: python -m tests.simulation replay --trace {which}")
    return 1 if summary.failures else 0


def read_corpus(*, is_gate: bool = False) -> list[dict[str, Any]]:
    """Return the seeds that failed in the past, each with its profile, so that a new profile does not change them.

    Args:
        is_gate: return only those that the gate runs.
    """
    corpus: list[dict[str, Any]] = json.loads(CORPUS.read_text())
    return [case for case in corpus if not (is_gate and case.get("is_long"))]


def _keep(outcome: Outcome) -> None:
    """Add a failing seed to the corpus, so that it is part of the tests from now on."""
    corpus = read_corpus()
    case = {"seed": outcome.seed, "profile": outcome.profile, "found": str(outcome.violations[0])[:200]}
    if not any((known["seed"], known["profile"]) == (case["seed"], case["profile"]) for known in corpus):
        lines = ",\n".join(f" {json.dumps(one)}" for one in [*corpus, case])
        CORPUS.write_text(f"[\n{lines}\n]\n")
        print(f"  kept in {CORPUS}", file=sys.stderr)


def _replay(options: argparse.Namespace) -> int:
    if options.corpus:
        cases = [(case["seed"], case["profile"]) for case in read_corpus(is_gate=options.gate)]
    else:
        cases = [(seed, options.profile) for seed in options.seed]
    failed = 0
    for seed, profile in cases:
        outcome = run_one(seed, profile, options.defect, is_recording=True)
        failed += bool(outcome.violations)
        if options.trace or options.grep:
            print("\n".join(line for line in outcome.lines if options.grep in line))
        for violation in outcome.violations:
            print(f"broken: {violation}")
        print(
            f"seed {outcome.seed}, profile {outcome.profile}: {outcome.acked} entries acknowledged, "
            f"{outcome.faults_fired} faults {outcome.faults}, {outcome.events} events, digest {outcome.digest:08x}"
        )
    return 1 if failed else 0


def _defects(options: argparse.Namespace) -> int:
    names = options.only or sorted(DEFECTS)
    wrong = outdated(names, options.jobs, options.records) if options.known or options.outdated else {}
    for name, why in sorted(wrong.items()):
        print(f"{name}: {why}")
    if options.known:
        if wrong:
            print(f"{len(wrong)} of {len(names)} records do not hold for this code: {REFRESH}")
        return 1 if wrong else 0
    results = search(sorted(wrong) if options.outdated else names, options.seeds_max, options.jobs)
    missed = [name for name, found in sorted(results.items()) if found is None]
    for name in missed:
        print(f"not found: {name} ({DEFECTS[name].text})")
    if options.compare:
        different = differences(results)
        print("\n".join([*different, f"{len(different)} of {len(names)} records differ from the search"]))
        if different:
            print(f"to record what the search found: {REFRESH}")
        return 1 if different or missed else 0
    record(results)
    return 1 if missed else 0
