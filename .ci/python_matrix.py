"""Run the unit and contract rings with each supported Python after 3.11; print a table.

Each Python (`python3.12` ... on the path, or a version that pyenv has installed) gets a virtual environment, which is
kept for the next run. Exit code 1 if a ring fails or an interpreter is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
VERSIONS: Final = ("3.12", "3.13")
TESTS: Final = ("tests/unit", "tests/contract")
INSTALL_DEADLINE_S: Final = 1800.0
TEST_DEADLINE_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one version: whether every test passed, and pytest's closing line or the reason of the failure."""

    version: str
    is_good: bool
    summary: str
    seconds: float


def main() -> int:
    """Run the matrix; 0 if every version passed."""
    options = _options()
    outcomes = [_try(version, options.cache.absolute(), options.tests) for version in options.versions]
    print(f"\n{'python':<7} {'result':<7} {'seconds':>7}  summary")  # noqa: T201  what the program is for
    for outcome in outcomes:
        word = "ok" if outcome.is_good else "FAILED"
        print(f"{outcome.version:<7} {word:<7} {outcome.seconds:>7.0f}  {outcome.summary}")  # noqa: T201
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=lambda text: text.split(","), default=VERSIONS, metavar="V,V")
    parser.add_argument(
        "--cache", type=Path, default=Path(sys.prefix) / "python-matrix", help="directory of the environments"
    )
    parser.add_argument("tests", nargs="*", default=TESTS, help="tests to run instead")
    return parser.parse_args()


def _try(version: str, cache: Path, tests: list[str]) -> Outcome:
    print(f"== python {version}", flush=True)  # noqa: T201
    start_s = time.monotonic()
    try:
        is_good, summary = _test(_environment(version, cache / version), tests)
    except (subprocess.SubprocessError, OSError) as error:
        is_good, summary = False, str(error)
    return Outcome(version, is_good, summary, time.monotonic() - start_s)


def _environment(version: str, place: Path) -> Path:
    """Return the interpreter of an environment with all pinned packages; make it if it is missing or outdated."""
    python, stamp = place / "bin/python", place / "constraints.txt"
    wanted = (ROOT / "constraints.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([_interpreter(version), "-m", "venv", place], check=True, timeout=INSTALL_DEADLINE_S)
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        subprocess.run([*install, "-e", f"{ROOT}[dev]"], check=True, timeout=INSTALL_DEADLINE_S)
        stamp.write_text(wanted)
    return python


def _interpreter(version: str) -> Path:
    if on_path := shutil.which(f"python{version}"):
        probe = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False)
        if not probe.returncode:  # pyenv's shims are on the path for versions that are not selected
            return Path(on_path)
    by_pyenv = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    )
    if not by_pyenv:
        raise FileNotFoundError(f"python{version} is neither on the path nor installed by pyenv; install it")
    return by_pyenv[-1]


def _test(python: Path, tests: list[str]) -> tuple[bool, str]:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_DEADLINE_S, check=False
    )
    print(done.stdout if done.returncode else "", end="", flush=True)  # noqa: T201
    lines = [line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    return done.returncode == 0, lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]


if __name__ == "__main__":
    sys.exit(main())
