"""``bkheal dead-letters``: tasks that replicators have set aside, why, and how to have them tried again."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from auditor.cli.cluster.changing import (
    DryRunOption,
    YesOption,
    age_s,
    confirm,
    connected,
    refuse,
    show,
)
from auditor.cli.ledgers.options import LedgerArgument
from auditor.cli.output import OutputFormat, print_json, print_line, print_table
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import duration

app = typer.Typer(help="Marked ledgers that cannot be repaired as the cluster is now.", no_args_is_help=True)

ReasonOption = Annotated[ParkReason | None, typer.Option(help="Only those with this reason.", show_default=False)]

_ADVICE: Final = {
    ParkReason.NO_CANDIDATE_BOOKIE: "add a writable bookie; the task is then tried again by itself",
    ParkReason.NO_LIVE_COPY: "bring back a bookie that holds a copy; the task is then tried again by itself",
    ParkReason.NEEDS_RECOVERY: "bring back bookies of the last ensemble; until then the end of the ledger is unknown",
    ParkReason.UNREADABLE_ENTRIES: "every reachable bookie lacks these entries; bring back another bookie that has "
    "them, or repair the disk, then `bkheal dead-letters retry`",
    ParkReason.UNREADABLE_METADATA: "look at the ledger's node in ZooKeeper: it cannot be read; or it is of format 1, "
    "which keeps no password, and not closed: `bkheal ledger recover` with the password it was created with",
    ParkReason.OPEN_LEDGER: "its writer replaces the bookie with the next write or on closing; if the writer ended, "
    "close the ledger with `bkheal ledger recover`, but not while the bookie lacks entries",
    ParkReason.TARGETS_REFUSE: "look at the refusals below: free space on the bookies, correct their access rules, or "
    "add a bookie; the task is tried again every five minutes",
    ParkReason.SILENT_BOOKIES: "restart the bookies named below, or stop them permanently: their copies are "
    "then replaced; the task is tried again every five minutes",
    ParkReason.INTERNAL_ERROR: "report this with the detail below: it is a defect of bkheal, and nothing was changed; "
    "after an upgrade: `bkheal dead-letters retry`",
}


@app.command("list")
def list_parked(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    reason: ReasonOption = None,
) -> None:
    """List parked tasks with reason, age and evidence, the oldest first."""
    rows = [row for row in run(_list(metadata_uri(uri, config))) if reason is None or row["reason"] == reason.value]
    if output is OutputFormat.JSON:
        print_json("DeadLetterList", items=rows)
        return
    if not rows:
        print_line("no task is parked")
        return
    cells = [(row["ledger_id"], row["reason"], duration(row["age_seconds"] * 1000), row["detail"]) for row in rows]
    print_table(("LEDGER", "REASON", "AGE", "EVIDENCE"), cells, right=(0, 2))


@app.command("show")
def show_parked(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show all that is known of one parked task, and what would help."""
    row = next((row for row in run(_list(metadata_uri(uri, config))) if row["ledger_id"] == ledger), None)
    if row is None:
        refuse(f"ledger {ledger} is not parked; `bkheal underreplicated list` shows all that is marked")
    lines = [f"{name.replace('_', ' ')}: {', '.join(v) if isinstance(v, list) else v}" for name, v in row.items()]
    show(output, "DeadLetter", row, lines)


@app.command("retry")
def retry(
    ledgers: Annotated[
        list[int] | None, typer.Argument(min=0, metavar="LEDGER", help="Which ones.", show_default=False)
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    reason: ReasonOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every parked task.")] = False,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
) -> None:
    """Have replicators try parked tasks again: by ledger, by reason, or all. They are parked again if it is no use.

    Exit codes: 0 done (or nothing to do), 1 one of the ledgers is not parked, 2 none was chosen, 3 no answer.

    Example, after a disk was mended: `bkheal dead-letters retry --reason unreadable_entries --yes`
    """
    if not ledgers and reason is None and not is_all:
        raise typer.BadParameter("name ledgers, or use --reason or --all")
    rows = run(_list(metadata_uri(uri, config)))
    absent = sorted(set(ledgers or ()) - {row["ledger_id"] for row in rows})
    if absent:
        refuse(f"not parked: {', '.join(map(str, absent))}; nothing was changed")
    chosen = [
        row["ledger_id"]
        for row in rows
        if (not ledgers or row["ledger_id"] in ledgers) and (reason is None or row["reason"] == reason.value)
    ]
    if chosen and not is_dry_run:
        confirm(f"Have {len(chosen)} parked ledgers tried again?", is_sure=is_sure)
        run(_unpark(metadata_uri(uri, config), chosen))
    done = "would be" if is_dry_run else "will be"
    lines = [f"{len(chosen)} parked ledgers {done} tried again"]
    show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": chosen}, lines)


async def _list(uri: str) -> list[dict[str, Any]]:
    async with connected(uri) as client:
        tasks = {task.ledger_id: task for task in await client.ports.tasks.list()}
        parked = sorted(await client.parked.list(), key=lambda record: record.since_ms)
    return [_row(record, tasks[record.ledger_id].missing) for record in parked if record.ledger_id in tasks]


def _row(record: ParkedTask, missing: tuple[str, ...]) -> dict[str, Any]:
    return {
        "ledger_id": record.ledger_id,
        "reason": record.reason.value,
        "since": rfc3339_if_known(record.since_ms, "seconds"),
        "age_seconds": age_s(record.since_ms),
        "missing": list(missing),
        "detail": record.detail,
        "advice": _ADVICE[record.reason],
    }


async def _unpark(uri: str, ledgers: list[Any]) -> None:
    async with connected(uri) as client:
        for ledger_id in ledgers:
            await client.parked.unpark(ledger_id)
