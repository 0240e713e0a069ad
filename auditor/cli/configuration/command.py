"""``bkheal config``: the values, their sources, and the problems of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperGroup

from auditor.cli.configuration.settings import RULES
from auditor.cli.configuration.sources import (
    Setting,
    TakesEffect,
    config_content_problems,
    has_options,
    options_of,
    settings_of,
)
from auditor.cli.output import OutputFormat, print_json, print_line, print_note, print_table
from auditor.cli.running import OutputOption
from bookie.metadata.uri import InvalidUriError, parse_uri
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.settings import (
    URI_KEY,
    URI_VARIABLE,
    ConfigurationError,
    config_file,
    read_config,
    uri_problem,
)

app = typer.Typer(help="Show and check the configuration of all commands.", no_args_is_help=True)

CONFIGURED: Final = (("auditor",), ("audit", "run"), ("exporter",), ("replicator",), ("bookie",))
"""Commands whose options belong in a file: long-running or scheduled ones."""

_PLACEHOLDER_URI: Final = "zk://localhost:2181/ledgers"
"""A placeholder, because the file does not need to contain the cluster's address."""

_URLS: Final = frozenset({"pushgateway", "snapshot_url"})
"""Options with the URL of another server, perhaps with a user and password in it."""

_Row: TypeAlias = tuple[str, Any, str, str]
"""Key, value, source, and when a change takes effect."""

FileOption = Annotated[
    Path | None, typer.Option("--config", help="Config file; default: $BKHEAL_CONFIG, ~/.config/bkheal/config.toml.")
]


@app.command("show")
def show(
    context: typer.Context,
    config: FileOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Only values that are set, with their source.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show each option of the long-running commands, with its value and its source: environment, file or default.

    Also show when a change of the file takes effect: live (in running processes), at a restart, or at the next call.
    If a URL has a user, a password or a query, only its host and port are shown.
    """
    path = config_file(config, os.environ)
    content = read_config(path) if path is not None else {}
    if path is not None and problems_of_file(path, context):
        print_note(f"commands refuse a part of {path}; `bkheal config validate --config {path}` shows why")
    rows = [_uri_row(content), *_rows(_root(context), content)]
    shown = [row for row in rows if not origin or row[2] != "default"]
    if output is OutputFormat.JSON:
        names = ("key", "value", "origin", "takes_effect")
        print_json(
            "Configuration",
            file=str(path) if path else None,
            settings=[dict(zip(names, row, strict=True)) for row in shown],
        )
        return
    print_line(f"config file: {path or 'none'}")
    cells = [(key, "" if value is None else str(value), at, effect) for key, value, at, effect in shown]
    print_table(("key", "value", "from", "change takes effect"), cells)


@app.command("validate")
def validate(context: typer.Context, config: FileOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Check the config file: each key is an option of a command, with a valid value, and commands would start with it.

    For the auditor, one-shot audits, the exporter, replicators and bookies, no options may contradict each other, and
    all files must exist. Environment variables count as for the commands; flags are not considered. Nothing is sent
    over the network. Every problem is printed; the exit code is 78 if there is one.

    With --output json, the document on standard output lists the problems, in place of a sentence on standard error.
    """
    path = config_file(config, os.environ)
    try:
        _check_config_file(path, context)
    except ConfigurationError as error:
        if output is not OutputFormat.JSON:
            raise
        _print_verdict(path, error.problems)
        raise typer.Exit(ExitCode.CONFIGURATION) from None
    if output is OutputFormat.JSON:
        _print_verdict(path, ())
    else:
        print_line(f"{path} is fine")


def _check_config_file(path: Path | None, context: typer.Context) -> None:
    if path is None:
        raise ConfigurationError(["there is no config file; name one with --config or $BKHEAL_CONFIG"])
    if problems := problems_of_file(path, context):
        raise ConfigurationError([f"{path}: {problem}" for problem in problems])


def problems_of_file(path: Path, context: typer.Context) -> list[str]:
    """Return every problem of a config file, in the environment that the commands would have.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    content, root = read_config(path), _root(context)
    return [*config_content_problems(content, root, context), *_contradictions(content, root, context)]


def _print_verdict(path: Path | None, problems: Sequence[str]) -> None:
    """Print the verdict. The document has a field with the file, so its problems do not begin with the file."""
    listed = [problem.removeprefix(f"{path}: ") for problem in problems]
    print_json("ConfigurationVerdict", file=str(path) if path else None, valid=not listed, problems=listed)


def configured(root: TyperGroup) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Yield every setting of the commands in ``CONFIGURED``, with the words of its command."""
    for words in CONFIGURED:
        command: Any = root
        for word in words:
            command = command.commands[word]
        for setting in settings_of(command, words):
            yield words, setting


def _rows(root: TyperGroup, content: Any) -> Iterator[_Row]:
    for words, setting in configured(root):
        table = content
        for word in words:
            table = table.get(word, {}) if isinstance(table, dict) else {}
        key, effect = ".".join((*words, setting.key)), setting.takes_effect.value
        if os.environ.get(setting.variable):
            yield key, _shown(setting, os.environ[setting.variable]), setting.variable, effect
        elif isinstance(table, dict) and setting.key in table:
            yield key, _shown(setting, table[setting.key]), "file", effect
        else:
            yield key, setting.default or None, "default", effect


def _shown(setting: Setting, value: Any) -> Any:
    """Return a value without its secrets; the query of a URL may be a secret as well."""
    if setting.key not in _URLS or not any(mark in str(value) for mark in "@?"):
        return value
    from auditor.metrics.export import without_secrets

    return without_secrets(str(value))


def _contradictions(content: Any, root: TyperGroup, context: typer.Context) -> Iterator[str]:
    """Yield the problems for which the commands would refuse to start, except those of single options."""
    yield from _uri_problems(content.get(URI_KEY, _PLACEHOLDER_URI))
    for words, make in RULES.items():
        if not has_options(content, words):
            continue
        try:
            make(_PLACEHOLDER_URI, options_of(content, words, root, context))
        except ConfigurationError as error:
            yield from (f"[{'.'.join(words)}] {problem}" for problem in error.problems)


def _uri_problems(uri: object) -> Iterator[str]:
    if (problem := uri_problem(uri)) is not None:
        yield problem
        return
    try:
        parse_uri(str(uri))
    except InvalidUriError as error:
        yield f"{URI_KEY}: {error}"


def _uri_row(content: Any) -> _Row:
    effect = TakesEffect.RESTART.value
    if os.environ.get(URI_VARIABLE):
        return URI_KEY, os.environ[URI_VARIABLE], URI_VARIABLE, effect
    return (URI_KEY, content[URI_KEY], "file", effect) if content.get(URI_KEY) else (URI_KEY, None, "default", effect)


def _root(context: typer.Context) -> TyperGroup:
    root: Any = context.find_root().command
    return root  # type: ignore[no-any-return]
