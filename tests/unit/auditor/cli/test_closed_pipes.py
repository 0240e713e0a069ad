"""An audit whose output nobody reads ends with the exit code of its result."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from bookie.model.exit_codes import ExitCode
from tests.deadlines import PROGRAM_S
from tests.worlds import report

URI = "zk://h:1/ledgers"
PREPARED = """
import sys
from pathlib import Path
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
from auditor.cli.main import main
sys.argv = ["bkheal", "audit", "run", "--metadata-uri", "{URI}"]
main()
"""
SPARK_SUBMIT = f"""
from spark_jobs.audit import main
sys.exit(main(["--metadata-uri", "{URI}"]))
"""


def exit_code(program: str, *closed: str) -> int:
    """The exit code of a process if the named outputs are a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    out, err = (writing if name in closed else subprocess.DEVNULL for name in ("stdout", "stderr"))
    command = [sys.executable, "-c", program]
    try:
        process = subprocess.run(command, stdout=out, stderr=err, timeout=PROGRAM_S, check=False)
    finally:
        os.close(writing)
    return process.returncode


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
