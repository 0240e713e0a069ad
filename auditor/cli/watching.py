"""``--watch``: prints repeated updates, in place on a terminal, and otherwise as lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import typer

from auditor.cli.output import StreamFormat, print_json, print_json_line, print_line

Document: TypeAlias = dict[str, Any]
Show: TypeAlias = Callable[[Document], None]

WatchOption = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.5, help="Seconds between two updates; longer if an update takes long.")
]


def check_timeout(timeout_s: float | None, *, is_waiting: bool) -> None:
    """Refuse a time limit without a wait."""
    if timeout_s is not None and not is_waiting:
        raise typer.BadParameter("it is the longest time to wait: give --wait as well", param_hint="'--timeout'")


def print_once(output: StreamFormat, lines: Callable[[Document], Sequence[str]], kind: str, document: Document) -> None:
    """Print a document without a watch."""
    if output is StreamFormat.JSON:
        print_json(kind, **document)
    elif output is StreamFormat.JSONL:
        print_json_line(kind, **document)
    else:
        print_line("\n".join(lines(document)))


@contextmanager
def shown(
    output: StreamFormat, one_line: Callable[[Document], str], lines: Callable[[Document], Sequence[str]], kind: str
) -> Iterator[Show]:
    """Yield the function that shows one update."""
    if output is not StreamFormat.TABLE:
        yield lambda document: print_json_line(kind, **document)
        return
    if not sys.stdout.isatty():
        yield lambda document: _print_flushed(one_line(document))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda document: live.update(Text("\n".join(lines(document))), refresh=True)


def watched(
    output: StreamFormat,
    one_line: Callable[[Document], str],
    lines: Callable[[Document], Sequence[str]],
    kind: str,
    query: Callable[[], Document],
    interval_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show updates until the process is interrupted, or an update fails."""
    with shown(output, one_line, lines, kind) as show:
        while True:
            show(query())
            sleep(interval_s)


def _print_flushed(line: str) -> None:
    """Print and flush a line; otherwise a pipe would receive nothing for many updates."""
    print_line(line)
    sys.stdout.flush()
