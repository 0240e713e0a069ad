"""Signals that end a command, and those that its process ignores."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from auditor.cli.running import run


async def hung_up() -> str:
    """Receive SIGHUP, and return after any handler of it has run."""
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


def test_a_command_under_nohup_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(hung_up()) == "done"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
