"""Help can be read on any terminal: nothing is cut off, and lines are broken where they end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app


def shown(columns: int, *words: str) -> str:
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "dumb"}
    command = [sys.executable, "-m", "auditor.cli.main", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", [("auditor",), ("drain", "status"), ("bookie",)])
def test_help_on_a_narrow_terminal_is_whole_and_wrapped(words: tuple[str, ...]) -> None:
    text = shown(80, *words, "--help")
    assert "│" not in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "$BKHEAL_METADATA_URI" in text


def test_paragraphs_on_a_narrow_terminal_are_filled() -> None:
    paragraph = shown(80, "auditor", "--help").split("\n\n")[2].splitlines()
    assert len(paragraph) > 3
    assert min(len(line) for line in paragraph[:-1]) >= 60


def test_a_wide_terminal_has_boxes() -> None:
    assert "│" in shown(140, "drain", "status", "--help")


def test_the_list_of_commands_is_not_cut_off() -> None:
    text = shown(80, "--help")
    assert "proved whole." in text
    assert "…" not in text


def test_a_time_to_wait_without_waiting_is_wrong_usage() -> None:
    command = ["drain", "status", "--timeout", "3", "--metadata-uri", "zk://h:1/ledgers"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "--wait" in result.stderr
