"""Numbers and names in the format of reports. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie.model.ids import LEDGER_ID_MAX
from bookie.runtime.human import counted
from spark_jobs.report.counts import ReplicaCounts

NAMED_MAX: Final = 8
"""Largest number of names in one line."""
_TEXT_MAX: Final = 1_000
"""Largest number of characters of one text on a page. Ids are far shorter; a longer text is an attack or a mistake."""
_NAME_MAX: Final = 72
"""Largest number of characters of a name in a list."""


def plain(text: str) -> str:
    """Escape a foreign text, so that nothing in it can break a line, reverse it, or hide a part of it."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:_TEXT_MAX])
    return shown if len(text) <= _TEXT_MAX else f"{shown} ... ({len(text):,} characters)"


def number(value: int) -> str:
    """Return a number with separators for thousands."""
    return f"{value:,}"


def numbered(value: int, noun: str) -> str:
    """Return a number with its noun, with separators for thousands."""
    return counted(value, noun, ",")


def signed(value: int) -> str:
    """Return a difference with its sign."""
    return f"+{value:,}" if value > 0 else f"\N{MINUS SIGN}{-value:,}"


def percent(part: int, whole: int) -> str:
    """Return a share in percent, never rounded to 0 % or 100 %."""
    if not whole or part in (0, whole):
        return "0 %" if not part else "100 %"
    share = 100 * part / whole
    if share < 0.01:
        return "< 0.01 %"
    return "> 99.9 %" if share > 99.9 else f"{share:.2f} %" if share < 1 else f"{share:.1f} %"


def scope_text(counts: ReplicaCounts | None) -> str:
    """Return the sample and the range of ledgers to which a check was limited; empty if it had neither."""
    if counts is None or counts.is_every_ledger:
        return ""
    limits = [f"a sample of {100 * counts.sample:g}%"] if counts.sample < 1 else []
    if (counts.ledger_min, counts.ledger_max) != (0, LEDGER_ID_MAX):
        end = "" if counts.ledger_max == LEDGER_ID_MAX else f" to {counts.ledger_max}"
        limits.append(f"ids from {counts.ledger_min}{end}")
    return ", ".join(limits)


def shortened(name: str) -> str:
    """Return a name for use in a sentence. Of a very long name, only the beginning and the end are returned."""
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 13]}\N{HORIZONTAL ELLIPSIS}{name[-12:]}"


def some(names: Sequence[object], count_max: int = NAMED_MAX) -> str:
    """Return a text with the first names of a list, and the number of the others."""
    named = ", ".join(shortened(str(name)) for name in names[:count_max])
    return named if len(names) <= count_max else f"{named} and {len(names) - count_max:,} more"
