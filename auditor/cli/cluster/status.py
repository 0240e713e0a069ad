"""``bkheal status`` and ``bkheal underreplicated``: what is wrong now, and what is being done about it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.output import OutputFormat, print_json, print_line, print_table
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import printable

underreplicated_app = typer.Typer(help="Ledgers marked for repair.", no_args_is_help=True)


def status(
    uri: MetadataUriOption = None, config: ConfigOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """One look at the cluster: bookies, who leads the auditors, repair backlog, what is parked and why."""
    document = run(_status(metadata_uri(uri, config)))
    if output is OutputFormat.JSON:
        print_json("ClusterStatus", **document)
        return
    bookies, backlog = document["bookies"], document["underreplicated"]
    print_line(f"cluster     {document['ledgers_root']} (instance {document['instance_id']})")
    print_line(
        f"bookies     {bookies['writable']} writable, {bookies['read_only']} read-only, {len(bookies['down'])} down"
    )
    for bookie in bookies["down"]:
        print_line(f"            down: {bookie}")
    for window in document["maintenance"]:
        print_line(f"maintenance {printable(window['target'])} until {window['until']}, by {printable(window['by'])}")
    print_line(f"auditor     {printable(document['auditor'] or 'nobody leads')}")
    print_line(f"recovery    {'enabled' if document['recovery_enabled'] else 'DISABLED'}")
    print_line(
        f"backlog     {backlog['waiting']} waiting, {backlog['in_progress']} in progress, {backlog['parked']} parked"
    )
    for reason, count in backlog["parked_by_reason"].items():
        print_line(f"            parked: {count} {reason}")


@underreplicated_app.command("list")
def list_tasks(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    missing: Annotated[str | None, typer.Option(help="Only ledgers that miss a copy on this bookie.")] = None,
) -> None:
    """List under-replicated ledgers with the bookies they miss, since when, and why they wait."""
    rows = [row for row in run(_tasks(metadata_uri(uri, config))) if missing is None or missing in row["missing"]]
    if output is OutputFormat.JSON:
        print_json("UnderReplicatedLedgerList", items=rows)
        return
    if not rows:
        print_line("no ledger is marked under-replicated")
        return
    print_table(
        ("LEDGER", "STATE", "SINCE", "MISSING", "DETAIL"),
        [
            (row["ledger_id"], _state(row), row["since"] or "-", ",".join(row["missing"]) or "-", row["detail"])
            for row in rows
        ],
        right=(0,),
    )


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']}, boosted" if row["boosted_until"] else row["state"]


async def _status(uri: str) -> dict[str, Any]:
    from collections import Counter

    from auditor.cli.cluster.maintenance import document as window_document
    from bookie.client.connect import connect
    from bookie.metadata.bookies.maintenance import MaintenanceWindows
    from bookie.metadata.runs.election import current_auditor

    async with await connect(uri, security=bookie_security()) as client:
        registered = await client.ports.registrations.list()
        known = await client.ports.registrations.known()
        tasks = await client.ports.tasks.list()
        locked = await client.ports.tasks.locks.locked()
        marked = {task.ledger_id for task in tasks}
        parked = [park for park in await client.parked.list() if park.ledger_id in marked]
        held = marked & locked
        windows = MaintenanceWindows(client.store, client.cluster.root)
        return {
            "ledgers_root": client.cluster.root,
            "instance_id": client.cluster.instance_id,
            "auditor": await current_auditor(client.store, client.cluster.root) or None,
            "recovery_enabled": not await client.ports.tasks.switches.is_disabled(),
            "bookies": {
                "writable": len(registered.writable),
                "read_only": len(registered.read_only),
                "down": sorted(known - registered.registered),
            },
            "maintenance": [window_document(window) for window in await windows.open_at(client.ports.clock.epoch_ms())],
            "underreplicated": {
                "ledgers": len(tasks),
                "in_progress": len(held),
                "parked": len(parked),
                "waiting": len(marked - held - {park.ledger_id for park in parked}),
                "parked_by_reason": dict(Counter(park.reason.value for park in parked)),
            },
        }


async def _tasks(uri: str) -> list[dict[str, Any]]:
    from bookie.client.connect import connect
    from bookie.metadata.tasks.boosts import Boosts

    async with await connect(uri, security=bookie_security()) as client:
        tasks = await client.ports.tasks.list()
        locked = await client.ports.tasks.locks.locked()
        parked = {park.ledger_id: park for park in await client.parked.list()}
        active = await Boosts(client.store, client.cluster.root).active(client.ports.clock.epoch_ms())
    ends = {boost.ledger_id: boost.until_ms for boost in active}
    rows = []
    for task in sorted(tasks, key=lambda task: task.ledger_id):
        park = parked.get(task.ledger_id)
        state = "in progress" if task.ledger_id in locked else f"parked: {park.reason.value}" if park else "waiting"
        rows.append(
            {
                "ledger_id": task.ledger_id,
                "state": state,
                "since": rfc3339_if_known(task.ctime_ms, "seconds"),
                "missing": list(task.missing),
                "boosted_until": rfc3339_if_known(ends.get(task.ledger_id, -1), "seconds"),
                "detail": park.detail if park else "",
            }
        )
    return rows
