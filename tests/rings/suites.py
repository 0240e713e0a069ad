"""The long suites: named commands that search, measure or build, one after the other (``suites.toml``)."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUITES: Final = Path(__file__).with_name("suites.toml")


@dataclass(frozen=True, slots=True)
class Suite:
    """One command of the long run."""

    name: str
    what: str
    command: str
    """The command, run without a shell; ``python`` stands for the running interpreter."""
    minutes: int
    """The time that it takes on two cores."""


def load_suites(path: Path = SUITES) -> Sequence[Suite]:
    """Return every suite, in the order of the file."""
    return [Suite(name, **table) for name, table in tomllib.loads(path.read_text()).items()]


def run_suites(suites: Sequence[Suite], emit: Callable[[str], None]) -> int:
    """Run all suites in order, even after a failure. Return 1 if one failed, else 0."""
    outcomes = []
    for suite in suites:
        emit(f"==== {suite.name}: {suite.what} (about {suite.minutes} min)")
        words = [sys.executable if word == "python" else word for word in shlex.split(suite.command)]
        began_s = time.monotonic()
        code = subprocess.run(words, check=False).returncode
        minutes = (time.monotonic() - began_s) / 60
        outcomes.append((suite, code))
        emit(f"==== {suite.name}: {'passed' if code == 0 else f'failed, exit code {code}'} in {minutes:.1f} min")
    failed = [suite.name for suite, code in outcomes if code]
    emit(f"suites: {len(outcomes) - len(failed)} passed, {len(failed)} failed")
    if failed:
        emit(f"failed: {', '.join(failed)}; repeat with: python -m tests.rings long {' '.join(failed)}")
    return 1 if failed else 0
