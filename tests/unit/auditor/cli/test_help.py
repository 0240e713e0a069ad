"""Help is readable on a terminal of any width: no text is cut off, and lines are wrapped."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from auditor.cli.main import app, main
from auditor.cli.output import StreamFormat
from tests.deadlines import PROGRAM_S

Shown: TypeAlias = Callable[..., str]
"""Return the output of a command on a terminal with this many columns."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    def show(columns: int, *words: str) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys, "argv", ["bkheal", *words])
        with pytest.raises(SystemExit):
            main()
        return "".join(capsys.readouterr())

    return show


def test_the_process_prints_the_same_help(shown: Shown) -> None:
    environment = os.environ | {"COLUMNS": "80", "TERM": "dumb"}
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.stdout.partition("\n\n")[2] == shown(80, "bookie", "--help").partition("\n\n")[2]  # without usage line


@pytest.mark.parametrize("words", [("auditor",), ("drain", "status"), ("bookie",)])
def test_help_on_a_narrow_terminal_is_complete_and_wrapped(shown: Shown, words: tuple[str, ...]) -> None:
    text = shown(80, *words, "--help")
    assert "│" not in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "$BKHEAL_METADATA_URI" in text


def test_paragraphs_on_a_narrow_terminal_are_filled(shown: Shown) -> None:
    paragraph = shown(80, "auditor", "--help").split("\n\n")[2].splitlines()
    assert len(paragraph) > 3
    assert min(len(line) for line in paragraph[:-1]) >= 60


def test_help_on_a_wide_terminal_has_boxes(shown: Shown) -> None:
    assert "│" in shown(140, "drain", "status", "--help")


def test_each_list_command_prints_json_lines_too() -> None:
    choices = {}

    def walk(command: Any, *words: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            walk(each, *words, name)
        if words and words[-1] in ("list", "bookies", "changes", "findings", "impact"):
            (option,) = [option for option in command.params if "--output" in getattr(option, "opts", ())]
            choices[words] = type(option.default)

    walk(get_command(app))
    assert len(choices) >= 13
    assert {words: kind for words, kind in choices.items() if kind is not StreamFormat} == {}


def test_a_call_imports_only_the_modules_of_its_command() -> None:
    program = """
import sys
from auditor.cli.main import main
sys.argv = ["bkheal", "throttle", "--help"]
try:
    main()
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("auditor.cli.cluster")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROGRAM_S, check=True
    )
    assert "auditor.cli.cluster.throttle" in done.stdout.splitlines()[-1]
    assert "auditor.cli.cluster.status" not in done.stdout.splitlines()[-1]


def test_the_list_of_commands_is_not_truncated(shown: Shown) -> None:
    text = shown(80, "--help")
    assert "verify every copy." in text
    assert "…" not in text


def test_help_for_a_command_that_changes_a_record_does_not_claim_no_change(shown: Shown) -> None:
    assert "nothing is changed" in " ".join(shown(80, "bookie", "status", "--help").split())
    text = " ".join(shown(80, "bookie", "readonly", "--help").split())
    assert "nothing is changed" not in text
    assert "`set` and `clear` change the record" in text


def test_a_timeout_without_wait_is_a_usage_error() -> None:
    command = ["drain", "status", "--timeout", "3", "--metadata-uri", "zk://h:1/ledgers"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "--wait" in result.stderr


@pytest.mark.parametrize("words", [("auditor-token", "alice", "--role"), ("report", "findings", "--severity")])
def test_an_invalid_choice_is_refused_without_a_library_message(shown: Shown, words: tuple[str, ...]) -> None:
    text = shown(140, *words, "nonsense")
    assert "'nonsense'" in text
    assert "Value error" not in text


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--config", "bk.toml", "status"), "follow"),
        (("audit", "--at", "http://localhost:8080", "list"), "follow"),
        (("ledger", "show", "5", "--tls-ca", "ca.pem"), "bkheal --tls-ca ... ledger show"),
        (("status", "--log-level", "INFO"), "bkheal --log-level ... status"),
    ],
)
def test_the_refusal_of_a_misplaced_option_names_the_right_place(
    shown: Shown, words: tuple[str, ...], place: str
) -> None:
    assert place in shown(140, *words)


@pytest.mark.parametrize("command", [("bookie", "status", "--at", "nowhere"), ("config", "show", "--config", "/no")])
def test_one_error_summarizes_the_attempts_of_a_short_command_to_reach_zookeeper(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    log = logging.getLogger("kazoo.client")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    CliRunner().invoke(app, command)
    assert log.level == logging.ERROR


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return every command below a command, with its help."""
    below = [each for name, one in getattr(command, "commands", {}).items() for each in commands(one, (*path, name))]
    return [(" ".join(path), command.help or ""), *below]


def test_the_exit_codes_in_help_include_wrong_usage_and_are_documented() -> None:
    lists = {path: text.partition("Exit codes:")[2].partition("\n\n")[0] for path, text in commands(get_command(app))}
    page = (Path(__file__).parents[4] / "docs" / "commands.md").read_text()
    documented = set(re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE))))
    lists = {path: text for path, text in lists.items() if text}
    assert len(lists) > 20
    assert [path for path, text in lists.items() if " 2 " not in text.replace("\n", " ")] == []
    assert {code for text in lists.values() for code in re.findall(r"(?:^|[,;.]|and)\s+(\d+)\s", text)} <= documented


def test_the_table_of_commands_has_every_command() -> None:
    page = (Path(__file__).parents[4] / "docs" / "commands.md").read_text()
    rows = [set(re.findall(r"[\w-]+", row)) for row in re.findall(r"^\| (`bkheal .*?`) \| ", page, re.MULTILINE)]
    paths = [path for path, _ in commands(get_command(app))]
    ends = [path for path in paths if path and not any(other.startswith(f"{path} ") for other in paths)]
    assert len(ends) > 60
    assert [path for path in ends if not any(row.issuperset(path.split()) for row in rows)] == []


def test_the_help_of_an_audit_contains_that_everything_asks_bookies() -> None:
    [text] = [text for path, text in commands(get_command(app)) if path == "audit run"]
    [line] = [line for line in text.splitlines() if line.strip().startswith("everything ")]
    assert "what bookies of bkheal hold" in line
