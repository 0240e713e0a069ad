"""The command line of the simulator: ``run``, ``replay`` and ``defects``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from tests.simulation.defects import DEFECTS
from tests.simulation.detection import check_found, search, write_table
from tests.simulation.profiles import PROFILES
from tests.simulation.runner import Summary, run_one, run_seeds, with_progress

CORPUS: Final = Path(__file__).with_name("corpus.json")
"""Seeds that once failed; they run with every test run."""


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands; exits 1 if a rule was broken, or a planted defect was not found."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.simulation", *(sys.argv[1:] if arguments is None else arguments)]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    options = _parser().parse_args(arguments)
    sys.exit(options.act(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    names = [profile.name for profile in PROFILES]
    run = commands.add_parser("run", help="run many histories and say what they came to")
    run.add_argument("--seeds", type=int, default=1000, help="how many (default %(default)s)")
    run.add_argument("--first", type=int, default=None, help="first seed (default: a fresh one each time)")
    run.add_argument("--profile", choices=names, help="one profile instead of all in turn")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    run.add_argument("--output", choices=("text", "json"), default="text")
    run.set_defaults(act=_run)
    replay = commands.add_parser("replay", help="run one seed again, with a readable trace")
    replay.add_argument("--seed", type=int, required=True)
    replay.add_argument("--profile", choices=names)
    replay.add_argument("--defect", choices=sorted(DEFECTS), help="with a planted defect")
    replay.add_argument("--trace", action="store_true", help="print every event")
    replay.add_argument("--grep", default="", help="only events that contain this text, such as a ledger or bookie")
    replay.set_defaults(act=_replay)
    defects = commands.add_parser("defects", help="plant each known defect in turn and look for it")
    defects.add_argument("--only", choices=sorted(DEFECTS), action="append", help="only this one (may be repeated)")
    defects.add_argument("--seeds-max", type=int, default=5000, help="give up after so many (default %(default)s)")
    defects.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    defects.add_argument("--known", action="store_true", help="only the seeds at which each was found before")
    defects.set_defaults(act=_defects)
    return parser


def _run(options: argparse.Namespace) -> int:
    first = int.from_bytes(os.urandom(4), "big") if options.first is None else options.first
    print(f"seeds {first} to {first + options.seeds - 1}", file=sys.stderr)
    summary = Summary()
    seeds = range(first, first + options.seeds)
    for outcome in with_progress(run_seeds(seeds, options.profile, options.jobs), len(seeds)):
        summary.take(outcome)
        if outcome.violations:
            print(f"seed {outcome.seed} ({outcome.profile}): {outcome.violations[0]}", file=sys.stderr)
            _keep(outcome.seed, options.profile, str(outcome.violations[0]))
    if options.output == "json":
        failures = [{"seed": o.seed, "profile": o.profile, "rule": str(o.violations[0])} for o in summary.failures]
        print(json.dumps({**summary.figures(), "failures": failures}))
    else:
        print("\n".join(summary.lines()))
        for outcome in summary.failures[:5]:
            print(f"  again: python -m tests.simulation replay --seed {outcome.seed} --trace   # {outcome.profile}")
    return 1 if summary.failures else 0


def _keep(seed: int, profile: str | None, why: str) -> None:
    """Keep a failing seed: from now on it is part of the tests."""
    corpus = json.loads(CORPUS.read_text()) if CORPUS.exists() else []
    if not any(case["seed"] == seed and case["profile"] == profile for case in corpus):
        corpus.append({"seed": seed, "profile": profile, "found": why[:200]})
        CORPUS.write_text(json.dumps(corpus, indent=1) + "\n")


def _replay(options: argparse.Namespace) -> int:
    outcome = run_one(options.seed, options.profile, options.defect, is_recording=True)
    if options.trace or options.grep:
        print("\n".join(line for line in outcome.lines if options.grep in line))
    for violation in outcome.violations:
        print(f"broken: {violation}")
    print(
        f"seed {outcome.seed}, profile {outcome.profile}: {outcome.acked} entries acknowledged, "
        f"{outcome.faults_fired} faults {outcome.faults}, {outcome.events} events, digest {outcome.digest:08x}"
    )
    return 1 if outcome.violations else 0


def _defects(options: argparse.Namespace) -> int:
    names = options.only or sorted(DEFECTS)
    if options.known:
        missed = check_found(names, options.jobs)
    else:
        missed = search(names, options.seeds_max, options.jobs)
        write_table()
    for name in missed:
        print(f"not found: {name} ({DEFECTS[name].text})")
    return 1 if missed else 0
