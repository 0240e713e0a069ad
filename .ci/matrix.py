"""Runs tests in one virtual environment for each version of a program, and prints a table of the results."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
INSTALL_DEADLINE_S: Final = 1800.0
"""Enough for a slow connection, and for a package that is built after its download."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The tests of one program with several of its versions.

    Attributes:
        program: the name, for the table and for the default folder of the environments.
        versions: the versions, if the command line names none.
        tests: the tests, if the command line names none.
        deadline_s: the time for the tests with one version.
        environment: returns the interpreter of the environment in a folder, which it creates or completes.
        pytest_options: returns further options of pytest for a version.
    """

    program: str
    versions: tuple[str, ...]
    tests: tuple[str, ...]
    deadline_s: float
    environment: Callable[[str, Path], Path]
    pytest_options: Callable[[str], Sequence[str]] = lambda version: ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one version: whether every test passed, and pytest's closing line or the reason of the failure."""

    version: str
    is_good: bool
    summary: str
    seconds: float


def main(matrix: Matrix, description: str) -> int:
    """Run the matrix with the options of the command line; 0 if every version passed, otherwise 1."""
    options = _options(matrix, description)
    outcomes = [_try(matrix, version, options.cache.absolute(), options.tests) for version in options.versions]
    print(f"\n{matrix.program:<9} {'result':<7} {'seconds':>7}  summary")  # noqa: T201  what the program is for
    for outcome in outcomes:
        word = "ok" if outcome.is_good else "FAILED"
        print(f"{outcome.version:<9} {word:<7} {outcome.seconds:>7.0f}  {outcome.summary}")  # noqa: T201
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _options(matrix: Matrix, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--versions", type=lambda text: text.split(","), default=matrix.versions, metavar="V,V")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(sys.prefix) / f"{matrix.program}-matrix",
        help="folder of the environments, which are kept for the next run",
    )
    parser.add_argument("tests", nargs="*", default=matrix.tests, help="run these tests instead")
    return parser.parse_args()


def _try(matrix: Matrix, version: str, cache: Path, tests: Sequence[str]) -> Outcome:
    print(f"== {matrix.program} {version}", flush=True)  # noqa: T201
    start_s = time.monotonic()
    try:
        is_good, summary = _test(matrix, version, matrix.environment(version, cache / version), tests)
    except (subprocess.SubprocessError, OSError) as error:
        is_good, summary = False, str(error)
    return Outcome(version, is_good, summary, time.monotonic() - start_s)


def _test(matrix: Matrix, version: str, python: Path, tests: Sequence[str]) -> tuple[bool, str]:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *matrix.pytest_options(version), *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("SPARK_HOME", None)  # its jars would be used instead of those of the installed PySpark
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=matrix.deadline_s, check=False
    )
    print(done.stdout if done.returncode else "", end="", flush=True)  # noqa: T201
    lines = [line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    return done.returncode == 0, lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]
