"""``bkheal dead-letters retry``: removes the records of parked tasks, so that replicators try them again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from auditor.cli.at import Service
from auditor.cli.changing import confirm, connected, refuse, show, whoami
from auditor.cli.dead_letters.pages import all_letters
from auditor.cli.output import OutputFormat, print_error
from auditor.cli.paging import AT_ONCE_MAX
from auditor.cli.running import metadata_uri, run
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from bookie.runtime.human import counted

_HTTP_NOT_FOUND: Final = 404
_SHOWN_MAX: Final = 20
"""Largest number of ledgers named in a line."""


def retry_parked(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    output: OutputFormat,
    ledgers: Sequence[int],
    reason: ParkReason | None,
    *,
    is_dry_run: bool,
    is_sure: bool,
) -> None:
    """Choose the parked tasks, ask the operator to confirm, remove their records, and show what was done.

    Args:
        service: the service that does the work; None: this process does it.
        uri: of the metadata.
        config: the configuration file.
        output: of the document.
        ledgers: the parked ledgers; empty: all that have ``reason``.
        reason: only those with this reason; None: any.
        is_dry_run: change nothing.
        is_sure: do not ask.
    """
    chosen = _chosen(*all_letters(service, uri, config), ledgers, reason)
    if is_dry_run or not chosen:
        show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": chosen}, [_retry_line(chosen, is_dry_run)])
        return
    confirm(f"Have {counted(len(chosen), 'parked ledger')} tried again?", is_sure=is_sure)
    done: list[int] = []
    problem: BkhealError | None = None
    try:
        if service is None:
            run(_unpark(metadata_uri(uri, config), chosen, done, is_skipping=not ledgers))
        else:
            _remote_unpark(service, chosen, done, is_skipping=not ledgers)
    except BkhealError as error:
        if not done:
            raise
        problem = error
    lines = [_retry_line(done, is_dry_run)]
    left = sorted(set(chosen).difference(done))
    if left and problem is None:
        are, their = ("is", "its record") if len(left) == 1 else ("are", "their records")
        lines.append(f"{len(left)} {are} not parked any more, or {their} cannot be deleted: {_shown(left)}")
    show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": done}, lines)
    if problem is not None:
        from auditor.cli.exit_codes import exit_code_of

        not_removed = (
            f"the records of {counted(len(left), 'chosen ledger')} were not removed, or their state is unknown"
        )
        print_error(f"{problem}; {not_removed}: {', '.join(map(str, left)) if ledgers else _shown(left)}")
        raise typer.Exit(exit_code_of(problem))
    if left and ledgers:
        raise typer.Exit(ExitCode.FAILED)


def _chosen(
    rows: Sequence[dict[str, Any]], unreadable: Sequence[int], ledgers: Sequence[int], reason: ParkReason | None
) -> list[int]:
    """Return the parked tasks to retry. Refuses the command if one of ``ledgers`` is not parked."""
    parked = {row["ledger_id"] for row in rows}.union(unreadable)
    if absent := sorted(set(ledgers) - parked):
        shown = ", ".join(map(str, absent))
        refuse(f"not parked: {shown} (`bkheal dead-letters list` lists the parked ledgers); nothing was changed")
    if reason is not None:
        parked = {row["ledger_id"] for row in rows if row["reason"] == reason.value}
    return sorted(parked.intersection(ledgers) if ledgers else parked)


def _retry_line(ledgers: Sequence[int], is_dry_run: bool) -> str:
    return f"{counted(len(ledgers), 'parked ledger')} {'would be' if is_dry_run else 'will be'} tried again"


async def _unpark(uri: str, ledgers: Sequence[int], done: list[int], *, is_skipping: bool) -> None:
    """Remove records, and add each ledger to ``done`` at once."""
    from auditor.operating.client import Actor, NoSuchObjectError
    from auditor.operating.dead_letters import retry_dead_letters

    ids, actor = [LedgerId(each) for each in ledgers], Actor(whoami(), "command")
    async with connected(uri) as client:
        try:
            await retry_dead_letters(client, actor, ids, is_skipping=is_skipping, on_unparked=done.append)
        except NoSuchObjectError as error:
            refuse(f"{error}; nothing was changed")


def _remote_unpark(service: Service, chosen: Sequence[int], done: list[int], *, is_skipping: bool) -> None:
    """Request a service to remove records, in parts, and add the ledgers of each part to ``done`` at once.

    After an error in the middle of a request, the ledgers of this request that are not parked any more count as done.

    Args:
        service: the service.
        chosen: the ledgers.
        done: receives the ledgers whose records were removed.
        is_skipping: skip ledgers that are not parked any more.

    Raises:
        RemoteUnavailableError, RemoteRefusedError: a request was refused, or there was no answer.
    """
    from auditor.cli.audit.remote import RemoteRefusedError, RemoteUnavailableError

    left = list(chosen)
    while left:
        part = left[:AT_ONCE_MAX]
        try:
            done += service.ask("POST", "/dead-letters/retry", body={"ledgers": part})["ledgers"]
            left = left[AT_ONCE_MAX:]
        except (RemoteRefusedError, RemoteUnavailableError) as error:
            is_absent = isinstance(error, RemoteRefusedError) and error.status == _HTTP_NOT_FOUND  # nothing was changed
            if is_absent and not is_skipping:
                raise
            try:
                rows, unreadable = all_letters(service, None, None)
            except (RemoteRefusedError, RemoteUnavailableError):
                raise error from None
            parked = {row["ledger_id"] for row in rows}.union(unreadable)
            if not is_absent:
                done += [each for each in part if each not in parked]
                raise
            if parked.issuperset(part):  # no ledger was removed, so a retry would not end
                raise
            left = [each for each in left if each in parked]


def _shown(ledgers: Sequence[int]) -> str:
    more = f" and {len(ledgers) - _SHOWN_MAX} more" if len(ledgers) > _SHOWN_MAX else ""
    return ", ".join(map(str, ledgers[:_SHOWN_MAX])) + more
