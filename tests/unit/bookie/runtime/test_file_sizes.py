"""The limit of the size of files: raised at the start of a process, and named by the error of a write beyond it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.deadlines import PROGRAM_S


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=True).stdout


def test_the_soft_limit_is_raised_to_the_hard_limit() -> None:
    script = (
        "import resource\n"
        "from bookie.runtime.file_sizes import raise_file_size_limit\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 5000))\n"
        "print(raise_file_size_limit(), *resource.getrlimit(resource.RLIMIT_FSIZE), raise_file_size_limit())\n"
    )
    assert run(script).split() == ["5000", "5000", "5000", "5000"]


def test_a_write_beyond_the_limit_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, resource, sys\n"
        "from bookie.storage.disks.files import FileDisk\n"
        "async def main():\n"
        "    disk = await FileDisk.acquire(pathlib.Path(sys.argv[1]))\n"
        "    file = await disk.create('a')\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "    try:\n"
        "        await file.append([bytes(1001)])\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
        "    await disk.close()\n"
        "asyncio.run(main())\n"
    )
    error = run(script, str(tmp_path / "disk"))
    assert error.startswith("DiskError cannot append to ")
    assert error.strip().endswith("File too large (raise the limit of the size of files, as with ulimit -f)")
