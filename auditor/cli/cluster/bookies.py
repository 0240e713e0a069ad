"""``bkheal bookies``: lists the bookies."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.cli.at import Service, reachable
from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.output import StreamFormat, print_note
from auditor.cli.paging import print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from auditor.operating.bookie_list import BookieList, bookie_row, list_bookies, unmarked_because
from auditor.operating.client import Document
from bookie.runtime.human import size


@reachable
def bookies(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List every bookie that ever joined, with its state, address and disk. Notes contain when a bookie was lost.

    LEDGERS are those with entries on its disks. They include ledgers that moved to other bookies, until the bookie
    deletes their entries.

    With --at, the figures are the auditor's, at most 15 seconds old.
    """
    found = _remote_bookies(service) if service else run(_bookies(metadata_uri(uri, config)))
    print_page(
        output,
        "BookieList",
        {"items": list(found.rows)},
        ("BOOKIE", "STATE", "ENDPOINT", "LEDGERS", "FREE", "DISK"),
        lambda row: (
            row["bookie_id"],
            row["state"],
            row["endpoint"] or "-",
            "-" if row["ledgers"] is None else row["ledgers"],
            "-" if row["disk_free_bytes"] is None else size(row["disk_free_bytes"]),
            "-" if row["disk_total_bytes"] is None else size(row["disk_total_bytes"]),
        ),
        right=(3, 4, 5),
        nothing="no bookie has joined this cluster",
    )
    for note in _notes(found) if output is StreamFormat.TABLE else ():
        print_note(note)


def _notes(found: BookieList) -> Iterator[str]:
    """Yield what the table does not show: silent bookies, and when the ledgers of lost ones are marked."""
    for row in found.rows:
        if row["detail"] is not None and row["state"] != "lost":
            yield f"{row['bookie_id']} is registered and did not answer: {row['detail']}"
        if row["first_seen_down"] is not None:
            yield f"{row['bookie_id']} is lost since {row['first_seen_down']}; {_marking(row, found.unmarked_because)}"
    if found.unmarked_because and any(row["state"] == "lost" for row in found.rows):
        yield f"nothing is marked now: {found.unmarked_because}"


def _marking(row: Document, unmarked: str | None) -> str:
    if row["detail"] is not None:
        return str(row["detail"])
    if row["audit_due"] is None:
        return "its ledgers have been marked"
    return f"its ledgers {'are marked from' if unmarked is None else 'are not marked before'} {row['audit_due']}"


def _remote_bookies(service: Service) -> BookieList:
    draining = {row["bookie_id"] for row in service.ask("GET", "/drains")["items"]}
    rows = [_row_of(view, draining) for view in service.ask("GET", "/bookies")["items"]]
    seen = service.ask("GET", "/status")
    return BookieList(tuple(rows), unmarked_because(seen["held_because"], is_enabled=seen["recovery_enabled"]))


def _row_of(view: Document, draining: set[str]) -> Document:
    """Return a bookie's row from the service's document, which has no incarnation, and no reason for no answer."""
    is_draining = view["state"] != "lost" and view["bookie_id"] in draining
    return bookie_row(
        view["bookie_id"],
        "draining" if is_draining else view["state"],
        endpoint=f"{view['protocol']}://{view['host']}:{view['port']}" if view["protocol"] else None,
        ledgers=view["ledger_count"],
        disk_free_bytes=view["disk_free_bytes"],
        disk_total_bytes=view["disk_total_bytes"],
        first_seen_down=view["first_seen_down"],
        audit_due=view["audit_due"],
    )


async def _bookies(uri: str) -> BookieList:
    from bookie.client.connect import connect

    async with await connect(uri, security=bookie_security()) as client:
        return await list_bookies(client)
