from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from tests.deadlines import STATE_S

pytestmark = pytest.mark.integration

SLEEP = ["sleep", "600"]
# Prints a line after its handler is installed; on SIGTERM it ends with code 7.
ENDING_PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('ready on 127.0.0.1:4711', flush=True)
signal.pause()
"""
POLITE = [sys.executable, "-c", ENDING_PROGRAM]
IGNORING_PROGRAM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
while True:
    signal.pause()
"""
OWNER_PROGRAM = """
import pathlib, signal, sys
from bookie.embedded.process import ManagedProcess
process = ManagedProcess.start('child', ['sleep', '600'], log_path=pathlib.Path(sys.argv[1]))
print(process.pid, flush=True)
signal.pause()
"""


def group_of(process: ManagedProcess) -> list[psutil.Process]:
    """Return the process and all processes in its session, including its watch."""
    return [other for other in psutil.process_iter() if _session(other.pid) == process.pid]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=STATE_S)
    assert [other for other in alive if other.status() != psutil.STATUS_ZOMBIE] == []


async def test_a_line_of_its_log_is_found_with_its_groups(tmp_path: Path) -> None:
    async with ManagedProcess.start("polite", POLITE, log_path=tmp_path / "logs" / "log") as process:
        found = await process.wait_for_line(r"ready on (\S+):(\d+)$", STATE_S)
        assert found.groups() == ("127.0.0.1", "4711")
        assert process.log_path.read_text() == "ready on 127.0.0.1:4711\n"


async def test_lines_of_an_earlier_run_in_the_same_log_are_ignored(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ready on 127.0.0.1:1\n")
    async with ManagedProcess.start("polite", POLITE, log_path=log) as process:
        assert (await process.wait_for_line(r"ready on \S+:(\d+)", STATE_S))[1] == "4711"


async def test_it_has_the_environment_and_directory_it_was_given(tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$COLOUR $PWD"']
    environment = {"COLOUR": "blue"}
    process = ManagedProcess.start(
        "echo", command, log_path=tmp_path / "log", environment=environment, directory=tmp_path
    )
    assert await process.wait(STATE_S) == 0
    assert process.log_tail() == f"blue {tmp_path}"


async def test_stop_lets_the_process_end_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    process = ManagedProcess.start("polite", POLITE, log_path=tmp_path / "log")
    await process.wait_for_line("ready", STATE_S)
    group = group_of(process)
    assert await process.stop(STATE_S) == 7
    assert_gone(group)
    assert await process.stop() == 7, "a second stop does not return the exit code"


async def test_stop_ends_a_paused_process_cleanly(tmp_path: Path) -> None:
    process = ManagedProcess.start("polite", POLITE, log_path=tmp_path / "log")
    await process.wait_for_line("ready", STATE_S)
    process.pause()
    assert process.is_running
    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    assert await process.stop(STATE_S) == 7
    process.pause()  # has no effect after the end of the process


async def test_stop_kills_a_process_that_ignores_the_signal(tmp_path: Path) -> None:
    process = ManagedProcess.start("deaf", [sys.executable, "-c", IGNORING_PROGRAM], log_path=tmp_path / "log")
    await process.wait_for_line("deaf", STATE_S)
    assert await process.stop(grace_s=0.05) == -signal.SIGKILL


async def test_kill_also_kills_its_child_processes(tmp_path: Path) -> None:
    process = ManagedProcess.start("family", ["sh", "-c", "sleep 600 & echo on; wait"], log_path=tmp_path / "log")
    await process.wait_for_line("on", STATE_S)
    group = group_of(process)
    assert len(group) == 3
    process.kill9()
    assert await process.wait(STATE_S) == -signal.SIGKILL
    assert_gone(group)


async def test_child_processes_left_behind_end_with_it(tmp_path: Path) -> None:
    process = ManagedProcess.start(
        "parent",
        ["sh", "-c", "sleep 600 & echo on; read -r _ < fifo"],
        log_path=tmp_path / "log",
        directory=_with_fifo(tmp_path),
    )
    await process.wait_for_line("on", STATE_S)
    group = group_of(process)
    (tmp_path / "fifo").write_text("go\n")
    assert await process.wait(STATE_S) == 0
    assert_gone(group)


def _with_fifo(directory: Path) -> Path:
    os.mkfifo(directory / "fifo")
    return directory


async def test_an_early_end_is_an_error_that_quotes_the_log(tmp_path: Path) -> None:
    process = ManagedProcess.start("broken", ["sh", "-c", "echo no disk; exit 3"], log_path=tmp_path / "log")
    with pytest.raises(EmbeddedProcessError) as caught:
        await process.wait_for_line("ready", STATE_S)
    assert "broken" in str(caught.value)
    assert "exit code 3" in str(caught.value)
    assert f"{tmp_path / 'log'} ends with:\nno disk" in str(caught.value)


async def test_a_program_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    process = ManagedProcess.start("ghost", ["/no/such/program"], log_path=tmp_path / "log")
    with pytest.raises(EmbeddedProcessError, match="/no/such/program"):
        await process.wait_for_line("ready", STATE_S)


async def test_a_wait_without_output_ends_at_the_deadline(tmp_path: Path) -> None:
    async with ManagedProcess.start("silent", SLEEP, log_path=tmp_path / "log") as process:
        with pytest.raises(EmbeddedProcessError, match=r"after 0\.1 s.*'ready'"):
            await process.wait_for_line("ready", 0.1)


def test_it_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER_PROGRAM, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        assert_gone([child])


async def test_an_interrupt_in_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    async with ManagedProcess.start("child", SLEEP, log_path=tmp_path / "log") as process:
        assert os.getsid(process.pid) == process.pid
        assert os.getpgid(process.pid) != os.getpgid(0)
