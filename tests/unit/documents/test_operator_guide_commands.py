"""Each command in the operator guide exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app

GUIDE = (Path(__file__).parents[3] / "docs/operator-guide.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("bkheal ")]


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_is_valid(command: str) -> None:
    # Click looks up the options before it shows the help, and runs nothing.
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--help"])
    assert result.exit_code == 0, result.output
