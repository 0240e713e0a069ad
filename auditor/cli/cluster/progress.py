"""``bkheal progress``: the progress of repairs, read only from ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from auditor.cli.at import Service, reachable
from auditor.cli.changing import connected
from auditor.cli.output import StreamFormat
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from auditor.cli.watching import IntervalOption, WatchOption, print_once, shown, watched
from auditor.operating.copied_bytes import copied_bytes
from bookie.runtime.human import counted, duration, printable, size

if TYPE_CHECKING:
    from auditor.service.watch.repairs import RepairWatch
    from bookie.runtime.clock import Clock

KIND: Final = "RepairProgress"
_SHOWN_MAX: Final = 20
"""Largest number of ledgers in progress in the text."""


@reachable
def progress(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    is_watching: WatchOption = False,
    interval_s: IntervalOption = 5.0,
    *,
    service: Service | None = None,
) -> None:
    """Show the repairs: backlog by severity, ledgers in progress, parked tasks, rate, and remaining time.

    Everything is read from ZooKeeper, so no service is needed. Rate and remaining time need two reads: use --watch.
    They are "unknown" until a ledger was completed. The rate covers the last five minutes at most. The remaining time
    assumes no further marks and no failures; parked ledgers are not part of it.

    The progress of a copy is recorded every 64 MiB or 10 seconds, so a small copy shows none. Workers keep the times of
    their next attempts in memory, so they are not shown.

    On a terminal, --watch refreshes the text in place. Otherwise it prints one line for each update, and with `--output
    jsonl` (or json) one document per line.
    """
    if service is None:
        run(_progress(metadata_uri(uri, config), output, interval_s, is_watching=is_watching))
    elif is_watching:
        watched(output, one_line, lines, KIND, lambda: service.ask("GET", "/progress"), interval_s)
    else:
        print_once(output, lines, KIND, service.ask("GET", "/progress"))


async def _progress(uri: str, output: StreamFormat, interval_s: float, *, is_watching: bool) -> None:
    from auditor.service.watch.progress import make_repair_watch

    async with connected(uri) as client:
        watch, clock = make_repair_watch(client), client.ports.clock
        if not is_watching:
            document = await anext(progress_documents(watch, clock, interval_s))
            print_once(output, lines, KIND, document)
            return
        with shown(output, one_line, lines, KIND) as show:
            async for document in progress_documents(watch, clock, interval_s):
                show(document)


async def progress_documents(watch: RepairWatch, clock: Clock, interval_s: float) -> AsyncIterator[dict[str, Any]]:
    """Yield documents, one for each update, without an end."""
    from auditor.service.watch.progress import progress_document
    from auditor.service.watch.repairs import RateMeter, pause_s

    meter = RateMeter()
    while True:
        begun_s = clock.monotonic_s()
        observation = await watch.observe()
        took_s = clock.monotonic_s() - begun_s
        yield progress_document(observation, meter.add(observation))
        await clock.sleep(pause_s(observation, took_s, interval_s))


def lines(document: dict[str, Any]) -> list[str]:
    """Return the document as text."""
    made = [f"as of       {document['looked']}"]
    if not document["recovery_enabled"]:
        made.append("recovery    DISABLED: nothing is repaired; `bkheal recovery enable`")
    backlog = document["backlog"]
    made.append(
        f"backlog     {counted(backlog['ledgers'], 'ledger')}: {document['waiting']} waiting, "
        f"{document['in_flight_ledgers']} in progress, {sum(document['parked'].values())} parked"
    )
    for part in backlog["severities"]:
        estimate = f", about {copied_bytes(part['severity'], part['bytes_estimate'])}" if part["bytes_estimate"] else ""
        made.append(f"            {part['severity']}: {counted(part['ledgers'], 'ledger')}{estimate}")
    if document["boosted"]:
        made.append(f"boosted     {counted(document['boosted'], 'ledger')}")
    age_s = document["oldest_age_seconds"]
    if backlog["ledgers"]:
        made.append(f"oldest      {'unknown' if age_s is None else f'marked {duration(age_s * 1000)} ago'}")
    made += [f"parked      {count} {reason}" for reason, count in document["parked"].items()]
    made += [f"in progress {_flight_line(each)}" for each in document["in_flight"][:_SHOWN_MAX]]
    more = document["in_flight_ledgers"] - min(_SHOWN_MAX, len(document["in_flight"]))
    if more > 0:
        made.append(f"            and {more} more")
    return [*made, f"rate        {_rate_text(document)}", f"remaining   {_eta_text(document)}"]


def one_line(document: dict[str, Any]) -> str:
    """Return the document as one line of text, for logs."""
    parts = [f"{part['severity']} {part['ledgers']}" for part in document["backlog"]["severities"]]
    levels = f" ({', '.join(parts)})" if parts else ""
    return (
        f"{document['looked']} backlog {document['backlog']['ledgers']}{levels}, {document['in_flight_ledgers']} in "
        f"progress, {sum(document['parked'].values())} parked, rate {_rate_text(document)}, remaining "
        f"{_eta_text(document)}{'' if document['recovery_enabled'] else ', recovery DISABLED'}"
    )


def _flight_line(each: dict[str, Any]) -> str:
    worker = f" by {printable(each['worker'])}" if each["worker"] else ""
    copies = [f"to {copy['target']} {_done_text(copy)}" for copy in each["copies"][:3]]
    more = f" and {counted(len(each['copies']) - 3, 'more copy')}" if len(each["copies"]) > 3 else ""
    return f"ledger {each['ledger_id']}{worker} ({each['severity']}){': ' if copies else ''}{', '.join(copies)}{more}"


def _done_text(copy: dict[str, Any]) -> str:
    if copy["entries_done"] is None or copy["entries_total"] is None:
        return "(no progress recorded)"
    text = f"{copy['entries_done']} of {counted(copy['entries_total'], 'entry')}"
    if copy["bytes_done"] is None:
        return text
    return f"{text}, about {size(copy['bytes_done'])} of {size(copy['bytes_total'])}"


def _rate_text(document: dict[str, Any]) -> str:
    rate = document["ledgers_per_second"]
    if rate is None:
        return "unknown"
    measured = duration(document["measured_seconds"] * 1000)
    return f"{rate * 60:.1f} ledgers/min, about {size(document['bytes_per_second'])}/s, over {measured}"


def _eta_text(document: dict[str, Any]) -> str:
    eta_s = document["eta_seconds"]
    if eta_s is None:
        return "unknown"
    if eta_s:
        return f"about {duration(eta_s * 1000)}"
    return "only parked ledgers" if document["parked"] else "nothing"
