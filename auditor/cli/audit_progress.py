"""Progress of an audit run on standard error: a bar on a terminal, a line a phase elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jobs.runs.port import ProgressEvent


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[ProgressEvent], None]]:
    """Show progress while the body runs; yields what is to be told of it."""
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
    seen: list[str] = []

    def show(event: ProgressEvent) -> None:
        if seen[-1:] != [event.phase.value]:
            seen.append(event.phase.value)
            sys.stderr.write(f"{event.phase.value} ...\n")

    return show
