"""Convert a process's settings class to options, and the values of the options to settings.

``bookie.model.option`` explains the annotations. There are two parsers: argparse in processes with few imports
(``python -m replicator``), and Typer in ``bkheal`` (``auditor.cli.configuration.settings``).
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import stat
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from bookie.model.errors import PermanentError
from bookie.model.option import Group, Option
from bookie.runtime.configuration.settings import ConfigurationError

T = TypeVar("T")


class _Required(enum.Enum):
    REQUIRED = enum.auto()


REQUIRED: Final = _Required.REQUIRED
"""The default of an option without a default value."""
_NO_GROUP: Final = Group()
_CLASSES_MAX: Final = 64
"""How many settings classes to remember; a process has fewer. Reading the annotations of one takes milliseconds."""


@dataclass(frozen=True, slots=True)
class SettingsOption:
    """One option of a settings class."""

    name: str
    """Name in the configuration file."""
    fields: tuple[str, ...]
    """Path to the field of the option: its name in each nested class."""
    type: type
    """Type of the values: bool, int, float, str, Path or an enum."""
    is_optional: bool
    """Whether None is a value."""
    default: Any
    """Value without the option, or ``REQUIRED``."""
    heading: str
    """Heading in the help; empty if none."""
    help: str
    declared: Option = field(repr=False)

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return f"--{self.name.replace('_', '-')}"


@functools.lru_cache(_CLASSES_MAX)
def options_of(settings: type) -> tuple[SettingsOption, ...]:
    """Return the options of a settings class, in the order of its fields."""
    return tuple(_options(settings))


def live_options(settings: type) -> frozenset[str]:
    """Return the names of the options that may change in the configuration file while the process runs."""
    return frozenset(option.name for option in options_of(settings) if option.declared.is_live)


def range_problems(settings: Any) -> Iterator[str]:
    """Report the values of a settings object that are outside the ranges of their options, one sentence each."""
    kind: type = type(settings)
    for option in options_of(kind):
        value = settings
        for name in option.fields:
            value = getattr(value, name, None)
        if value is not None and (problem := _range_problem(option, value)) is not None:
            yield problem


def file_problem(name: str, path: Path | None) -> str | None:
    """Return why the value of an option is not the path of a file, in one sentence; None if it is, or is not given.

    A path that cannot be checked, for instance in a directory without permission, has another reason than a missing
    file.
    """
    if path is None:
        return None
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: an impossible path, such as one with NUL
        is_file = False
    except OSError as error:
        return f"{name}: cannot look for {path}: {error.strerror or error}"
    return None if is_file else f"{name}: there is no file {path}"


def build(settings: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """Return the settings built from parsed option values.

    Args:
        settings: a settings class, which raises ConfigurationError for contradictory values.
        values: the value of each option by its name; options without a value have their default.
        others: the fields that are not options.

    Raises:
        ConfigurationError: a file does not exist or cannot be checked, or a value is out of range or contradicts
            another; names every problem.
    """
    kind: type = settings
    problems = [
        problem
        for option in options_of(kind)
        if option.declared.is_file
        and _is_given(option.declared, values.get(option.name))
        and (problem := file_problem(option.name, Path(values[option.name]))) is not None
    ]
    try:
        made = settings(**_arguments(settings, values, "", problems), **others)
    except ConfigurationError as error:
        problems += (problem for problem in error.problems if problem not in problems)
    if problems:
        raise ConfigurationError(problems)
    return made


def add_options(parser: argparse.ArgumentParser, settings: type) -> None:
    """Add the options of a settings class to a parser; ``values_in`` returns their values."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(settings):
        target: argparse._ActionsContainer = parser
        if option.heading:
            if option.heading not in groups:
                groups[option.heading] = parser.add_argument_group(option.heading)
            target = groups[option.heading]
        target.add_argument(option.flag, dest=option.name, help=_argparse_help(option), **_argparse_keywords(option))


