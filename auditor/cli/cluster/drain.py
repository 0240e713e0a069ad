"""``bkheal drain``: empty bookies while they go on serving, so that they can be stopped and taken out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from auditor.cli.audit.remote import RemoteSettings, read_token
from auditor.cli.cluster.admin_requests import AdminClient
from auditor.cli.cluster.at import Service, reachable
from auditor.cli.cluster.bookie_state import REQUEST_S as BOOKIE_REQUEST_S
from auditor.cli.cluster.bookie_state import make_read_only
from auditor.cli.cluster.changing import (
    BookiesArgument,
    DryRunOption,
    YesOption,
    bookie_ids,
    confirm,
    connected,
    refuse,
    show,
    unknown_names,
    whoami,
)
from auditor.cli.cluster.drain_watch import DrainLook, watch
from auditor.cli.cluster.paging import print_page
from auditor.cli.cluster.recovery import ForceOption
from auditor.cli.cluster.topic_unloading import REQUEST_S as UNLOAD_REQUEST_S
from auditor.cli.cluster.topic_unloading import TopicUnloading
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.output import OutputFormat, StreamFormat, counting, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri, run
from bookie.metadata.bookies.drains import Drains
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import duration, printable, size

app = typer.Typer(
    help="Empty bookies while they serve: copies first, and only then out of the metadata.",
    epilog="The whole way, from `drain start` to `decommission`: docs/taking-a-bookie-out.md.",
    no_args_is_help=True,
)
OptionalBookies = Annotated[
    list[str] | None, typer.Argument(metavar="BOOKIE", help="Default: every drained bookie.", show_default=False)
]

_OPEN: Final = "open_ledger"
_PULSAR: Final = "Pulsar's admin API"


@app.command("start")
@reachable
def start(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    is_forced: ForceOption = False,
    bookie_http: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The HTTP server of an Apache bookie, such as http://bookie-2:8000: make it read-only first. For one "
            "BOOKIE.",
            show_default=False,
        ),
    ] = None,
    *,
    service: Service | None = None,
) -> None:
    """Begin to drain bookies: they become read-only and are not chosen any more, and their entries are marked.

    An Apache bookie knows of no drain and stays as it is. While it is writable, replicators and our writers do not
    choose it, but Apache's writers do. Make it read-only by Apache's own means first, and keep it so until the drain
    has ended; notes name the bookies concerned. With --bookie-http, this command makes it read-only through its HTTP
    server. If that fails, nothing is begun.

    Nothing is at risk during a drain: a drained bookie serves its copies until each of them has another home. Ledgers
    under a writer are left to it; it leaves a read-only bookie with the next write. Starting again is safe and marks
    what was overlooked.

    Exit codes: 0 begun (or, with --dry-run, would be), 1 refused, 3 the store did not answer, 5 some metadata could not
    be read (the rest is marked), 69 the bookie's HTTP server did not answer.

    Example: `bkheal drain start bookie-2:3181 --dry-run`
    """
    bookies = bookie_ids(names)
    if bookie_http is not None and (service is not None or len(bookies) > 1):
        raise typer.BadParameter("it is for one BOOKIE, and not for --at", param_hint="'--bookie-http'")
    if service is not None:
        document = _started_there(service, bookies, is_dry_run, is_sure, is_forced)
    else:
        admin = None
        if bookie_http is not None:
            admin = AdminClient(RemoteSettings(bookie_http, timeout_s=BOOKIE_REQUEST_S))
        document = run(_start(metadata_uri(uri, config), bookies, is_dry_run, is_sure, is_forced, admin))
    would = "would be" if is_dry_run else "are"
    held = f"{document['fragments']} fragments, {size(document['bytes'])} in closed ledgers"
    lines = [f"{document['ledgers']} ledgers {would} marked: {held}, {document['open_ledgers']} ledgers not closed"]
    if not is_dry_run:
        lines.append("watch it with `bkheal drain status --wait`; `bkheal drain stop` calls it off")
    show(output, "DrainStart", document, lines)
    if document["stay_writable"]:
        print_note(_stay_writable_note(document["stay_writable"]))
    if document["stay_read_only"]:
        print_note(_stay_read_only_note(document["stay_read_only"]))
    if document["unreadable_ledgers"]:
        print_note(f"the metadata of {document['unreadable_ledgers']} ledgers cannot be read, they are not marked")
        raise typer.Exit(ExitCode.PARTIAL)


@app.command("stop")
@reachable
def stop(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Call drains off: the bookies turn writable again. Copies already moved stay in their new place.

    An Apache bookie that was made read-only for the drain stays read-only until its own setting is taken back.

    Exit codes: 0 called off, 1 one of them is not being drained (the others are called off), 3 no answer.
    """
    bookies = bookie_ids(names)
    target = "" if service else metadata_uri(uri, config)
    if service is not None and is_dry_run:
        raise typer.BadParameter("with --at there is no dry run", param_hint="--dry-run")
    if not is_dry_run:
        confirm(f"Call off the drain of {', '.join(bookies)}?", is_sure=is_sure)
    if service is not None:
        parts = [service.ask("DELETE", f"/drains/{quote(bookie, safe='')}") for bookie in bookies]
        stopped = [bookie for part in parts for bookie in part["stopped"]]
    else:
        stopped = run(_stop(target, bookies, is_dry_run))
    would = "would be" if is_dry_run else "is"
    lines = [f"the drain of {bookie} {would} called off" for bookie in stopped]
    lines += [f"{bookie} is not being drained" for bookie in bookies if bookie not in stopped]
    show(output, "DrainStop", {"dry_run": is_dry_run, "stopped": stopped}, lines)
    if len(stopped) < len(bookies):
        raise typer.Exit(ExitCode.FAILED)


