"""The commands, options and reasons in ``docs/migration.md`` exist, and it contains all reasons of shadow mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from auditor.cli import main
from spark_jobs.shadow.reasons import Agreement, Reason

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "migration.md").read_text()


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


ALL = dict(commands(typer.main.get_command(main.app)))
OPTIONS = {flag for command in ALL.values() for option in command.params for flag in option.opts if flag[:2] == "--"}


def named_commands() -> set[tuple[str, ...]]:
    """Return the words after ``bkheal`` that form the name of the command."""
    found = set()
    blocks = "".join(re.findall(r"^```$(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^bkheal (.*)$", blocks, re.MULTILINE) + re.findall(r"`bkheal ([a-z][^`\n]*)`", TEXT)
    for line in lines:
        words: tuple[str, ...] = ()
        for word in line.split():
            if (*words, word) not in ALL:
                break
            words = (*words, word)
        found.add(words)
    return found


def test_every_command_exists() -> None:
    named = named_commands()
    assert () not in named
    assert {("audit", "shadow"), ("drain", "status"), ("recovery", "delay"), ("replicator",)} <= named
    assert all(not getattr(ALL[words], "commands", {}) for words in named if words not in {("drain",), ("bookie",)})


def test_every_option_exists() -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - OPTIONS == set()


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_in_the_table_as_explained_or_not(reason: Reason) -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and reason.word in line.replace("**", "")]
    reported = "yes" if reason.is_explained else "no"
    assert any(f"| {reported} |" in row.replace("**", "") for row in rows)


def test_every_outcome_is_in_the_document() -> None:
    assert all(outcome.value.split()[0] in TEXT for outcome in Agreement)


def test_links_within_the_page_point_to_headings() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


def test_pages_that_it_links_to_exist() -> None:
    for name in re.findall(r"\]\(([a-z-]+\.md)\)", TEXT):
        assert (ROOT / "docs" / name).is_file()
