"""``bkheal drain``: empty bookies while they go on serving, so that they can be stopped and taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.counting import counting
from auditor.cli.drain_watch import Watched, watch
from auditor.cli.exit_codes import ExitCode
from auditor.cli.output import OutputFormat, print_note, size
from auditor.cli.recovery import ForceOption
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.cli.verbs import (
    BookiesArgument,
    DryRunOption,
    YesOption,
    bookie_ids,
    confirm,
    connected,
    duration,
    moment,
    refuse,
    show,
    unknown_names,
    whoami,
)
from bookie.metadata.drains import Drain, Drains
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata

if TYPE_CHECKING:
    from bookie.client.connect import ConnectedBookKeeper

app = typer.Typer(
    help="Empty bookies while they serve: copies first, and only then out of the metadata.",
    epilog="The whole way, from `drain start` to `decommission`: docs/taking-a-bookie-out.md.",
    no_args_is_help=True,
)
OptionalBookies = Annotated[
    list[str] | None, typer.Argument(metavar="BOOKIE", help="Default: every drained bookie.", show_default=False)
]

_OPEN: Final = "open_ledger"


@app.command("start")
def start(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    is_forced: ForceOption = False,
) -> None:
    """Begin to drain bookies: they turn read-only, nobody chooses them any more, and what they hold is marked.

    Nothing is at risk meanwhile: a drained bookie serves its copies until each of them has another home. Ledgers that
    are written to are left to their writers, who leave a read-only bookie with the next write. Starting again is safe
    and marks what was overlooked.

    Exit codes: 0 begun (or, with --dry-run, would be), 1 refused, 3 the store did not answer, 5 some metadata could not
    be read (the rest is marked).

    Example: `bkheal drain start bookie-2:3181 --dry-run`
    """
    document = run(_start(metadata_uri(uri, config), bookie_ids(names), is_dry_run, is_sure, is_forced))
    would = "would be" if is_dry_run else "are"
    held = f"{document['fragments']} fragments, {size(document['bytes'])} in closed ledgers"
    lines = [f"{document['ledgers']} ledgers {would} marked: {held}, {document['open_ledgers']} ledgers not closed"]
    if not is_dry_run:
        lines.append("watch it with `bkheal drain status --wait`; `bkheal drain stop` calls it off")
    show(output, "DrainStart", document, lines)
    if document["unreadable_ledgers"]:
        print_note(f"the metadata of {document['unreadable_ledgers']} ledgers cannot be read, they are not marked")
        raise typer.Exit(ExitCode.PARTIAL)


@app.command("stop")
def stop(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
) -> None:
    """Call drains off: the bookies turn writable again. What has been moved stays where it is.

    Exit codes: 0 called off, 1 one of them is not being drained (the others are called off), 3 no answer.
    """
    target, bookies = metadata_uri(uri, config), bookie_ids(names)
    if not is_dry_run:
        confirm(f"Call off the drain of {', '.join(bookies)}?", is_sure=is_sure)
    stopped = run(_stop(target, bookies, is_dry_run))
    would = "would be" if is_dry_run else "is"
    lines = [f"the drain of {bookie} {would} called off" for bookie in stopped]
    lines += [f"{bookie} is not being drained" for bookie in bookies if bookie not in stopped]
    show(output, "DrainStop", {"dry_run": is_dry_run, "stopped": stopped}, lines)
    if len(stopped) < len(bookies):
        raise typer.Exit(ExitCode.FAILED)


@app.command("status")
def status(
    names: OptionalBookies = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_waiting: Annotated[bool, typer.Option("--wait", help="Return once nothing is left on them.")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="With --wait: at most so many seconds.", show_default=False)
    ] = None,
) -> None:
    """Say what is left on drained bookies, what it waits for, and how long it may take.

    With --wait ledgers that no task names (any more) are marked again. Without bookies: all that are being drained.

    Exit codes: 0 nothing is left, 1 something is, 3 the store did not answer, 5 some metadata could not be read.

    Example: `bkheal drain status bookie-2:3181 --wait --timeout 3600`
    """
    seen = run(_status(metadata_uri(uri, config), bookie_ids(names or ()), is_waiting, timeout_s))
    document = _document(seen)
    show(output, "DrainStatus", document, _lines(document))
    if document["ledgers_left"]:
        raise typer.Exit(ExitCode.FAILED)
    if document["unreadable_ledgers"]:
        raise typer.Exit(ExitCode.PARTIAL)


async def _start(
    uri: str, bookies: tuple[BookieId, ...], is_dry_run: bool, is_sure: bool, is_forced: bool
) -> dict[str, Any]:
    from auditor.safety.draining import holdings_of, mark
    from auditor.safety.scan import count

    async with connected(uri) as client:
        ports = client.ports
        await _check_startable(client, bookies, is_dry_run=is_dry_run, is_forced=is_forced)
        if not is_dry_run:
            confirm(f"Drain {', '.join(bookies)}? They turn read-only now.", is_sure=is_sure)
            drains, now_ms = Drains(client.store, client.cluster.root), ports.clock.epoch_ms()
            for bookie in bookies:
                await drains.start(Drain(bookie, whoami(), now_ms))
        # Behind the notes: whoever chose one of them before is seen here, or finds it read-only.
        with counting("ledgers", await count(ports.ledgers)) as advance:
            found, scanned = await holdings_of(ports.ledgers, bookies, advance)
        if not is_dry_run:
            with counting("marked", len(found.ledgers)) as advance:
                await mark(ports.tasks, found.ledgers, advance)
    return {
        "dry_run": is_dry_run,
        "bookies": list(bookies),
        "ledgers": len(found.ledgers),
        "open_ledgers": len(found.unclosed),
        "fragments": found.fragments,
        "bytes": found.bytes,
        "unreadable_ledgers": scanned.unreadable_count,
    }


async def _check_startable(
    client: ConnectedBookKeeper, bookies: tuple[BookieId, ...], *, is_dry_run: bool, is_forced: bool
) -> None:
    """Refuse what would not get to its end, or leave writers without bookies."""
    from auditor.safety.scan import Shape, count, scan
    from auditor.safety.stopping import room_problems

    ports = client.ports
    registered = await ports.registrations.list()
    unknown_names(bookies, await ports.registrations.known() | registered.registered)
    away = sorted(set(bookies) - registered.registered)
    if away:
        refuse(f"{', '.join(away)} is not running: `bkheal recover {' '.join(away)}` marks what it held")
    if is_forced:
        return
    if not is_dry_run and await ports.tasks.is_disabled():
        refuse("recovery is off, nobody would copy: `bkheal recovery enable` first, or use --force")
    shapes: set[Shape] = set()

    def visit(_: LedgerId, metadata: LedgerMetadata) -> None:
        shapes.add(Shape(metadata.ensemble_size, metadata.write_quorum))

    with counting("ledgers", await count(ports.ledgers)) as advance:
        scanned = await scan(ports.ledgers, bookies, visit, advance)
    problems = room_problems(shapes | set(scanned.unclosed), registered, bookies, ports.placement)
    if problems:
        refuse(f"there would be too few bookies: {'; '.join(problems)}. Add bookies, or use --force")


async def _stop(uri: str, bookies: tuple[BookieId, ...], is_dry_run: bool) -> list[BookieId]:
    async with connected(uri) as client:
        drains = Drains(client.store, client.cluster.root)
        if is_dry_run:
            known = await drains.read()
            return [bookie for bookie in bookies if bookie in known]
        return [bookie for bookie in bookies if await drains.stop(bookie)]


async def _status(uri: str, bookies: tuple[BookieId, ...], is_waiting: bool, timeout_s: float | None) -> Watched:
    async with connected(uri) as client:
        drains = await Drains(client.store, client.cluster.root).read()
        chosen = bookies or tuple(sorted(drains))
        if not chosen:
            refuse("no bookie is being drained; `bkheal drain start BOOKIE` begins")
        unknown_names(chosen, await client.ports.registrations.known() | frozenset(drains))
        return await watch(client, chosen, drains, is_waiting=is_waiting, timeout_s=timeout_s)


def _document(seen: Watched) -> dict[str, Any]:
    left = seen.left
    return {
        "bookies": [
            {"bookie_id": bookie, "since": moment(drain.since_ms), "by": drain.by, "state": seen.states[bookie]}
            for bookie, drain in seen.drains.items()
        ],
        "ledgers_left": len(left.holdings.ledgers),
        "bytes_left": left.holdings.bytes,
        "moving": left.moving,
        "unmarked": len(left.unmarked),
        "parked": dict(left.parked),
        "examples": [
            {"ledger_id": record.ledger_id, "reason": record.reason.value, "detail": record.detail}
            for record in left.examples
        ],
        "open_ledgers": len(left.holdings.unclosed),
        "unreadable_ledgers": left.scanned.unreadable_count,
        "recovery_enabled": seen.is_enabled,
        "ledgers_per_second": seen.ledgers_per_s,
        "eta_seconds": seen.eta_s,
    }


def _lines(document: dict[str, Any]) -> list[str]:
    lines = []
    for bookie in document["bookies"]:
        begun = f", drained since {bookie['since']} by {bookie['by']}" if bookie["since"] else ", not being drained"
        lines.append(f"{bookie['bookie_id']}: {bookie['state']}{begun}")
    if not document["ledgers_left"]:
        lines.append("nothing is left on them: see `bkheal ok-to-stop`, then stop them and `bkheal decommission`")
    else:
        eta = f", about {duration(document['eta_seconds'])} to go" if document["eta_seconds"] is not None else ""
        held = f"{document['ledgers_left']} ledgers left, {size(document['bytes_left'])} in closed ones{eta}"
        lines += [held, f"  {document['moving']} marked for copying"]
    if document["unmarked"]:
        lines.append(f"  {document['unmarked']} not marked: `bkheal drain start` marks them")
    lines += [f"  {count} parked: {reason}" for reason, count in document["parked"].items()]
    lines += [f"    ledger {item['ledger_id']}: {item['detail']}" for item in document["examples"]]
    if _OPEN in document["parked"]:
        lines.append("  of ledgers whose writer is gone, `bkheal ledger recover LEDGER` finds the end and closes them")
    if not document["recovery_enabled"]:
        lines.append("recovery is DISABLED, nothing moves: `bkheal recovery enable`")
    if document["unreadable_ledgers"]:
        lines.append(f"the metadata of {document['unreadable_ledgers']} ledgers cannot be read: `bkheal audit run`")
    return lines
