"""The command line of the sabotages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tests.sabotage.runner import Outcome, Result, run
from tests.sabotage.table import Sabotage, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named sabotages, or all of them. Return 1 if one was not caught, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sabotage", description="Break a copy of the product and see that the gate notices."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--list", action="store_true", help="print what each one breaks, and run nothing")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    given = parser.parse_args(arguments)
    table = {sabotage.name: sabotage for sabotage in load()}
    if unknown := [name for name in given.names if name not in table]:
        parser.error(f"no such sabotage: {', '.join(unknown)}; --list shows them")
    chosen = [table[name] for name in given.names] if given.names else list(table.values())
    if given.list:
        _print_list(chosen, is_json=given.output == "json")
        return 0
    results = []
    for sabotage in chosen:
        results.append(run(sabotage))
        if given.output == "text":
            _print_result(results[-1])
    if given.output == "json":
        print(json.dumps({"sabotages": [_row(result) for result in results]}, indent=2))
    else:
        counts = {kind: sum(result.outcome is kind for result in results) for kind in Outcome}
        print(f"{len(results)} sabotages: " + ", ".join(f"{count} {kind.value}" for kind, count in counts.items()))
    return 0 if all(result.outcome is Outcome.CAUGHT for result in results) else 1


def _print_list(sabotages: Sequence[Sabotage], *, is_json: bool) -> None:
    if is_json:
        rows = [{"name": one.name, "breaks": one.breaks, "file": one.file, "tests": one.tests} for one in sabotages]
        print(json.dumps({"sabotages": rows}, indent=2))
        return
    for one in sabotages:
        print(f"{one.name}: {one.breaks}\n    {one.file}")
        for test in one.tests:
            print(f"    {test}")


def _print_result(result: Result) -> None:
    print(f"{result.outcome.value:8} {result.seconds:6.1f} s  {result.sabotage.name}: {result.detail}", flush=True)
    if result.log:
        sys.stderr.write(f"{result.log}\n")


def _row(result: Result) -> dict[str, object]:
    return {
        "name": result.sabotage.name,
        "outcome": result.outcome.value,
        "seconds": round(result.seconds, 1),
        "detail": result.detail,
        "log": result.log,
    }
