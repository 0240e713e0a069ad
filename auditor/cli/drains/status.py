"""The data left on drained bookies, with or without a wait, as documents and lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from auditor.cli.admin_requests import AdminClient
from auditor.cli.changing import refuse, unreadable_marks_text
from auditor.cli.drains.topic_unloading import TopicUnloading
from auditor.cli.drains.watch import OnFirstObservation, watch
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.output import print_note
from bookie.metadata.bookies.drains import Drain
from bookie.model.errors import BkhealError, ConflictError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted, duration, printable, size

if TYPE_CHECKING:
    from auditor.operating.drain_status import DrainObservation
    from auditor.safety.draining import Left
    from bookie.client.connect import ConnectedBookKeeper

_OPEN_LEDGER_KIND: Final = "open_ledger"
_COMMANDS_MAX: Final = 50
"""Largest number of commands that are printed before a wait."""


class NotDrainedError(ConflictError):
    """Bookies are registered and not being drained, so a wait would not end."""

    def __init__(self, bookies: Sequence[BookieId]) -> None:
        names, are = ", ".join(bookies), agreeing(len(bookies), "is", "are")
        data = agreeing(len(bookies), "its", "their")
        super().__init__(
            f"{names} {are} registered and not being drained, so nothing moves {data} data: `bkheal drain start "
            f"{' '.join(bookies)}`"
        )


async def observe_or_wait(
    client: ConnectedBookKeeper,
    bookies: tuple[BookieId, ...],
    drains: Mapping[BookieId, Drain],
    *,
    is_waiting: bool,
    timeout_s: float | None,
    pulsar: AdminClient | None,
    on_first: OnFirstObservation | None = None,
) -> tuple[DrainObservation, BkhealError | None]:
    """Return the last observed state, and the reason why the wait ended early. For errors see ``watch``.

    Args:
        client: of the cluster.
        bookies: the drained bookies.
        drains: the recorded ones.
        is_waiting: see ``watch``.
        timeout_s: see ``watch``.
        pulsar: an entered client, to unload topics during the wait.
        on_first: see ``watch``.
    """
    unloading = None if pulsar is None else TopicUnloading(pulsar, client.ports.clock, print_note)
    seen = await watch(
        client, bookies, drains, is_waiting=is_waiting, timeout_s=timeout_s, unloading=unloading, on_first=on_first
    )
    if seen.not_drained:
        return seen, NotDrainedError(seen.not_drained)
    return seen, None if unloading is None else unloading.failure(seen.left.holdings)


def end(document: Mapping[str, Any], failure: BkhealError | None, timeout_s: float | None) -> None:
    """End the command with the exit code for the data left, if there is any."""
    if document["ledgers_left"]:
        if failure is not None:
            continuing = "" if isinstance(failure, NotDrainedError) else "; the drain continues"
            refuse(f"{failure}{continuing}", exit_code_of(failure))
        if timeout_s is not None:
            continuing = "; the drain continues" if any(row["since"] for row in document["bookies"]) else ""
            print_note(f"stopped waiting after {timeout_s:g} s{continuing}")
        raise typer.Exit(ExitCode.FAILED)
    if document["unreadable_ledgers"]:
        raise typer.Exit(ExitCode.PARTIAL)


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the document as lines of text, with the commands that close the open ledgers."""
    lines = []
    for bookie in document["bookies"]:
        begun = f", drained since {bookie['since']} by {bookie['by']}" if bookie["since"] else ", not being drained"
        lines.append(f"{bookie['bookie_id']}: {bookie['state']}{begun}")
    if not document["ledgers_left"]:
        lines.append(_last_pass_text(document))
    else:
        eta = f", about {duration(document['eta_seconds'] * 1000)} to go" if document["eta_seconds"] is not None else ""
        held = f"{counted(document['ledgers_left'], 'ledger')} left, {size(document['bytes_left'])} in closed ones{eta}"
        lines += [held, f"  {document['moving']} marked for copying"]
    if document["unmarked"]:
        lines.append(f"  {document['unmarked']} not marked: {_marking(document['bookies'])}")
    if marks := document.get("unreadable_marks", 0):  # an older auditor does not return it
        lines.append(f"  {unreadable_marks_text(marks)}")
    if document["accepted_ledgers"] and document["ledgers_left"]:
        lines.append(
            f"  {document['accepted_ledgers']} more with an accepted loss: `bkheal dead-letters list --accepted`"
        )
    lines += [f"  {count} parked: {reason}" for reason, count in document["parked"].items()]
    lines += [f"    ledger {item['ledger_id']}: {item['detail']}" for item in document["examples"]]
    if document["open_topics"]:
        lines.append(
            f"  {document['open_ledgers']} not closed; unloading their topics closes them at once "
            "(`--wait --pulsar-admin URL` does it):"
        )
        lines += [f"    {unload_command(topic)}" for topic in document["open_topics"]]
    if _OPEN_LEDGER_KIND in document["parked"]:
        lines.append(
            "  for ledgers whose writer has ended, `bkheal ledger recover LEDGER` finds the end and closes them"
        )
    if not document["recovery_enabled"]:
        lines.append("recovery is DISABLED, nothing moves: `bkheal recovery enable`")
    if document["unreadable_ledgers"]:
        lines.append(
            f"the metadata of {counted(document['unreadable_ledgers'], 'ledger')} cannot be read: `bkheal audit run`"
        )
    return lines


