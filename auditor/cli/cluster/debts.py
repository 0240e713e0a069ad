"""``bkheal debts``: ledgers with copies in places forbidden by the placement policy."""

from __future__ import annotations

from typing import Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import connected
from auditor.cli.output import StreamFormat
from auditor.cli.paging import PAGE_ROWS_MAX, joined_pages, print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from bookie.metadata.tasks.debts import DEBTS_MAX
from bookie.runtime.human import printable

_LISTED_MAX: Final = 2 * DEBTS_MAX
"""Largest number of listed debts. Concurrent workers may record more than the bound, so this is twice the bound."""

app = typer.Typer(help="Copies in places that the placement policy forbids.", no_args_is_help=True)


@app.callback()
def _debts() -> None:
    """Copies in places that the placement policy forbids."""


@app.command("list")
@reachable
def list_debts(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the ledgers with copies that repair had to put in a bad place, because no better bookie was registered.

    A debt by itself puts no entry at risk. Replicators move the copies by themselves when a better place appears, after
    bookies register or the topology changes. Then the ledger is marked (`bkheal underreplicated list`), and the debt
    ends with the move. A debt whose ledger was moved or deleted in another way ends within ten minutes.

    Exit codes: 0 listed, 2 wrong usage, 3 the store did not answer.
    """
    rows = _remote_debts(service) if service else run(_list(metadata_uri(uri, config)))
    print_page(
        output,
        "PlacementDebtList",
        {"items": rows},
        ("LEDGER", "STATE", "SINCE", "FRAGMENTS", "DETAIL"),
        lambda row: (
            *(row["ledger_id"], row["state"], row["since"] or "-", len(row["fragments"])),
            printable(row["detail"]),
        ),
        right=(0, 3),
        nothing="no placement debts",
    )


def _remote_debts(service: Service) -> list[dict[str, Any]]:
    def page(left: int, after: int | None) -> dict[str, Any]:
        return service.ask("GET", "/debts", {"limit": min(left, PAGE_ROWS_MAX), "after": after})

    return list(joined_pages(page, _LISTED_MAX, None)["items"])


async def _list(uri: str) -> list[dict[str, Any]]:
    from auditor.operating.debts import list_debts

    async with connected(uri) as client:
        return list((await list_debts(client, _LISTED_MAX))["items"])
