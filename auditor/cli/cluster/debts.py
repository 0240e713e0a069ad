"""``bkheal debts``: ledgers with copies that repair had to put where the placement policy forbids them."""

from __future__ import annotations

from typing import Any

import typer

from auditor.cli.cluster.changing import connected
from auditor.cli.output import OutputFormat, print_json, print_line, print_table
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import printable

app = typer.Typer(help="Copies in places that the placement policy forbids.", no_args_is_help=True)


@app.callback()
def _debts() -> None:
    """Copies in places that the placement policy forbids."""


@app.command("list")
def list_debts(
    uri: MetadataUriOption = None, config: ConfigOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """List the ledgers with copies that repair had to put in a bad place, because no better bookie was registered.

    No entry is at risk for this alone. Replicators move the copies by themselves when bookies register or the topology
    changes, and a better place appears. Then the ledger is marked (`bkheal underreplicated list`), and the debt ends
    with the move. A debt whose ledger was moved or deleted in another way ends within ten minutes.

    Exit codes: 0 listed, 2 wrong usage, 3 the store did not answer.
    """
    rows = run(_list(metadata_uri(uri, config)))
    if output is OutputFormat.JSON:
        print_json("PlacementDebtList", items=rows)
        return
    if not rows:
        print_line("no placement debts")
        return
    print_table(
        ("LEDGER", "STATE", "SINCE", "FRAGMENTS", "DETAIL"),
        [
            (row["ledger_id"], row["state"], row["since"] or "-", len(row["fragments"]), printable(row["detail"]))
            for row in rows
        ],
        right=(0, 3),
    )


async def _list(uri: str) -> list[dict[str, Any]]:
    from bookie.metadata.tasks.debts import PlacementDebts

    async with connected(uri) as client:
        debts = await PlacementDebts(client.store, client.cluster.root).list()
        tasks = await client.ports.tasks.read_many([debt.ledger_id for debt in debts])
        return [
            {
                "ledger_id": debt.ledger_id,
                "state": "waiting" if task is None else "marked",
                "since": rfc3339_if_known(debt.since_ms),
                "fragments": list(debt.first_entry_ids),
                "detail": debt.detail,
            }
            for debt, task in zip(debts, tasks, strict=True)
        ]
