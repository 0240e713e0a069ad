"""``bkheal throttle``: limits on copying for all replicators of a cluster together."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.cluster.changing import DryRunOption, age_s, connected, refuse, show, whoami
from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore, CopyProfile
from bookie.model.records import UnreadableRecordError
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    help="Limit how fast all replicators together copy. A change takes effect within seconds, without a restart.",
    no_args_is_help=True,
)

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_BYTES_MAX: Final = 1 << 50


def _bytes(text: str) -> int:
    """A number of bytes, such as 1048576, 100MiB or 2g.

    Raises:
        typer.BadParameter: it is none.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([KMG]?)(I?B)?", text.strip().upper())
    if match is None or int(match[1]) * _UNITS[match[2]] > _BYTES_MAX:
        raise typer.BadParameter(
            f"{text!r} is no number of bytes up to 1 PiB; write 500KiB, 100MiB or 2GiB; 0: no limit"
        )
    return int(match[1]) * _UNITS[match[2]]


def _limit(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", parser=_bytes, metavar="BYTES", help=f"{text} 0: no limit.", show_default=False)


@app.command("show")
def show_limits(
    uri: MetadataUriOption = None, config: ConfigOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show the limits, who set them, and which replicators share them now."""
    limits, workers = run(_read(metadata_uri(uri, config)))
    if output is OutputFormat.JSON:
        print_json("CopyLimits", **_document(limits), workers=list(workers))
        return
    _print(limits)
    if limits is not None:
        print_line(
            f"shared by {len(workers)} replicators that copy now" + (f": {', '.join(workers)}" if workers else "")
        )


@app.command("set")
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
        _limit("critical", "Bytes per second of ledgers with one copy left that pass whatever the other limits are."),
    ] = None,
    profile: Annotated[
        CopyProfile | None,
        typer.Option(
            help="What to do if a bookie becomes slow: client-first copies less once a request takes 50 ms, balanced "
            "once it takes 250 ms, recovery-first (the default) copies as fast as bookies accept it.",
            show_default=False,
        ),
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
) -> None:
    """Set limits; those that are not named stay as they are.

    The replicators that copy divide each limit equally. A replicator's own `bytes_per_second` holds as well. Apache's
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
        refuse("no limit is named: see `bkheal throttle set --help`; `bkheal throttle clear` removes all limits")
    _shown(run(_change(metadata_uri(uri, config), chosen, is_dry_run=is_dry_run)), output, is_dry_run=is_dry_run)


@app.command("clear")
def clear_limits(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
) -> None:
    """Remove all limits. Each replicator's own `bytes_per_second` stays."""
    _shown(run(_change(metadata_uri(uri, config), None, is_dry_run=is_dry_run)), output, is_dry_run=is_dry_run)


def _shown(limits: CopyLimits | None, output: OutputFormat, *, is_dry_run: bool) -> None:
    document = {"dry_run": is_dry_run, **_document(limits)}
    show(output, "CopyLimits", document, [])
    if output is OutputFormat.TABLE:
        if is_dry_run:
            print_line("nothing was changed; the limits would be:")
        _print(limits)


def _print(limits: CopyLimits | None) -> None:
    if limits is None:
        print_line("no limits on copying: each replicator keeps only its own `bytes_per_second`")
        return
    for label, count in (
        ("all replicators", limits.bytes_per_second),
        ("to one bookie", limits.bookie_in_bytes_per_second),
        ("from one bookie", limits.bookie_out_bytes_per_second),
    ):
        print_line(f"{label}: {size(count)}/s" if count else f"{label}: no limit")
    requests = limits.requests_per_second
    print_line(f"requests: {requests}/s" if requests else "requests: no limit")
    if limits.critical_bytes_per_second:
        print_line(f"ledgers with one copy left: {size(limits.critical_bytes_per_second)}/s pass in any case")
    print_line(f"profile: {limits.profile.value}")
    if limits.since_ms:
        print_line(f"set by {limits.by} {duration(1000 * age_s(limits.since_ms))} ago")


def _document(limits: CopyLimits | None) -> Mapping[str, Any]:
    fields = asdict(limits or CopyLimits())
    since_ms = fields.pop("since_ms")
    return {
        "limited": limits is not None,
        **fields,
        "profile": fields["profile"].value,
        "since": rfc3339_if_known(since_ms),
    }


async def _read(uri: str) -> tuple[CopyLimits | None, tuple[str, ...]]:
    async with connected(uri) as client:
        store = CopyLimitsStore(client.store, client.cluster.root)
        seen, workers = await store.read(), await store.workers()
        return seen.limits, () if workers is None else tuple(sorted(workers.names))


async def _change(uri: str, chosen: Mapping[str, Any] | None, *, is_dry_run: bool) -> CopyLimits | None:
    async with connected(uri) as client:
        store = CopyLimitsStore(client.store, client.cluster.root)
        if chosen is None:
            if not is_dry_run:
                await store.clear()
            return None
        try:
            before = (await store.read()).limits or CopyLimits()
        except UnreadableRecordError as error:
            refuse(f"the limits in {store.path} cannot be decoded ({error}); `bkheal throttle clear` removes them")
        limits = replace(before, **chosen, by=whoami(), since_ms=int(time.time() * 1000))
        if not is_dry_run:
            await store.set(limits)
        return limits
