"""The effect of a changed configuration file on a running process: decisions only, no file, no clock, no signals.

A value comes from the file, or is the default if the file has none. As at the start of the process, flags and variables
take precedence over the file. Of the other options, the live ones change at once, and the rest need a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Values: TypeAlias = Mapping[str, object]
"""The value of each option according to the file and the defaults."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file with which a process was started, and its parser."""

    path: Path
    parse: Callable[[str], Values]
    """Parses a file by the same rules as at the start; raises ConfigurationError with every problem."""
    values: Values
    """The values at the start of the process."""
    given: Mapping[str, str]
    """The options with a flag or variable, which takes precedence over the file; values are the flag or variable."""
    live: frozenset[str]
    """The options that may change while the process runs."""


@dataclass(frozen=True, slots=True)
class OptionChange:
    """One option with a new value."""

    option: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class ReloadDecision:
    """The actions for new content, each part sorted by option name."""

    taken: tuple[OptionChange, ...] = ()
    """Changes to apply now."""
    overridden: tuple[OptionChange, ...] = ()
    """Changes without effect, because a flag or a variable takes precedence."""
    waiting: tuple[OptionChange, ...] = ()
    """Changes that need a restart. ``old`` is the value in use now."""


def decide(source: ConfigSource, seen: Values, new: Values) -> ReloadDecision:
    """Return the actions for the difference between two contents.

    Args:
        source: the configuration source of the process.
        seen: values of the previous content, so that each change is reported once.
        new: values of the present content.
    """
    taken, overridden, waiting = [], [], []
    for option in sorted(seen.keys() | new.keys()):
        old, now = seen.get(option), new.get(option)
        if old == now:
            continue
        if option in source.given:
            overridden.append(OptionChange(option, old, now))
        elif option in source.live:
            taken.append(OptionChange(option, old, now))
        elif now != source.values.get(option):  # otherwise the file has the value in use again
            waiting.append(OptionChange(option, source.values.get(option), now))
    return ReloadDecision(tuple(taken), tuple(overridden), tuple(waiting))
