"""``bkheal recovery``: the cluster-wide switches shared with Apache's tools. ``bkheal recover``: repairs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
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
    unreadable_marks_text,
    whoami,
)
from auditor.cli.output import OutputFormat, counting, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.cli.spans import delay_s
from bookie.metadata.tasks.switches import DELAY_S_MAX
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted, size

app = typer.Typer(
    help="Switch repair on and off for the whole cluster (the same switch as `bookkeeper shell autorecovery`).",
    no_args_is_help=True,
)

_UNREADABLE: Final = "unreadable: set it again with `bkheal recovery delay DELAY`"

ForceOption = Annotated[
    bool, typer.Option("--force", help="Continue although recovery is disabled, or the brake holds.")
]


@app.command("enable")
@reachable
def enable(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Let audits mark ledgers and replicators copy again. Fails if repair is already on."""
    _switch_recovery(service, uri, config, output, is_on=True, is_dry_run=is_dry_run)


@app.command("disable")
@reachable
def disable(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Stop marking and copying in the whole cluster, promptly; nothing is lost. Fails if repair is already off."""
    _switch_recovery(service, uri, config, output, is_on=False, is_dry_run=is_dry_run)


@app.command("status")
@reachable
def status(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """Show whether repair is on, and the lost-bookie delay."""
    document = _status(service, uri, config)
    if output is OutputFormat.JSON:
        print_json("RecoveryStatus", **document)
        return
    print_line(f"recovery: {'enabled' if document['enabled'] else 'disabled'}")
    seconds = document["lost_bookie_delay_seconds"]
    print_line(f"lost-bookie delay: {_UNREADABLE if seconds is None else f'{seconds} s'}")


@app.command("delay")
@reachable
def delay(
    value: Annotated[
        str | None,
        typer.Argument(metavar="DELAY", help="The new value, in seconds or such as 10m, 1h.", show_default=False),
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Show or set how long a bookie must be missing before its ledgers are marked (Apache's lostBookieRecoveryDelay).

    0 means at once. Rolling restarts need more than the duration of a restart, and at least a minute. If you set the
    present value again, the leading auditor starts an audit; so does Apache's auditor.

    Example, one hour of maintenance: `bkheal recovery delay 1h`
    """
    seconds = None if value is None else delay_s(value, DELAY_S_MAX, "DELAY")
    before = _set_delay(service, uri, config, seconds, is_dry_run=is_dry_run)
    now = before if seconds is None else seconds
    lines = [f"lost-bookie delay: {now} s"]
    if seconds is not None:
        would = "would be" if is_dry_run else "is now"
        was = "unreadable" if before is None else f"{before} s"
        lines = [f"the lost-bookie delay {would} {seconds} s; it was {was}"]
    fields = {"dry_run": is_dry_run, "lost_bookie_delay_seconds": now, "before_seconds": before}
    show(output, "LostBookieDelay", fields, lines)


def recover(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    is_forced: ForceOption = False,
    missing_share_max: Annotated[
        float, typer.Option(min=0, max=1, help="Mark nothing if a larger share of the known bookies is missing.")
    ] = 0.5,
) -> None:
    """Mark every ledger of these lost bookies for repair now, without waiting for the delay or for an audit.

    Use it for bookies that will not return. A running bookie is refused: see `bkheal drain`. Ledgers whose loss on
    these bookies was accepted (`bkheal dead-letters accept-loss`) are not marked; their number is printed.

    Exit codes: 0 marked (or, with --dry-run, would be), 1 refused, 2 wrong usage, 3 the store did not answer, 5 some
    metadata or marks could not be read (the rest is marked), 6 the brake holds because too many bookies are missing.

    Example: `bkheal recover bookie-2:3181 --dry-run`
    """
    target, bookies = metadata_uri(uri, config), bookie_ids(names)
    document = run(_recover(target, bookies, is_dry_run, is_sure, is_forced, missing_share_max))
    would = "would be" if is_dry_run else agreeing(document["ledgers"], "is", "are")
    held = f"{counted(document['fragments'], 'fragment')}, {size(document['bytes'])} in closed ledgers"
    counts = f"{held}, {counted(document['open_ledgers'], 'ledger')} not closed"
    lines = [f"{counted(document['ledgers'], 'ledger')} {would} marked: {counts}"]
    if document["accepted_ledgers"]:
        lines.append(
            f"{counted(document['accepted_ledgers'], 'ledger')} {'would be' if is_dry_run else 'stayed'} unmarked, as "
            "the loss was accepted: `bkheal dead-letters list --accepted`"
        )
    if not is_dry_run and document["ledgers"]:
        lines.append("replicators copy them now; see `bkheal status`")
    if document["unreadable_ledgers"]:
        unreadable = counted(document["unreadable_ledgers"], "ledger")
        lines.append(f"the metadata of {unreadable} cannot be read, so nothing is marked there")
    if marks := document["unreadable_marks"]:
        lines.append(f"of these ledgers, {unreadable_marks_text(marks)}")
    show(output, "Recovery", document, lines)
    if document["unreadable_ledgers"] or document["unreadable_marks"]:
        raise typer.Exit(ExitCode.PARTIAL)


def _switch_recovery(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    output: OutputFormat,
    *,
    is_on: bool,
    is_dry_run: bool,
) -> None:
    if service is None:
        run(_switch(metadata_uri(uri, config), is_on=is_on, is_dry_run=is_dry_run))
    else:
        word = "enabled" if is_on else "disabled"
        if service.ask("GET", "/recovery")["enabled"] is is_on:
            refuse(f"recovery is {word} already")
        if not is_dry_run and is_on:
            service.ask("PUT", "/autorecovery/status", {"enabled": "true"})  # needs a smaller role than /recovery
        elif not is_dry_run:
            service.ask("PUT", "/recovery", body={"enabled": False})
    would = "would be" if is_dry_run else "is"
    text = f"recovery {would} {'enabled' if is_on else 'disabled'}"
    if not is_on and not is_dry_run:
        text += "; enable it again with `bkheal recovery enable`"
    show(output, "RecoverySwitch", {"dry_run": is_dry_run, "enabled": is_on}, [text])


def _status(service: Service | None, uri: str | None, config: Path | None) -> dict[str, Any]:
    return service.ask("GET", "/recovery") if service else run(_read(metadata_uri(uri, config)))


def _set_delay(
    service: Service | None, uri: str | None, config: Path | None, seconds: int | None, *, is_dry_run: bool
) -> int | None:
    """Set the delay if one is given, and return the previous one."""
    if seconds is None:
        present: int | None = _status(service, uri, config)["lost_bookie_delay_seconds"]
        if present is None:
            refuse(f"the lost-bookie delay is {_UNREADABLE}")
        return present
    if service is None:
        before: int | None = run(_delay(metadata_uri(uri, config), seconds, is_dry_run=is_dry_run))["before_seconds"]
        return before
    before = service.ask("GET", "/recovery")["lost_bookie_delay_seconds"]
    if not is_dry_run:
        service.ask("PUT", "/recovery", body={"lost_bookie_delay_seconds": seconds})
    return before


async def _switch(uri: str, *, is_on: bool, is_dry_run: bool) -> None:
    from auditor.operating.client import Actor
    from auditor.operating.switches import switch_recovery

    async with connected(uri) as client:
        await switch_recovery(client, Actor(whoami(), "command"), is_on=is_on, is_dry_run=is_dry_run)


async def _read(uri: str) -> dict[str, Any]:
    from auditor.operating.switches import read_switches

    async with connected(uri) as client:
        return await read_switches(client)


async def _delay(uri: str, seconds: int, *, is_dry_run: bool) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.switches import set_delay

    async with connected(uri) as client:
        return await set_delay(client, Actor(whoami(), "command"), seconds, is_dry_run=is_dry_run)


async def _recover(
    uri: str, bookies: tuple[BookieId, ...], is_dry_run: bool, is_sure: bool, is_forced: bool, missing_share_max: float
) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.drain_status import accepted_losses_on
    from auditor.safety.draining import holdings_of, mark, unreadable_marks
    from auditor.safety.recovering import brake, refusal
    from auditor.safety.scan import count
    from bookie.metadata.bookies.first_seen_down import FirstSeenDown

    async with connected(uri) as client:
        ports = client.ports
        if not is_dry_run and not is_forced and await ports.tasks.switches.is_disabled():
            refuse(
                "auto-recovery is disabled, so nothing would be copied: run `bkheal recovery enable` first, "
                "or use --force"
            )
        known = await ports.registrations.known()
        accepted = await accepted_losses_on(client, bookies)
        with counting("ledgers", await count(ports.ledgers)) as advance:
            found, scanned = await holdings_of(ports.ledgers, bookies, advance, accepted)
        registered = await ports.registrations.list()  # read after the metadata (R2)
        exit_if_unknown(bookies, known | registered.registered | found.named)
        if (reason := refusal(bookies, registered)) is not None:
            refuse(reason)
        if not is_forced and (reason := brake(known | set(bookies), registered, missing_share_max)) is not None:
            refuse(reason, ExitCode.HELD)
        unreadable = await unreadable_marks(ports.tasks, found.ledgers)
        if not is_dry_run and found.ledgers:
            confirm(
                f"Mark {counted(len(found.ledgers), 'ledger')} of {', '.join(bookies)} for repair now?", is_sure=is_sure
            )
            if (reason := refusal(bookies, await ports.registrations.list())) is not None:
                refuse(reason)  # a bookie returned during the question
            detail = f"{', '.join(bookies)}: {counted(len(found.ledgers), 'ledger')}"
            await Actor(whoami(), "command").record(client, "recover", detail)
            with counting("marked", len(found.ledgers)) as advance:
                await mark(ports.tasks, found.ledgers, advance)
            downs = FirstSeenDown(client.store, client.cluster.root)
            for bookie, down in (await downs.read()).items():
                if bookie in bookies:
                    await downs.waive_delay(bookie, down.since_ms)
    return {
        "dry_run": is_dry_run,
        "bookies": list(bookies),
        "ledgers": len(found.ledgers),
        "accepted_ledgers": len(found.accepted),
        "open_ledgers": len(found.unclosed),
        "fragments": found.fragments,
        "bytes": found.bytes,
        "unreadable_ledgers": scanned.unreadable_count,
        "unreadable_marks": len(unreadable),
    }
