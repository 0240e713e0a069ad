"""The limit of open files of a process: raised at its start, and checked before many files are opened."""

from __future__ import annotations

import subprocess
import sys

from tests.deadlines import PROGRAM_S


def run(script: str) -> list[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=True).stdout.split()


def test_the_soft_limit_is_raised_to_the_hard_limit() -> None:
    script = (
        "import resource\n"
        "from bookie.runtime.open_files import raise_open_files_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))\n"
        "print(raise_open_files_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE), raise_open_files_limit())\n"
    )
    assert run(script) == ["300", "300", "300", "300"]


def test_files_can_be_opened_up_to_the_limit_without_leaks() -> None:
    script = (
        "import os, resource\n"
        "from bookie.runtime.open_files import can_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "before = os.listdir('/dev/fd')\n"
        "room = 64 - len(before) + 1\n"  # listing the directory needed one file
        "print(can_open_files(room), can_open_files(room + 1), can_open_files(room), os.listdir('/dev/fd') == before)\n"
    )
    assert run(script) == ["True", "False", "True", "True"]