def _marking(bookies: Sequence[Mapping[str, Any]]) -> str:
    """Return which command marks the ledgers; it depends on the bookies, because a lost one cannot be drained."""
    lost = [row["bookie_id"] for row in bookies if row["state"] == "lost"]
    others = [row["bookie_id"] for row in bookies if row["state"] != "lost"]
    parts = (("recover", lost), ("drain start", others))
    commands = [f"`bkheal {verb} {' '.join(names)}`" for verb, names in parts if names]
    return f"{' and '.join(commands)} {agreeing(len(commands), 'marks', 'mark')} them"


def _last_pass_text(document: Mapping[str, Any]) -> str:
    """Return the result of the last pass over all ledgers, and the remaining work."""
    writable = [row["bookie_id"] for row in document["bookies"] if row["state"] == "writable"]
    rest = (
        f", except {counted(document['accepted_ledgers'], 'ledger')} with an accepted loss"
        if document["accepted_ledgers"]
        else ""
    )
    them = agreeing(len(document["bookies"]), "it", "them")
    if document["unreadable_ledgers"]:
        return f"none of the {counted(document['ledgers_read'], 'ledger')} that can be read names {them}{rest}"
    read = counted(document["ledgers_read"], "ledger")
    proof = f"nothing is left on {them}: of {read}, all readable, none names {them}{rest}"
    if writable:
        return f"{proof}; the next ledger may, because {', '.join(writable)} is writable"
    stop = f"Stop {them}, then" if any(row["state"] != "lost" for row in document["bookies"]) else "Next:"
    return f"{proof}. {stop} `bkheal decommission {' '.join(row['bookie_id'] for row in document['bookies'])}`"


def unload_command(topic: str) -> str:
    """Return the Pulsar command that closes the open ledgers of a topic."""
    return f"pulsar-admin topics unload {shlex.quote(printable(topic))}"


def print_unload_commands(left: Left) -> None:
    """Print the commands to run by hand during the wait, a bounded number of them."""
    topics = sorted(left.holdings.open_topics)
    if not topics:
        return
    print_note(
        f"not closed: {counted(len(left.holdings.unclosed), 'ledger')}. These commands do it, as does --pulsar-admin:"
    )
    for topic in topics[:_COMMANDS_MAX]:
        print_note(f"  {unload_command(topic)}")
    if len(topics) > _COMMANDS_MAX:
        print_note(f"  and {len(topics) - _COMMANDS_MAX} more: `bkheal drain status` prints them")