def values_in(namespace: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the values of the options that ``add_options`` added."""
    return {option.name: getattr(namespace, option.name) for option in options_of(settings)}


def _options(
    settings: type, at: tuple[str, ...] = (), prefix: str = "", group: Group = _NO_GROUP
) -> Iterator[SettingsOption]:
    for each, kind, is_optional, mark in _declared_options(settings):
        if isinstance(mark, Group):
            below = list(_options(kind, (*at, each.name), prefix + mark.prefix, mark))
            if is_optional:
                below[0] = dataclasses.replace(below[0], is_optional=True, default=None)
            yield from below
        else:
            yield SettingsOption(
                _name(each, mark, prefix),
                (*at, each.name),
                kind,
                is_optional,
                REQUIRED if each.default is dataclasses.MISSING else each.default,
                mark.heading or group.heading,
                group.help.get(each.name, mark.help),
                mark,
            )


@functools.lru_cache(_CLASSES_MAX)
def _declared_options(settings: type) -> Sequence[tuple[dataclasses.Field[Any], type, bool, Option | Group]]:
    """Return the fields with an option annotation: field, type without None, whether None is allowed, annotation."""
    hints = typing.get_type_hints(settings, include_extras=True)
    declared = []
    for each in dataclasses.fields(settings):
        hint = hints[each.name]
        marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Option | Group)]
        if marks:
            kind, is_optional = _without_none(typing.get_args(hint)[0])
            declared.append((each, kind, is_optional, marks[0]))
    return declared


def _without_none(hint: Any) -> tuple[type, bool]:
    if not isinstance(hint, types.UnionType) and typing.get_origin(hint) is not typing.Union:
        return hint, False
    [kind] = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return kind, True


def _arguments(settings: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> dict[str, Any]:
    """Return the given values as arguments of a settings class."""
    found: dict[str, Any] = {}
    for each, kind, is_optional, mark in _declared_options(settings):
        if isinstance(mark, Group):
            made = _group(kind, values, prefix + mark.prefix, problems, is_optional=is_optional)
            if made is not None:
                found[each.name] = made
        elif _is_given(mark, value := values.get(_name(each, mark, prefix))):
            found[each.name] = _converted(kind, value)
    return found


def _group(kind: type, values: Mapping[str, Any], prefix: str, problems: list[str], *, is_optional: bool) -> Any:
    """Return the object of a group, or None if it is optional and not given, or invalid."""
    given = _arguments(kind, values, prefix, problems)
    names = {
        each.name: _name(each, mark, prefix) for each, _, _, mark in _declared_options(kind) if isinstance(mark, Option)
    }
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    first = next(iter(names))
    if is_optional and first not in given:
        idle = [names[name] for name, value in given.items() if value != defaults[name]]
        problems += [f"{name} needs {names[first]}" for name in idle]
        return None
    try:
        return kind(**given)
    except ConfigurationError as error:
        problems += error.problems
    except PermanentError as error:
        problems.append(str(error))
    return None


def _name(each: dataclasses.Field[Any], mark: Option, prefix: str) -> str:
    return prefix + (mark.name or each.name)


def _is_given(mark: Option, value: Any) -> bool:
    """Whether the option has a value. An empty string means no value; the parsers convert it to the empty path."""
    return value is not None and value != "" and not (mark.is_file and value == Path())


def _converted(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else kind(value)


def _range_problem(option: SettingsOption, value: Any) -> str | None:
    declared = option.declared
    low, above, high = declared.minimum, declared.above, declared.maximum
    if (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high):
        return None
    return f"{option.name} = {value} is out of range, need {_range(declared)}"


def _range(declared: Option) -> str:
    low, above, high = declared.minimum, declared.above, declared.maximum
    if low is not None and high is not None:
        return f"{low:.12g} to {high:.12g}"
    bounds = [(low, "at least"), (above, "more than"), (high, "at most")]
    return " and ".join(f"{words} {bound:.12g}" for bound, words in bounds if bound is not None)


def _argparse_keywords(option: SettingsOption) -> dict[str, Any]:
    words: dict[str, Any] = {"required": True} if option.default is REQUIRED else {"default": option.default}
    if option.type is bool:
        return {**words, "action": argparse.BooleanOptionalAction}
    if issubclass(option.type, enum.Enum):
        return {**words, "type": option.type, "choices": list(option.type), "metavar": _choices(option.type)}
    return {**words, "type": option.type}


def _choices(kind: type[enum.Enum]) -> str:
    return "|".join(str(member.value) for member in kind)


def _argparse_help(option: SettingsOption) -> str:
    text = option.help.replace("%", "%%")
    if option.type is bool or option.default in (REQUIRED, None, ""):
        return text
    default = option.declared.default_text or str(getattr(option.default, "value", option.default))
    return f"{text} Default: {default.replace('%', '%%')}."
