"""Dead letters, read from the store or from a running service, page by page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from auditor.cli.at import Service
from auditor.cli.changing import connected
from auditor.cli.paging import PAGE_ROWS_MAX, joined_pages
from auditor.cli.running import metadata_uri, run
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId


def page_of_letters(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    limit: int,
    after: int | None,
    reason: ParkReason | None,
) -> dict[str, Any]:
    """Return a page of ``limit`` dead letters, joined from the smaller pages of a service if necessary."""
    return joined_pages(lambda size, begin: part_of_letters(service, uri, config, size, begin, reason), limit, after)


def part_of_letters(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    size: int,
    begin: int | None,
    reason: ParkReason | None,
) -> dict[str, Any]:
    """Return a page of dead letters; it may be short."""
    if service is None:
        return run(_list(metadata_uri(uri, config), size, begin, reason))
    wanted = reason.value if reason else None
    query = {"limit": min(size, PAGE_ROWS_MAX), "after": begin, "reason": wanted}
    return service.ask("GET", "/dead-letters", query)


def all_letters(
    service: Service | None, uri: str | None, config: Path | None
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return all dead letters, and the ledgers with an unreadable record (an older auditor reports none)."""
    unreadable: list[int] = []

    def ask(size: int, begin: int | None) -> dict[str, Any]:
        part = part_of_letters(service, uri, config, size, begin, None)
        unreadable.extend(part.get("unreadable", ()))
        return part

    return joined_pages(ask, sys.maxsize, None)["items"], unreadable


async def _list(uri: str, limit: int, after: int | None, reason: ParkReason | None) -> dict[str, Any]:
    from auditor.operating.dead_letters import list_dead_letters

    async with connected(uri) as client:
        return await list_dead_letters(client, limit, None if after is None else LedgerId(after), reason)


def accepted_losses(service: Service | None, uri: str | None, config: Path | None) -> dict[str, Any]:
    """Return the ledgers whose losses were accepted."""
    return service.ask("GET", "/accepted-losses") if service else run(_list_accepted(metadata_uri(uri, config)))


async def _list_accepted(uri: str) -> dict[str, Any]:
    from auditor.operating.dead_letters import list_accepted

    async with connected(uri) as client:
        return await list_accepted(client)
