"""Run the tests of the Spark UI tab and of the Spark session with each supported PySpark; print a table.

Each PySpark (about 400 MB) gets a virtual environment of its own, kept for the next time; every other package is taken
from the environment that runs this program. Exit code 1 if any version fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
VERSIONS: Final = ("4.1.3", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
TESTS: Final = (
    "tests/unit/spark_jobs/ui/test_ui_tab_absent.py",
    "tests/unit/spark_jobs/ui/test_ui_handler.py",
    "tests/spark/test_ui_tab.py",
    "tests/spark/test_session.py",
)
INSTALL_DEADLINE_S: Final = 1800.0
"""A slow connection; the package has to be built as well."""
TEST_DEADLINE_S: Final = 900.0
LEAKED_SOCKETS: Final = "ignore:unclosed <socket:ResourceWarning"
"""PySpark 4.1 leaves the socket of each result to the garbage collector, and warnings are errors in our tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one version."""

    version: str
    is_good: bool
    summary: str
    seconds: float


def main() -> int:
    """Run the matrix; see the module docstring."""
    options = _options()
    outcomes = [_try(version, options.cache, options.tests) for version in options.versions]
    print(f"\n{'pyspark':<9} {'result':<7} {'seconds':>7}  summary")  # noqa: T201  what the program is for
    for outcome in outcomes:
        word = "ok" if outcome.is_good else "FAILED"
        print(f"{outcome.version:<9} {word:<7} {outcome.seconds:>7.0f}  {outcome.summary}")  # noqa: T201
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=lambda text: text.split(","), default=VERSIONS, metavar="V,V")
    parser.add_argument(
        "--cache", type=Path, default=Path(sys.prefix) / "spark-matrix", help="directory of the environments"
    )
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest runs instead")
    return parser.parse_args()


def _try(version: str, cache: Path, tests: Sequence[str]) -> Outcome:
    print(f"== pyspark {version}", flush=True)  # noqa: T201
    start_s = time.monotonic()
    try:
        python = _environment(version, cache.absolute())
        is_good, summary = _test(python, version, tests)
    except (subprocess.SubprocessError, OSError) as error:
        is_good, summary = False, str(error)
    return Outcome(version, is_good, summary, time.monotonic() - start_s)


def _environment(version: str, cache: Path) -> Path:
    """The interpreter of an environment with one PySpark, made when it is not there or not whole."""
    place = cache / version
    python = place / "bin" / "python"
    if _installed(python) != version:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=INSTALL_DEADLINE_S)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pyspark=={version}"]
        subprocess.run(install, check=True, timeout=INSTALL_DEADLINE_S)
    packages = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    # Packages of this environment come after its own, so that its PySpark is the one found.
    (Path(packages.decode().strip()) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _installed(python: Path) -> str:
    """Which PySpark an environment imports; empty if none, or if there is no environment."""
    if not python.exists():
        return ""
    probe = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


def _test(python: Path, version: str, tests: Sequence[str]) -> tuple[bool, str]:
    if (found := _installed(python)) != version:
        return False, f"the environment imports pyspark {found or 'not at all'}"
    lenient = ("-W", LEAKED_SOCKETS) if version.startswith("4.1.") else ()
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *lenient, *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("SPARK_HOME", None)  # else its jars would be used, whatever the package is
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_DEADLINE_S, check=False
    )
    print(done.stdout if done.returncode else "", end="", flush=True)  # noqa: T201
    lines = [line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    return done.returncode == 0, lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]


if __name__ == "__main__":
    sys.exit(main())
