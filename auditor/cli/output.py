"""What commands print: tables for people, JSON for programs, and one sentence for an error."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

API_VERSION: Final = "bkheal/v1"


class OutputFormat(enum.StrEnum):
    """Values of ``--output``."""

    TABLE = "table"
    JSON = "json"


def print_json(kind: str, **fields: Any) -> None:
    """Print one JSON document: ``apiVersion``, ``kind``, then ``fields``."""
    sys.stdout.write(json.dumps({"apiVersion": API_VERSION, "kind": kind, **fields}, indent=2) + "\n")


def print_line(text: str = "") -> None:
    """Print one line of result to standard output."""
    sys.stdout.write(text + "\n")


def print_error(text: str) -> None:
    """Print one sentence to standard error."""
    sys.stderr.write(f"error: {text}\n")


def print_note(text: str) -> None:
    """Print one sentence that is neither result nor error to standard error."""
    sys.stderr.write(f"note: {text}\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Print aligned columns; ``right`` names the columns that hold numbers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
    for row in [list(headings), *cells]:
        parts = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print_line("  ".join(parts).rstrip())
