"""The options of commands that inspect one bookie: a running one, or the directories of a stopped one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.bookie.running import RunningBookie
from auditor.cli.output import StreamFormat, print_json, print_json_line, print_line
from auditor.cli.watching import watched
from bookie.model.option import parse_directories

OptionalJournalDirOption = Annotated[
    list[str] | None,
    typer.Option(
        "--journal-dir",
        help="The journal directory of a stopped bookie; if it has several, repeat this in their order, or separate "
        "them by commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
OptionalLedgerDirOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger-dir",
        help="The ledger directory of a stopped bookie; if it has several, repeat this, or separate them by commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
JournalDirOption = Annotated[
    list[str],
    typer.Option(
        "--journal-dir",
        help="The bookie's journal directory; if it has several, repeat this in their order, or separate them by "
        "commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
LedgerDirOption = Annotated[
    list[str],
    typer.Option(
        "--ledger-dir",
        help="The bookie's ledger directory; if it has several, repeat this, or separate them by commas.",
        metavar="DIRECTORY",
        show_default=False,
    ),
]
StoppedBookieDirs = tuple[tuple[Path, ...], tuple[Path, ...]]
"""The journal directories and the ledger directories of a stopped bookie."""
_CODES: Final = (
    "Exit codes: 0 done, 1 refused: these are not the directories of a bookie, it runs, or a token is missing; 2 wrong "
    "usage, 69 the running bookie did not answer, 70 the storage is damaged."
)
EXIT_CODES: Final = f"Without --at, the bookie must be stopped; nothing is changed. {_CODES}"
CHANGE_EXIT_CODES_HELP: Final = (
    f"Without --at, the bookie must be stopped; `set` and `clear` change the record in its ledger directory. {_CODES}"
)


def bookie_from_options(
    at: str | None, token_file: Path | None, journal_dir: list[str] | None, ledger_dir: list[str] | None
) -> RunningBookie | StoppedBookieDirs:
    """Return the bookie that the options name; if it is not exactly one, the command ends with exit code 2."""
    if at is not None:
        if journal_dir or ledger_dir:
            raise typer.BadParameter("is for a running bookie, directories are for a stopped one", param_hint="--at")
        return RunningBookie.at(at, token_file)
    if not journal_dir or not ledger_dir:
        raise typer.BadParameter(
            "give HOST:PORT of a running bookie, or --journal-dir and --ledger-dir of a stopped one", param_hint="--at"
        )
    return journal_dirs_of(journal_dir), ledger_dirs_of(ledger_dir)


def journal_dirs_of(given: Sequence[str], *, may_be_new: bool = False) -> tuple[Path, ...]:
    """Return the directories in the option. If one is missing, and not ``may_be_new``, the exit code is 2."""
    found = parse_directories(",".join(given))
    missing = [path for path in found if not path.is_dir() and (path.exists() or not may_be_new)]
    if not found or missing:
        what = f"directory {missing[0]} does not exist" if missing else "no directory is named"
        raise typer.BadParameter(what, param_hint="--journal-dir")
    return found


def ledger_dirs_of(given: Sequence[str]) -> tuple[Path, ...]:
    """Return the directories in the option. The first one must exist, else the command ends with exit code 2."""
    found = parse_directories(",".join(given))
    if not found or not found[0].is_dir():
        what = f"directory {found[0]} does not exist" if found else "no directory is named"
        raise typer.BadParameter(what, param_hint="--ledger-dir")
    return found


def show_once_or_repeatedly(
    output: StreamFormat,
    kind: str,
    lines: Callable[[dict[str, Any]], Sequence[str]],
    query: Callable[[], dict[str, Any]],
    interval_s: float | None,
) -> None:
    """Show one document, or repeated updates of it."""
    if interval_s is not None:
        watched(output, lambda document: "; ".join(lines(document)), lines, kind, query, interval_s)
    document = query()
    if output is StreamFormat.TABLE:
        for line in lines(document):
            print_line(line)
    else:
        print_document(output, kind, document)


def replay_first(first: dict[str, Any], query: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Return a function that returns ``first`` on its first call, and then the results of ``query``."""
    made = [first]
    return lambda: made.pop() if made else query()


def refuse_watch(*, is_watched: bool) -> None:
    """End the command with exit code 2 if ``--watch`` is given for a stopped bookie."""
    if is_watched:
        raise typer.BadParameter("is for a running bookie: give --at", param_hint="--watch")


def print_document(output: StreamFormat, kind: str, document: dict[str, Any]) -> None:
    """Print a document, in one line or several."""
    (print_json_line if output is StreamFormat.JSONL else print_json)(kind, **document)
