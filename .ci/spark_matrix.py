"""Run the tests of the Spark UI tab and of the Spark session with each supported PySpark; print a table.

Each PySpark (about 400 MB) gets a virtual environment of its own, which is kept for the next run. Every other package
comes from the environment that runs this program. The exit code is 1 if any version fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from matrix import INSTALL_DEADLINE_S, Matrix, main

LEAKED_SOCKETS: Final = "ignore:unclosed <socket:ResourceWarning"
"""PySpark 4.1 leaves the socket of each result to the garbage collector, and warnings are errors in these tests."""


def environment(version: str, place: Path) -> Path:
    """Return the interpreter of an environment with this PySpark; make it if it is missing or incomplete."""
    python = place / "bin" / "python"
    if _installed(python) != version:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=INSTALL_DEADLINE_S)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pyspark=={version}"]
        subprocess.run(install, check=True, timeout=INSTALL_DEADLINE_S)
    packages = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    # The packages of this environment come after those of the new one, so that the new PySpark is found first.
    (Path(packages.decode().strip()) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if (found := _installed(python)) != version:
        raise FileNotFoundError(f"the environment in {place} imports pyspark {found or 'not at all'}; remove it")
    return python


def _installed(python: Path) -> str:
    """Return the version of PySpark that an environment imports; empty without PySpark, or without an environment."""
    if not python.exists():
        return ""
    probe = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


def _pytest_options(version: str) -> tuple[str, ...]:
    return ("-W", LEAKED_SOCKETS) if version.startswith("4.1.") else ()


PYSPARKS: Final = Matrix(
    "spark",
    ("4.1.3", "4.1.4", "4.2.0", "4.2.1", "4.3.0"),
    (
        "tests/unit/spark_jobs/ui/test_ui_tab_absent.py",
        "tests/unit/spark_jobs/ui/test_ui_handler.py",
        "tests/spark/test_ui_tab.py",
        "tests/spark/test_session.py",
    ),
    900.0,
    environment,
    _pytest_options,
)

if __name__ == "__main__":
    sys.exit(main(PYSPARKS, __doc__))
