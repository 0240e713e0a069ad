"""The sources of a command's options: flag, environment, configuration file, default. The first that exists counts.

The environment variable of an option is ``BKHEAL_<COMMAND>_<OPTION>`` (``BKHEAL_AUDITOR_HTTP_PORT``); in the file it is
a key of the command's table (``[auditor]``, ``[audit.run]``), written with underscores. The file is the one in
``--config``, else in ``$BKHEAL_CONFIG``, else the default one if it exists. If the parameter of an option has another
name than its flag (``is_sure`` of ``--yes``), both names are accepted, as in earlier releases.
"""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer
from typer.core import TyperGroup, TyperOption

from bookie.runtime.configuration.settings import URI_KEY, ConfigurationError, config_file, read_config

Command: TypeAlias = Any
"""A command made by Typer; its type is not public."""
ENVIRONMENT_PREFIX: Final = "BKHEAL"

_HIDDEN: Final = frozenset({"help", "config", "uri", "output"})
"""Options that are not settings: they choose the cluster, the file, or the form of the output."""
_CONTENT: Final = "bkheal.configuration"


class TakesEffect(enum.Enum):
    """When a change of the file takes effect."""

    LIVE = "live"
    """Within seconds, in running processes."""
    RESTART = "restart"
    NEXT_CALL = "next call"
    """The command is short-lived."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of one command."""

    key: str
    flag: str
    variable: str
    default: str
    help: str
    takes_effect: TakesEffect


def load_defaults(context: typer.Context, value: Path | None) -> Path | None:
    """Set the names of variables, and the file's table as defaults. Callback of ``--config``, before other options.

    Raises:
        ConfigurationError: the file cannot be read, or its table has a key that is not an option of the command.
    """
    path, words = config_file(value, os.environ), command_words(context)
    context.auto_envvar_prefix = _variable(*words)  # only now: earlier, each help text would list all variables
    defaults: dict[str, Any] = {}
    if path is not None:
        content = read_config(path)
        _refuse_single_value(path, content, words)
        table = _table(content, words)
        _refuse_unknown(path, table, words, context.command)
        context.meta[_CONTENT] = content
        by_key = _options_by_key(context.command)
        defaults = {by_key[key].name or "": entry for key, entry in table.items() if key in by_key}
    defaults |= {
        option.name or "": os.environ[variable] for option, variable in _variables_of_flags(context.command, words)
    }
    context.default_map = defaults
    return value


def origin_of(context: typer.Context, option: TyperOption) -> str | None:
    """Return the variable or the file that an option's value is from; None if it is from the command line."""
    words, name = command_words(context), option.name or ""
    source = getattr(context.get_parameter_source(name), "name", None)
    if source == "ENVIRONMENT":
        return option.envvar if isinstance(option.envvar, str) else _variable(*words, name)
    if source != "DEFAULT_MAP":
        return None
    variables = {found.name: variable for found, variable in _variables_of_flags(context.command, words)}
    return variables.get(name) or f"[{'.'.join(words)}] in the configuration file"


def settings_of(command: Command, words: tuple[str, ...]) -> Iterator[Setting]:
    """Yield the settings of a command, in the order of its help.

    Args:
        command: the command.
        words: the words by which it is called, without the program's name.
    """
    for option in _options(command):
        yield Setting(
            option.name or "",
            max(option.opts, key=len),
            _variable(*words, option.name or ""),
            _default_text(option),
            (option.help or "").strip(),
            _takes_effect(words, option.name or ""),
        )


def config_content_problems(content: Mapping[str, Any], root: TyperGroup, context: typer.Context) -> Iterator[str]:
    """Report the unknown or invalid parts of a configuration file, one sentence each."""
    for name, entry in content.items():
        if name == URI_KEY:
            continue
        command = root.commands.get(name)
        if command is None:
            yield f"{name} is neither {URI_KEY} nor the table of a command"
        elif not isinstance(entry, Mapping):
            yield _no_table_text((name,))
        else:
            yield from _problems(entry, (name,), command, context)


