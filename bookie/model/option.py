"""Options of a process, declared at the fields of its settings class.

A field for operators is annotated with an ``Option``; a field of a class with such fields is annotated with a
``Group``. The command line, the environment, the configuration file, their documents and the chart's schema follow from
these annotations (``bookie.runtime.configuration.options``). A field with neither can be set only by programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Option:
    """An option for a field, with the field's default."""

    help: str
    name: str = ""
    """The name in the configuration file, and of the flag without its dashes; default: the field's name."""
    minimum: float | None = None
    """Lowest value, inclusive."""
    above: float | None = None
    """Bound below the lowest value, exclusive."""
    maximum: float | None = None
    """Highest value, inclusive."""
    is_file: bool = False
    """Whether the value is the path of a file, which must exist."""
    heading: str = ""
    """Heading in the help, in place of the group's."""
    default_text: str = ""
    """A text for the default, if its value is not self-explanatory."""
    is_live: bool = False
    """Whether running processes follow a change in the configuration file."""


@dataclass(frozen=True, slots=True)
class Group:
    """The options of the class of a field. A field that allows None is None if its first option has no value."""

    prefix: str = ""
    """Text before the name of each option."""
    heading: str = ""
    """Heading of the group in the help."""
    help: Mapping[str, str] = field(default_factory=dict)
    """Help texts in place of the class's own, by the field's name."""


def parse_directories(text: str) -> tuple[Path, ...]:
    """Return the directories in a comma-separated text."""
    return tuple(Path(part.strip()) for part in text.split(",") if part.strip())
