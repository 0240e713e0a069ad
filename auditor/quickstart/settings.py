"""Options of the tour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

BOOKIES: Final = 7
"""Two more than the widest ensemble: one to kill, and one that is always outside the ensemble."""
OPEN_LEDGER_GRACE_S: Final = 3.0
"""The open-ledger grace of the tour's replicators; the default is 30 s."""


@dataclass(frozen=True, slots=True)
class QuickstartSettings:
    """The options; documented in ``bkheal quickstart --help``."""

    keep: Path | None = None
    """Directory of the data; None: a temporary directory, removed at the end."""
    is_serving: bool = False
    seed: int = 1
