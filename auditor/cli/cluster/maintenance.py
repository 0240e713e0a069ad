"""``bkheal maintenance``: take bookies down for a limited time without having their ledgers copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.cluster.at import Service, reachable
from auditor.cli.cluster.changing import DryRunOption, connected, refuse, show, unknown_names, whoami
from auditor.cli.cluster.spans import span_s
from auditor.cli.output import OutputFormat
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, bookie_id
from bookie.model.times import rfc3339
from bookie.model.topology import Topology, location
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from bookie.client.connect import ConnectedBookKeeper
    from bookie.metadata.bookies.maintenance import Window

RACK: Final = "rack:"
_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 refused (nothing was changed), 2 wrong usage, 3 the store did not answer. "
    "`end` of a target without a window does nothing."
)

app = typer.Typer(help="Maintenance windows: bookies that are down on purpose.", no_args_is_help=True)

TargetArgument = Annotated[
    str, typer.Argument(metavar="BOOKIE|rack:RACK", help="A bookie, or all bookies of a rack such as rack:/r1.")
]


@app.command("start", epilog=_EXIT_CODES)
def start(
    target: TargetArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    span: Annotated[str, typer.Option("--for", help="When the window ends: 30m, 2h, 1d; at most 3d.")] = "1h",
    is_critical_held: Annotated[
        bool, typer.Option("--hold-critical", help="Do not mark ledgers with one copy left either.")
    ] = False,
    note: Annotated[str, typer.Option("--note", help="Why, for other people.")] = "",
    topology_file: Annotated[
        Path | None,
        typer.Option(
            help="Topology file: the rack of each bookie. Default: the topology in ZooKeeper.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    is_dry_run: DryRunOption = False,
) -> None:
    """Expect the loss of a bookie, or of a rack, for a limited time: its ledgers are not marked until then.

    Ledgers with one copy left are marked nevertheless, after their own delay, unless --hold-critical is given. Run
    `bkheal ok-to-stop` first: it lists what would have no copy left. A window ends by itself. A bookie that is still
    missing then counts as lost if its lost-bookie delay has passed, too. Starting a window again replaces it.

    The bookies of a rack are those that it has now; a bookie that joins later is not part of the window. Auditors and
    workers of bkheal follow windows. Apache's do not.

    Example: `bkheal maintenance start rack:/r1 --for 2h --note "new switch"`
    """
    from auditor.api.http.documents import window_document
    from bookie.metadata.bookies.maintenance import WINDOW_S_MAX

    seconds = span_s(span, WINDOW_S_MAX, "--for")
    name = _target(target)
    window = run(_start(metadata_uri(uri, config), name, seconds, is_critical_held, note, topology_file, is_dry_run))
    would = "would be " if is_dry_run else "are "
    critical = ", ledgers with one copy left included" if is_critical_held else ""
    lines = [f"losses of {', '.join(window.bookies)} {would}not marked until {rfc3339(window.until_ms)}{critical}"]
    show(output, "MaintenanceWindow", {"dry_run": is_dry_run, **window_document(window)}, lines)


@app.command("list", epilog=_EXIT_CODES)
@reachable
def list_windows(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the windows that are open."""
    from auditor.api.http.documents import window_document

    if service is not None:
        rows = service.ask("GET", "/status")["maintenance"]
    else:
        rows = [window_document(window) for window in run(_list(metadata_uri(uri, config)))]
    lines = [line(row) for row in rows] or ["no maintenance window is open"]
    show(output, "MaintenanceWindowList", {"items": rows}, lines)


@app.command("end", epilog=_EXIT_CODES)
def end(
    target: TargetArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
) -> None:
    """End a window now. What is missing then counts as lost if its lost-bookie delay has passed."""
    name = _target(target)
    is_open = run(_end(metadata_uri(uri, config), name, is_dry_run))
    would = "would be " if is_dry_run else "is "
    text = f"the window of {name} {would}ended" if is_open else f"{name} has no open window"
    show(output, "MaintenanceEnd", {"dry_run": is_dry_run, "target": name, "was_open": is_open}, [text])


