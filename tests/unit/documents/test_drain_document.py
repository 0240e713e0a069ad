"""The commands in `docs/taking-a-bookie-out.md` exist with their options, and each verb documents its exit codes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from auditor.cli.main import app
from auditor.operating.dead_letters import ADVICE
from bookie.metadata.tasks.parked import ParkReason

DOCUMENT = Path(__file__).parents[3] / "docs/taking-a-bookie-out.md"
GROUP = typer.main.get_command(app)
COMMANDS = [
    line
    for block in re.findall(r"```\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("bkheal ")
]


def resolved(line: str) -> tuple[Any, list[str]]:
    command: Any = GROUP
    arguments = shlex.split(line)[1:]
    while isinstance(command, TyperGroup):
        command = command.commands[arguments.pop(0)]
    return command, arguments


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_document_is_valid(line: str) -> None:
    command, arguments = resolved(line)
    command.make_context("bkheal", arguments)


def test_the_document_has_every_command() -> None:
    verbs = ("ok-to-stop", "drain start", "drain stop", "drain status", "decommission", "recover", "dead-letters retry")
    for verb in verbs:
        assert any(line.startswith(f"bkheal {verb} ") for line in COMMANDS), verb
        command, _ = resolved(f"bkheal {verb} x")
        assert "Exit codes: 0" in (command.help or ""), verb
        names = {option for parameter in command.params for option in parameter.opts}
        assert "--output" in names
        if verb not in ("ok-to-stop", "drain status"):
            assert {"--dry-run", "--yes"} <= names, verb


def test_every_reason_has_advice() -> None:
    assert set(ADVICE) == set(ParkReason)
