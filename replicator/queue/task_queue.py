"""The tasks of the cluster as this worker sees them: which one to take next, and which must wait.

The invariant: a listing decides the order of work and nothing else. What to do for a ledger is decided under the lock
from current metadata, so an outdated list costs requests but no data (R1). The ledger with the fewest copies left comes
first, and a failure delays a task but does not change its rank (R40).

The ids of all tasks are listed first. Then tasks, parked records and metadata are read in bulk, a part at a time. The
order of the reads matters in one place: the bookies are listed after the metadata of each part, so a bookie that
registers after the read does not look lost (R2).

A task waits if it is locked, parked or failed recently, or if its ledger is open and in its grace period. No lock is
held while it waits. Parked and failed tasks have a record in ZooKeeper that all workers respect: an attempt by any
worker starts the pause again for all. A worker with an outdated list detects the attempts of others under the lock
(``is_outdated``). Grace periods are kept in memory; after a crash another worker starts them again.

A list may have 100,000 tasks. It is read, judged and sorted in steps, with pauses for other work.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.nodes import in_steps
from bookie.metadata.port import Children, Node
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask
from bookie.metadata.tasks.underreplication import UnreadableTask
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import run_cooperatively
from replicator.knowledge.absence import Absences, absent_members_not_in_task, awaiting
from replicator.knowledge.draining import with_draining
from replicator.knowledge.moving import why_not_moved
from replicator.plan.planner import growing_losses
from replicator.plan.target_choice import target_chooser
from replicator.ports import RepairPorts
from replicator.queue.grace import GracePeriods
from replicator.queue.ordering import (
    MISPLACED,
    NO_COPY_LEFT_RANK,
    Candidate,
    Order,
    QueueKind,
    is_large,
    is_of_system_topic,
    mark_time_ms,
    rank,
)
from replicator.queue.orphans import OrphanRecords
from replicator.queue.parking import (
    Circumstances,
    Memory,
    circumstances_of,
    judging_move_retry,
    judging_retry,
)
from replicator.queue.renewal import NAP_S, Renewal
from replicator.telemetry.events import Ending, QueueState

_log = logging.getLogger(__name__)

READ_LEDGERS: Final = 1000
"""The most ledgers whose metadata is read at a time. It limits how long the event loop is blocked."""
FIRST_LEDGERS: Final = 100
"""The number of ledgers in the first part of a listing, which shows the size of their metadata."""
PART_BYTES: Final = 32 << 20
"""The bytes of metadata to read at a time. A node may have 1 MB, so a part has fewer ledgers if those before were
large."""
_FRAGMENT_BYTES: Final = 128
"""The bytes of a fragment with three members, about."""
TASKS_JUDGED_PER_STEP: Final = 25
"""The number of ledgers judged between two turns of the event loop: some milliseconds if each is planned again."""
_FRAGMENTS_OF_ORDINARY_LEDGER: Final = 20
"""A ledger with this many fragments more counts as one ledger more in these numbers."""
_UNCHANGED: Final = frozenset({Ending.BUSY, Ending.STOPPED, Ending.FAILED})
_COMPLETED: Final = frozenset({Ending.REPAIRED, Ending.MOVED, Ending.NOTHING_MISSING, Ending.LEDGER_DELETED})


class _Verdict(enum.Enum):
    ELIGIBLE = enum.auto()
    RECHECK = enum.auto()
    """The task was parked long ago, and is tried again without a change visible in the store."""
    LOCKED = enum.auto()
    BACKING_OFF = enum.auto()
    IN_GRACE = enum.auto()
    PARKED = enum.auto()
    LEFT = enum.auto()


_TRIABLE_VERDICTS: Final = frozenset({_Verdict.ELIGIBLE, _Verdict.RECHECK})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listing:
    """The ledgers that have each kind of record, listed before any task is read."""

    marked: Sequence[LedgerId]
    locked: AbstractSet[LedgerId]
    boosted: AbstractSet[LedgerId]
    parked: AbstractSet[LedgerId]
    failed: AbstractSet[LedgerId]
    doubted: AbstractSet[LedgerId]
    reserved: AbstractSet[LedgerId]
    bookie_lists: dict[str, frozenset[BookieId]] = field(default_factory=dict)
    """The lists of bookies to which parked records refer, as far as they were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Some tasks of a listing, with the data that is needed to judge them."""

    tasks: Sequence[Task]
    unreadable: Sequence[LedgerId]
    """The ledgers whose task cannot be read."""
    ledgers: Sequence[Versioned | Unreadable | None]
    """The metadata of each task's ledger."""
    parked: Mapping[LedgerId, ParkedTask]
    bookies: Bookies
    """The bookies, listed after the metadata was read."""
    absent: Sequence[frozenset[BookieId]]
    """The unregistered members of each ledger that its task does not name."""
    lost: frozenset[BookieId]
    """Those of the absent members that count as lost."""
    why_left: str
    """Why no copy is moved now; empty if copies may be moved."""


