"""Drains: list, begin and cancel, with a record of each change.

Does not belong here: the data left on a bookie (``auditor.operating.drain_status``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from auditor.operating.client import Actor, ClusterClient, Document, RefusedError, check_names
from auditor.safety.draining import holdings_of, mark, unreadable_marks
from auditor.safety.scan import Advance, Shape, count, scan
from auditor.safety.stopping import room_problems
from bookie.metadata.bookies.drains import (
    DRAINS_PER_REQUEST_MAX,
    Drain,
    DrainListing,
    Drains,
    DrainsChangedError,
)
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.bookies.service_info import PROTOCOL_GRPC
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.times import rfc3339_if_known

_FORCE: Final = "use `bkheal drain start --force`, without --at"
"""The advice names only a local command, because the service makes this check as well and its requests cannot force."""
CHECKS_MAX: Final = 5
"""Number of checks. If other drains begin or end during each of them, the drain is refused."""
Counting = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows progress of a step with a number of items."""


def silent(title: str, total: int) -> AbstractContextManager[Advance]:
    """Return a ``Counting`` that shows nothing."""
    return nullcontext(lambda done: None)


async def list_drains(client: ClusterClient) -> Document:
    """Return the bookies being drained, since when and by whom, and how each is registered.

    Raises:
        StoreUnavailableError: no answer.
    """
    drains = await Drains(client.store, client.cluster.root).read()
    registered = await client.ports.registrations.list()
    rows = [
        {
            "bookie_id": bookie,
            "since": rfc3339_if_known(drain.since_ms, "seconds"),
            "by": drain.by,
            "state": registered_as(bookie, registered),
        }
        for bookie, drain in sorted(drains.items())
    ]
    return {"items": rows}


def registered_as(bookie: BookieId, registered: Bookies) -> str:
    """Return how a bookie is registered, in the words of documents."""
    if bookie in registered.writable:
        return "writable"
    return "read_only" if bookie in registered.read_only else "lost"


async def bookies_without_drain_support(
    registrations: Registrations, bookies: Sequence[BookieId]
) -> tuple[list[BookieId], list[BookieId]]:
    """Return those of ``bookies`` that do not support drains and keep their state: writable ones, and read-only ones.

    They support only Apache's protocol. A bookie whose information is not readable counts as one of them.

    Raises:
        StoreUnavailableError: no answer.
    """
    listed = await registrations.list()
    infos = [(bookie, await registrations.service_info(bookie)) for bookie in bookies if bookie in listed.registered]
    apaches = [bookie for bookie, info in infos if info is None or info.endpoint(PROTOCOL_GRPC) is None]
    writable = [bookie for bookie in apaches if bookie in listed.writable]
    return writable, [bookie for bookie in apaches if bookie in listed.read_only]


async def check_startable(
    client: ClusterClient,
    bookies: Sequence[BookieId],
    *,
    is_dry_run: bool = False,
    is_forced: bool = False,
    counting: Counting = silent,
) -> DrainListing | None:
    """Refuse drains that would not finish, or would leave writers without bookies.

    Bookies of other drains count as leaving. Returns the drains on which this decision is based; None if it is forced.

    Raises:
        NoSuchObjectError: a name is not a bookie.
        RefusedError: the drains would do so; the message has the reason.
        StoreUnavailableError, NotAClusterError: see ``scan``.
    """
    ports = client.ports
    if len(bookies) > DRAINS_PER_REQUEST_MAX:
        raise RefusedError(f"name at most {DRAINS_PER_REQUEST_MAX} bookies at once")
    await check_names(client, bookies)
    seen = await Drains(client.store, client.cluster.root).current()
    registered = await ports.registrations.list()
    away = sorted(set(bookies) - registered.registered)
    if away:
        raise RefusedError(
            f"these bookies are not registered: {', '.join(away)}; "
            f"`bkheal recover {' '.join(away)}` marks their ledgers for repair"
        )
    if is_forced:
        return None
    if not is_dry_run and await ports.tasks.switches.is_disabled():
        raise RefusedError(
            f"auto-recovery is disabled, so nothing would be copied: run `bkheal recovery enable` first, or {_FORCE}"
        )
    shapes: set[Shape] = set()

    def visit(_: LedgerId, metadata: LedgerMetadata) -> None:
        shapes.add(Shape(metadata.ensemble_size, metadata.write_quorum))

    with counting("ledgers", await count(ports.ledgers)) as advance:
        scanned = await scan(ports.ledgers, bookies, visit, advance)
    if registered.writable & set(bookies):
        shapes |= set(scanned.unclosed)  # their writers may need new ensembles
    others = replace(registered, writable=registered.writable - seen.bookies)
    problems = room_problems(shapes, others, bookies, ports.placement, are_copies_moved=True)
    if problems:
        raise RefusedError(f"there would be too few bookies: {'; '.join(problems)}. Add bookies, or {_FORCE}")
    return seen


