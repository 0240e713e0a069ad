"""The output of commands: tables for people, JSON for programs, and one sentence for an error."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_jobs.runs.port import ProgressEvent


API_VERSION: Final = "bkheal/v1"


class OutputFormat(enum.StrEnum):
    """Values of ``--output``."""

    TABLE = "table"
    JSON = "json"


class StreamFormat(enum.StrEnum):
    """Values of ``--output`` for long lists, and for repeated output."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    """One JSON document per line."""


def print_json_line(kind: str, **fields: Any) -> None:
    """Print one JSON document in one line, and flush it; otherwise a pipe would receive nothing for a long time."""
    sys.stdout.write(json.dumps({"apiVersion": API_VERSION, "kind": kind, **fields}) + "\n")
    sys.stdout.flush()


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
    """Print one sentence to standard error that is neither result nor error."""
    sys.stderr.write(f"note: {text}\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Print aligned columns; ``right`` names the columns with numbers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
    for row in [list(headings), *cells]:
        parts = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print_line("  ".join(parts).rstrip())


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[ProgressEvent], None]]:
    """Show progress while the body runs; yields the receiver of updates."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(event: ProgressEvent) -> None:
            bar.update(task, description=event.phase.value, completed=event.done, total=event.total)

        yield show


def _lines() -> Callable[[ProgressEvent], None]:
    from spark_jobs.runs.port import Phase

    seen: list[str] = []

    def show(event: ProgressEvent) -> None:
        if event.phase is not Phase.DONE and seen[-1:] != [event.phase.value]:
            seen.append(event.phase.value)
            sys.stderr.write(f"{event.phase.value} ...\n")

    return show


@contextlib.contextmanager
def counting(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function for the number of further completed items. ``total`` is None if unknown."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
