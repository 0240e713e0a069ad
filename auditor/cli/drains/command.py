"""``bkheal drain``: moves all data off bookies that still serve it, before they are stopped and removed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from auditor.cli.admin_requests import AdminClient
from auditor.cli.at import Service, reachable
from auditor.cli.audit.remote import RemoteRefusedError, RemoteSettings
from auditor.cli.changing import (
    BookiesArgument,
    DryRunOption,
    YesOption,
    bookie_ids,
    confirm,
    connected,
    refuse,
    show,
    whoami,
)
from auditor.cli.drains.begin import DrainRequest, begin, begin_lines, print_begin_notes
from auditor.cli.drains.bookie_state import REQUEST_S as BOOKIE_REQUEST_S
from auditor.cli.drains.pulsar_admin import PulsarAdminOption, PulsarCaOption, PulsarTokenFileOption, pulsar_admin
from auditor.cli.drains.remote import not_drained, remote_drain_status
from auditor.cli.drains.status import NotDrainedError, end, observe_or_wait, print_unload_commands, status_lines
from auditor.cli.output import OutputFormat, StreamFormat, counting, print_error, print_line
from auditor.cli.paging import print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri, run
from auditor.cli.watching import check_timeout
from bookie.metadata.bookies.drains import Drains
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.runtime.human import printable

app = typer.Typer(
    help="Empty bookies while they serve: copies first, and only then out of the metadata.",
    epilog="All steps, from `drain start` to `decommission`: docs/taking-a-bookie-out.md.",
    no_args_is_help=True,
)
OptionalBookies = Annotated[
    list[str] | None, typer.Argument(metavar="BOOKIE", help="Default: every drained bookie.", show_default=False)
]

_NO_DRAIN: Final = "no bookie is being drained; `bkheal drain start BOOKIE` begins"

TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0,
        metavar="SECONDS",
        help="With --wait: wait no longer than this, and exit with 1. Default: no limit.",
        show_default=False,
    ),
]


@app.command("start")
@reachable
def start(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Continue although recovery is disabled, or too few bookies would be left.")
    ] = False,
    bookie_http: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The HTTP server of an Apache bookie, such as http://bookie-2:8000: make it read-only first. For one "
            "BOOKIE. Default with --wait: the server that the bookie is registered with.",
            show_default=False,
        ),
    ] = None,
    is_waiting: Annotated[
        bool, typer.Option("--wait", help="Then wait until nothing is left, as `bkheal drain status --wait`.")
    ] = False,
    timeout_s: TimeoutOption = None,
    pulsar_url: PulsarAdminOption = None,
    pulsar_token_file: PulsarTokenFileOption = None,
    pulsar_ca: PulsarCaOption = None,
    *,
    service: Service | None = None,
) -> None:
    """Begin to drain bookies: they become read-only and are no longer chosen, and the ledgers on them are marked.

    An Apache bookie does not support drains and stays as it is. While it is writable, replicators and our writers do
    not choose it, but Apache's writers do. Make it read-only by Apache's own means first, and keep it read-only until
    the end of the drain; notes name the affected bookies. With --bookie-http, this command makes it read-only through
    its HTTP server. If this fails or is interrupted, no drain begins, and the bookie is made writable again, unless
    another command drains it by then or the drains cannot be read.

    Nothing is at risk during a drain: a drained bookie serves each copy until the copy exists on another bookie.
    Ledgers with a writer are not moved; the writer leaves a read-only bookie at its next write. Starting again is safe
    and marks ledgers that were missed before.

    With --wait, this one command does the whole drain. It makes Apache bookies read-only through the HTTP servers in
    their registrations, begins the drain, and waits as `bkheal drain status --wait`. At the end it reads all ledgers,
    to verify that none names the bookies any more. With --pulsar-admin, it requests Pulsar to unload the topics whose
    open ledgers are left; the admin API must answer and accept the token before anything is changed. Without it, the
    commands to unload them are printed before the wait. An interrupted wait is continued by `bkheal drain status`.

    Exit codes: 0 begun (or, with --dry-run, would be; with --wait: nothing is left), 1 refused (with --wait: or
    something is left), 2 wrong usage, 3 the store did not answer, 5 some metadata or marks could not be read (the
    rest is marked), 69 the bookie's HTTP server or Pulsar did not answer, 78 wrong address, token or CA.

    Example: `bkheal drain start bookie-2:3181 --wait --pulsar-admin https://pulsar:8443 --pulsar-token-file token`
    """
    bookies = bookie_ids(names)
    if bookie_http is not None and (service is not None or len(bookies) > 1):
        raise typer.BadParameter(
            "it needs exactly one BOOKIE, and cannot be used with --at", param_hint="'--bookie-http'"
        )
    if is_waiting and service is not None:
        raise typer.BadParameter(
            "the waiting is done by this command, so it cannot be used with --at", param_hint="'--wait'"
        )
    check_timeout(timeout_s, is_waiting=is_waiting)
    pulsar = pulsar_admin(pulsar_url, pulsar_token_file, pulsar_ca, is_waiting=is_waiting)
    if service is not None:
        document = _remote_drain_start(service, bookies, is_dry_run, is_sure, is_forced)
    else:
        http = AdminClient(RemoteSettings(bookie_http, timeout_s=BOOKIE_REQUEST_S)) if bookie_http is not None else None
        asked = DrainRequest(bookies, whoami(), is_dry_run, is_sure, is_forced, http, finds_http=is_waiting)
        if is_waiting and not is_dry_run:
            run(_run_until_drained(metadata_uri(uri, config), asked, timeout_s, pulsar, output))
            return
        document = run(_start(metadata_uri(uri, config), asked, pulsar))
    lines = begin_lines(document)
    if not is_dry_run:
        lines.append("watch it with `bkheal drain status --wait`; `bkheal drain stop` cancels it")
    show(output, "DrainStart", document, lines)
    print_begin_notes(document)
    if document["unreadable_ledgers"] or document.get("unreadable_marks"):
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
    """Cancel drains: the bookies become writable again. Copies that were already moved stay in their new places.

    An Apache bookie made read-only for the drain stays read-only until its own setting is reversed.

    After an error, the drains that were cancelled before it are shown, and the others are named.

    Exit codes: 0 cancelled, 1 one of them is not being drained (the other drains are cancelled), 2 wrong usage, 3 no
    answer.
    """
    bookies = bookie_ids(names)
    stopped: list[str] = []
    problem: BkhealError | None = None
    try:
        if service is not None:
            _remote_drain_stop(service, bookies, stopped, is_dry_run, is_sure)
        else:
            run(_stop(metadata_uri(uri, config), bookies, stopped, is_dry_run, is_sure))
    except BkhealError as error:
        if not stopped:
            raise
        problem = error
    left = [bookie for bookie in bookies if bookie not in stopped]
    would = "would be" if is_dry_run else "is"
    lines = [f"the drain of {bookie} {would} cancelled" for bookie in stopped]
    show(output, "DrainStop", {"dry_run": is_dry_run, "stopped": stopped}, lines)
    if problem is not None:
        from auditor.cli.exit_codes import exit_code_of

        print_error(f"{problem}; these drains were not cancelled, or their state is unknown: {', '.join(left)}")
        raise typer.Exit(exit_code_of(problem))
    if left:
        print_error(f"not being drained: {', '.join(left)}; `bkheal drain list` lists the drains")
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
    """List the bookies being drained, since when and by whom; `status` shows the data left on them."""
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
@reachable
def status(
    names: OptionalBookies = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_waiting: Annotated[
        bool,
        typer.Option("--wait", help="Repeat until nothing is left; mark ledgers of drained bookies without a task."),
    ] = False,
    timeout_s: TimeoutOption = None,
    pulsar_url: PulsarAdminOption = None,
    pulsar_token_file: PulsarTokenFileOption = None,
    pulsar_ca: PulsarCaOption = None,
    *,
    service: Service | None = None,
) -> None:
    """Report the remaining ledgers of drained bookies, the reasons why they wait, and the estimated time.

    Without --wait it checks once. With --wait it checks every few seconds until nothing is left on any of the bookies,
    or until --timeout, and then reports the state. During the wait it marks ledgers of drained bookies again whose task
    is missing. Nothing else depends on it, so it may be interrupted: the drain continues. The wait ends at once if a
    bookie is registered and not being drained, because nothing would move its data. For a lost bookie without a drain,
    it marks nothing; `bkheal recover` does.

    With --pulsar-admin it also lets Pulsar unload the topics whose open ledgers are left, four at a time and each once
    a minute at most. Brokers then close these ledgers, and producers continue with new ones. If only open ledgers are
    left and no topic can be unloaded, or if the token is refused, the wait ends with the reason; the drain continues.

    With --at, the auditor there does the checks, and topics cannot be unloaded. Ledgers whose task is missing are
    marked again by its next bookies check, or by `drain start`.

    Exit codes: 0 nothing is left, 1 something is (with --wait: at the timeout, or a bookie is not being drained, or
    Pulsar refused), 2 wrong usage, 3 the store did not answer, 5 some metadata could not be read, 69 Pulsar did not
    answer, 78 wrong address, token or CA.

    Example: `bkheal drain status bookie-2:3181 --wait --timeout 3600`
    """
    check_timeout(timeout_s, is_waiting=is_waiting)
    pulsar = pulsar_admin(pulsar_url, pulsar_token_file, pulsar_ca, is_waiting=is_waiting)
    bookies, failure = bookie_ids(names or ()), None
    if service is None:
        document, failure = run(_status(metadata_uri(uri, config), bookies, is_waiting, timeout_s, pulsar))
    elif pulsar is not None:
        raise typer.BadParameter("topics are not unloaded with --at", param_hint="'--pulsar-admin'")
    else:
        document = remote_drain_status(service, bookies, is_waiting=is_waiting, timeout_s=timeout_s)
        if not document["bookies"]:
            refuse(_NO_DRAIN)
        if is_waiting and document["ledgers_left"] and (others := not_drained(service, document)):
            failure = NotDrainedError(others)
    show(output, "DrainStatus", document, status_lines(document))
    end(document, failure, timeout_s)


def _remote_drain_start(
    service: Service, bookies: Sequence[BookieId], is_dry_run: bool, is_sure: bool, is_forced: bool
) -> dict[str, Any]:
    if is_dry_run or is_forced:
        raise typer.BadParameter("--dry-run and --force cannot be used with --at")
    confirm(f"Drain {', '.join(bookies)}?", is_sure=is_sure)
    if len(bookies) == 1:
        return service.ask("PUT", f"/drains/{quote(bookies[0], safe='')}")
    try:
        return service.ask("POST", "/drains", body={"bookies": list(bookies)})
    except RemoteRefusedError as error:
        if error.status != HTTPStatus.METHOD_NOT_ALLOWED:
            raise
        refuse(
            f"{error}: this service is older and begins only one drain in a request; none was begun, so name one BOOKIE"
        )


async def _start(uri: str, asked: DrainRequest, pulsar: AdminClient | None) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(uri))
        return await begin(client, asked, pulsar and await stack.enter_async_context(pulsar))


async def _run_until_drained(
    uri: str, asked: DrainRequest, timeout_s: float | None, pulsar: AdminClient | None, output: OutputFormat
) -> None:
    """Begin the drain, wait, and print the data left; the final document includes the document of the start."""
    from auditor.operating.drain_status import status_document

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(uri))
        pulsar = pulsar and await stack.enter_async_context(pulsar)
        begun = await begin(client, asked, pulsar)
        if output is not OutputFormat.JSON:
            for line in begin_lines(begun):
                print_line(line)
        print_begin_notes(begun)
        drains = await Drains(client.store, client.cluster.root).read()
        seen, failure = await observe_or_wait(
            *(client, asked.bookies, drains),
            is_waiting=True,
            timeout_s=timeout_s,
            pulsar=pulsar,
            on_first=None if pulsar is not None else print_unload_commands,
        )
    document = status_document(seen)
    show(output, "DrainStatus", document | {"begun": begun}, status_lines(document))
    end(document, failure, timeout_s)


async def _stop(uri: str, bookies: tuple[BookieId, ...], stopped: list[str], is_dry_run: bool, is_sure: bool) -> None:
    """Cancel drains after a question, and add each one to ``stopped`` at once."""
    from auditor.operating.client import Actor
    from auditor.operating.drains import stop_drains

    async with connected(uri) as client:
        actor = Actor(whoami(), "command")
        found = (await stop_drains(client, actor, bookies, is_dry_run=True))["stopped"]
        if is_dry_run or not found:
            stopped += found
            return
        _confirm_stop(found, is_sure)
        done = await stop_drains(client, actor, found, on_stopped=stopped.append)
        stopped[:] = done["stopped"]


def _remote_drain_stop(
    service: Service, bookies: tuple[BookieId, ...], stopped: list[str], is_dry_run: bool, is_sure: bool
) -> None:
    """As ``_stop``, through a running auditor."""
    drained = {row["bookie_id"] for row in service.ask("GET", "/drains")["items"]}
    found = [bookie for bookie in bookies if bookie in drained]
    if is_dry_run:
        stopped += found
        return
    if found:
        _confirm_stop(found, is_sure)
    for bookie in bookies:  # the start of another one may still be checked: it is cancelled without being recorded
        stopped += service.ask("DELETE", f"/drains/{quote(bookie, safe='')}")["stopped"]


def _confirm_stop(bookies: Sequence[str], is_sure: bool) -> None:
    confirm(f"Cancel the drain of {', '.join(bookies)}?", is_sure=is_sure)


async def _status(
    uri: str, bookies: tuple[BookieId, ...], is_waiting: bool, timeout_s: float | None, pulsar: AdminClient | None
) -> tuple[dict[str, Any], BkhealError | None]:
    """Return the last observed state, and the reason why a wait ended early."""
    from auditor.operating.client import NoSuchObjectError, check_names_or_in_ledgers
    from auditor.operating.drain_status import status_document

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(uri))
        drains = await Drains(client.store, client.cluster.root).read()
        chosen = bookies or tuple(sorted(drains))
        if not chosen:
            refuse(_NO_DRAIN)
        others = [bookie for bookie in chosen if bookie not in drains]
        try:
            await check_names_or_in_ledgers(client, others, lambda total: counting("ledgers", total))
        except NoSuchObjectError as error:
            refuse(str(error))
        pulsar = pulsar and await stack.enter_async_context(pulsar)
        seen, failure = await observe_or_wait(
            client, chosen, drains, is_waiting=is_waiting, timeout_s=timeout_s, pulsar=pulsar
        )
    return status_document(seen), failure
