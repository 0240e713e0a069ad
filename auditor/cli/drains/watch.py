"""Waits for the end of drains: it reads all ledgers, checks the remaining ones repeatedly, and reads all again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from auditor.cli.output import counting, print_note
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted

if TYPE_CHECKING:
    from auditor.cli.drains.topic_unloading import TopicUnloading
    from auditor.operating.drain_status import DrainObservation
    from auditor.safety.draining import Left
    from bookie.client.connect import ConnectedBookKeeper

POLL_S: Final = 2.0
"""Pause between two checks; longer if a check itself takes longer."""
POLL_SHARE: Final = 0.2
"""Largest share of the time spent on checks."""
OnFirstObservation = Callable[["Left"], None]
REMARK_INTERVAL_S: Final = 30.0
"""Time between two marks of ledgers without a task. It is long enough for a worker that has just completed a task."""


async def watch(
    client: ConnectedBookKeeper,
    bookies: tuple[BookieId, ...],
    drains: Mapping[BookieId, Drain],
    *,
    is_waiting: bool,
    timeout_s: float | None,
    unloading: TopicUnloading | None = None,
    on_first: OnFirstObservation | None = None,
) -> DrainObservation:
    """Check the data left on ``bookies``; if ``is_waiting``, repeat this until nothing is left, or the time has passed.

    The wait also ends if one of the bookies is registered and not being drained, because nothing moves its data.
    Ledgers without a task are marked only for bookies that are being drained at that time.

    With ``unloading``, the wait also ends if only open ledgers are left and their topics cannot be unloaded.
    ``on_first`` receives the result of the first check. If nothing is left, the last check has read all ledgers.

    Raises:
        NotAClusterError, StoreUnavailableError: no answer.
        WriteOutcomeUnknownError, ConflictError: marking again failed; watch again.
    """
    from auditor.operating.drain_status import accepted_losses_on, observe_drains, remaining_data_on
    from auditor.safety.draining import Left, judge, mark_unmarked, read_holdings_of_ledgers

    ports = client.ports
    clock = ports.clock
    started_s = clock.monotonic_s()
    marked_s = started_s - REMARK_INTERVAL_S
    left = await remaining_data_on(client, bookies, counting)
    if on_first is not None:
        on_first(left)
    at_start = len(left.holdings.ledgers)
    polled_s = clock.monotonic_s() - started_s
    not_drained: list[BookieId] = []
    is_noted = False
    with counting("moved", at_start) as advance:
        while is_waiting and not left.is_certainly_empty:
            before, begun_s = len(left.holdings.ledgers), clock.monotonic_s()
            if not before and not left.scanned.is_complete:
                break  # unreadable metadata does not become readable by waiting
            drains = await Drains(client.store, client.cluster.root).read()
            registered = (await ports.registrations.list()).registered
            if not_drained := [bookie for bookie in bookies if bookie in registered and bookie not in drains]:
                break
            if left.unmarked and begun_s - marked_s >= REMARK_INTERVAL_S:
                await mark_unmarked(ports, left, drains.keys())
                marked_s = begun_s
            if not is_noted:
                is_noted = _note_never_marked(left, drains)
            if unloading is not None:
                writable = (await ports.registrations.list()).writable & frozenset(bookies)
                left_s = None if timeout_s is None else max(0.0, started_s + timeout_s - begun_s)
                await unloading.unload_due(left.holdings.open_topics, writable, left_s)
                if unloading.failure(left.holdings) is not None:
                    break
                begun_s = clock.monotonic_s()
            pause_s = max(POLL_S if before else 0.0, polled_s / POLL_SHARE if before else 0.0)
            if timeout_s is not None and begun_s - started_s + pause_s > timeout_s:
                break
            await clock.sleep(pause_s)
            begun_s = clock.monotonic_s()
            accepted, ids = await accepted_losses_on(client, bookies), sorted(left.holdings.ledgers)
            holdings, scanned = await read_holdings_of_ledgers(ports.ledgers, bookies, ids, accepted)
            holdings.accepted |= left.holdings.accepted
            scanned.unreadable_count = max(scanned.unreadable_count, left.scanned.unreadable_count)
            left = Left(holdings, scanned)
            polled_s = clock.monotonic_s() - begun_s
            advance(before - len(holdings.ledgers))
            left = (
                await judge(holdings, scanned, ports.tasks, client.parked)
                if holdings.ledgers
                else await remaining_data_on(client, bookies, counting)
            )
    passed_s = clock.monotonic_s() - started_s
    moved = at_start - len(left.holdings.ledgers)
    rate = moved / passed_s if is_waiting and moved > 0 and passed_s > 0 else None
    return await observe_drains(client, bookies, drains, left, rate, not_drained)


def _note_never_marked(left: Left, drains: Mapping[BookieId, Drain]) -> bool:
    """Print a note if some ledgers have no task and the wait does not mark them; return whether there are any."""
    held = left.holdings.ledgers
    never = [ledger_id for ledger_id in left.unmarked if drains.keys().isdisjoint(held[ledger_id])]
    if never:
        lost = sorted({bookie for ledger_id in never for bookie in held[ledger_id]})
        are, them = agreeing(len(never), "is", "are"), agreeing(len(never), "it", "them")
        print_note(
            f"{counted(len(never), 'ledger')} {are} not marked, and the wait does not mark {them}: `bkheal recover "
            f"{' '.join(lost)}` does"
        )
    return bool(never)
