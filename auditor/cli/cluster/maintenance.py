"""``bkheal maintenance``: announces that bookies will be down for a limited time, so their ledgers are not copied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import DryRunOption, connected, refuse, require_utf8_text, show, whoami
from auditor.cli.output import OutputFormat, StreamFormat, print_line
from auditor.cli.paging import print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri, run
from auditor.cli.spans import span_s
from bookie.runtime.human import printable

_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 refused (nothing was changed), 2 wrong usage, 3 the store did not answer. "
    "`end` of a target without an open window is refused."
)

app = typer.Typer(help="Maintenance windows: bookies that are missing on purpose.", no_args_is_help=True)

TargetArgument = Annotated[
    str,
    typer.Argument(
        callback=require_utf8_text,
        metavar="BOOKIE|rack:RACK",
        help="A bookie, or all bookies of a rack such as rack:/r1.",
    ),
]


@app.command("start", epilog=_EXIT_CODES)
@reachable
def start(
    target: TargetArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    span: Annotated[str, typer.Option("--for", help="When the window ends: 30m, 2h, 1d; at most 3d.")] = "1h",
    is_critical_held: Annotated[
        bool, typer.Option("--hold-critical", help="Also hold back ledgers with one copy left.")
    ] = False,
    note: Annotated[
        str, typer.Option("--note", callback=require_utf8_text, help="The reason, shown to other operators.")
    ] = "",
    topology_file: Annotated[
        Path | None,
        typer.Option(
            help="Topology file: the rack of each bookie. Default: the topology in ZooKeeper; with --at, that of the "
            "auditor.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Expect the loss of a bookie, or of a rack, for a limited time: its ledgers are not marked until then.

    Ledgers with one copy left are marked nevertheless, after their own delay, unless --hold-critical is given (with
    --at: the role administer is needed). Run `bkheal ok-to-stop` first: it lists the ledgers that would have no copy
    left. A window ends by itself. A bookie still missing then counts as lost if its lost-bookie delay has also passed.
    Starting a window again replaces it.

    The window covers the present bookies of a rack; a bookie that joins later is not part of it. Auditors and workers
    of bkheal follow windows. Apache's do not.

    Example: `bkheal maintenance start rack:/r1 --for 2h --note "new switch"`
    """
    from auditor.operating.maintenance import NOTE_MAX, window_target
    from bookie.metadata.bookies.maintenance import WINDOW_S_MAX

    seconds = span_s(span, WINDOW_S_MAX, "--for")
    name, note = window_target(target), note[:NOTE_MAX]
    if service is None:
        given = metadata_uri(uri, config)
        document = run(_start(given, name, seconds, is_critical_held, note, topology_file, is_dry_run))
    elif topology_file is not None:
        raise typer.BadParameter("with --at, the auditor uses its own topology", param_hint="'--topology-file'")
    else:
        body = {"target": name, "seconds": seconds, "hold_critical": is_critical_held, "note": note}
        document = service.ask("PUT", "/maintenance", body={**body, "dry_run": is_dry_run})
    would = "would not be" if is_dry_run else "are not"
    critical = ", ledgers with one copy left included" if is_critical_held else ""
    lines = [f"losses of {', '.join(document['bookies'])} {would} marked until {document['until']}{critical}"]
    show(output, "MaintenanceWindow", document, lines)


@app.command("list", epilog=_EXIT_CODES)
@reachable
def list_windows(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the open windows."""
    page = service.ask("GET", "/maintenance") if service else run(_list(metadata_uri(uri, config)))
    if output is not StreamFormat.TABLE:
        print_page(output, "MaintenanceWindowList", page, (), lambda row: (), right=(), nothing="")
        return
    for text in [line(row) for row in page["items"]] or ["no maintenance window is open"]:
        print_line(text)


@app.command("end", epilog=_EXIT_CODES)
@reachable
def end(
    target: TargetArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """End a window now. Missing bookies then count as lost if their lost-bookie delay has passed."""
    from auditor.operating.maintenance import window_target

    name = window_target(target)
    if service is None:
        document = run(_end(metadata_uri(uri, config), name, is_dry_run))
    else:
        document = _remote_window_end(service, name, is_dry_run)
    would = "would be " if is_dry_run else "is "
    show(output, "MaintenanceEnd", document, [f"the window of {name} {would}ended"] if document["was_open"] else [])
    if not document["was_open"]:
        refuse(f"{name} has no open window; `bkheal maintenance list` lists the open ones")


def line(window: dict[str, Any]) -> str:
    """Return the document of a window as one line of text."""
    critical = ", holds critical ledgers" if window["hold_critical"] else ""
    bookies = "" if window["bookies"] == [window["target"]] else f" ({', '.join(window['bookies'])})"
    note = f": {window['note']}" if window["note"] else ""
    return printable(f"{window['target']}{bookies} until {window['until']}{critical}, by {window['by']}{note}")


async def _start(
    uri: str, target: str, seconds: int, is_critical_held: bool, note: str, topology_file: Path | None, is_dry_run: bool
) -> dict[str, Any]:
    from auditor.operating.client import Actor, NoSuchObjectError, RefusedError
    from auditor.operating.maintenance import start_window
    from bookie.metadata.bookies.maintenance import TooManyWindowsError
    from bookie.metadata.bookies.topology import parse_topology, topology_text

    text = topology_text(topology_file)
    async with connected(uri) as client:
        try:
            return await start_window(
                client,
                Actor(whoami(), "command"),
                target,
                seconds,
                is_critical_held=is_critical_held,
                note=note,
                topology=None if text is None else parse_topology(text),
                is_dry_run=is_dry_run,
            )
        except (NoSuchObjectError, RefusedError, TooManyWindowsError) as error:
            refuse(str(error))


async def _list(uri: str) -> dict[str, Any]:
    from auditor.operating.maintenance import list_windows

    async with connected(uri) as client:
        return await list_windows(client)


async def _end(uri: str, target: str, is_dry_run: bool) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.maintenance import end_window

    async with connected(uri) as client:
        return await end_window(client, Actor(whoami(), "command"), target, is_dry_run=is_dry_run)


def _remote_window_end(service: Service, target: str, is_dry_run: bool) -> dict[str, Any]:
    if not is_dry_run:
        return service.ask("DELETE", "/maintenance", {"target": target})
    was_open = any(window["target"] == target for window in service.ask("GET", "/maintenance")["items"])
    return {"dry_run": True, "target": target, "was_open": was_open}
