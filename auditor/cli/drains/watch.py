"""Waits for the end of drains: it reads all ledgers, checks the remaining ones repeatedly, and reads all again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
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
    from auditor.operating.drain_status import observe_drains, remaining_data_on

    clock = client.ports.clock
    started_s = clock.monotonic_s()
    left = await remaining_data_on(client, bookies, counting)
    if on_first is not None:
        on_first(left)
    if not is_waiting:
        return await observe_drains(client, bookies, drains, left)
    at_start = len(left.holdings.ledgers)
    deadline_s = math.inf if timeout_s is None else started_s + timeout_s
    wait = _Wait(client, bookies, drains, left, clock.monotonic_s() - started_s, deadline_s, unloading)
    with counting("moved", at_start) as advance:
        await wait.run(advance)
    passed_s = clock.monotonic_s() - started_s
    moved = at_start - len(wait.left.holdings.ledgers)
    rate = moved / passed_s if moved > 0 and passed_s > 0 else None
    return await observe_drains(client, bookies, wait.drains, wait.left, rate, wait.not_drained)


class _Wait:
    """A wait in progress: the data left at the last check, and what follows from it."""

    def __init__(
        self,
        client: ConnectedBookKeeper,
        bookies: tuple[BookieId, ...],
        drains: Mapping[BookieId, Drain],
        left: Left,
        check_s: float,
        deadline_s: float,
        unloading: TopicUnloading | None,
    ) -> None:
        """Begin after a first check, which took ``check_s``. ``deadline_s`` is a time of the monotonic clock."""
        self.drains = drains
        self.left = left
        self.not_drained: list[BookieId] = []
        """Registered bookies without a drain, which ended the wait."""
        self._client = client
        self._clock = client.ports.clock
        self._bookies = bookies
        self._check_s = check_s
        self._deadline_s = deadline_s
        self._unloading = unloading
        self._marked_s = -math.inf
        self._is_noted = False

    async def run(self, advance: Callable[[int], object]) -> None:
        """Check again until nothing is left, nothing can change, or the next check would be after the deadline.

        ``advance`` receives the number of ledgers that left the bookies since the previous check.
        """
        while not self.left.is_certainly_empty and await self._may_change():
            pause_s = max(POLL_S, self._check_s / POLL_SHARE) if self.left.holdings.ledgers else 0.0
            if self._clock.monotonic_s() + pause_s > self._deadline_s:
                return
            await self._clock.sleep(pause_s)
            await self._check(advance)

    async def _may_change(self) -> bool:
        """Mark ledgers and unload topics if this is due. Return False if nothing moves the data that is left."""
        if not self.left.holdings.ledgers and not self.left.scanned.is_complete:
            return False  # unreadable metadata does not become readable by waiting
        registered = await self._client.ports.registrations.list()
        self.drains = await Drains(self._client.store, self._client.cluster.root).read()
        self.not_drained = [
            bookie for bookie in self._bookies if bookie in registered.registered and bookie not in self.drains
        ]
        if self.not_drained:
            return False
        await self._mark_if_due()
        if not self._is_noted:
            self._is_noted = _note_never_marked(self.left, self.drains)
        return self._unloading is None or await self._unload_if_due(self._unloading, registered.writable)

    async def _mark_if_due(self) -> None:
        from auditor.safety.draining import mark_unmarked

        now_s = self._clock.monotonic_s()
        if self.left.unmarked and now_s - self._marked_s >= REMARK_INTERVAL_S:
            await mark_unmarked(self._client.ports, self.left, self.drains.keys())
            self._marked_s = now_s

    async def _unload_if_due(self, unloading: TopicUnloading, writable: Set[BookieId]) -> bool:
        """Return False if only open ledgers are left, and their topics cannot be unloaded."""
        left_s = self._deadline_s - self._clock.monotonic_s()
        within_s = None if math.isinf(left_s) else max(0.0, left_s)
        await unloading.unload_due(self.left.holdings.open_topics, writable & frozenset(self._bookies), within_s)
        return unloading.failure(self.left.holdings) is None

    async def _check(self, advance: Callable[[int], object]) -> None:
        """Read the ledgers that were left; if none of them is left now, read all ledgers."""
        from auditor.operating.drain_status import accepted_losses_on, remaining_data_on
        from auditor.safety.draining import Left, judge, read_holdings_of_ledgers

        ports, before, begun_s = self._client.ports, self.left, self._clock.monotonic_s()
        accepted = await accepted_losses_on(self._client, self._bookies)
        ids = sorted(before.holdings.ledgers)
        holdings, scanned = await read_holdings_of_ledgers(ports.ledgers, self._bookies, ids, accepted)
        holdings.accepted |= before.holdings.accepted
        scanned.unreadable_count = max(scanned.unreadable_count, before.scanned.unreadable_count)
        self.left = Left(holdings, scanned)
        self._check_s = self._clock.monotonic_s() - begun_s
        advance(len(ids) - len(holdings.ledgers))
        if holdings.ledgers:
            self.left = await judge(holdings, scanned, ports.tasks, self._client.parked)
        else:
            self.left = await remaining_data_on(self._client, self._bookies, counting)


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