async def check_and_record(
    client: ClusterClient,
    bookies: Sequence[BookieId],
    record: Callable[[DrainListing | None], Awaitable[None]],
    *,
    is_forced: bool = False,
    counting: Counting = silent,
) -> None:
    """Call ``record`` with the result of ``check_startable``, and check again if another drain began or ended.

    So two drains are not both recorded if there are enough remaining bookies for only one of them.

    Raises:
        RefusedError: see ``check_startable``; or other drains began or ended during every check.
        Exception: any error of ``check_startable`` and ``record``.
    """
    for _ in range(CHECKS_MAX):
        seen = await check_startable(client, bookies, is_forced=is_forced, counting=counting)
        try:
            await record(seen)
        except DrainsChangedError:
            continue
        return
    raise RefusedError("other drains began or ended during every check: run the command again")


async def check_unchanged(client: ClusterClient, seen: DrainListing | None) -> None:
    """Check before the first change that the drains are still those in ``seen``; None: nothing is checked.

    Raises:
        DrainsChangedError: one began or ended.
        StoreUnavailableError: no answer.
    """
    if seen is not None and await Drains(client.store, client.cluster.root).current() != seen:
        raise DrainsChangedError("another drain began or ended at the same time")


async def record_change(client: ClusterClient, actor: Actor, bookies: Sequence[BookieId]) -> None:
    """Record a change before it is made. Raises the errors of ``Actor.record``."""
    await actor.record(client, "drain start", ", ".join(bookies))


async def record_drains(
    client: ClusterClient, actor: Actor, bookies: Sequence[BookieId], seen: DrainListing | None
) -> None:
    """Record all drains or none. For ``seen`` and errors see ``Drains.start``. Idempotent."""
    now_ms = client.ports.clock.epoch_ms()
    drains = [Drain(bookie, actor.name, now_ms) for bookie in bookies]
    await Drains(client.store, client.cluster.root).start(*drains, seen=seen)


async def start_drains(
    client: ClusterClient,
    actor: Actor,
    bookies: Sequence[BookieId],
    recording: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> Document:
    """Check drains, record them, and mark the ledgers on the bookies. Idempotent.

    Each attempt to record the drains is made inside ``recording()``.

    Raises:
        NoSuchObjectError, RefusedError: see ``check_and_record``; no drain was begun.
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError, NotAClusterError: starting again is safe.
    """
    is_noted = False

    async def record(seen: DrainListing | None) -> None:
        nonlocal is_noted
        async with recording():
            if not is_noted:
                await record_change(client, actor, bookies)
                is_noted = True
            await record_drains(client, actor, bookies, seen)

    await check_and_record(client, bookies, record)
    return await mark_drained(client, bookies)


async def mark_drained(
    client: ClusterClient, bookies: Sequence[BookieId], *, is_dry_run: bool = False, counting: Counting = silent
) -> Document:
    """Mark the ledgers on bookies whose drains are recorded; return the document ``DrainStart``. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError, NotAClusterError: starting again is safe.
    """
    ports = client.ports
    stay_writable, stay_read_only = await bookies_without_drain_support(ports.registrations, bookies)
    # The ledgers are read after the drains are recorded. A client that chose one of the bookies before that has either
    # written its ledger, so it is found here, or finds the bookie read-only.
    with counting("ledgers", await count(ports.ledgers)) as advance:
        found, scanned = await holdings_of(ports.ledgers, bookies, advance)
    unreadable = await unreadable_marks(ports.tasks, found.ledgers)
    if not is_dry_run:
        with counting("marked", len(found.ledgers)) as advance:
            await mark(ports.tasks, found.ledgers, advance)
    return {
        "dry_run": is_dry_run,
        "bookies": list(bookies),
        "ledgers": len(found.ledgers),
        "open_ledgers": len(found.unclosed),
        "fragments": found.fragments,
        "bytes": found.bytes,
        "unreadable_ledgers": scanned.unreadable_count,
        "unreadable_marks": len(unreadable),
        "stay_writable": list(stay_writable),
        "stay_read_only": list(stay_read_only),
    }


async def stop_drains(
    client: ClusterClient,
    actor: Actor,
    bookies: Sequence[BookieId],
    *,
    is_dry_run: bool = False,
    on_stopped: Callable[[BookieId], None] = lambda bookie: None,
) -> Document:
    """Cancel drains; ``stopped`` names the existing ones. If there is none, nothing is changed. Idempotent.

    Args:
        client: of the cluster.
        actor: the requester.
        bookies: the bookies whose drains are cancelled.
        is_dry_run: change nothing.
        on_stopped: called after each drain is cancelled, so that a caller knows what was done before an error.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; stopping again is safe.
    """
    drains = Drains(client.store, client.cluster.root)
    recorded = await drains.read()
    known = [bookie for bookie in bookies if bookie in recorded]
    if is_dry_run or not known:
        return {"dry_run": is_dry_run, "stopped": known}
    await actor.record(client, "drain stop", ", ".join(known))
    stopped = []
    for bookie in known:
        if await drains.stop(bookie):
            stopped.append(bookie)
            on_stopped(bookie)
    return {"dry_run": False, "stopped": stopped}
