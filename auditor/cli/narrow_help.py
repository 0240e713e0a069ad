"""Help of commands on a narrow terminal is plain text: boxes around tables of options leave too little for the words.

Pages of groups keep their boxes, as the list of commands in them is wrapped, where plain text would cut it off.
"""

from __future__ import annotations

import shutil
from typing import Any, Final

import typer
from typer.core import TyperGroup

BOXES_FROM_COLUMNS: Final = 120
"""Below, long names of options leave their explanations a column of some letters, and words are cut off."""


def command_for_terminal(app: typer.Typer) -> Any:
    """The command of ``app``, to be called; it fits the terminal that this process has, or ``COLUMNS``."""
    command: Any = typer.main.get_command(app)
    if shutil.get_terminal_size().columns < BOXES_FROM_COLUMNS:
        _plain(command)
    return command


def _plain(command: Any) -> None:
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            _plain(below)
    else:
        command.rich_markup_mode = None
