"""Options of ``bkheal drain`` about other programs: contradictions are refused before a connection is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.drains.command import app
from bookie.runtime.configuration.settings import ConfigurationError

URI = ("--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "b:1", "--pulsar-admin", "http://127.0.0.1:1"),
        ("status", "b:1", "--wait", "--pulsar-token-file", "x"),
        ("status", "b:1", "--wait", "--pulsar-ca", "x"),
        ("start", "b:1", "--pulsar-admin", "http://127.0.0.1:1"),
        ("start", "b:1", "--timeout", "5"),
        ("start", "b:1", "--wait", "--at", "http://127.0.0.1:1"),
        ("start", "b:1", "c:1", "--bookie-http", "http://127.0.0.1:1"),
        ("start", "b:1", "--at", "http://127.0.0.1:1", "--bookie-http", "http://127.0.0.1:1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, [*words, *URI]).exit_code == 2


@pytest.mark.parametrize(
    ("url", "token"),
    [("pulsar", "t0ken"), ("http://pulsar:8080", "t0ken"), ("https://pulsar", ""), ("https://p", "a b")],
)
def test_an_unusable_address_or_token_is_a_configuration_error(url: str, token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    words = ["status", "b:1", "--wait", "--pulsar-admin", url, "--pulsar-token-file", str(file), *URI]
    found = CliRunner().invoke(app, words).exception
    assert isinstance(found, ConfigurationError)
    assert not token or token not in str(found)