def line(window: dict[str, Any]) -> str:
    """The document of a window in one line for people."""
    critical = ", holds critical ledgers" if window["hold_critical"] else ""
    bookies = "" if window["bookies"] == [window["target"]] else f" ({', '.join(window['bookies'])})"
    note = f": {window['note']}" if window["note"] else ""
    return printable(f"{window['target']}{bookies} until {window['until']}{critical}, by {window['by']}{note}")


def _target(text: str) -> str:
    """The key of a window: one spelling for each rack and bookie."""
    return f"{RACK}{location(text.removeprefix(RACK))}" if text.startswith(RACK) else bookie_id(text)


async def _start(
    uri: str, target: str, seconds: int, is_critical_held: bool, note: str, topology_file: Path | None, is_dry_run: bool
) -> Window:
    from auditor.operating.client import Actor
    from bookie.metadata.bookies.maintenance import (
        BOOKIES_MAX,
        MaintenanceWindows,
        TooManyWindowsError,
        Window,
    )

    async with connected(uri) as client:
        registrations = client.ports.registrations
        known = await registrations.known() | (await registrations.list()).registered
        if target.startswith(RACK):
            bookies = _of_rack(known, await _topology(client, topology_file), target)
        else:
            bookies = (BookieId(target),)
            unknown_names(bookies, frozenset(known))
        if len(bookies) > BOOKIES_MAX:
            refuse(f"{target} has {len(bookies)} bookies; a window may name {BOOKIES_MAX}")
        now_ms = client.ports.clock.epoch_ms()
        window = Window(target, bookies, whoami(), now_ms, now_ms + seconds * 1000, is_critical_held, note[:200])
        if not is_dry_run:
            detail = f"{target} until {rfc3339(window.until_ms)}{' with critical' if is_critical_held else ''}"
            await Actor(window.by, "command").record(client, "maintenance start", detail)
            try:
                await MaintenanceWindows(client.store, client.cluster.root).start(window)
            except TooManyWindowsError as error:
                refuse(str(error), ExitCode.FAILED)
        return window


def _of_rack(known: frozenset[BookieId], topology: Topology, target: str) -> tuple[BookieId, ...]:
    rack = target.removeprefix(RACK)
    bookies = tuple(sorted(bookie for bookie in known if topology.known(bookie) == rack))
    if not bookies:
        racks = sorted({where for bookie in known if (where := topology.known(bookie)) is not None})
        known_racks = f"racks with bookies: {', '.join(racks)}" if racks else "no bookie has a rack in the topology"
        refuse(f"no bookie is in rack {rack}; {known_racks}")
    return bookies


async def _topology(client: ConnectedBookKeeper, file: Path | None) -> Topology:
    from bookie.metadata.bookies.topology import TopologyStore, parse_topology, topology_text

    if (text := topology_text(file)) is not None:
        return parse_topology(text)
    return (await TopologyStore(client.store, client.cluster).read()).topology


async def _list(uri: str) -> list[Window]:
    from bookie.metadata.bookies.maintenance import MaintenanceWindows

    async with connected(uri) as client:
        windows = MaintenanceWindows(client.store, client.cluster.root)
        return list(await windows.open_at(client.ports.clock.epoch_ms()))


async def _end(uri: str, target: str, is_dry_run: bool) -> bool:
    from auditor.operating.client import Actor
    from bookie.metadata.bookies.maintenance import MaintenanceWindows

    async with connected(uri) as client:
        windows = MaintenanceWindows(client.store, client.cluster.root)
        is_open = any(window.target == target for window in await windows.open_at(client.ports.clock.epoch_ms()))
        if not is_dry_run:
            await Actor(whoami(), "command").record(client, "maintenance end", target)
            await windows.end(target)
        return is_open
