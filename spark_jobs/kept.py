"""Limits on the reports and tables to keep. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HISTORY_DAYS: Final = 400
"""Default number of days in the tables, so that a year can be compared with the previous one."""
HISTORY_DAYS_MAX: Final = 36_500
HISTORY_MIB: Final = 1024
"""Default size of each table. Findings need the most space: this is enough for about a hundred runs with a hundred
thousand findings."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What to keep; None: no limit."""

    reports_max: int | None = None
    """Number of directories of runs, at least 1."""
    days_max: int | None = None
    """Number of days in the tables, including today, at least 1. This limit and the next one do not apply to the table
    of unhealthy ledgers, which is a state."""
    table_bytes_max: int | None = None
    """Size of each table. If a table is larger, its oldest days are removed, but never the newest day."""


EVERYTHING: Final = Kept()