@app.command("list")
@reachable
def list_all(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the bookies that are being drained, since when and by whom; `status` shows what is left on them."""
    page = service.ask("GET", "/drains") if service else run(_list(metadata_uri(uri, config)))
    print_page(
        output,
        "DrainList",
        page,
        ("BOOKIE", "STATE", "SINCE", "BY"),
        lambda row: (row["bookie_id"], row["state"], row["since"] or "-", printable(row["by"]) or "-"),
        right=(),
        nothing="no bookie is being drained",
    )


async def _list(uri: str) -> dict[str, Any]:
    from auditor.operating.drains import list_drains

    async with connected(uri) as client:
        return await list_drains(client)


@app.command("status")
def status(
    names: OptionalBookies = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_waiting: Annotated[
        bool,
        typer.Option("--wait", help="Look again and again until nothing is left; mark again what no task names."),
    ] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="With --wait: wait no longer than this, and end with 1. Default: as long as it takes.",
            show_default=False,
        ),
    ] = None,
    pulsar_admin: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --wait: have Pulsar unload the topics of open ledgers, by the admin API of its brokers or "
            "proxy, such as https://pulsar:8443.",
            rich_help_panel=_PULSAR,
            show_default=False,
        ),
    ] = None,
    pulsar_token_file: Annotated[
        Path | None,
        typer.Option(
            help="Holds the token for it; sent by https, or to this machine.",
            rich_help_panel=_PULSAR,
            show_default=False,
        ),
    ] = None,
    pulsar_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of who signed its certificate. Default: the system's authorities.",
            rich_help_panel=_PULSAR,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Report the remaining ledgers of drained bookies, the reasons why they wait, and the estimated time.

    Without --wait it looks once. With --wait it looks every few seconds until nothing is left on any of the bookies, or
    until --timeout, and then reports the state. During the wait it marks ledgers again whose task is missing; nothing
    else depends on it, so that it may be interrupted: the drain continues.

    With --pulsar-admin it also has Pulsar unload the topics whose open ledgers are left, four at a time and each once a
    minute at most. Brokers close these ledgers then, and producers continue with new ones. If only open ledgers are
    left and no topic can be unloaded, or if the token is refused, the wait ends with the reason; the drain continues.

    Exit codes: 0 nothing is left, 1 something is (with --wait: at the timeout, or Pulsar refused), 2 wrong usage, 3 the
    store did not answer, 5 some metadata could not be read, 69 Pulsar did not answer, 78 wrong address, token or CA.

    Example: `bkheal drain status bookie-2:3181 --wait --timeout 3600`
    """
    if timeout_s is not None and not is_waiting:
        raise typer.BadParameter("it is the longest time to wait: give --wait as well", param_hint="'--timeout'")
    admin = _pulsar(pulsar_admin, pulsar_token_file, pulsar_ca, is_waiting=is_waiting)
    seen, failure = run(_status(metadata_uri(uri, config), bookie_ids(names or ()), is_waiting, timeout_s, admin))
    document = _document(seen)
    show(output, "DrainStatus", document, _lines(document))
    if document["ledgers_left"]:
        if failure is not None:
            refuse(f"{failure}; the drain continues", exit_code_of(failure))
        if timeout_s is not None:
            print_note(f"stopped waiting after {timeout_s:g} s; the drain continues")
        raise typer.Exit(ExitCode.FAILED)
    if document["unreadable_ledgers"]:
        raise typer.Exit(ExitCode.PARTIAL)


def _pulsar(url: str | None, token_file: Path | None, ca: Path | None, *, is_waiting: bool) -> AdminClient | None:
    """Its admin API; nothing is sent yet. Raises as ``AdminClient`` and ``read_token``."""
    if url is None:
        if token_file is not None or ca is not None:
            raise typer.BadParameter("give --pulsar-admin as well", param_hint="'--pulsar-token-file', '--pulsar-ca'")
        return None
    if not is_waiting:
        raise typer.BadParameter(
            "topics are unloaded during a wait: give --wait as well", param_hint="'--pulsar-admin'"
        )
    token = read_token(token_file, {}) if token_file is not None else None
    return AdminClient(RemoteSettings(url, token, ca, timeout_s=UNLOAD_REQUEST_S))


def _started_there(
    service: Service, bookies: Sequence[BookieId], is_dry_run: bool, is_sure: bool, is_forced: bool
) -> dict[str, Any]:
    if is_dry_run or is_forced:
        raise typer.BadParameter("with --at there is neither --dry-run nor --force")
    confirm(f"Drain {', '.join(bookies)}?", is_sure=is_sure)
    parts = [service.ask("PUT", f"/drains/{quote(bookie, safe='')}") for bookie in bookies]
    joined: dict[str, Any] = {"dry_run": False, "bookies": list(bookies)}
    for name in ("ledgers", "open_ledgers", "fragments", "bytes"):
        joined[name] = sum(part[name] for part in parts)
    joined["unreadable_ledgers"] = max(part["unreadable_ledgers"] for part in parts)
    for name in ("stay_writable", "stay_read_only"):
        joined[name] = [bookie for part in parts for bookie in part[name]]
    return joined


async def _start(
    uri: str,
    bookies: tuple[BookieId, ...],
    is_dry_run: bool,
    is_sure: bool,
    is_forced: bool,
    bookie_admin: AdminClient | None,
) -> dict[str, Any]:
    from auditor.operating.client import Actor, NotThereError, RefusedError
    from auditor.operating.drains import check_startable, start_drains, stay_as_they_are

    async with connected(uri) as client:
        try:
            await check_startable(client, bookies, is_dry_run=is_dry_run, is_forced=is_forced, counting=counting)
        except (NotThereError, RefusedError) as error:
            refuse(str(error))
        if not is_dry_run:
            stay_writable, stay_read_only = await stay_as_they_are(client.ports.registrations, bookies)
            if bookie_admin is not None:
                stay_writable = []
            confirm(_question(bookies, stay_writable, stay_read_only), is_sure=is_sure)
            if bookie_admin is not None:
                async with bookie_admin:
                    await make_read_only(bookie_admin, bookies[0], client.ports.registrations, client.ports.clock)
        actor = Actor(whoami(), "command")
        return await start_drains(client, actor, bookies, is_dry_run=is_dry_run, counting=counting)


def _question(
    bookies: Sequence[BookieId], stay_writable: Sequence[BookieId], stay_read_only: Sequence[BookieId]
) -> str:
    turning = [bookie for bookie in bookies if bookie not in (*stay_writable, *stay_read_only)]
    said = [f"{', '.join(turning)}: switched to read-only."] if turning else []
    said += [f"{', '.join(stay_writable)}: Apache's, stays writable."] if stay_writable else []
    said += (
        [f"{', '.join(stay_read_only)}: Apache's, read-only as long as its own setting is."] if stay_read_only else []
    )
    return f"Drain {', '.join(bookies)}? {' '.join(said)}"


def _stay_read_only_note(bookies: Sequence[str]) -> str:
    return (
        f"{', '.join(bookies)}: an Apache bookie, which is read-only by its own setting or for lack of space, not by "
        "the drain. Keep it read-only until the drain has ended (forceReadOnlyBookie=true in its bk_server.conf): once "
        "it is writable again, Apache's clients write to it, and `bkheal drain stop` does not make it writable"
    )


def _stay_writable_note(bookies: Sequence[str]) -> str:
    return (
        f"{', '.join(bookies)}: an Apache bookie, which does not support drains and stays writable. Repair does not "
        "choose it as a target, but Apache's clients continue to write to it. Make it read-only: "
        "forceReadOnlyBookie=true in its "
        "bk_server.conf and a restart, or PUT /api/v1/bookie/state/readonly if its HTTP server is on. If no "
        "client of Apache's writes to it, there is nothing to do"
    )


async def _stop(uri: str, bookies: tuple[BookieId, ...], is_dry_run: bool) -> list[str]:
    from auditor.operating.client import Actor
    from auditor.operating.drains import stop_drains

    async with connected(uri) as client:
        done = await stop_drains(client, Actor(whoami(), "command"), bookies, is_dry_run=is_dry_run)
    return list(done["stopped"])


async def _status(
    uri: str, bookies: tuple[BookieId, ...], is_waiting: bool, timeout_s: float | None, admin: AdminClient | None
) -> tuple[DrainLook, BkhealError | None]:
    """What was seen last, and why topics cannot be unloaded."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(uri))
        drains = await Drains(client.store, client.cluster.root).read()
        chosen = bookies or tuple(sorted(drains))
        if not chosen:
            refuse("no bookie is being drained; `bkheal drain start BOOKIE` begins")
        unknown_names(chosen, await client.ports.registrations.known() | frozenset(drains))
        if admin is None:
            return await watch(client, chosen, drains, is_waiting=is_waiting, timeout_s=timeout_s), None
        unloading = TopicUnloading(await stack.enter_async_context(admin), client.ports.clock, print_note)
        seen = await watch(client, chosen, drains, is_waiting=is_waiting, timeout_s=timeout_s, unloading=unloading)
        return seen, unloading.failure(seen.left.holdings)


def _document(seen: DrainLook) -> dict[str, Any]:
    from auditor.safety.holdings import TOPICS_SHOWN_MAX

    left = seen.left
    return {
        "bookies": [
            {
                "bookie_id": bookie,
                "since": rfc3339_if_known(drain.since_ms, "seconds"),
                "by": drain.by,
                "state": seen.states[bookie],
            }
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
        "open_topics": sorted(left.holdings.open_topics)[:TOPICS_SHOWN_MAX],
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
        eta = f", about {duration(document['eta_seconds'] * 1000)} to go" if document["eta_seconds"] is not None else ""
        held = f"{document['ledgers_left']} ledgers left, {size(document['bytes_left'])} in closed ones{eta}"
        lines += [held, f"  {document['moving']} marked for copying"]
    if document["unmarked"]:
        lines.append(f"  {document['unmarked']} not marked: `bkheal drain start` marks them")
    lines += [f"  {count} parked: {reason}" for reason, count in document["parked"].items()]
    lines += [f"    ledger {item['ledger_id']}: {item['detail']}" for item in document["examples"]]
    if document["open_topics"]:
        lines.append(
            f"  {document['open_ledgers']} not closed; unloading their topics closes them at once "
            "(`--wait --pulsar-admin URL` does it):"
        )
        lines += [f"    pulsar-admin topics unload '{printable(topic)}'" for topic in document["open_topics"]]
    if _OPEN in document["parked"]:
        lines.append(
            "  for ledgers whose writer has ended, `bkheal ledger recover LEDGER` finds the end and closes them"
        )
    if not document["recovery_enabled"]:
        lines.append("recovery is DISABLED, nothing moves: `bkheal recovery enable`")
    if document["unreadable_ledgers"]:
        lines.append(f"the metadata of {document['unreadable_ledgers']} ledgers cannot be read: `bkheal audit run`")
    return lines
