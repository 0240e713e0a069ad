"""Limits on the reports and tables to keep. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HISTORY_DAYS: Final = 400
"""Days of the tables by default: a year can be compared with the one before."""
HISTORY_DAYS_MAX: Final = 36_500
HISTORY_MIB: Final = 1024
"""Size of each table by default, of which findings need most: some hundred runs with a hundred thousand findings."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What to keep; None: everything."""

    reports_max: int | None = None
    """Directories of runs, at least 1."""
    days_max: int | None = None
    """Days of the tables, today included, at least 1."""
    table_bytes_max: int | None = None
    """Of each table: above this size, its oldest days are removed, and the newest stays."""


EVERYTHING: Final = Kept()
