"""``bkheal status`` and ``bkheal underreplicated``: the present problems of a cluster, and the work on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.api.operations_port import TaskState
from auditor.cli.at import Service, reachable
from auditor.cli.changing import connected
from auditor.cli.output import StreamFormat
from auditor.cli.paging import (
    LIMIT_DEFAULT,
    PAGE_ROWS_MAX,
    AfterOption,
    LimitOption,
    joined_pages,
    print_page,
)
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from auditor.cli.watching import IntervalOption, WatchOption, print_once, shown, watched
from auditor.operating.copied_bytes import copied_bytes
from auditor.operating.owners import owner_text
from bookie.model.ids import LedgerId
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import counted, duration, printable, size

if TYPE_CHECKING:
    from bookie.client.connect import ConnectedBookKeeper

underreplicated_app = typer.Typer(help="Ledgers marked for repair.", no_args_is_help=True)
KIND: Final = "ClusterStatus"
_PLACES_AT_ONCE: Final = 5_000


@reachable
def status(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    is_watching: WatchOption = False,
    interval_s: IntervalOption = 5.0,
    *,
    service: Service | None = None,
) -> None:
    """Show the state of the cluster: bookies, leader, backlog by severity, parked tasks, runs, brake, delay and pauses.

    Everything is read from ZooKeeper, so no service is needed; with --at, an auditor reads it, and the document is the
    same. The remaining time needs two reads: use --watch. With --at this is not needed, because the auditor keeps its
    last reads.
    """
    if service is None:
        run(_status(metadata_uri(uri, config), output, interval_s, is_watching=is_watching))
    elif is_watching:
        watched(output, one_line, lines, KIND, lambda: service.ask("GET", "/cluster"), interval_s)
    else:
        print_once(output, lines, KIND, service.ask("GET", "/cluster"))


async def _status(uri: str, output: StreamFormat, interval_s: float, *, is_watching: bool) -> None:
    async with connected(uri) as client:
        if is_watching:
            with shown(output, one_line, lines, KIND) as show:
                async for document in status_documents(client, interval_s):
                    show(document)
            return
        print_once(output, lines, KIND, await anext(status_documents(client, interval_s)))


async def status_documents(client: ConnectedBookKeeper, interval_s: float) -> AsyncIterator[dict[str, Any]]:
    """Yield documents, one for each update, without an end."""
    from auditor.service.watch.cluster_status import cluster_status
    from auditor.service.watch.progress import make_repair_watch
    from auditor.service.watch.repairs import RateMeter, pause_s

    watch, meter, clock = make_repair_watch(client), RateMeter(), client.ports.clock
    while True:
        begun_s = clock.monotonic_s()
        observation = await watch.observe()
        took_s = clock.monotonic_s() - begun_s
        yield await cluster_status(client, observation, meter.add(observation))
        await clock.sleep(pause_s(observation, took_s, interval_s))


def lines(document: dict[str, Any]) -> list[str]:
    """Return the document as text."""
    bookies, backlog = document["bookies"], document["underreplicated"]
    made = [
        f"cluster     {document['ledgers_root']} (instance {document['instance_id']})",
        f"bookies     {bookies['writable']} writable, {bookies['read_only']} read-only, {len(bookies['lost'])} lost",
    ]
    made += [f"            lost: {bookie}" for bookie in bookies["lost"]]
    made += [f"            draining: {bookie}" for bookie in bookies["draining"]]
    made += [
        f"maintenance {printable(each['target'])} until {each['until']}, by {printable(each['by'])}"
        for each in document["maintenance"]
    ]
    delay_s = document["lost_bookie_delay_seconds"]
    made += [
        f"auditor     {printable(document['auditor'] or 'nobody leads')}",
        f"recovery    {'enabled' if document['recovery_enabled'] else 'DISABLED: `bkheal recovery enable`'}",
        f"delay       {'unreadable: set it again' if delay_s is None else f'{delay_s} s'}",
    ]
    if document["held_because"]:
        made.append(f"brake       HOLDS: {document['held_because']}")
    made.append(
        f"backlog     {backlog['waiting']} waiting, {backlog['in_progress']} in progress, {backlog['parked']} parked"
    )
    for name, part in backlog["severities"].items():
        estimate = f", about {copied_bytes(name, part['bytes_estimate'])}" if part["bytes_estimate"] else ""
        made.append(f"            {name}: {counted(part['ledgers'], 'ledger')}{estimate}")
    made += [f"            parked: {count} {reason}" for reason, count in backlog["parked_by_reason"].items()]
    if backlog["oldest_age_seconds"] is not None:
        made.append(f"oldest      marked {duration(backlog['oldest_age_seconds'] * 1000)} ago")
    if backlog["ledgers"]:
        made.append(f"remaining   {_eta(backlog)}")
    if (image := document["image"]) is not None:
        age = duration(image["age_seconds"] * 1000)
        by = printable(image["process"])
        made.append(
            f"image       {counted(image['ledgers'], 'ledger')}, {size(image['bytes'])}, read {age} ago by {by}"
        )
    for each in document["running"]:
        amount = f" {each['done']}/{each['total']}" if each["total"] else ""
        until = f" until {each['paused_until']}" if each["paused_until"] else ""
        dry = " (dry run)" if each["dry_run"] else ""
        made.append(
            f"run         {each['kind']}{dry} {each['run_id']} is {each['state']}{until}: {each['phase']}{amount}"
        )
    for each in document["pauses"]:
        made.append(f"paused      the schedule of {each['check']} until {each['until']}, by {printable(each['by'])}")
    return made


def one_line(document: dict[str, Any]) -> str:
    """Return the document as one line of text, for logs."""
    bookies, backlog = document["bookies"], document["underreplicated"]
    parts = [f"{name} {part['ledgers']}" for name, part in backlog["severities"].items()]
    levels = f" ({', '.join(parts)})" if parts else ""
    marks = [
        "" if document["recovery_enabled"] else ", recovery DISABLED",
        ", brake HOLDS" if document["held_because"] else "",
    ]
    return (
        f"{document['looked']} bookies {bookies['writable']}/{bookies['read_only']}/{len(bookies['lost'])} "
        f"writable/read-only/lost, backlog {backlog['ledgers']}{levels}, {backlog['in_progress']} in progress, "
        f"{backlog['parked']} parked, remaining {_eta(backlog)}{''.join(marks)}"
    )


def _eta(backlog: dict[str, Any]) -> str:
    eta_s = backlog["eta_seconds"]
    if eta_s is None:
        return "unknown"
    if eta_s:
        return f"about {duration(eta_s * 1000)}"
    return "only parked ledgers" if backlog["parked"] else "nothing"


@underreplicated_app.command("list")
@reachable
def list_tasks(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    missing: Annotated[str | None, typer.Option(help="Only ledgers that lack a copy on this bookie.")] = None,
    limit: LimitOption = LIMIT_DEFAULT,
    after: AfterOption = None,
    *,
    service: Service | None = None,
) -> None:
    """List under-replicated ledgers with their missing bookies, since when, and why they wait, by ledger id.

    A mark that cannot be read is listed without bookies and with the reason, also with --missing: its bookies are
    unknown.

    If there are more than --limit, a note on standard error names the value of --after for the next page.
    """
    if service is not None:
        page = _remote_marked_ledgers(service, missing, limit, after)
    else:
        page = run(_listed(metadata_uri(uri, config), missing, limit, after))
    print_page(
        output,
        "UnderReplicatedLedgerList",
        page,
        ("LEDGER", "STATE", "SINCE", "MISSING", "TOPIC", "DETAIL"),
        lambda row: (
            row["ledger_id"], _state(row), row["since"] or "-", ",".join(row["missing"]) or "-",
            printable(owner_text(row)), row["detail"],
        ),
        right=(0,),
        nothing="no ledger is marked under-replicated" + (f" because of {printable(missing)}" if missing else ""),
    )  # fmt: skip


def _state(row: dict[str, Any]) -> str:
    state = "in progress" if row["state"] == TaskState.IN_PROGRESS else str(row["state"])
    if row["state"] == TaskState.PARKED:
        state += f": {row['park_reason']}"
    return f"{state}, boosted" if row["boosted_until"] else state


def _remote_marked_ledgers(service: Service, missing: str | None, limit: int, after: int | None) -> dict[str, Any]:
    def page(left: int, following: int | None) -> dict[str, Any]:
        query = {"limit": min(left, PAGE_ROWS_MAX), "after": following, "missing": missing}
        return service.ask("GET", "/underreplicated", query)

    found = joined_pages(page, limit, after)
    ends = {boost["ledger_id"]: boost["until"] for boost in service.ask("GET", "/boosts")["items"]}
    return {"items": [_row_of(task, ends) for task in found["items"]], "next_after": found["next_after"]}


def _row_of(task: dict[str, Any], boosts: dict[int, str]) -> dict[str, Any]:
    """Return the row of a marked ledger from the service's document."""
    return {
        "ledger_id": task["ledger_id"],
        "state": task["state"],
        "park_reason": task["park_reason"],
        "since": task["marked"],
        "missing": task["missing"],
        "boosted_until": boosts.get(task["ledger_id"]),
        "detail": task["detail"] or "",
        **{name: task.get(name) for name in OWNER_COLUMNS},
    }


