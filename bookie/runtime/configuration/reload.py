"""What a changed configuration file means for a process that runs. Decisions alone: no file, no clock, no signals.

A value comes from the file, or is the default if the file has none. An option that a flag or a variable names does not
follow the file, as at a start. Of the others the live ones change at once, and the rest wait for a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Values: TypeAlias = Mapping[str, object]
"""Each option's value, as the file and the defaults give it."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file that a process was started with, and how to understand it again."""

    path: Path
    parse: Callable[[str], Values]
    """Parses a file by the rules of a start; raises ConfigurationError with every problem."""
    values: Values
    """At the start."""
    given: Mapping[str, str]
    """Options that something named which goes before the file: option to flag or variable."""
    live: frozenset[str]
    """Options that may change while the process runs."""


@dataclass(frozen=True, slots=True)
class Change:
    """One option that has another value now."""

    option: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a new content, each part in the order of the options' names."""

    taken: tuple[Change, ...] = ()
    """To be applied now."""
    outranked: tuple[Change, ...] = ()
    """A flag or a variable decides: nothing to do."""
    waiting: tuple[Change, ...] = ()
    """For a restart. ``old`` is what the process works with."""


def decide(source: ConfigSource, seen: Values, new: Values) -> Decision:
    """Sort out what differs.

    Args:
        source: of the process.
        seen: values of the content before, so that each change is reported once.
        new: values of the content now.
    """
    taken, outranked, waiting = [], [], []
    for option in sorted(seen.keys() | new.keys()):
        old, now = seen.get(option), new.get(option)
        if old == now:
            continue
        if option in source.given:
            outranked.append(Change(option, old, now))
        elif option in source.live:
            taken.append(Change(option, old, now))
        elif now != source.values.get(option):  # else it is what the process works with again
            waiting.append(Change(option, source.values.get(option), now))
    return Decision(tuple(taken), tuple(outranked), tuple(waiting))
