"""``bkheal throttle``: limits on copying for all replicators of a cluster together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import DryRunOption, age_s, connected, refuse, show, whoami
from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.metadata.tasks.copy_limits import CopyProfile
from bookie.model.times import epoch_ms
from bookie.runtime.human import agreeing, counted, duration, printable, size

app = typer.Typer(
    help="Limit how fast all replicators together copy. A change takes effect within seconds, without a restart.",
    no_args_is_help=True,
)

_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3}
_BYTES_MAX: Final = 1 << 50


def number_of_bytes(text: str) -> int:
    """Read a number of bytes, such as 1048576, 100MiB, 2g (as 2GiB) or 100MB (a hundred million).

    Raises:
        typer.BadParameter: it is not such a number.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([KMG]?)(I?B)?", text.strip().upper())
    base = 1000 if match is not None and match[3] == "B" else 1024
    found = -1 if match is None else int(match[1]) * base ** _POWERS[match[2]]
    if not 0 <= found <= _BYTES_MAX:
        raise typer.BadParameter(
            f"{text!r} is not a number of bytes up to 1 PiB; write 500KiB, 100MiB or 2GiB; 0: no limit"
        )
    return found


def _limit(name: str, text: str) -> Any:
    return typer.Option(
        f"--{name}", parser=number_of_bytes, metavar="BYTES", help=f"{text} 0: no limit.", show_default=False
    )


@app.command("show")
@reachable
def show_limits(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """Show the limits, who set them, and which replicators share them now."""
    document = service.ask("GET", "/copy-limits") if service else run(_read(metadata_uri(uri, config)))
    if output is OutputFormat.JSON:
        print_json("CopyLimits", **document)
        return
    _print(document)
    if document["limited"]:
        workers = document["workers"]
        sharing = f"{counted(len(workers), 'replicator')} that {agreeing(len(workers), 'copies', 'copy')} now"
        print_line(f"shared by {sharing}" + (f": {', '.join(workers)}" if workers else ""))


@app.command("set")
@reachable
def set_limits(
    bytes_per_second: Annotated[int | None, _limit("bytes-per-second", "Bytes sent by all replicators.")] = None,
    requests_per_second: Annotated[
        int | None,
        typer.Option(min=0, max=10_000_000, help="Reads and adds of all replicators. 0: no limit.", show_default=False),
    ] = None,
    bookie_in: Annotated[int | None, _limit("bookie-in", "Bytes per second sent to one bookie.")] = None,
    bookie_out: Annotated[int | None, _limit("bookie-out", "Bytes per second read from one bookie.")] = None,
    critical: Annotated[
        int | None,
        _limit(
            "critical", "Bytes per second of ledgers with one copy left that are copied regardless of the other limits."
        ),
    ] = None,
    profile: Annotated[
        CopyProfile | None,
        typer.Option(
            help="What to do if a bookie becomes slow: client-first copies less if a request takes longer "
            "than 50 ms, balanced if it takes longer than 250 ms, each plus 31 ms for each MiB; "
            "recovery-first (the default) "
            "copies as fast as bookies accept it.",
            show_default=False,
        ),
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Set limits; the others are not changed.

    The active replicators divide each limit equally. A replicator's own `bytes_per_second` applies as well. Apache's
    workers do not follow these limits.

    Example, during a rush hour: `bkheal throttle set --bytes-per-second 50MiB --profile client-first`
    """
    given = {
        "bytes_per_second": bytes_per_second,
        "requests_per_second": requests_per_second,
        "bookie_in_bytes_per_second": bookie_in,
        "bookie_out_bytes_per_second": bookie_out,
        "critical_bytes_per_second": critical,
        "profile": profile,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if not chosen:
        raise typer.BadParameter("no limit is named; `bkheal throttle clear` removes all limits")
    _shown(_change(service, uri, config, chosen, is_dry_run=is_dry_run), output, is_dry_run=is_dry_run)


@app.command("clear")
@reachable
def clear_limits(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Remove all limits. Each replicator's own `bytes_per_second` stays."""
    _shown(_change(service, uri, config, None, is_dry_run=is_dry_run), output, is_dry_run=is_dry_run)


def _shown(document: dict[str, Any], output: OutputFormat, *, is_dry_run: bool) -> None:
    show(output, "CopyLimits", document, [])
    if output is OutputFormat.TABLE:
        if is_dry_run:
            print_line("nothing was changed; the limits would be:")
        _print(document)


def _print(document: dict[str, Any]) -> None:
    if not document["limited"]:
        print_line("no limits on copying: each replicator keeps only its own `bytes_per_second`")
        return
    for label, name in (
        ("all replicators", "bytes_per_second"),
        ("to one bookie", "bookie_in_bytes_per_second"),
        ("from one bookie", "bookie_out_bytes_per_second"),
    ):
        print_line(f"{label}: {size(document[name])}/s" if document[name] else f"{label}: no limit")
    requests = document["requests_per_second"]
    print_line(f"requests: {requests}/s" if requests else "requests: no limit")
    if document["critical_bytes_per_second"]:
        print_line(
            f"ledgers with one copy left: {size(document['critical_bytes_per_second'])}/s are copied regardless of "
            "the other limits"
        )
    print_line(f"profile: {document['profile']}")
    if document["since"]:
        print_line(f"set by {printable(document['by'])} {duration(1000 * age_s(epoch_ms(document['since'])))} ago")


def _change(
    service: Service | None, uri: str | None, config: Path | None, chosen: dict[str, Any] | None, *, is_dry_run: bool
) -> dict[str, Any]:
    if service is None:
        return run(_changed(metadata_uri(uri, config), chosen, is_dry_run=is_dry_run))
    if is_dry_run:
        raise typer.BadParameter("--dry-run cannot be used with --at", param_hint="--dry-run")
    if chosen is None:
        return service.ask("DELETE", "/copy-limits")
    body = {name: value.value if isinstance(value, CopyProfile) else value for name, value in chosen.items()}
    return service.ask("PUT", "/copy-limits", body=body)


async def _read(uri: str) -> dict[str, Any]:
    from auditor.operating.limits import read_limits

    async with connected(uri) as client:
        return await read_limits(client)


async def _changed(uri: str, chosen: dict[str, Any] | None, *, is_dry_run: bool) -> dict[str, Any]:
    from auditor.operating.client import Actor, RefusedError
    from auditor.operating.limits import clear_limits, set_limits

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        if chosen is None:
            return await clear_limits(client, actor, is_dry_run=is_dry_run)
        try:
            return await set_limits(client, actor, chosen, is_dry_run=is_dry_run)
        except RefusedError as error:
            refuse(str(error))
