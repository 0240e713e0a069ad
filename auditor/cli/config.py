"""``bkheal config``: what is set, where it was set, and whether the file makes sense."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from auditor.cli.configuration import Setting, problems_in, settings_of
from auditor.cli.output import OutputFormat, print_json, print_line, print_table
from auditor.cli.running import OutputOption
from bookie.runtime.settings import URI_KEY, URI_VARIABLE, ConfigurationError, config_file, read_config

app = typer.Typer(help="Show and check the configuration of all commands.", no_args_is_help=True)

CONFIGURED: Final = (("auditor",), ("audit", "run"), ("replicator",), ("bookie",))
"""Commands whose options belong in a file: those that run for long, or by a schedule."""

FileOption = Annotated[
    Path | None, typer.Option("--config", help="Config file; default: $BKHEAL_CONFIG, ~/.config/bkheal/config.toml.")
]


@app.command("show")
def show(
    context: typer.Context,
    config: FileOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Only what is set, and where.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show each option of the long-running commands: its value, and whether environment, file or default gave it."""
    path = config_file(config, os.environ)
    content = read_config(path) if path is not None else {}
    rows = [_uri_row(content), *_rows(_root(context), content)]
    shown = [row for row in rows if not origin or row[2] != "default"]
    if output is OutputFormat.JSON:
        names = ("key", "value", "origin")
        print_json(
            "Configuration",
            file=str(path) if path else None,
            settings=[dict(zip(names, row, strict=True)) for row in shown],
        )
        return
    print_line(f"config file: {path or 'none'}")
    print_table(("key", "value", "from"), [(key, "" if value is None else str(value), at) for key, value, at in shown])


@app.command("validate")
def validate(context: typer.Context, config: FileOption = None) -> None:
    """Check the config file: that each key is an option of some command, of its type, and the auditor's settings work.

    Addresses are not tried, and nothing is asked of ZooKeeper.
    """
    path = config_file(config, os.environ)
    if path is None:
        raise ConfigurationError(["there is no config file; name one with --config or $BKHEAL_CONFIG"])
    content = read_config(path)
    problems = list(problems_in(content, _root(context), context)) or list(_service_problems(content))
    if problems:
        raise ConfigurationError([f"{path}: {problem}" for problem in problems])
    print_line(f"{path} is fine")


def configured(root: TyperGroup) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Every setting of the commands in ``CONFIGURED``, with the command's words."""
    for words in CONFIGURED:
        command: Any = root
        for word in words:
            command = command.commands[word]
        for setting in settings_of(command, words):
            yield words, setting


def _rows(root: TyperGroup, content: Any) -> Iterator[tuple[str, Any, str]]:
    for words, setting in configured(root):
        table = content
        for word in words:
            table = table.get(word, {}) if isinstance(table, dict) else {}
        key = ".".join((*words, setting.key))
        if os.environ.get(setting.variable):
            yield key, os.environ[setting.variable], setting.variable
        elif isinstance(table, dict) and setting.key in table:
            yield key, table[setting.key], "file"
        else:
            yield key, setting.default or None, "default"


def _service_problems(content: Any) -> Iterator[str]:
    """What ``bkheal auditor`` would refuse to start with, beyond the types of its options."""
    from auditor.service.settings import ServiceSettings

    uri = content.get(URI_KEY) or "zk://localhost:2181/ledgers"  # it may come from elsewhere
    try:
        ServiceSettings(**{"metadata_uri": uri, **content.get("auditor", {})})
    except ConfigurationError as error:
        yield from (problem if problem.startswith(URI_KEY) else f"[auditor] {problem}" for problem in error.problems)


def _uri_row(content: Any) -> tuple[str, Any, str]:
    if os.environ.get(URI_VARIABLE):
        return URI_KEY, os.environ[URI_VARIABLE], URI_VARIABLE
    return (URI_KEY, content[URI_KEY], "file") if content.get(URI_KEY) else (URI_KEY, None, "default")


def _root(context: typer.Context) -> TyperGroup:
    root: Any = context.find_root().command
    return root  # type: ignore[no-any-return]