class _ListingVerdicts:
    """The verdicts of one listing, counted as they are made, because another loop over all tasks would take long."""

    def __init__(self) -> None:
        self.ledger_ids: set[LedgerId] = set()
        self.unreadable: set[LedgerId] = set()
        """The ledgers whose task cannot be read. Their records stay."""
        self.counts = dict.fromkeys(_Verdict, 0)
        self.weight = 0
        """The number of ordinary ledgers that take as long to judge as these."""
        self.backing_off: list[LedgerId] = []
        self.in_grace: list[LedgerId] = []
        self.candidates: list[Candidate] = []
        self.circumstances: dict[LedgerId, Circumstances] = {}
        """The circumstances of each candidate."""

    def note(self, ledger_id: LedgerId, verdict: _Verdict) -> None:
        self.ledger_ids.add(ledger_id)
        self.counts[verdict] += 1
        if verdict is _Verdict.BACKING_OFF:
            self.backing_off.append(ledger_id)
        elif verdict is _Verdict.IN_GRACE:
            self.in_grace.append(ledger_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One attempt at a task."""

    ledger_id: LedgerId
    circumstances: Circumstances
    """The circumstances at the time of the listing."""
    rank: int = NO_COPY_LEFT_RANK
    """The rank. The smallest is the most urgent (``ordering.rank``)."""
    failures: int = 0
    """The number of failed turns in a row before this one."""
    is_parked: bool = False
    parked_attempts: int = 0
    failure_token: str = ""
    """The token of the last failure at the time of the listing."""
    is_large: bool = False
    """Whether there may be many entries to copy (``ordering.is_large``)."""
    kind: QueueKind = QueueKind.REGULAR


class TaskQueue:
    """The tasks of a cluster in the order of their repair.

    Used by one worker; ``refresh`` must not run concurrently with itself.
    """

    def __init__(
        self, ports: RepairPorts, poll_interval_s: float, grace_periods: GracePeriods, absences: Absences
    ) -> None:
        self._ports = ports
        self._boosts = Boosts(ports.store, ports.cluster.root)
        self._absences = absences
        self._grace_periods = grace_periods
        self._renewal = Renewal(ports.clock, poll_interval_s)
        self._orphans = OrphanRecords(ports)
        self._memory = Memory(ports.clock, ports.rng)
        self._order = Order()
        self._failures_noted: set[LedgerId] = set()
        """The ledgers whose failure is recorded while their turn is not settled yet."""
        self._circumstances: dict[LedgerId, Circumstances] = {}
        self._bookies = Bookies(frozenset(), frozenset())
        self._unsettled_locks: set[LedgerId] = set()
        self.unmarked_locks: frozenset[LedgerId] = frozenset()
        """The ledgers that had no task at the last listing, and on which this worker may still have a lock: no turn
        settles these."""
        self._completed: set[LedgerId] = set()
        """The tasks completed after the current listing started, which may still contain them."""
        self._left_because = ""
        """Why the last listing did not take placement marks."""
        self._left_logged: set[str] = set()
        self._empty_top: Children | None = None
        self.queue_state = QueueState()
        self.unreadable_tasks = 0
        """The ledgers of the last listing whose task cannot be read. No worker repairs them."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def is_idle(self) -> bool:
        """Whether there is no work now, and none later without another change."""
        queue_state = self.queue_state
        return not (
            self.is_stale or self._order or queue_state.backing_off or queue_state.in_grace or self._unsettled_locks
        )

    def forget(self) -> None:
        """Forget all tasks, because other workers watch them from now on, and this worker sees no changes."""
        self._memory.forget_parked()
        self._grace_periods.keep_only(())
        self._order.clear()
        self._circumstances.clear()
        self._empty_top = None
        self.queue_state = QueueState()
        self.mark_stale()

    @property
    def is_stale(self) -> bool:
        """Whether the tasks should be listed again before the next one is taken."""
        return self._renewal.remaining_s(has_tasks=bool(self._order)) <= 0

    @property
    def seconds_until_stale(self) -> float:
        """The seconds until the list is stale if nothing happens."""
        return max(0.0, self._renewal.remaining_s(has_tasks=bool(self._order)))

    def mark_stale(self) -> None:
        """Mark the list as stale, because an event may have made other tasks eligible."""
        self._renewal.mark_stale()

    async def wait_first_task(self) -> None:
        """Wait until there may be a task although the list is empty, and mark the list as stale.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        if self._empty_top is None:
            await asyncio.Event().wait()
        else:
            await self._ports.tasks.wait_top_changed(self._empty_top)
            self._empty_top = None
            self._renewal.hasten()

    def take(self, passed_over: Collection[QueueKind] = ()) -> Turn | None:
        """Take the next task that is not of the kinds ``passed_over`` from the list, and return its turn; else None."""
        if self._order.first(passed_over) is None:
            return None
        take = self._order.take_last if fault_point("queue.take_last") else self._order.take
        candidate = take(passed_over)
        ledger_id = candidate.ledger_id
        return Turn(
            ledger_id=ledger_id,
            circumstances=self._circumstances.pop(ledger_id),
            rank=candidate.rank,
            failures=self._memory.failures(ledger_id),
            is_parked=candidate.is_parked,
            parked_attempts=candidate.parked_attempts,
            failure_token=self._memory.token(ledger_id),
            is_large=candidate.is_large,
            kind=candidate.kind,
        )

    def first(self, passed_over: Collection[QueueKind] = ()) -> Candidate | None:
        """Return the task that ``take`` would take; None if there is none."""
        return self._order.first(passed_over)

    def settle(self, turn: Turn, ending: Ending) -> None:
        """Record the end of a turn."""
        if ending is Ending.FAILED:
            if turn.ledger_id not in self._failures_noted:
                # A lock that may remain must be settled by the next attempt, without a pause.
                is_kept = turn.ledger_id not in self._unsettled_locks
                self._memory.finish_recording(self._memory.record_failure(turn.ledger_id), is_kept=is_kept)
            self._failures_noted.discard(turn.ledger_id)
        elif ending is Ending.PARKED:
            attempts = turn.parked_attempts + 1 if turn.is_parked else 0
            self._memory.record_parked(turn.ledger_id, turn.circumstances, attempts)
        elif ending not in _UNCHANGED:
            self._memory.forget(turn.ledger_id)
        if ending in _COMPLETED:
            self._completed.add(turn.ledger_id)
        if ending is Ending.IN_GRACE:
            self._grace_periods.record_grace_rest(turn.ledger_id, turn.circumstances)
        if ending not in _UNCHANGED:
            self._renewal.note_changed()

    def is_outdated(self, turn: Turn, parked: Node | None, failure: Node | None) -> bool:
        """Whether another worker has failed at the task or parked it after it was listed.

        Both nodes were read under the lock. A record that cannot be decoded counts as none, as in a listing.
        """
        failed = self._ports.failures.decode(turn.ledger_id, failure)
        if failed is not None and failed.token != turn.failure_token:
            self._memory.note_shared_failure(failed)
            return True
        attempts = self._ports.parked.attempts_in(turn.ledger_id, parked)
        return attempts is not None and (not turn.is_parked or attempts != turn.parked_attempts)

    async def note_failure(self, turn: Turn) -> None:
        """Record a failed turn in the store, for all workers, while its lock is held. Best effort."""
        self._failures_noted.add(turn.ledger_id)
        record = self._memory.record_failure(turn.ledger_id)
        is_kept = False
        try:
            await self._ports.failures.note(record)
        except BkhealError as error:
            is_kept = True
            _log.info("failure is not recorded", extra={"ledger_id": turn.ledger_id, "error": str(error)})
        self._memory.finish_recording(record, is_kept=is_kept)

    def note_lock_answer(self, ledger_id: LedgerId, *, is_settled: bool) -> None:
        """Record whether an attempt to lock was answered. If not, we may have the lock; the next attempt shows it."""
        if is_settled:
            self._unsettled_locks.discard(ledger_id)
            self.unmarked_locks -= {ledger_id}
        else:
            self._unsettled_locks.add(ledger_id)

    async def refresh(self) -> None:
        """List all tasks again.

        Raises:
            StoreUnavailableError: the store does not answer; the old list stays.
        """
        self._renewal.begin()
        self._completed.clear()
        listing, judged = await self._list_ids(), _ListingVerdicts()
        done, count = 0, FIRST_LEDGERS
        while done < len(listing.marked):
            if (left := len(listing.marked) - done) < count + FIRST_LEDGERS:
                count = left  # a refusal of all nodes of a short part would count as a refusal of all tasks
            part = await self._read_part(listing.marked[done : done + count], listing)
            await self._judge_part(part, listing, judged)
            done, count = done + count, _next_count(count, part.ledgers)
            await asyncio.sleep(0)
        await self._replace_list(judged)
        marked = judged.ledger_ids | judged.unreadable
        await self._orphans.forget(
            parked=listing.parked - marked,
            failed=listing.failed - marked,
            reserved=listing.reserved - marked,
            doubted=listing.doubted - marked,
        )
        self._renewal.end(judged.weight, self._due_in_s(judged))

    async def _list_ids(self) -> _Listing:
        await self._ports.tasks.locks.prune()
        doubted = await self._ports.doubts.ledgers()
        reserved = await self._orphans.reserved()
        top = await self._ports.tasks.top()
        marked = await self._ports.tasks.ids()
        self._empty_top = None if marked else top
        self.unmarked_locks = frozenset(self._unsettled_locks.difference(marked))
        return _Listing(
            marked=marked,
            locked=await self._ports.tasks.locks.locked(),
            boosted={boost.ledger_id for boost in await self._boosts.active(self._ports.clock.epoch_ms())},
            parked=await self._ports.parked.ids(),
            failed=await self._failed(),
            doubted=doubted,
            reserved=reserved,
        )

    async def _read_part(self, ids: Sequence[LedgerId], listing: _Listing) -> _Part:
        found = await self._ports.tasks.read_many(ids)
        tasks = [task for task in found if isinstance(task, Task)]
        parked = await self._ports.parked.read_many([i for i in ids if i in listing.parked], listing.bookie_lists)
        named = frozenset(bookie for task in tasks for bookie in task.missing)
        ledgers = await self._ports.ledgers.read_many_permitted([task.ledger_id for task in tasks])
        registered, _ = await with_draining(self._ports, await self._ports.recent.list_bookies(), named)
        bookies = self._reuse_if_equal(registered)
        absent: list[frozenset[BookieId]] = []
        weight = 0
        for task, ledger in zip(tasks, ledgers, strict=True):
            absent.append(_absent(task, ledger, bookies))
            weight += _weight(ledger)
            if weight >= READ_LEDGERS:
                weight = 0
                await asyncio.sleep(0)
        return _Part(
            tasks=tasks,
            unreadable=[task.ledger_id for task in found if isinstance(task, UnreadableTask)],
            ledgers=ledgers,
            parked={record.ledger_id: record for record in parked},
            bookies=bookies,
            absent=absent,
            lost=await self._absences.lost(bookies, frozenset().union(*absent)),
            why_left=await self._why_not_moved(tasks, bookies),
        )

    async def _judge_part(self, part: _Part, listing: _Listing, judged: _ListingVerdicts) -> None:
        """Add the verdicts of a part to ``judged``; other tasks of the event loop may run between them."""
        judged.unreadable.update(part.unreadable)
        weight, now_ms = 0, self._ports.clock.epoch_ms()
        for task, ledger, absent in zip(part.tasks, part.ledgers, part.absent, strict=True):
            weight += _weight(ledger)
            judged.weight += _weight(ledger)
            if weight >= TASKS_JUDGED_PER_STEP:
                weight = 0
                await asyncio.sleep(0)
            bookies = awaiting(part.bookies, absent, part.lost) if absent else part.bookies
            self._observe(task, ledger, bookies)
            is_move = _is_placement_mark(task, ledger, bookies)
            topology = self._ports.placement.judge().fingerprint if is_move else ""
            circumstances = circumstances_of(task, ledger, bookies, topology)
            parked = part.parked.get(task.ledger_id)
            if is_move and part.why_left:
                verdict = _Verdict.LEFT
            else:
                verdict = await self._judge(task, ledger, circumstances, task.ledger_id in listing.locked, parked)
            judged.note(task.ledger_id, verdict)
            if verdict in _TRIABLE_VERDICTS:
                judged.circumstances[task.ledger_id] = circumstances
                judged.candidates.append(
                    Candidate(
                        ledger_id=task.ledger_id,
                        rank=MISPLACED if is_move else rank(ledger, task.missing, bookies),
                        ctime_ms=mark_time_ms(task.ctime_ms, now_ms),
                        is_recheck=verdict is _Verdict.RECHECK,
                        is_parked=parked is not None,
                        is_boosted=task.ledger_id in listing.boosted,
                        parked_attempts=0 if parked is None else parked.attempts,
                        is_large=is_large(ledger),
                        is_of_system_topic=is_of_system_topic(ledger),
                        failures=self._memory.failures(task.ledger_id),
                    )
                )

    async def _replace_list(self, judged: _ListingVerdicts) -> None:
        """Replace the list, and forget ledgers without a task."""
        waiting = [candidate for candidate in judged.candidates if candidate.ledger_id not in self._completed]
        order = await Order.of(waiting, self._ports.rng)
        self._order, self._circumstances = order, judged.circumstances
        self._memory.keep_only(judged.ledger_ids)
        await asyncio.sleep(0)
        self._grace_periods.keep_only(judged.ledger_ids)
        self._sum_up(judged)
        await asyncio.sleep(0)

    async def _why_not_moved(self, tasks: Sequence[Task], bookies: Bookies) -> str:
        """Return why no copy is moved now; empty if copies may be moved, or no task requests it."""
        if all(task.missing for task in tasks):
            return ""
        why = await why_not_moved(self._ports, self._absences, bookies)
        self._left_because = why or self._left_because
        return why

    def _observe(self, task: Task, ledger: Versioned | Unreadable | None, bookies: Bookies) -> None:
        """Start the grace period of an unclosed ledger when a listing first shows its loss, not in its first turn."""
        if isinstance(ledger, Versioned) and not ledger.metadata.is_closed:
            self._grace_periods.observe(task.ledger_id, growing_losses(ledger.metadata, bookies))
        else:
            self._grace_periods.forget(task.ledger_id)

    def _reuse_if_equal(self, bookies: Bookies) -> Bookies:
        """Return the object of the last listing if it is equal, so that a million comparisons with it cost nothing."""
        if bookies != self._bookies:
            self._bookies = bookies
        return self._bookies

    async def _judge(
        self,
        task: Task,
        ledger: Versioned | Unreadable | None,
        circumstances: Circumstances,
        is_locked: bool,
        parked: ParkedTask | None,
    ) -> _Verdict:
        ledger_id, bookies = task.ledger_id, circumstances.bookies
        if is_locked and ledger_id not in self._unsettled_locks:
            return _Verdict.LOCKED
        if self._memory.due_in_s(ledger_id) > 0 and not self._grace_periods.has_new_bookie(ledger_id, bookies):
            return _Verdict.BACKING_OFF
        write_quorum = ledger.metadata.write_quorum if isinstance(ledger, Versioned) else 1
        choose = target_chooser(ledger_id, write_quorum, self._ports.placement)
        if await run_cooperatively(self._grace_periods.judging_rest(ledger_id, circumstances, ledger, choose)):
            return _Verdict.IN_GRACE
        if parked is None:
            return _Verdict.ELIGIBLE
        self._memory.restart_rest_if_retried(ledger_id, parked.attempts)
        if self._memory.is_resting(ledger_id, circumstances, parked.reason):
            return _Verdict.PARKED
        if circumstances.topology and isinstance(ledger, Versioned):
            judging = judging_move_retry(task, ledger, bookies, parked, self._ports.placement)
        else:
            judging = judging_retry(task, ledger, bookies, parked, choose)
        if await run_cooperatively(judging):
            return _Verdict.ELIGIBLE
        if self._memory.is_rest_over(ledger_id, parked.reason):
            return _Verdict.RECHECK
        self._memory.update_parked_circumstances(ledger_id, circumstances, parked.attempts)
        return _Verdict.PARKED

    def _sum_up(self, judged: _ListingVerdicts) -> None:
        self.unreadable_tasks = len(judged.unreadable)
        counts = judged.counts
        self.queue_state = QueueState(
            eligible=counts[_Verdict.ELIGIBLE] + counts[_Verdict.RECHECK],
            locked=counts[_Verdict.LOCKED],
            backing_off=len(judged.backing_off),
            given_up=sum(map(self._memory.is_given_up, judged.backing_off)),
            in_grace=counts[_Verdict.IN_GRACE],
            parked=counts[_Verdict.PARKED],
            left=counts[_Verdict.LEFT],
        )
        if self.queue_state.left and self._left_because not in self._left_logged:
            self._left_logged.add(self._left_because)
            extra = {"ledgers": self.queue_state.left, "reason": self._left_because}
            _log.info("placement marks are left to Apache's workers", extra=extra)

    def _due_in_s(self, judged: _ListingVerdicts) -> Iterator[float]:
        for ledger_id in judged.backing_off:
            yield self._memory.due_in_s(ledger_id)
        for ledger_id in judged.in_grace:
            yield max(NAP_S, self._grace_periods.due_in_s(ledger_id))

    async def _failed(self) -> AbstractSet[LedgerId]:
        """Return the ledgers for which any worker has recorded a failure, and remember the records."""
        started_s = self._ports.clock.monotonic_s()
        records = await self._ports.failures.list()
        async for part in in_steps(records):
            for record in part:
                self._memory.note_shared_failure(record)
        ledger_ids = {record.ledger_id for record in records}
        self._memory.forget_deleted_failures(ledger_ids, started_s)
        return ledger_ids


def _is_placement_mark(task: Task, ledger: Versioned | Unreadable | None, bookies: Bookies) -> bool:
    """Whether a task only requests moves of copies: it names no bookie, and none is missing.

    Without this check, repair would find nothing to do and complete the task, and no copy would ever be moved.

    Source: docs/formats.md#auditor-checks.
    """
    if task.missing or not isinstance(ledger, Versioned):
        return False
    return ledger.metadata.members() <= bookies.registered | bookies.awaited


def _next_count(count: int, ledgers: Sequence[Versioned | Unreadable | None]) -> int:
    """Return how many ledgers to read next, after ``ledgers`` were read as a part of ``count``."""
    fitting = count * PART_BYTES // max(1, sum(map(_metadata_bytes, ledgers)))
    return max(1, min(READ_LEDGERS, 2 * count, fitting))


def _metadata_bytes(ledger: Versioned | Unreadable | None) -> int:
    """Return about the number of bytes of a ledger's metadata."""
    if not isinstance(ledger, Versioned):
        return 0
    custom = sum(len(value) for _, value in ledger.metadata.custom)
    return len(ledger.metadata.fragments) * _FRAGMENT_BYTES + custom


def _weight(ledger: Versioned | Unreadable | None) -> int:
    """Return the number of ordinary ledgers that take as long to judge."""
    fragments = len(ledger.metadata.fragments) if isinstance(ledger, Versioned) else 0
    return 1 + fragments // _FRAGMENTS_OF_ORDINARY_LEDGER


def _absent(task: Task, ledger: Versioned | Unreadable | None, bookies: Bookies) -> frozenset[BookieId]:
    return (
        absent_members_not_in_task(ledger.metadata, task.missing, bookies)
        if isinstance(ledger, Versioned)
        else frozenset()
    )
