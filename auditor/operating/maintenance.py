"""Opens, lists and ends maintenance windows, with a record of each change (R71, docs/failure-model.md)."""

from __future__ import annotations

from typing import Any, Final

from auditor.operating.client import Actor, ClusterClient, Document, RefusedError, check_names
from auditor.operating.racks import bookies_of_rack
from bookie.metadata.bookies.maintenance import BOOKIES_MAX, MaintenanceWindow, MaintenanceWindows
from bookie.model.ids import BookieId, bookie_id
from bookie.model.times import rfc3339, rfc3339_if_known
from bookie.model.topology import Topology, location

RACK: Final = "rack:"
"""The prefix of a window's target if it is a rack."""
NOTE_MAX: Final = 200
"""Largest number of recorded characters of a note."""


def window_target(text: str) -> str:
    """Return the key of a window, in one spelling for each rack and bookie. Pure.

    Raises:
        InvalidLocationError, InvalidIdError: the text names neither a rack nor a bookie.
    """
    return f"{RACK}{location(text.removeprefix(RACK))}" if text.startswith(RACK) else bookie_id(text)


def window_document(window: MaintenanceWindow) -> Document:
    """Return a maintenance window as JSON. Pure."""
    return {
        "target": window.target,
        "bookies": list(window.bookies),
        "by": window.by,
        "since": rfc3339_if_known(window.since_ms),
        "until": rfc3339_if_known(window.until_ms),
        "hold_critical": window.holds_critical,
        "note": window.note or None,
    }


async def list_windows(client: ClusterClient) -> Document:
    """Return the windows that are open now, by target; at most ``WINDOWS_MAX``.

    Raises:
        StoreUnavailableError: no answer.
    """
    windows = MaintenanceWindows(client.store, client.cluster.root)
    found = await windows.open_at(client.ports.clock.epoch_ms())
    return {"items": [window_document(window) for window in found]}


async def start_window(
    client: ClusterClient,
    actor: Actor,
    target: str,
    span_s: int,
    *,
    is_critical_held: bool = False,
    note: str = "",
    topology: Topology | None = None,
    is_dry_run: bool = False,
) -> Document:
    """Open a window, or replace the one of the same target.

    Args:
        client: of the cluster.
        actor: the requester.
        target: as ``window_target`` returns it.
        span_s: how long it is open, in seconds.
        is_critical_held: whether ledgers with one copy left wait as well.
        note: the reason; the first ``NOTE_MAX`` characters are kept.
        topology: the racks of the bookies; None: the topology in the store.
        is_dry_run: change nothing.

    Raises:
        NoSuchObjectError: the target is not a bookie of the cluster.
        RefusedError: no bookie is in the rack, or too many are.
        TooManyWindowsError, InvalidTopologyError: see their documentation.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; starting again is safe.
    """
    if target.startswith(RACK):
        bookies = await bookies_of_rack(client, topology, target.removeprefix(RACK))
    else:
        bookies = (BookieId(target),)
        await check_names(client, bookies)
    if len(bookies) > BOOKIES_MAX:
        raise RefusedError(f"{target} has {len(bookies)} bookies; a window may name {BOOKIES_MAX}")
    now_ms = client.ports.clock.epoch_ms()
    window = MaintenanceWindow(
        target, bookies, actor.name, now_ms, now_ms + span_s * 1000, is_critical_held, note.strip()[:NOTE_MAX]
    )
    if not is_dry_run:
        detail = f"{target} until {rfc3339(window.until_ms)}{' with critical' if is_critical_held else ''}"
        await actor.record(client, "maintenance start", detail)
        await MaintenanceWindows(client.store, client.cluster.root).start(window)
    return {"dry_run": is_dry_run, **window_document(window)}


async def end_window(client: ClusterClient, actor: Actor, target: str, *, is_dry_run: bool = False) -> Document:
    """End a window; ``was_open`` is false if there was none, and then nothing is changed. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; ending again is safe.
    """
    windows = MaintenanceWindows(client.store, client.cluster.root)
    await client.store.sync(client.cluster.root)  # so that a change made just before is found
    was_open = any(window.target == target for window in await windows.open_at(client.ports.clock.epoch_ms()))
    if was_open and not is_dry_run:
        await actor.record(client, "maintenance end", target)
        await windows.end(target)
    fields: dict[str, Any] = {"dry_run": is_dry_run, "target": target, "was_open": was_open}
    return fields
