"""What all lists of findings have in common: the filter, the columns, and the cursor for pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
    """A selection of findings; None in a field selects all."""

    severity: Severity | None = None
    bookie: str | None = None
    """Only findings with this missing bookie."""
    ledger_id: int | None = None
    kind: FindingKind | None = None


ANY: Final = FindingFilter()
"""Selects every finding."""


@dataclass(frozen=True, slots=True, order=True)
class PageCursor:
    """Identifies the last row of a page, and defines the order of rows. Each row of a run has a different cursor."""

    ledger_id: int
    """-1: the finding is about a bookie, and has no ledger."""
    fragment_index: int
    """-1: the finding has no fragment."""
    kind: str
    bookie: str = ""
    """The bookie of a finding without a ledger; otherwise empty."""

    def __str__(self) -> str:
        """Return the cursor as text, for the request of the next page."""
        of_bookie = f":{self.bookie}" if self.bookie else ""
        return f"{self.ledger_id}:{self.fragment_index}:{self.kind}{of_bookie}"


CURSOR_PATTERN: Final = (
    f"^(-1|[0-9]{{1,19}}):(-1|[0-9]{{1,9}}):({'|'.join(kind.value for kind in FindingKind)})"
    r"(:[a-zA-Z0-9:-_.\-]{1,256})?$"
)
"""Regular expression for the text of a cursor."""


def parse_cursor(text: str) -> PageCursor:
    """Parse the text of a cursor, which must match ``CURSOR_PATTERN``."""
    ledger_id, index, kind, *bookie = text.split(":", 3)
    return PageCursor(int(ledger_id), int(index), kind, *bookie)


def cursor_of(row: Mapping[str, Any]) -> PageCursor:
    """Return the cursor of a row; its kind may be in lower case."""
    ledger_id, index, missing = row["ledger_id"], row["fragment_index"], row["missing"]
    bookie = missing[0] if ledger_id is None and missing else ""
    return PageCursor(
        -1 if ledger_id is None else ledger_id, -1 if index is None else index, row["kind"].upper(), bookie
    )
