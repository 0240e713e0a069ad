"""The start of drains: the checks, the first changes, and notes about work that is left to the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from auditor.cli.admin_requests import AdminClient
from auditor.cli.audit.remote import RemoteSettings
from auditor.cli.changing import confirm, refuse, unreadable_marks_text
from auditor.cli.drains.bookie_state import REQUEST_S, http_address, with_read_only
from auditor.cli.drains.topic_unloading import check_answers
from auditor.cli.output import counting, print_note
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted, size

if TYPE_CHECKING:
    from bookie.client.connect import ConnectedBookKeeper
    from bookie.metadata.bookies.drains import DrainListing


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """The request of a command."""

    bookies: tuple[BookieId, ...]
    by: str
    """The requester."""
    is_dry_run: bool
    is_sure: bool
    """Whether no question is asked."""
    is_forced: bool
    bookie_http: AdminClient | None = None
    """The HTTP server of the only bookie."""
    finds_http: bool = False
    """Whether the HTTP servers in the registrations of Apache bookies are used."""


async def begin(client: ConnectedBookKeeper, asked: DrainRequest, pulsar: AdminClient | None = None) -> dict[str, Any]:
    """Do all checks before the first change; return the document ``DrainStart``.

    Args:
        client: of the cluster.
        asked: the bookies and the options.
        pulsar: an entered client; it has to answer before anything is changed.

    Raises:
        AdminRefusedError, AdminUnavailableError, AdminOutcomeUnknownError: see ``check_answers`` and
            ``with_read_only``; no drain was begun.
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError, NotAClusterError: see ``mark_drained``.
    """
    from auditor.operating.client import NoSuchObjectError, RefusedError
    from auditor.operating.drains import check_and_record, check_startable, mark_drained

    bookies, is_forced = asked.bookies, asked.is_forced
    try:
        if asked.is_dry_run:
            await check_startable(client, bookies, is_dry_run=True, is_forced=is_forced, counting=counting)
            if pulsar is not None:
                await check_answers(pulsar)
        else:
            recording = _DrainRecorder(client, asked, pulsar)
            await check_and_record(client, bookies, recording.record, is_forced=is_forced, counting=counting)
    except (NoSuchObjectError, RefusedError) as error:
        refuse(str(error))
    return await mark_drained(client, bookies, is_dry_run=asked.is_dry_run, counting=counting)


@dataclass(slots=True)
class _DrainRecorder:
    """The steps between the check and the recorded drains. It asks the question once, and records the change once."""

    client: ConnectedBookKeeper
    asked: DrainRequest
    pulsar: AdminClient | None
    _is_confirmed: bool = field(default=False, init=False)
    _is_noted: bool = field(default=False, init=False)

    async def record(self, seen: DrainListing | None) -> None:
        """Ask, make Apache bookies read-only, and record the drains, unless other drains changed since ``seen``."""
        from auditor.operating.client import Actor
        from auditor.operating.drains import (
            bookies_without_drain_support,
            check_unchanged,
            record_change,
            record_drains,
        )
        from bookie.metadata.bookies.drains import Drains

        client, asked, bookies = self.client, self.asked, self.asked.bookies
        registrations, actor = client.ports.registrations, Actor(asked.by, "command")
        if self.pulsar is not None and not self._is_confirmed:
            await check_answers(self.pulsar)
        stay_writable, stay_read_only = await bookies_without_drain_support(registrations, bookies)
        async with AsyncExitStack() as stack:
            servers = await _servers(client, asked, stay_writable, stack)
            if not self._is_confirmed:
                through = {bookie: admin.base for bookie, admin in servers.items()}
                confirm(question(bookies, stay_writable, stay_read_only, through), is_sure=asked.is_sure)
                self._is_confirmed = True
            await check_unchanged(client, seen)  # the question took time, and no bookie is changed yet
            if not self._is_noted:
                await record_change(client, actor, bookies)
                self._is_noted = True
            begin = partial(record_drains, client, actor, bookies, seen)
            drains = Drains(client.store, client.cluster.root)
            await with_read_only(servers, registrations, drains, client.ports.clock, print_note, begin)


async def _servers(
    client: ConnectedBookKeeper, asked: DrainRequest, stay_writable: Sequence[BookieId], stack: AsyncExitStack
) -> dict[BookieId, AdminClient]:
    """Return entered clients of the HTTP servers of the bookies to make read-only."""
    if asked.bookie_http is not None:
        return {asked.bookies[0]: await stack.enter_async_context(asked.bookie_http)}
    found = {}
    for bookie in stay_writable if asked.finds_http else ():
        info = await client.ports.registrations.service_info(bookie)
        if address := http_address(info):
            admin = AdminClient(RemoteSettings(address, timeout_s=REQUEST_S))
            found[bookie] = await stack.enter_async_context(admin)
    return found


def begin_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the document ``DrainStart``, for people."""
    are = "would be" if document["dry_run"] else agreeing(document["ledgers"], "is", "are")
    closed = f"{counted(document['fragments'], 'fragment')}, {size(document['bytes'])} in closed ledgers"
    unclosed = counted(document["open_ledgers"], "ledger")
    return [f"{counted(document['ledgers'], 'ledger')} {are} marked: {closed}, {unclosed} not closed"]


