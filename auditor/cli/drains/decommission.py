"""``bkheal decommission``: remove the records of stopped bookies without any ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from auditor.cli.changing import (
    BookiesArgument,
    DryRunOption,
    YesOption,
    bookie_ids,
    confirm,
    connected,
    exit_if_unknown,
    refuse,
    show,
    whoami,
)
from auditor.cli.output import OutputFormat, counting, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted

if TYPE_CHECKING:
    from auditor.safety.holdings import HeldLedgers
    from bookie.client.connect import ConnectedBookKeeper

_NAMED_MAX = 5
_ACTION = "decommission"


def decommission(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
) -> None:
    """Remove bookies from the cluster permanently: delete their cookies, and end their drains.

    The command is refused while one of them is running, and while any ledger names one, so nothing is lost. Ledgers
    whose loss on these bookies was accepted (`bkheal dead-letters accept-loss`) do not count; their number is printed.
    A damaged cookie is deleted as well. Repeating the command is safe. The history of a bookie's disks is kept, so a
    later bookie of the same name is recognized as another one.

    Exit codes: 0 done, or nothing was left to do (with --dry-run: would be), 1 refused, or the cluster has no record of
    such a bookie, 2 wrong usage, 3 the store did not answer, 5 refused because some metadata cannot be read and may
    name one of them.

    Example: `bkheal drain status bookie-2:3181 --wait`, stop the process, `bkheal decommission bookie-2:3181`
    """
    document = run(_decommission(metadata_uri(uri, config), bookie_ids(names), is_dry_run, is_sure))
    lines = [_line(row, is_dry_run=is_dry_run) for row in document["bookies"]]
    show(output, "Decommission", document, lines + _accepted_lines(document["accepted_ledgers"]))


_PARTS = (("cookie", "its cookie"), ("drain", "the record of its drain"), ("noted_down", "the record of its loss"))


def _line(row: dict[str, Any], *, is_dry_run: bool) -> str:
    parts = [text for name, text in _PARTS if row[name]]
    if not parts:
        return f"{row['bookie_id']}: nothing to do, its records are deleted already"
    are = "would be" if is_dry_run else agreeing(len(parts), "is", "are")
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"{row['bookie_id']}: {text} {are} deleted"


def _accepted_lines(ledgers: int) -> list[str]:
    if not ledgers:
        return []
    return [
        f"{counted(ledgers, 'ledger')} with an accepted loss on these bookies: `bkheal dead-letters list --accepted`"
    ]


async def _decommission(uri: str, bookies: tuple[BookieId, ...], is_dry_run: bool, is_sure: bool) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from bookie.metadata.bookies.cookies import CookieStore
    from bookie.metadata.bookies.drains import Drains
    from bookie.metadata.bookies.first_seen_down import FirstSeenDown

    async with connected(uri) as client:
        cookies = CookieStore(client.store, client.cluster)
        drains, downs = Drains(client.store, client.cluster.root), FirstSeenDown(client.store, client.cluster.root)
        await _refuse_running(client, bookies)
        found = await _refuse_needed(client, bookies)
        versions = {bookie: await cookies.version(bookie) for bookie in bookies}
        drained, noted = await drains.read(), await downs.read()
        rows = [
            {
                "bookie_id": bookie,
                "cookie": versions[bookie] is not None,
                "drain": bookie in drained,
                "noted_down": bookie in noted,
            }
            for bookie in bookies
        ]
        recorded = [
            bookie for bookie in bookies if versions[bookie] is not None or bookie in drained or bookie in noted
        ]
        if rest := [bookie for bookie in bookies if bookie not in found.named.union(recorded)]:
            exit_if_unknown(rest, await _earlier(client))
        if not is_dry_run and recorded:
            for line in [] if is_sure else _accepted_lines(len(found.accepted)):
                print_note(line)
            confirm(f"Take {', '.join(recorded)} out of the cluster permanently?", is_sure=is_sure)
            await _refuse_running(client, bookies)
            await Actor(whoami(), "command").record(client, _ACTION, ", ".join(recorded))
            for bookie in bookies:
                if (version := versions[bookie]) is not None:
                    await cookies.delete(bookie, version)
            # A bookie that has just started may have checked its cookie before the deletion. The drain then stays, so
            # that no ledgers are placed on it.
            await _refuse_running(client, bookies)
            for bookie in bookies:
                await downs.forget(bookie)
                await drains.stop(bookie)
    return {"dry_run": is_dry_run, "bookies": rows, "accepted_ledgers": len(found.accepted)}


async def _earlier(client: ConnectedBookKeeper) -> frozenset[BookieId]:
    """Return the bookies with a history of disks, and those named by a record of an earlier decommission."""
    from auditor.operating.client import changes_of
    from bookie.metadata.bookies.incarnations import Incarnations
    from bookie.metadata.tasks.changes import CHANGES_MAX

    changes = await changes_of(client).newest(CHANGES_MAX)
    named = {name for change in changes if change.action == _ACTION for name in change.detail.split(", ")}
    return await Incarnations(client.store, client.cluster.root).known() | frozenset(map(BookieId, named))


async def _refuse_running(client: ConnectedBookKeeper, bookies: tuple[BookieId, ...]) -> None:
    registered = await client.ports.registrations.list()
    running = sorted(set(bookies) & registered.registered)
    if running:
        refuse(
            f"{', '.join(running)} is running: `bkheal drain start`, wait for `bkheal drain status --wait`, stop it, "
            "and run this again when its registration has expired"
        )


async def _refuse_needed(client: ConnectedBookKeeper, bookies: tuple[BookieId, ...]) -> HeldLedgers:
    from auditor.operating.drain_status import accepted_losses_on
    from auditor.safety.draining import holdings_of
    from auditor.safety.scan import count

    accepted = await accepted_losses_on(client, bookies)
    with counting("ledgers", await count(client.ports.ledgers)) as advance:
        found, scanned = await holdings_of(client.ports.ledgers, bookies, advance, accepted)
    if found.ledgers:
        shown = ", ".join(map(str, sorted(found.ledgers)[:_NAMED_MAX]))
        more = ", ..." if len(found.ledgers) > _NAMED_MAX else ""
        name, them = ("names", "it") if len(found.ledgers) == 1 else ("name", "them")
        ids = " ".join(bookies)
        refuse(
            f"{counted(len(found.ledgers), 'ledger')} still {name} {', '.join(bookies)} ({shown}{more}): `bkheal "
            f"recover {ids}` marks {them} for repair, `bkheal drain status {ids} --wait` waits for its end, and "
            "`bkheal dead-letters list` lists ledgers without a copy to repair from"
        )
    if not scanned.is_complete:
        ids = ", ".join(map(str, scanned.unreadable[:_NAMED_MAX]))
        refuse(f"{counted(scanned.unreadable_count, 'ledger')} cannot be read and may name it: {ids}", ExitCode.PARTIAL)
    return found