async def _listed(uri: str, missing: str | None, limit: int, after: int | None) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    async with connected(uri) as client:
        while True:
            page = await _part(client, missing, limit - len(rows), after)
            rows += page["items"]
            after = page["next_after"]
            if after is None or len(rows) >= limit:
                return {"items": rows, "next_after": after}


async def _part(client: ConnectedBookKeeper, missing: str | None, limit: int, after: int | None) -> dict[str, Any]:
    """Return the rows of the next places of the tree; the part may be short or empty even if more follow."""
    from auditor.operating.owners import with_owners
    from bookie.metadata.tasks.boosts import Boosts
    from bookie.metadata.tasks.underreplication import UnreadableTask

    tasks = client.ports.tasks
    places = min(limit, _PLACES_AT_ONCE) if missing is None else _PLACES_AT_ONCE
    part = await tasks.page(None if after is None else LedgerId(after), places)
    found = [
        task for task in part.tasks if missing is None or isinstance(task, UnreadableTask) or missing in task.missing
    ]
    kept, following = found[:limit], part.next_after
    if len(found) > limit:
        following = kept[-1].ledger_id
    ids = [task.ledger_id for task in kept]
    locked = await tasks.locks.locked_among(ids)
    parked = {park.ledger_id: park for park in await client.parked.read_many(ids, {})}
    active = await Boosts(client.store, client.cluster.root).active(client.ports.clock.epoch_ms())
    ends = {boost.ledger_id: boost.until_ms for boost in active}
    rows = []
    for task in kept:
        park = parked.get(task.ledger_id)
        is_locked = task.ledger_id in locked
        state = TaskState.IN_PROGRESS if is_locked else TaskState.PARKED if park else TaskState.WAITING
        rows.append(
            {
                "ledger_id": task.ledger_id,
                "state": state.value,
                "park_reason": park.reason.value if park else None,
                "since": None if isinstance(task, UnreadableTask) else rfc3339_if_known(task.ctime_ms),
                "missing": [] if isinstance(task, UnreadableTask) else list(task.missing),
                "boosted_until": rfc3339_if_known(ends.get(task.ledger_id, -1)),
                "detail": task.reason if isinstance(task, UnreadableTask) else park.detail if park else "",
            }
        )
    return {"items": await with_owners(client.ports.ledgers, rows), "next_after": following}
