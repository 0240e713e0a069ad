"""The common parts of commands that change a cluster: options, confirmation, and refusals with the same exit codes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.output import OutputFormat, print_error, print_json, print_line
from auditor.cli.running import ended_by_signals
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, bookie_id
from bookie.runtime.human import agreeing
from bookie.runtime.user import user_name

if TYPE_CHECKING:
    from bookie.client.connect import ConnectedBookKeeper

BookiesArgument = Annotated[list[str], typer.Argument(metavar="BOOKIE", help="Ids, see `bkheal bookies`.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def bookie_ids(names: Sequence[str]) -> tuple[BookieId, ...]:
    """Return the bookies named on the command line, each once."""
    return tuple(dict.fromkeys(bookie_id(name) for name in names))


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask on standard error. End the command after a signal or any answer but yes; nothing has been changed by then."""
    if is_sure:
        return
    with ended_by_signals():
        try:
            is_confirmed = typer.confirm(question, err=True)
        except typer.Abort:  # the end of the input, or Ctrl-C
            if _is_terminal():
                raise
            sys.stderr.write("\n")  # ends the line of the question
            refuse("standard input ended without an answer. Use --yes; nothing was changed", ExitCode.USAGE)
    if not is_confirmed:
        raise typer.Abort


def confirm_ledgers(question: str, ledgers: Sequence[int], *, is_sure: bool) -> None:
    """Ask the operator to type each ledger id. End the command after any other text, before anything is changed."""
    if is_sure:
        return
    if not _is_terminal():
        refuse(f"there is no terminal to confirm this: {question} Use --yes; nothing was changed", ExitCode.USAGE)
    sys.stderr.write(f"{question}\n")
    for ledger_id in ledgers:
        with ended_by_signals():
            typed = typer.prompt(f"Type {ledger_id} to confirm", default="", show_default=False, err=True)
        if typed.strip() != str(ledger_id):
            refuse(f"ledger {ledger_id} was not confirmed; nothing was changed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def require_utf8_text(value: str) -> str:
    """Callback of an option or argument that is stored as text: stop the command if the value is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{value!r} is not UTF-8") from error
    return value


def whoami() -> str:
    """Return the user and the host for the record of a change."""
    return f"{user_name()}@{socket.gethostname()}"


def refuse(reason: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with the reason; nothing was done."""
    print_error(reason)
    raise typer.Exit(code)


def show(output: OutputFormat, kind: str, document: dict[str, Any], lines: Sequence[str]) -> None:
    """Print a result, as JSON or as text."""
    if output is OutputFormat.JSON:
        print_json(kind, **document)
        return
    for line in lines:
        print_line(line)


def age_s(epoch_ms: int) -> int:
    """Return the whole seconds since a time in epoch milliseconds."""
    return max(0, int(time.time() - epoch_ms / 1000))


def exit_if_unknown(names: Sequence[BookieId], known: frozenset[BookieId]) -> None:
    """End the command if any of ``names`` is not in ``known``: most likely it is misspelt."""
    unknown_names = [name for name in names if name not in known]
    if unknown_names:
        refuse(f"no bookie of this cluster: {', '.join(unknown_names)}; `bkheal bookies` lists them")


@asynccontextmanager
async def connected(uri: str, **options: Any) -> AsyncIterator[ConnectedBookKeeper]:
    """Open a client of the cluster for the body. See ``connect`` for errors and options."""
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security(), **options) as client:
        yield client


def unreadable_marks_text(marks: int) -> str:
    """Return how an operator finds out about ``marks`` ledgers whose marks cannot be read. Pure."""
    has = agreeing(marks, "has a mark that cannot be read, so it is", "have marks that cannot be read, so they are")
    return f"{marks} {has} not repaired: `bkheal underreplicated list` shows the reason"
