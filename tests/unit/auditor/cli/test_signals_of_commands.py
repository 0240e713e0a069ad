"""Signals that end a command, and signals that its process ignores."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import typer

from auditor.cli.running import run
from tests.deadlines import PROGRAM_S


async def hung_up() -> str:
    """Send SIGHUP to this process, and return after its handler has run."""
    later = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, later.set)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    await later.wait()
    await asyncio.sleep(0)
    return "done"


def test_a_closed_terminal_ends_a_command() -> None:
    with pytest.raises(typer.Exit) as ended:
        run(hung_up())
    assert ended.value.exit_code == 128 + signal.SIGHUP


def test_a_command_under_nohup_continues() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(hung_up()) == "done"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


_INTERRUPTED_IMPORT = """
import os, signal, sys
{before}

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "auditor.cli.output":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["bkheal", "--version"]
from auditor.cli.entry import main
main()
"""


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("signal.signal(signal.SIGINT, signal.default_int_handler)", -signal.SIGINT),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", 0),
    ],
    ids=["ended", "ignored"],
)
def test_an_interrupt_during_the_imports_leaves_no_traceback(before: str, code: int) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_IMPORT.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert (done.returncode, done.stderr) == (code, "")