def has_options(content: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    """Return whether a file has options of a command itself, not only of its subcommands."""
    return any(not isinstance(entry, Mapping) for entry in _table(content, words).values())


def options_of(
    content: Mapping[str, Any], words: tuple[str, ...], root: TyperGroup, context: typer.Context
) -> dict[str, Any]:
    """Return the options of a call from environment, file and defaults. An invalid value counts as the default.

    A required option without a value (a flag may give one) has its own name as its value, so that it contradicts no
    other option.
    """
    command: Any = root
    for word in words:
        command = command.commands[word]
    table, values = _table(content, words), {}
    for option in _options(command):
        name = option.name or ""
        given = os.environ.get(_variable(*words, name)) or table.get(name)
        try:
            values[name] = _value(option, given, context) if given is not None else _default(option, context)
        except typer.BadParameter:
            values[name] = _default(option, context)
    return values


def values_in(content: Mapping[str, Any], words: tuple[str, ...], context: typer.Context) -> dict[str, Any]:
    """Return the values of the file and the defaults for the called command, without the other sources.

    Raises:
        typer.BadParameter: a value is not of its option's type or range; see ``problems_of``.
    """
    table, values = _table(content, words), {}
    for option in _options(context.command):
        given = table.get(option.name or "")
        values[option.name or ""] = _default(option, context) if given is None else _value(option, given, context)
    return values


def problems_of(content: Mapping[str, Any], words: tuple[str, ...], context: typer.Context) -> Iterator[str]:
    """Yield problems in the table of the called command: keys that are not options, and values of the wrong type."""
    yield from _problems(_table(content, words), words, context.command, context)


def content_at_start(context: typer.Context) -> Mapping[str, Any]:
    """Return the content that the file had when the command was called; empty without a file."""
    content: Mapping[str, Any] = context.meta.get(_CONTENT, {})
    return content


def command_words(context: typer.Context) -> tuple[str, ...]:
    """Return the words by which the command was called, without the program's name."""
    words: list[str] = []
    at: Any = context
    while at.parent is not None:
        words.insert(0, at.info_name or "")
        at = at.parent
    return tuple(words)


def _takes_effect(words: tuple[str, ...], name: str) -> TakesEffect:
    from auditor.cli.configuration.settings import LIVE, LONG_RUNNING_COMMANDS  # imports the settings of all processes

    if words not in LONG_RUNNING_COMMANDS:
        return TakesEffect.NEXT_CALL
    return TakesEffect.LIVE if name in LIVE.get(words, ()) else TakesEffect.RESTART


def _problems(
    table: Mapping[str, Any], words: tuple[str, ...], command: Command, context: typer.Context | None
) -> Iterator[str]:
    """Yield the problems of a table. ``context`` is used to convert values; None: values are not checked."""
    known = _options_by_key(command)
    below = command.commands if isinstance(command, TyperGroup) else {}
    for name, entry in table.items():
        if name in below:
            if isinstance(entry, Mapping):
                yield from _problems(entry, (*words, name), below[name], context)
            else:
                yield _no_table_text((*words, name))
        elif name not in known:
            yield f"[{'.'.join(words)}] {name} is unknown; {_known_text(name, {*map(_key, known.values()), *below})}"
        elif context is not None and (why := _conversion_problem(known[name], entry, context)) is not None:
            yield f"[{'.'.join(words)}] {name} = {entry!r}: {why}"


def _known_text(name: str, known: Collection[str]) -> str:
    """Return the end of the sentence about an unknown key: the similar keys if there are any, else all of them."""
    similar = difflib.get_close_matches(name, known)
    return f"did you mean {' or '.join(similar)}?" if similar else f"known are {', '.join(sorted(known)) or 'nothing'}"


def _no_table_text(words: tuple[str, ...]) -> str:
    """Return the sentence about a value in place of the table of a command."""
    table = ".".join(words)
    return f"{table} is a single value, not the table of the command: write its options below a line [{table}]"


def _value(option: TyperOption, given: object, context: typer.Context) -> Any:
    return option.process_value(context, given)


def _default(option: TyperOption, context: typer.Context) -> Any:
    if option.required:
        return option.name
    return None if option.default is None else _value(option, option.default, context)


def _conversion_problem(option: TyperOption, value: object, context: typer.Context) -> str | None:
    try:
        _value(option, value, context)
    except typer.BadParameter as error:
        return error.message
    return None


def _refuse_unknown(path: Path, table: Mapping[str, Any], words: tuple[str, ...], command: Command) -> None:
    _raise_problems(path, _problems(table, words, command, None))


def _refuse_single_value(path: Path, content: Mapping[str, Any], words: tuple[str, ...]) -> None:
    """Refuse a value in place of the table of a command, or of a group of commands, that is called by ``words``."""
    table: Any = content
    for count, word in enumerate(words, 1):
        table = table.get(word, {})
        if not isinstance(table, Mapping):
            _raise_problems(path, [_no_table_text(words[:count])])


def _raise_problems(path: Path, problems: Iterable[str]) -> None:
    if listed := [f"{path}: {problem}" for problem in problems]:
        raise ConfigurationError(listed)


def _table(content: Mapping[str, Any], words: tuple[str, ...]) -> Mapping[str, Any]:
    table: Any = content
    for word in words:
        table = table.get(word, {}) if isinstance(table, Mapping) else {}
    return table if isinstance(table, Mapping) else {}


def _variable(*words: str) -> str:
    return "_".join((ENVIRONMENT_PREFIX, *words)).upper().replace("-", "_")


def _options(command: Command) -> Iterator[TyperOption]:
    for parameter in command.params:
        if isinstance(parameter, TyperOption) and parameter.name not in _HIDDEN:
            yield parameter


def _key(option: TyperOption) -> str:
    """Return the longest flag of an option, written as a key of the file."""
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def _options_by_key(command: Command) -> dict[str, TyperOption]:
    """Return the options by each of their keys: that of the flag, and the name of the parameter."""
    found = {option.name or "": option for option in _options(command)}
    return found | {_key(option): option for option in _options(command)}


def _variables_of_flags(command: Command, words: tuple[str, ...]) -> Iterator[tuple[TyperOption, str]]:
    """Yield the options with the variable of their flag, if it has a value and is not that of the parameter's name."""
    for option in _options(command):
        variable = _variable(*words, _key(option))
        if _key(option) != option.name and os.environ.get(variable):
            yield option, variable


def _default_text(option: TyperOption) -> str:
    default = option.default
    if isinstance(option.show_default, str):
        return option.show_default
    if default is None or callable(default) or option.required:
        return "" if not option.required else "required"
    return str(default).lower() if isinstance(default, bool) else str(getattr(default, "value", default))
