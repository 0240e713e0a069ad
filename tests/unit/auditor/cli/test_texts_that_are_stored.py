"""Arguments with bytes that are not UTF-8 are usage errors if they would be stored as text."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.ledgers.entry_format import custom_condition, custom_pairs
from auditor.cli.main import app
from bookie.model.exit_codes import ExitCode
from bookie.runtime.user import user_name

NOT_UTF8 = "a\udcff"
URI = ("--metadata-uri", "zk://127.0.0.1:1/ledgers")


@pytest.mark.parametrize(
    "words",
    [
        ("log", "create", NOT_UTF8),
        ("log", "append", NOT_UTF8),
        ("log", "read", NOT_UTF8),
        ("log", "tail", NOT_UTF8),
        ("log", "show", NOT_UTF8),
        ("log", "truncate", NOT_UTF8, "--before", "1:0", "--yes"),
        ("log", "delete", NOT_UTF8, "--yes"),
        ("dead-letters", "accept-loss", "7", "--reason", NOT_UTF8, "--yes"),
        ("dead-letters", "drop", "7", "--reason", NOT_UTF8, "--yes"),
        ("maintenance", "start", "c", "--note", NOT_UTF8),
        ("maintenance", "start", f"rack:/{NOT_UTF8}"),
        ("maintenance", "end", f"rack:/{NOT_UTF8}"),
        ("ledger", "write", "--entries", "1", "--custom", f"{NOT_UTF8}=b"),
        ("ledger", "list", "--custom", NOT_UTF8),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_text_that_is_not_utf8_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*words, *URI], env={"HOME": str(tmp_path)})
    assert (done.exit_code, "is not UTF-8" in done.output) == (ExitCode.USAGE, True), (done.output, done.exception)


def test_a_value_of_custom_metadata_may_have_any_bytes() -> None:
    assert custom_pairs([f"key={NOT_UTF8}", "empty="]) == {"key": b"a\xff", "empty": b""}
    assert [custom_condition(text) for text in (f"key={NOT_UTF8}", "key=", "key")] == [
        ("key", b"a\xff"),
        ("key", b""),
        ("key", None),
    ]


def test_the_name_of_a_user_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: NOT_UTF8)
    assert user_name() == "a\\udcff"
