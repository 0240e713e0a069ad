"""Common parts of commands that print lists in pages: options, the note about the rest, and the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from auditor.cli.output import StreamFormat, print_json, print_json_line, print_line, print_note, print_table
from bookie.model.ids import LEDGER_ID_MAX

LIMIT_DEFAULT: Final = 1_000
PAGE_ROWS_MAX: Final = 1_000
"""Rows in one page of a service."""
AT_ONCE_MAX: Final = 100
"""Ledgers in one request that changes something at a service."""

LimitOption = Annotated[int, typer.Option(min=1, max=10_000_000, help="Most rows to list.")]
AfterOption = Annotated[
    int | None,
    typer.Option("--after", min=0, max=LEDGER_ID_MAX, help="Begin after this ledger.", show_default=False),
]


def joined_pages(ask: Callable[[int, int | None], dict[str, Any]], limit: int, after: int | None) -> dict[str, Any]:
    """Return one page of ``limit`` rows, joined from as many shorter pages as necessary."""
    rows: list[dict[str, Any]] = []
    while True:
        page = ask(limit - len(rows), after)
        rows += page["items"]
        after = page["next_after"]
        if after is None or len(rows) >= limit:
            return {"items": rows, "next_after": after}


def print_page(
    output: StreamFormat,
    kind: str,
    page: dict[str, Any],
    headings: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[object]],
    *,
    right: Sequence[int],
    nothing: str,
    member: str = "",
) -> None:
    """Print a page: a table, one document, or one document for each row.

    Args:
        output: the form.
        kind: kind of the document; without ``List`` it is the kind of a row's document.
        page: the document, with ``items``.
        headings: of the table.
        cells: of a row.
        right: the columns with numbers.
        nothing: the line that is printed instead of an empty table.
        member: the member of a row's document with the row, if rows have a ``kind`` of their own; empty: the document
            is the row.
    """
    if output is StreamFormat.JSON:
        print_json(kind, **page)
        return
    if output is StreamFormat.JSONL:
        for row in page["items"]:
            print_json_line(kind.removesuffix("List"), **({member: row} if member else row))
    elif page["items"]:
        print_table(headings, [cells(row) for row in page["items"]], right=right)
    else:
        print_line(nothing)
    if page.get("next_after") is not None:
        print_note(f"there are more: --after {page['next_after']}")


def print_note_at_limit(output: StreamFormat, shown: int, limit: int, limit_max: int | None = None) -> None:
    """Print a note below a table of the newest rows that is as long as its limit, so there are perhaps more.

    Args:
        output: the form of the output.
        shown: the number of rows.
        limit: the most rows that were requested.
        limit_max: the highest limit; None: there is none.
    """
    if output is StreamFormat.TABLE and shown == limit != limit_max:
        print_note(f"only the newest {limit} are listed; --limit lists more")
