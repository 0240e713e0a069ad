"""``bkheal changes``: the record of changes by commands and by the API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import connected
from auditor.cli.output import StreamFormat
from auditor.cli.paging import print_note_at_limit, print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from bookie.metadata.tasks.changes import CHANGES_MAX
from bookie.runtime.human import printable


@reachable
def changes(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    limit: Annotated[int, typer.Option(min=1, max=CHANGES_MAX, help="Number of newest changes to list.")] = 100,
    *,
    service: Service | None = None,
) -> None:
    """List the changes requested by operators, the newest first: when, who, by which interface, and what.

    A record is written before its change, so a failed change is listed as well. About 1000 records are kept. Changes by
    Apache's tools are not recorded.
    """
    page = service.ask("GET", "/changes", {"limit": limit}) if service else run(_list(metadata_uri(uri, config), limit))
    print_page(
        output,
        "ChangeList",
        page,
        ("AT", "BY", "VIA", "ACTION", "DETAIL"),
        lambda row: (
            row["at"] or "-",
            printable(row["by"]) or "-",
            row["via"] or "-",
            printable(row["action"]),
            printable(row["detail"]),
        ),
        right=(),
        nothing="no change is on record",
    )
    print_note_at_limit(output, len(page["items"]), limit, CHANGES_MAX)


async def _list(uri: str, limit: int) -> dict[str, Any]:
    from auditor.operating.client import changes_of
    from auditor.operating.switches import change_row

    async with connected(uri) as client:
        return {"items": [change_row(change) for change in await changes_of(client).newest(limit)]}