def print_begin_notes(document: Mapping[str, Any]) -> None:
    """Print the notes about work outside the drain."""
    if document["stay_writable"]:
        print_note(stay_writable_note(document["stay_writable"]))
    if document["stay_read_only"]:
        print_note(stay_read_only_note(document["stay_read_only"]))
    if document["unreadable_ledgers"]:
        unreadable = counted(document["unreadable_ledgers"], "ledger")
        print_note(f"the metadata of {unreadable} cannot be read, so nothing is marked there")
    if marks := document.get("unreadable_marks", 0):  # an older auditor does not return it
        print_note(f"of these ledgers, {unreadable_marks_text(marks)}")


def question(
    bookies: Sequence[BookieId],
    stay_writable: Sequence[BookieId],
    stay_read_only: Sequence[BookieId],
    through: Mapping[BookieId, str] | None = None,
) -> str:
    """Return the question; ``through`` has the addresses through which Apache bookies are made read-only."""
    through = through or {}
    stay_writable = [bookie for bookie in stay_writable if bookie not in through]
    turning = [bookie for bookie in bookies if bookie not in (*stay_writable, *stay_read_only, *through)]
    if len(turning) == len(bookies):
        return f"Drain {', '.join(bookies)}? {agreeing(len(bookies), 'It becomes', 'They become')} read-only."
    effects = [f"{', '.join(turning)}: switched to read-only."] if turning else []
    effects += [f"{bookie}: Apache's, switched to read-only through {address}." for bookie, address in through.items()]
    if stay_writable:
        effects.append(f"{', '.join(stay_writable)}: Apache's, stays writable.")
    if stay_read_only:
        effects.append(f"{', '.join(stay_read_only)}: Apache's, read-only as long as its own setting is.")
    return f"Drain {', '.join(bookies)}? {' '.join(effects)}"


def stay_read_only_note(bookies: Sequence[str]) -> str:
    """Return the note about bookies that are already read-only by their own setting."""
    return (
        f"{', '.join(bookies)}: an Apache bookie, which is read-only by its own setting or for lack of space, not by "
        "the drain. Keep it read-only until the drain has ended (forceReadOnlyBookie=true in its bk_server.conf): once "
        "it is writable again, Apache's clients write to it, and `bkheal drain stop` does not make it writable"
    )


def stay_writable_note(bookies: Sequence[str]) -> str:
    """Return the note about bookies that stay writable."""
    return (
        f"{', '.join(bookies)}: an Apache bookie, which does not support drains and stays writable. Repair does not "
        "choose it as a target, but Apache's clients continue to write to it. Make it read-only: "
        "forceReadOnlyBookie=true in its "
        "bk_server.conf and a restart, or PUT /api/v1/bookie/state/readonly if its HTTP server is on. If no "
        "client of Apache's writes to it, there is nothing to do"
    )
