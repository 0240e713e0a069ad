"""The command line of an operator: as a process, or in this process if the start of Python is not under test.

Both run ``auditor.cli.main.main`` with the same arguments, environment and streams.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import pytest

from auditor.cli.main import main
from tests.deadlines import PROGRAM_S

Ended = subprocess.CompletedProcess[bytes]


def command(*arguments: str) -> list[str]:
    """Return the command to start ``bkheal`` with these arguments."""
    return [sys.executable, "-m", "auditor.cli.main", *arguments]


def environment(uri: str | None) -> dict[str, str]:
    """Return the environment of an operator whose only setting is this cluster, or who has no setting."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")}
    return kept if uri is None else {**kept, "BKHEAL_METADATA_URI": uri}


def started(uri: str | None, *arguments: str, stdin: bytes = b"") -> Ended:
    """Run a command to its end, as a process."""
    return subprocess.run(
        command(*arguments), env=environment(uri), input=stdin, capture_output=True, timeout=PROGRAM_S, check=False
    )


def typed(uri: str | None, *arguments: str, stdin: bytes = b"") -> Ended:
    """Run a command to its end in this process. Return its output and exit code like those of a process."""
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.TextIOWrapper(io.BytesIO(), write_through=True)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        _set_environment(patch, environment(uri))
        patch.setattr(sys, "argv", ["bkheal", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(given))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = _exit_code()
    return Ended(arguments, code, _written(out), _written(err))


def output(ended: Ended) -> str:
    """Return the output of a successful command."""
    assert ended.returncode == 0, (ended.args, ended.stderr.decode())
    return ended.stdout.decode()


def document(ended: Ended) -> dict[str, Any]:
    """Return the JSON document printed by a successful command."""
    parsed = json.loads(output(ended))
    assert isinstance(parsed, dict)
    assert parsed["apiVersion"] == "bkheal/v1"
    return parsed


async def bkheal(uri: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run one command as a process. Return its JSON document, or its output if it prints none."""
    process = await asyncio.create_subprocess_exec(
        *command(*arguments, "--output", "json"),
        env=environment(uri),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PROGRAM_S):
        out, err = await process.communicate()
    return answer(Ended(arguments, process.returncode or 0, out, err), code)


def answer(ended: Ended, code: int = 0) -> dict[str, Any]:
    """Return the JSON document of a command with the exit code ``code``, or its output if it prints none."""
    assert ended.returncode == code, (ended.args, ended.stdout.decode(), ended.stderr.decode())
    parsed = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr.decode()}
    assert isinstance(parsed, dict)
    return parsed


def _set_environment(patch: pytest.MonkeyPatch, wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        patch.delenv(name)
    for name, value in wanted.items():
        patch.setenv(name, value)


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _written(stream: io.TextIOWrapper) -> bytes:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()
