"""A command whose output pipe is closed ends quietly: with its exit code, or as if killed by SIGPIPE."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

from bookie.model.exit_codes import ExitCode
from bookie.runtime.closed_pipes import STANDARD_OUTPUT
from tests.deadlines import PROGRAM_S
from tests.worlds import report

URI = "zk://h:1/ledgers"
PREPARED = """
import sys
from pathlib import Path
from bookie.runtime.arrow import leave_out_pandas
leave_out_pandas()  # as in a process of bkheal, before the imports
from spark_jobs.one_shot import command, run
from spark_jobs.runs.run import AuditResult
from bookie.metadata.port import StoreUnavailableError
from tests.worlds import report

def finished(*arguments, **more):
    if {is_failing}:
        raise StoreUnavailableError("no answer")
    return AuditResult("run", report.INCOMPLETE, Path("summary.json"))

run.run_one_shot = command.run_one_shot = finished
"""
BKHEAL = f"""
from auditor.cli.main import run_process
sys.argv = ["bkheal", "audit", "run", "--metadata-uri", "{URI}"]
run_process()
"""
SPARK_SUBMIT = f"""
from spark_jobs.audit import main
sys.exit(main(["--metadata-uri", "{URI}"]))
"""


COMMAND = """
import sys
import typer
from auditor.cli import main
from auditor.cli.output import print_line, print_note

def listed() -> None:
    for number in range({lines}):
        print_line(str(number))
        print_note("a line")
    raise typer.Exit(5)

main._PLACES["changes"] = ("State of the cluster", "__main__:listed")
sys.argv = ["bkheal", *{arguments}]
main.run_process()
"""


def ended(program: str, *closed: str) -> tuple[int, bytes | None]:
    """Close the reading end of the named outputs.

    Return the exit code of the process and what it wrote to the others.
    """
    reading, writing = os.pipe()
    os.close(reading)
    out, err = (writing if name in closed else subprocess.PIPE for name in ("stdout", "stderr"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    try:
        process = subprocess.run(command, stdout=out, stderr=err, env=environment, timeout=PROGRAM_S, check=False)
    finally:
        os.close(writing)
    return process.returncode, process.stderr


def exit_code(program: str, *closed: str) -> int:
    return ended(program, *closed)[0]


@pytest.mark.parametrize("program", [BKHEAL, SPARK_SUBMIT], ids=["bkheal", "spark-submit"])
@pytest.mark.parametrize("closed", [("stdout",), ("stdout", "stderr")], ids=" ".join)
def test_the_exit_code_is_that_of_the_audit(program: str, closed: tuple[str, ...]) -> None:
    assert exit_code(PREPARED.format(is_failing=False) + program, *closed) == report.INCOMPLETE.exit_code()


@pytest.mark.parametrize("program", [BKHEAL, SPARK_SUBMIT], ids=["bkheal", "spark-submit"])
def test_the_exit_code_is_that_of_the_audit_if_both_outputs_are_closed(program: str) -> None:
    line = f"{shlex.join([sys.executable, '-c', PREPARED.format(is_failing=False) + program])} >&- 2>&-"
    process = subprocess.run(["sh", "-c", line], timeout=PROGRAM_S, check=False)
    assert process.returncode == report.INCOMPLETE.exit_code()


@pytest.mark.parametrize("program", [BKHEAL, SPARK_SUBMIT], ids=["bkheal", "spark-submit"])
def test_the_exit_code_is_that_of_the_error(program: str) -> None:
    assert exit_code(PREPARED.format(is_failing=True) + program, "stdout", "stderr") == ExitCode.STORE_UNREACHABLE


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdout", "stderr")], ids=" ".join)
def test_a_command_that_has_finished_keeps_its_exit_code(closed: tuple[str, ...]) -> None:
    assert exit_code(COMMAND.format(lines=3, arguments=["changes"]), *closed) == 5


@pytest.mark.parametrize("arguments", [["changes"], ["--help"], ["audit", "run", "--help"]], ids=" ".join)
def test_a_command_with_more_to_print_ends_silently_as_on_sigpipe(arguments: list[str]) -> None:
    code, errors = ended(COMMAND.format(lines=10**9, arguments=arguments), "stdout")
    assert code == 128 + signal.SIGPIPE
    assert set((errors or b"").splitlines()) <= {b"note: a line"}


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("lines", [3, 10**9], ids=["few", "many"])
def test_an_output_that_cannot_be_written_is_one_error_with_its_name(lines: int, unbuffered: str) -> None:
    line = shlex.join([sys.executable, "-c", COMMAND.format(lines=lines, arguments=["changes"])])
    process = subprocess.run(
        ["sh", "-c", f"{line} >/dev/full"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stderr=subprocess.PIPE,
        timeout=PROGRAM_S,
        check=False,
    )
    errors = [text for text in process.stderr.decode().splitlines() if text != "note: a line"]
    assert (process.returncode, len(errors)) == (ExitCode.FAILED, 1)
    assert STANDARD_OUTPUT in errors[0]
