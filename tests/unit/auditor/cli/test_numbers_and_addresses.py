"""Numbers that are too large and invalid addresses and names are usage errors, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from bookie.metadata.port import AccessDeniedError, MultiFailedError, NodeExistsError
from bookie.model.errors import BkhealError
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
        ("auditor-token", "two words"),
        ("audit", "run", "--master", "foo", *CLUSTER),
        ("audit", "shadow", "--master", "foo", *CLUSTER),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_invalid_numbers_are_usage_errors(
    words: tuple[str, ...], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [word.replace("N", number) for word in words], env={"HOME": str(tmp_path)})
    assert done.exit_code == ExitCode.USAGE, (done.output, done.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("ok-to-stop", "bad/id"),
        ("recover", "bad/id"),
        ("decommission", "bad/id"),
        ("what-if", "b:1", "bad/id"),
        ("what-if", "rack:a b"),
        ("drain", "start", "bad/id"),
        ("drain", "stop", "bad/id"),
        ("drain", "status", "bad/id"),
        ("maintenance", "start", "rack:"),
        ("maintenance", "end", "bad/id"),
        ("collection", "allow", "bad/id"),
        ("collection", "deny", "bad/id"),
        ("ledger", "list", "--bookie", "bad/id"),
    ],
    ids=" ".join,
)
def test_a_name_of_no_bookie_and_no_rack_is_wrong_usage(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*words, *CLUSTER], env={"HOME": str(tmp_path)})
    assert isinstance(done.exception, BkhealError)
    assert exit_code_of(done.exception) is ExitCode.USAGE


def test_a_misspelt_command_of_the_bookie_is_named() -> None:
    done = CliRunner().invoke(app, ["bookie", "statsu"])
    assert (done.exit_code, "statsu" in done.output) == (ExitCode.USAGE, True)


def test_writes_that_are_denied_together_have_the_exit_code_of_one_that_is_denied() -> None:
    assert exit_code_of(MultiFailedError(0, AccessDeniedError("cannot create /a"))) is ExitCode.CONFIGURATION
    assert exit_code_of(MultiFailedError(0, NodeExistsError("create /a: it exists already"))) is ExitCode.FAILED
