"""Numbers that are too large and invalid addresses on a command line are usage errors, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.model.exit_codes import ExitCode

HUGE, LONG = "9" * 23, "9" * 5000
CLUSTER = ("--metadata-uri", "zk://127.0.0.1:1/ledgers")
STOPPED = ("--journal-dir", ".", "--ledger-dir", ".")


@pytest.mark.parametrize("number", [HUGE, LONG], ids=["huge", "long"])
@pytest.mark.parametrize(
    "words",
    [
        ("bookie", "ledgers", *STOPPED, "--after", "N"),
        ("bookie", "entries", "1", *STOPPED, "--after", "N"),
        ("bookie", "scrub", *STOPPED, "--after", "N:0"),
        ("ledger", "read", "N", *CLUSTER),
        ("ledger", "read", "1", "--first", "N", *CLUSTER),
        ("ledger", "read", "1", "--last", "N", *CLUSTER),
        ("ledger", "tail", "1", "--first", "N", *CLUSTER),
        ("ledger", "recover", "N", *CLUSTER),
        ("dead-letters", "retry", "N", *CLUSTER),
        ("collection", "allow", "b:1", "--ledgers", "N", "--yes", *CLUSTER),
        ("recovery", "delay", "N", *CLUSTER),
        ("bookie", "status", "--at", "b:N"),
        ("bookie", "status", "--at", "a..b:3181"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_wrong_usage(words: tuple[str, ...], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [word.replace("N", number) for word in words], env={"HOME": str(tmp_path)})
    assert done.exit_code == ExitCode.USAGE, (done.output, done.exception)
