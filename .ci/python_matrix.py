"""Run the unit and contract rings with each supported Python after 3.11; print a table.

Each Python (`python3.12` ... on the path, or a version that pyenv has installed) gets a virtual environment, which is
kept for the next run. The exit code is 1 if a ring fails or an interpreter is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from matrix import INSTALL_DEADLINE_S, ROOT, Matrix, main


def environment(version: str, place: Path) -> Path:
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


PYTHONS: Final = Matrix("python", ("3.12", "3.13"), ("tests/unit", "tests/contract"), 1800.0, environment)

if __name__ == "__main__":
    sys.exit(main(PYTHONS, __doc__))
