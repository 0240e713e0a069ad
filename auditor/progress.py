"""Progress of long work: bars on a terminal, plain lines elsewhere, and a table of the steps at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_PLAIN_INTERVAL_S: Final = 5.0
"""Seconds between two plain lines of one step, so that a log does not grow by a line per item."""


@dataclass(slots=True)
class StepResult:
    """One row of the final table."""

    title: str
    seconds: float
    count: str = ""
    size_bytes: int | None = None


class ProgressStep(Protocol):
    """A step under way."""

    result: StepResult

    def total(self, count: int) -> None:
        """Set the number of items of the step."""
        ...

    def done(self, count: int) -> None:
        """Set the total number of items that are done."""
        ...

    def advance(self, count: int = 1) -> None:
        """Add ``count`` items that are done."""
        ...

    def note(self, text: str) -> None:
        """Print a line of its own."""
        ...


class _PlainStep:
    def __init__(self, title: str, out: TextIO) -> None:
        self.result = StepResult(title, 0.0)
        self._out = out
        self._total = 0
        self._done = 0
        self._said_s = time.monotonic()

    def total(self, count: int) -> None:
        self._total = count

    def done(self, count: int) -> None:
        self._done = count
        if time.monotonic() - self._said_s >= _PLAIN_INTERVAL_S:
            self._said_s = time.monotonic()
            self.note(f"{self._done} of {self._total}")

    def advance(self, count: int = 1) -> None:
        self.done(self._done + count)

    def note(self, text: str) -> None:
        print(f"    {text}", file=self._out, flush=True)


class _BarStep(_PlainStep):
    def __init__(self, title: str, out: TextIO, bar: Progress, task: TaskID) -> None:
        super().__init__(title, out)
        self._bar = bar
        self._task = task

    def total(self, count: int) -> None:
        super().total(count)
        self._bar.update(self._task, total=max(count, 1))

    def done(self, count: int) -> None:
        self._done = count
        self._bar.update(self._task, completed=count)

    def note(self, text: str) -> None:
        self._bar.console.print(f"    {text}", highlight=False, markup=False)


class Display:
    """Shows numbered steps on standard output and keeps their results."""

    def __init__(self, steps: int) -> None:
        self._out = sys.stdout
        self._steps = steps
        self._console = Console(file=self._out, highlight=False)
        self.results: list[StepResult] = []

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show a step while the body runs. Its seconds are measured here; the body sets the rest of its result."""
        head = f"[{len(self.results) + 1}/{self._steps}] {title}"
        started_s = time.monotonic()
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            with Progress(*columns, console=self._console, transient=True) as bar:
                step: _PlainStep = _BarStep(title, self._out, bar, bar.add_task(head, total=None))
                yield step
        else:
            print(head, file=self._out, flush=True)
            step = _PlainStep(title, self._out)
            yield step
        step.result.seconds = time.monotonic() - started_s
        self.results.append(step.result)
        if self._console.is_terminal:
            self.line(f"{head}: {step.result.count} ({step.result.seconds:.1f} s)")

    def line(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, soft_wrap=True)
