"""Which findings, which of their columns, and where a page ends: what is common to all lists of findings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FindingKind

COLUMNS: Final = (
    "kind",
    "ledger_id",
    "fragment_index",
    "fragment_first_entry_id",
    "fragment_last_entry_id",
    "state",
    "missing",
    "copies_min",
    "severity",
    "entries",
    "bytes_estimate",
    "detail",
    *OWNER_COLUMNS,
)


@dataclass(frozen=True, slots=True)
class FindingFilter:
    """Which findings; None: any."""

    severity: Severity | None = None
    bookie: str | None = None
    """Only those that miss this bookie."""
    ledger_id: int | None = None
    kind: FindingKind | None = None


ANY: Final = FindingFilter()
"""Every finding."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page."""

    ledger_id: int
    fragment_index: int
    """-1: the finding has no fragment."""
    kind: str

    def __str__(self) -> str:
        """As text, for the request of the next page."""
        return f"{self.ledger_id}:{self.fragment_index}:{self.kind}"


CURSOR_PATTERN: Final = f"^[0-9]{{1,19}}:(-1|[0-9]{{1,9}}):({'|'.join(kind.value for kind in FindingKind)})$"
"""The text of a cursor."""


def parse_cursor(text: str) -> Cursor:
    """Read the text of a cursor, which fits ``CURSOR_PATTERN``."""
    ledger_id, index, kind = text.split(":")
    return Cursor(int(ledger_id), int(index), kind)
