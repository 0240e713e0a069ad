"""``bkheal drain status --at``: an auditor checks the data left, and this process waits between the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from auditor.cli.drains.watch import POLL_SHARE
from bookie.model.ids import BookieId

if TYPE_CHECKING:
    from auditor.cli.at import Service

POLL_S: Final = 10.0
"""Shortest pause between two checks, because the auditor reads all ledgers for each of them."""


def remote_drain_status(
    service: Service,
    bookies: Sequence[BookieId],
    *,
    is_waiting: bool,
    timeout_s: float | None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return the document ``DrainStatus``; if ``is_waiting``, request it until nothing is left, or the time has passed.

    The wait also ends if a bookie is registered and not being drained (``not_drained``).

    Args:
        service: the auditor.
        bookies: the bookies; none: all drained ones.
        is_waiting: whether to repeat the request.
        timeout_s: the longest wait, seconds; None: as long as it takes.
        sleep: waits.
        monotonic_s: the clock.

    Raises:
        RemoteUnavailableError, RemoteRefusedError: see ``Service.ask``.
    """
    started_s = monotonic_s()
    document = service.ask("GET", "/drain-status", {"bookie": list(bookies) or None})
    at_start, polled_s = document["ledgers_left"], monotonic_s() - started_s
    while is_waiting and document["ledgers_left"]:
        if not_drained(service, document):
            break
        pause_s = max(POLL_S, polled_s / POLL_SHARE)
        begun_s = monotonic_s()
        if timeout_s is not None and begun_s - started_s + pause_s > timeout_s:
            break
        sleep(pause_s)
        begun_s = monotonic_s()
        chosen = [row["bookie_id"] for row in document["bookies"]]
        document = service.ask("GET", "/drain-status", {"bookie": chosen})
        polled_s = monotonic_s() - begun_s
        passed_s, moved = monotonic_s() - started_s, at_start - document["ledgers_left"]
        if moved > 0 and passed_s > 0:
            document["ledgers_per_second"] = moved / passed_s
            document["eta_seconds"] = document["ledgers_left"] * passed_s / moved
    return document


def not_drained(service: Service, document: Mapping[str, Any]) -> list[BookieId]:
    """Return the bookies of a document ``DrainStatus`` that are registered and not being drained.

    The time of a damaged record of a drain is unknown, so a bookie without a time is looked up among the drains.

    Raises:
        RemoteUnavailableError, RemoteRefusedError: see ``Service.ask``.
    """
    without = [
        BookieId(row["bookie_id"]) for row in document["bookies"] if row["state"] != "lost" and row["since"] is None
    ]
    if not without:
        return []
    drained = {row["bookie_id"] for row in service.ask("GET", "/drains")["items"]}
    return [bookie for bookie in without if bookie not in drained]
