"""Common parts of all commands: options for the connection, and running a coroutine until a clean end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from auditor.cli.configuration.sources import load_defaults
from auditor.cli.output import OutputFormat, StreamFormat
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.settings import resolve_metadata_uri

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")

MetadataUriOption = Annotated[
    str | None,
    typer.Option(
        "--metadata-uri",
        help="The cluster: zk+hierarchical://host:port/ledgers. Default: $BKHEAL_METADATA_URI, then the config file.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=load_defaults,
        help="Config file (TOML). Default: $BKHEAL_CONFIG, then ~/.config/bkheal/config.toml.",
    ),
]
StreamOutputOption = Annotated[
    StreamFormat, typer.Option("--output", "-o", help="A table for people, JSON, or one JSON document in a line.")
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="A table for people, or JSON.")]


def metadata_uri(flag: str | None, config: Path | None) -> str:
    """Return the URI from flag, environment or config file, in this order.

    Raises:
        ConfigurationError: none of them has one, or the file is invalid.
    """
    return resolve_metadata_uri(flag, os.environ, config)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; Ctrl-C, SIGTERM and a closed terminal cancel it, let it clean up, and exit with 128 + signal.

    A signal that the process ignores, such as SIGHUP under ``nohup``, stays ignored.
    Work that handles signals itself takes precedence. If several tasks failed at once, the first error of a closed
    output is raised, else the first ``BkhealError``, else the first error of the operating system.
    """
    try:
        return asyncio.run(_cancelled_by_signals(work))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BaseExceptionGroup as group:
        for kind in (BrokenPipeError, BkhealError, OSError):
            if (expected := group.subgroup(kind)) is not None:
                raise _first(expected) from group
        raise


def log_no_attempts_to_connect() -> None:
    """Unless more is to be logged, let the error of a short command summarize its attempts to reach ZooKeeper."""
    if logging.getLogger().level >= logging.WARNING:
        logging.getLogger("kazoo.client").setLevel(logging.ERROR)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal end the command while the body waits for a person's answer.

    The exit code is 128 + signal. A question inside ``run`` blocks the event loop, which otherwise handles signals. An
    ignored signal stays ignored. Only the main thread receives signals, so in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    caught: list[int] = []

    def end(number: int, frame: FrameType | None) -> NoReturn:
        caught.append(number)
        raise typer.Exit(128 + number)

    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    changed = {number: old for number, old in previous.items() if old not in (signal.SIG_IGN, None)}
    wakeup = signal.set_wakeup_fd(-1)  # otherwise the loop would handle them again while the command ends
    try:
        for number in changed:
            signal.signal(number, end)
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(wakeup)
        if caught:
            with suppress(OSError):  # the terminal was closed
                sys.stderr.write("\n")  # ends the line of the question


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    caught: list[int] = []

    def cancel(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise typer.Exit(128 + caught[0]) from None
        raise


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
