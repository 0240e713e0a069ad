"""Apply one sabotage to a copy of the tree, and run the tests that must fail.

The copy has every file that git tracks or would add. The tests run in the copy, in a separate pytest process with the
interpreter of this process. A check before ensures that the product's packages are imported from the copy and not from
where they are installed. A sabotage is caught if each of its tests fails in its own code. A test that was not run, was
skipped or failed in its setup proves nothing: then the table is wrong.
"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from bookie.embedded.process import ManagedProcess
from tests.sabotage.table import ROOT, Sabotage, StaleTableError, broken

DEADLINE_S: Final = 1800.0
"""The deadline for the tests of one sabotage. Most fail immediately, some only when a state is not reached in time."""
_PACKAGES: Final = ("auditor", "bookie", "replicator", "spark_jobs", "tests.sabotage")
_WHERE: Final = (
    "import importlib, json, pathlib\n"
    f"print(json.dumps([str(pathlib.Path(importlib.import_module(name).__file__)) for name in {_PACKAGES!r}]))\n"
)
_SHOWN_LINES: Final = 40
_REASON_CHARACTERS: Final = 160


class Outcome(enum.Enum):
    """How a sabotage can end."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    """A test passed although it should fail, so it does not protect what it should."""
    ERROR = "error"
    """The table does not fit the tree, or the tests could not be run."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one sabotage ended."""

    sabotage: Sabotage
    outcome: Outcome
    seconds: float
    detail: str = ""
    log: str = ""
    """The last lines of pytest's output; empty if the sabotage was caught."""


def run(sabotage: Sabotage, root: Path = ROOT) -> Result:
    """Try one sabotage."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"sabotage-{sabotage.name}-") as directory:
        outcome, detail, log = _run_in(sabotage, root, Path(directory))
    return Result(sabotage, outcome, time.monotonic() - started_s, detail, "" if outcome is Outcome.CAUGHT else log)


def _run_in(sabotage: Sabotage, root: Path, directory: Path) -> tuple[Outcome, str, str]:
    tree, report = directory / "tree", directory / "report.xml"
    try:
        changed = broken(sabotage, root)
        _copy(root, tree)
        (tree / sabotage.file).write_text(changed)
        _check_imports(tree)
        log = asyncio.run(_pytest(sabotage.tests, tree, directory, report))
    except (StaleTableError, OSError, subprocess.CalledProcessError) as error:
        return Outcome.ERROR, str(error), ""
    except TimeoutError:
        return Outcome.ERROR, f"its tests did not end within {DEADLINE_S:g} s", _tail(directory / "log.txt")
    if not report.is_file():
        return Outcome.ERROR, "pytest ended without a report", log
    return *judge(sabotage.tests, ElementTree.parse(report).getroot()), log


def judge(tests: Sequence[str], report: ElementTree.Element) -> tuple[Outcome, str]:
    """Return whether the ``tests`` of a sabotage failed according to pytest's report, and why."""
    passed: list[str] = []
    reasons: list[str] = []
    for test in tests:
        cases = [case for case in report.iter("testcase") if _is_case_of(case, test)]
        kinds = {kind for case in cases for kind in ("failure", "error", "skipped") if case.find(kind) is not None}
        if "failure" in kinds:
            reasons.append(f"{test.partition('::')[2]} ({_reason(cases)})")
            continue
        if not cases:
            return Outcome.ERROR, f"{test} was not run"
        if "error" in kinds:
            return Outcome.ERROR, f"{test} could not be set up"
        if "skipped" in kinds:
            return Outcome.ERROR, f"{test} was skipped"
        passed.append(test)
    if passed:
        return Outcome.SURVIVED, f"passed: {', '.join(passed)}"
    return Outcome.CAUGHT, f"failed: {', '.join(reasons)}"


def _is_case_of(case: ElementTree.Element, test: str) -> bool:
    file, _, name = test.partition("::")
    return case.get("file") == file and str(case.get("name")).partition("[")[0] == name


def _reason(cases: Sequence[ElementTree.Element]) -> str:
    """Return why the first failed case failed. A person must judge whether the sabotage is the cause."""
    failures = (case.find("failure") for case in cases)
    message = next((failure.get("message", "") for failure in failures if failure is not None), "")
    return " ".join(message.split())[:_REASON_CHARACTERS]


def _copy(root: Path, tree: Path) -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (root / name).is_file():  # git also lists files whose deletion is not committed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)


def _without_settings() -> list[str]:
    """Return the start of a command line that removes the variables of the product and of pytest."""
    names = [name for name in os.environ if name.startswith(("BKHEAL_", "PYTEST_"))]
    return ["env", *(word for name in names for word in ("-u", name))]


def _check_imports(tree: Path) -> None:
    """Check that the tests import the copy.

    Raises:
        StaleTableError: a package is imported from another place.
        CalledProcessError: a package cannot be imported.
    """
    printed = subprocess.run(
        [sys.executable, "-c", _WHERE],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for place in json.loads(printed):
        if not Path(place).is_relative_to(tree):
            raise StaleTableError(f"{place} would be tested, not the copy in {tree}")


async def _pytest(tests: Sequence[str], tree: Path, directory: Path, report: Path) -> str:
    """Run tests in the copy, and return the end of their output.

    Raises:
        TimeoutError: they did not end.
    """
    words = [
        *_without_settings(),
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
        *("-o", "junit_family=xunit1", f"--junitxml={report}", f"--basetemp={directory / 'basetemp'}"),
        *(("-x",) if len(tests) == 1 else ()),  # one failed case is enough
        *tests,
    ]
    log = directory / "log.txt"
    where = {"PYTHONPATH": str(tree)}
    async with ManagedProcess.start("pytest", words, log_path=log, environment=where, directory=tree) as process:
        await process.wait(DEADLINE_S)
    return _tail(log)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]) if log.is_file() else ""
