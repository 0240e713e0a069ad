"""A process that runs one command after the other, for tests that run an event loop in this process.

A command handles signals and runs a loop, so it needs the main thread. To start a new Python process for each of
hundreds of commands would take longer than their work.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from tests.integration.commands import Ended, typed

ROOT: Final = Path(__file__).parents[2]


class CommandProcess:
    """A process for commands. The first command starts it; ``close`` stops it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    async def run(self, uri: str, *arguments: str) -> Ended:
        """Run a command to its end."""
        return await asyncio.to_thread(self._run, uri, arguments)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process:
                assert self._process.stdin is not None
                self._process.stdin.close()

    def _run(self, uri: str, arguments: tuple[str, ...]) -> Ended:
        with self._one_at_a_time:
            if self._process is None:
                command = [sys.executable, "-m", "tests.integration.command_process"]
                self._process = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([uri, *arguments]) + "\n")
            line = self._process.stdout.readline()
            assert line, f"the process of commands ended with {self._process.wait()}"
        code, out, err = json.loads(line)
        return Ended(arguments, code, out.encode(), err.encode())


def _serve() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        uri, *arguments = json.loads(line)
        ended = typed(uri, *arguments)
        answers.write(json.dumps([ended.returncode, ended.stdout.decode(), ended.stderr.decode()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
