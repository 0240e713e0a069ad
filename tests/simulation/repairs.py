"""The oracles of repair, which check the actions of each worker against the rules, turn by turn.

Effort (I21): useless copies are bounded. Order (R40): no turn starts while a due ledger with fewer copies left waits.
Cost: a finished task takes few requests to the store. Progress (I19): no task fails forever. Memory (R43): copies hold
no more than the budget. Workers respect the switch that disables repair (S7), the end of a session (S14) and the
lost-bookie delay (R39). A worker is observed from outside: its methods are wrapped, and its decisions stay the same.
"""

from __future__ import annotations

import contextvars
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from bookie.metadata.layout import disable_path, lock_path, task_name
from bookie.metadata.own_state import own_path
from bookie.metadata.tasks.failures import FailedTask
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.packet import packet_ids
from bookie.model.records import decode_record
from bookie.wire.port import AddBatch, AddReply, CopyReply, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import Copy, Read
from replicator.queue.ordering import FAILING_MIN, QueueKind
from replicator.queue.places import FAILING_SHARE
from replicator.queue.task_queue import Turn
from replicator.telemetry.events import Ending, QueueState, TaskResult
from replicator.worker import Worker
from tests.simulation.limits import Limits
from tests.simulation.scaling import COPIES_AT_ONCE
from tests.simulation.truth import ROOT

if TYPE_CHECKING:
    from tests.simulation.nodes import SimClient
    from tests.simulation.world import SimWorld

TASK_REQUESTS_MAX: Final = 56
"""The most requests to the store per finished task, listings included, over many small ledgers. Measured: 41 on
average, and 50 at most."""
SMALL_ENTRIES: Final = 40
"""The most entries of a small ledger, whose copy takes a few requests."""
TASKS_COUNTED_MIN: Final = 8
"""The fewest finished tasks for a useful mean."""
FAILURES_MAX: Final = 7
"""The most failures in a row of one task without a fault. Then it must be parked."""
PROMPT_S: Final = 20.0
"""How long copies may continue after repair is disabled: the time for a read and for a busy target."""
SETTLED_S: Final = 10.0
"""How long after the registration of a bookie workers must know it, on the scale of small settings."""
SETTLING_S: Final = 1.0
"""How long after a refusal late answers may still arrive, which the copy drops."""
SENT_S: Final = 0.02
"""The longest time between the read and the send of a copy."""
LOCK_S: Final = 90.0
"""How long a lock may remain after the end of its turn, while its session is connected."""
LONGEST_FAULT_S: Final = 6.0
NOTHING_SHORT: Final = 1 << 30
"""The number of copies left if a ledger has no missing copy."""
_COMPLETED: Final = frozenset({Ending.REPAIRED, Ending.NOTHING_MISSING, Ending.LEDGER_DELETED})


@dataclass(slots=True)
class TurnNote:
    """A running turn."""

    worker: str
    ledger_id: LedgerId
    session_id: int
    started_s: float
    requests: int = 0


TURN: contextvars.ContextVar[TurnNote | None] = contextvars.ContextVar("turn", default=None)


def count_request() -> None:
    """Count a request to the store for the turn that makes it."""
    note = TURN.get()
    if note is not None:
        note.requests += 1


@dataclass(slots=True)
class Effort:
    """The bytes copied for one ledger."""

    copied: int = 0
    useful: dict[tuple[BookieId, EntryId], int] = field(default_factory=dict)
    """Copies, by target and entry."""
    faults: int = 0
    repeated: int = 0
    """The bytes of copies that the same target had already acknowledged on the same disks."""
    interruptions: int = 0
    """Turns that ended before the end of the task."""
    collected: int = 0
    """The bytes of copies that the collectors of Apache's bookies deleted."""
    is_started_again: bool = False
    """Whether a target failed, or the task was parked: the copy may then begin again, perhaps elsewhere."""
    acknowledged: set[tuple[BookieId, str, EntryId]] = field(default_factory=set)

    def useful_bytes(self, named: Collection[BookieId], drains: int) -> int:
        """Return the bytes of useful copies: those on bookies that the metadata names.

        In addition, one copy of an entry always counts as useful, and one more for each of its ``drains``: if the lost
        bookie returns during the copy, or the drain is withdrawn, the metadata never names the target, which no worker
        could foresee.
        """
        copies: dict[EntryId, list[int]] = defaultdict(list)
        for (target, entry_id), size in self.useful.items():
            copies[entry_id].append(size * (target in named))
        sizes = {entry_id: size for (_, entry_id), size in self.useful.items()}
        return sum(max(sum(found), sizes[entry_id] * min(len(found), 1 + drains)) for entry_id, found in copies.items())


@dataclass(slots=True)
class _Listed:
    """What a worker's last listing may contain: the fewest and the most copies left for each task."""

    started_s: float = -1.0
    copies_left: dict[LedgerId, tuple[int, int]] = field(default_factory=dict)
    requests: int = 0
    """The requests of the listing. They count for the first task that one of its turns finishes; then this is 0."""


class Repairs:
    """The oracles of all workers of a history."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._truth = world.truth
        self.running: dict[tuple[str, LedgerId], TurnNote] = {}
        self.efforts: dict[LedgerId, Effort] = defaultdict(Effort)
        self._locks: dict[str, tuple[int, float]] = {}
        self._pulled: dict[tuple[BookieId, LedgerId, EntryId], int] = {}
        """The sizes of the entries that targets copied by themselves."""
        self.limits = Limits(world)
        self.moved_copies = 0
        """The number of copies moved for better placement."""

    def now_s(self) -> float:
        return self._world.loop.time()

    # Effort

    def copied(self, target: BookieId, batch: AddBatch) -> None:
        """Note that a target acknowledged copies of a ledger."""
        sizes = {packet_ids(packet)[1]: len(packet) for packet in batch.entries}
        self._acknowledged(target, batch.ledger_id, batch.incarnation, sizes)

    def pulled(self, target: BookieId, batch: AddBatch) -> None:
        """Note copies that a target read by itself and stored. The worker learns of them with the answer."""
        self._pulled.update({(target, *packet_ids(packet)[:2]): len(packet) for packet in batch.entries})

    def heard_of_pull(self, target: BookieId, copy: Copy, reply: CopyReply) -> None:
        """Note that a worker learned of the entries that a target copied by itself."""
        refused = {refusal.entry_id for refusal in reply.refusals}
        stored = [entry_id for entry_id in copy.entry_ids[: reply.covered] if entry_id not in refused]
        missing = [entry_id for entry_id in stored if (target, copy.ledger_id, entry_id) not in self._pulled]
        if missing:
            self._truth.fail("S11", f"{target} acknowledged {copy.ledger_id} entries {missing} that it has not copied")
            return
        sizes = {entry_id: self._pulled[target, copy.ledger_id, entry_id] for entry_id in stored}
        self._acknowledged(target, copy.ledger_id, copy.incarnation, sizes)

    def _acknowledged(
        self, target: BookieId, ledger_id: LedgerId, incarnation: str, sizes: Mapping[EntryId, int]
    ) -> None:
        effort = self.efforts[ledger_id]
        for entry_id, size in sizes.items():
            copy = target, incarnation, entry_id
            effort.copied += size
            effort.repeated += size if copy in effort.acknowledged else 0
            effort.acknowledged.add(copy)
            effort.useful[target, entry_id] = size

    def judge_effort(self, window_bytes: Callable[[int, int], int] | None) -> None:
        """Check I21: without a fault no copy is useless, and a fault makes at most a fifth and one window useless.

        Entries that the collector of an Apache bookie deletes between two turns are copied again, because it respects
        only the lock.

        R44: unless a target fails, an acknowledged entry is not copied to the same target again, except for one window
        per interruption.

        ``window_bytes``: how many bytes may be copied again after one fault, given the size of the largest entry and
        the number of copied positions; None: there is no limit.
        """
        for (_, ledger_id), note in self.running.items():  # their faults are counted when their turns end
            self._count_faults(note, self.efforts[ledger_id], is_completed=False)
        for ledger_id, effort in self.efforts.items():
            truth = self._truth.of(ledger_id)
            if truth.is_loss_expected or truth.is_deleted or truth.is_forgotten or self._truth.rotten:
                continue
            largest = max(effort.useful.values(), default=0)
            is_steady = not self._world.limits_changed_s  # a chunk that waits for the rate delays the record
            if effort.repeated and window_bytes is not None and is_steady and not effort.is_started_again:
                metadata = self._truth.metadata[ledger_id]
                targets = {bookie for bookie, _, _ in effort.acknowledged}
                window = window_bytes(largest, len(targets) * len(metadata.fragments))
                if effort.repeated > window * max(1, effort.interruptions):
                    self._truth.fail(
                        "R44",
                        f"{effort.repeated} bytes of {ledger_id} were copied again to targets that had them, "
                        f"{effort.interruptions} interruptions",
                    )
            useful = effort.useful_bytes(truth.named, len(self._world.drained & truth.named))
            allowed: float = useful
            if effort.faults:
                if window_bytes is None:
                    continue
                allowed = 1.2 * useful + window_bytes(largest, COPIES_AT_ONCE) * effort.faults
            allowed += effort.collected
            if effort.copied > allowed:
                self._truth.fail(
                    "I21",
                    f"{effort.copied} bytes of {ledger_id} were copied, {useful} were needed, {effort.faults} faults",
                )

    def _count_faults(self, note: TurnNote, effort: Effort, *, is_completed: bool) -> None:
        since_s = note.started_s - LONGEST_FAULT_S * self._world.variation.scale
        effort.faults += self._world.faults_since(since_s) + (not is_completed)
        effort.interruptions += not is_completed

    def collected_by_apache(self, bookie: BookieId, ledger_id: LedgerId) -> None:
        """Note that the collector of an Apache bookie deleted a ledger's entries."""
        effort = self.efforts[ledger_id]
        gone = {copy for copy in effort.acknowledged if copy[0] == bookie}
        effort.acknowledged -= gone
        effort.collected += sum(effort.useful[bookie, entry_id] for _, _, entry_id in gone)

    # Locks

    def look_at_locks(self) -> int:
        """Check that each lock ends with its use. Return the number of locks."""
        world, now_s = self._world, self.now_s()
        found: dict[str, tuple[int, float]] = {}
        for name in world.lock_names():
            path = f"{ROOT}/underreplication/locks/{name}"
            stat = world.cell.stat(path)
            assert stat is not None
            who = self._truth.roles.get(stat.ephemeral_owner, "?")
            is_used = any(worker == who and task_name(ledger) == name for worker, ledger in self.running)
            before = self._locks.get(path)
            is_same = before is not None and before[0] == stat.czxid
            since_s = before[1] if before is not None and is_same and not is_used else now_s
            if not world.is_reachable(who):
                since_s = now_s
            found[path] = (stat.czxid, since_s)
            allowed_s = LOCK_S if who.startswith("worker") else LOCK_S + 3 * world.collector_confirm_s()
            if now_s - since_s > allowed_s:
                self._truth.fail("LOCK", f"{who} still has the lock {name}, {now_s - since_s:.0f} s after its use")
        self._locks = found
        return len(found)

    # Metadata

    def changed(self, who: str, ledger_id: LedgerId, session: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Check that a change is permitted: S14, R39, S8."""
        turn = TURN.get()
        if turn is not None and turn.session_id != session:
            self._truth.fail("S14", f"{who} changed {ledger_id} in another session than that of its lock")
        if not who.startswith("worker") or not old.is_closed:
            return
        for before, after in zip(old.fragments, new.fragments, strict=False):
            if before.members != after.members and self._world.topology.locations:
                self._check_placed(who, ledger_id, new, before, after)
            for gone, target in zip(before.members, after.members, strict=True):
                if gone != target:
                    self._check_replaced(who, ledger_id, old, gone, target)

    def _check_placed(
        self, who: str, ledger_id: LedgerId, metadata: LedgerMetadata, before: Fragment, after: Fragment
    ) -> None:
        """Check R57: a copy in a bad place has a debt after its repair, and a move makes no fragment worse."""
        world, truth = self._world, self._truth
        judge = world.placement().judge()
        cost, old_cost = (judge.faults(each.members, metadata.write_quorum).cost for each in (after, before))
        replaced = {gone for gone, new in zip(before.members, after.members, strict=True) if gone != new}
        if replaced.isdisjoint(truth.of(ledger_id).ever_missing | truth.rotten | world.drained):
            self.moved_copies += len(replaced)
            if cost > old_cost:
                truth.fail("R57", f"{who} moved copies of {ledger_id} to a worse place: {before} to {after}")
        elif cost > (0, 0) and not truth.of(ledger_id).was_misplaced:
            path = f"{own_path('debts', ROOT)}/{ledger_id}"
            if world.cell.stat(path) is None:
                truth.fail("R57", f"{who} placed copies of {ledger_id} badly without a debt: {after}")

    def _check_replaced(
        self, who: str, ledger_id: LedgerId, metadata: LedgerMetadata, gone: BookieId, target: BookieId
    ) -> None:
        world, truth = self._world, self._truth
        is_damaged = gone in truth.rotten  # another bookie replaces it if it does not accept good copies (R41)
        is_moved = truth.of(ledger_id).was_misplaced and bool(world.topology.locations)
        is_named = gone in truth.of(ledger_id).ever_missing or gone in world.drained
        if not is_named and not is_damaged and not is_moved:
            truth.fail("R39", f"{who} replaced {gone} in {ledger_id}, which no task has named")
        settled_s = SETTLED_S * world.variation.scale
        now_s = self.now_s()
        if now_s - world.read_only_since_s.get(target, now_s) > settled_s / 3:
            truth.fail("S8", f"{who} named {target} in {ledger_id}, which is read-only")
        is_there = now_s - world.registered_since_s(gone) > settled_s and gone not in world.drained
        if is_there and not is_moved and gone not in truth.rotten and not truth.is_short(gone, ledger_id, metadata):
            truth.fail("S8", f"{who} replaced {gone} in {ledger_id}, which is registered and has every entry")

    # Workers

    def watch(self, worker: Worker, client: SimClient) -> None:
        """Observe a worker from now on."""
        watched = _Watched(self, self._world, worker, client)
        worker._events = watched
        if not self._world.variation.is_pulling:  # a pull is counted when its size is known
            self.limits.watch(client, worker._pace)


class _Watched:
    """One worker. This is also the sink of its events."""

    def __init__(self, repairs: Repairs, world: SimWorld, worker: Worker, client: SimClient) -> None:
        self._repairs = repairs
        self._world = world
        self._truth = world.truth
        self._client = client
        self._name = client.process.name
        self._queue: Any = worker._queue
        self._running: Mapping[LedgerId, object] = worker._running
        """Its turns. A ledger stays here until its turn ends, even if its lock is deleted before."""
        self._listed = _Listed()
        self._taken: set[LedgerId] = set()
        self._places = max(1, worker._settings.ledgers_in_flight // FAILING_SHARE)
        """The most places for ledgers that fail again and again."""
        self._failing: set[LedgerId] = set()
        """Those of the taken ledgers that failed again and again."""
        self._was_last_failing = False
        self._due_s: dict[LedgerId, float] = {}
        self._failures: dict[LedgerId, int] = defaultdict(int)
        self._records: dict[LedgerId, tuple[str, float]] = {}
        """The recorded failure of each listed ledger, and since when this worker could have waited for its pause."""
        self._finished = 0
        self._requests = 0
        """The requests of turns that finished a task, and of listings that led to such a turn."""
        self._taken_from: dict[LedgerId, _Listed] = {}
        self._ended_requests = 0
        self._is_disturbed = False
        self._early_timeouts = 0
        self._inner_events: Any = worker._events
        copier: Any = worker._copier
        self._weighing = copier.transport = _Weighing(
            repairs, world, client, copier.transport, copier.budget.limit_bytes
        )
        self._repair, self._refresh, self._take = worker._repair, self._queue.refresh, self._queue.take
        client.store.on_request = count_request
        for owner, name, method in (
            (worker, "_repair", self._watched_repair),
            (self._queue, "refresh", self._watched_refresh),
            (self._queue, "take", self._watched_take),
        ):
            setattr(owner, name, method)

    # Events

    def task_ended(self, result: TaskResult) -> None:
        ledger_id, ending = result.ledger_id, result.ending
        self._inner_events.task_ended(result)
        if ending is Ending.PARKED:
            self._repairs.efforts[ledger_id].is_started_again = True
        if ending is Ending.FAILED:
            self._failures[ledger_id] += 1
            pause_s = min(5.0 * 2 ** (self._failures[ledger_id] - 1), 300.0) * 1.25
            self._due_s[ledger_id] = self._repairs.now_s() + pause_s
            if self._has_store_fault() or self._gave_up_early():
                self._failures[ledger_id] = min(self._failures[ledger_id], 1)
            elif self._failures[ledger_id] > FAILURES_MAX:
                self._truth.fail("I19", f"{self._name} failed {ledger_id} too often: {result.detail[:200]}")
        else:
            self._failures.pop(ledger_id, None)
            is_over = ending in _COMPLETED or ending in (Ending.MARKED_AGAIN, Ending.BUSY, Ending.STOPPED)
            self._due_s[ledger_id] = 0.0 if is_over else float("inf")

    def tasks_listed(self, queue_state: QueueState) -> None:
        self._inner_events.tasks_listed(queue_state)

    def copy_corrupt(self, ledger_id: LedgerId, copy: Any) -> None:
        self._inner_events.copy_corrupt(ledger_id, copy)

    def _has_store_fault(self) -> bool:
        """Whether the store answers this worker late, with errors, or not at all."""
        faults, process = self._client.faults, self._client.process
        is_slow = faults.lose_share or faults.slow_share or faults.lag_s or faults.fail_share
        return (
            bool(is_slow) or process.held_until_s > self._repairs.now_s() or not self._client.store.session.is_connected
        )

    def _gave_up_early(self) -> bool:
        """Whether, since the last call, a fault point made a recovery stop waiting for a bookie that answers."""
        before, self._early_timeouts = self._early_timeouts, self._world.points_fired("recovery.early_timeout")
        return self._early_timeouts > before

    def _count_cost(self, note: TurnNote, *, is_completed: bool) -> None:
        metadata = self._truth.metadata.get(note.ledger_id)
        is_small = (
            metadata is not None and (metadata.last_entry_id or 0) < SMALL_ENTRIES and len(metadata.fragments) == 1
        )
        if not is_completed:
            return
        listed = self._taken_from.get(note.ledger_id, self._listed)
        self._requests, listed.requests = self._requests + listed.requests, 0
        if is_small:
            self._finished += 1
            self._requests += note.requests
            self._judge_cost()

    def _judge_cost(self) -> None:
        """Check the mean number of requests per finished task, if nothing disturbed this worker."""
        if self._world.has_fault_points or self._is_disturbed or self._finished < TASKS_COUNTED_MIN:
            return
        self._is_disturbed = self._has_store_fault() or self._client.store.session.epoch > 1
        mean = self._requests / self._finished
        if (
            not self._is_disturbed
            and mean > TASK_REQUESTS_MAX
            and self._world.counts_cost
            and not self._world.bytes_per_second
        ):
            self._truth.fail("COST", f"{self._name} needed {mean:.0f} requests for each of {self._finished} tasks")

    # Turns

    async def _watched_repair(self, turn: Turn) -> TaskResult:
        repairs, store = self._repairs, self._client.store
        note = TurnNote(self._name, turn.ledger_id, store.session.session_id, repairs.now_s())
        key = (self._name, turn.ledger_id)
        repairs.running[key] = note
        TURN.set(note)
        is_completed = False
        try:
            result = await self._repair(turn)
            is_completed = result.ending in _COMPLETED
            return result
        finally:
            repairs.running.pop(key, None)
            self._ended_requests += note.requests
            self._count_cost(note, is_completed=is_completed)
            self._weighing.forget(turn.ledger_id)
            repairs._count_faults(note, repairs.efforts[turn.ledger_id], is_completed=is_completed)

    # Order

    async def _watched_refresh(self) -> None:
        started_s = self._repairs.now_s()
        is_clear = not self._has_store_fault()
        before, requests = self._copies_left(), self._client.store.requests
        changes, turns = self._truth.registration_changes(), self._turn_requests()
        await self._refresh()
        cost = self._client.store.requests - requests - (self._turn_requests() - turns)
        self._taken.clear()
        after = self._copies_left()
        # After two changes, the worker may have seen a state between them.
        is_clear = is_clear and not self._has_store_fault() and self._truth.registration_changes() <= changes + 1
        both = {key: _range(before[key], after[key]) for key in before.keys() & after.keys()} if is_clear else {}
        self._listed = _Listed(started_s, both, cost)
        for ledger_id in after:
            failed = self._failed(ledger_id)
            if failed is not None and self._records.get(ledger_id, ("", 0.0))[0] != failed.token:
                self._records[ledger_id] = failed.token, self._repairs.now_s()

    def _turn_requests(self) -> int:
        running = sum(note.requests for key, note in self._repairs.running.items() if key[0] == self._name)
        return self._ended_requests + running

    def _copies_left(self) -> dict[LedgerId, tuple[int, int]]:
        """Return the fewest and the most copies left of each ledger with a task.

        Fewest: bookies that a task names have no copies. Most: those that were ever drained have theirs.
        """
        truth, registered = self._truth, self._truth.registered()
        found = {}
        for ledger_id, named in truth.tasks.items():
            metadata = truth.metadata.get(ledger_id)
            if metadata is not None and metadata.is_closed and (named or self._world.topology.locations):
                least, most = (
                    copies_left(metadata, registered - named, least=0),
                    copies_left(metadata, registered - named),
                )
                if not self._world.drained.isdisjoint(named):
                    # If the drain was withdrawn, a worker counts no copy there, and the ledger comes last.
                    most = max(most, copies_left(metadata, registered - (named - self._world.drained)))
                found[ledger_id] = least, most
        return found

    def _watched_take(self, passed_over: Collection[QueueKind] = ()) -> Turn | None:
        forced = self._world.points_fired("queue.take_last")
        turn: Turn | None = self._take(passed_over)
        if turn is None:
            return None
        self._failing &= self._running.keys()
        is_failing = turn.failures >= FAILING_MIN
        if forced == self._world.points_fired("queue.take_last"):
            self._check_order(turn.ledger_id, is_failing=is_failing)
        self._taken.add(turn.ledger_id)
        if turn.ledger_id not in self._running:
            self._was_last_failing = is_failing
            if is_failing:
                self._failing.add(turn.ledger_id)
        self._taken_from[turn.ledger_id] = self._listed
        return turn

    def _check_order(self, ledger_id: LedgerId, *, is_failing: bool) -> None:
        """Check that no due ledger with fewer copies left waits, and no other one behind ledgers that keep failing."""
        listed, now, truth_tasks = self._listed, self._copies_left(), self._truth.tasks
        if ledger_id not in now or ledger_id not in listed.copies_left or self._world.truth.is_loss_expected:
            return
        mine, _ = _range(listed.copies_left[ledger_id], now[ledger_id])
        must_wait = self._was_last_failing or len(self._failing) >= self._places
        for other, left in sorted(listed.copies_left.items()):
            if (
                other == ledger_id
                or other not in now
                or not truth_tasks.get(other)
                or other in self._taken
                or other in self._running
                or not self._is_due(other)
            ):
                continue
            least, most = _range(left, now[other])
            is_other_failing = self._queue._memory.failures(other) >= FAILING_MIN
            if is_failing and must_wait and not is_other_failing and least > 0:
                self._truth.fail("R40", f"{self._name} took {ledger_id}, which keeps failing, before {other}")
            if is_other_failing and must_wait:
                continue
            if least > 0 and most < mine:  # a ledger without any copy comes last
                self._truth.fail(
                    "R40",
                    f"{self._name} took {ledger_id} with {mine} copies left before {other} with {most}",
                )

    def _is_due(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger was unchanged, not locked or parked, and need not wait when the listing started."""
        truth, started_s = self._truth, self._listed.started_s
        is_untouched = truth.touched_s.get(ledger_id, 0.0) < started_s
        is_parked = self._world.cell.stat(f"{own_path('parked', ROOT)}/{ledger_id}") is not None
        is_locked = self._world.cell.stat(lock_path(ROOT, ledger_id)) is not None
        if not is_untouched or is_parked or is_locked or self._due_s.get(ledger_id, 0.0) >= started_s:
            return False
        failed = self._failed(ledger_id)
        if failed is None:
            return True
        token, seen_s = self._records.get(ledger_id, ("", 0.0))
        return token == failed.token and seen_s + 1.25 * failed.pause_s < started_s

    def _failed(self, ledger_id: LedgerId) -> FailedTask | None:
        """Return the failure that any worker recorded. All workers observe its pause."""
        path = f"{own_path('failures', ROOT)}/{ledger_id}"
        if self._world.cell.stat(path) is None:
            return None
        return decode_record(self._world.cell.get(path).data, FailedTask, ledger_id=ledger_id)


def _range(before: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    return min(before[0], now[0]), max(before[1], now[1])


def copies_left(metadata: LedgerMetadata, live: AbstractSet[BookieId], least: int = 1) -> int:
    """Return the fewest copies left of any entry that lacks copies, ignoring entries with fewer than ``least``."""
    fewest = NOTHING_SHORT
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        for start in metadata.stripe.starts(fragment.first_entry_id, last):
            holders = {fragment.members[position] for position in metadata.stripe.write_set(start)}
            count = len(holders & live)
            if count < len(holders) and count >= least:
                fewest = min(fewest, count)
    return fewest


class _Weighing(Transport):
    """The transport of a worker's copies, which counts the entries in memory and the copied ones."""

    def __init__(
        self, repairs: Repairs, world: SimWorld, client: SimClient, inner: Transport, budget_bytes: int
    ) -> None:
        self._repairs = repairs
        self._world = world
        self._client = client
        self._inner = inner
        self._budget_bytes = budget_bytes
        self._in_hand: dict[tuple[LedgerId, EntryId], int] = {}
        self._read_s: dict[tuple[LedgerId, EntryId], float] = {}
        self._refused_s = float("-inf")
        self._sending: Counter[tuple[LedgerId, EntryId]] = Counter()
        """For each entry, the number of targets to which it is being sent."""
        self._offered: set[tuple[BookieId, LedgerId, EntryId]] = set()

    def forget(self, ledger_id: LedgerId) -> None:
        """Note that a turn ended, so it no longer holds entries in memory."""
        for key in [key for key in self._in_hand if key[0] == ledger_id]:
            del self._in_hand[key]

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        batch_key = (bookie, *packet_ids(batch.entries[0])[:2])
        if batch_key not in self._offered:  # a batch is sent several times to a bookie that does not answer
            self._check_enabled(batch.ledger_id)
        self._offered.add(batch_key)
        keys = [packet_ids(packet)[:2] for packet in batch.entries]
        self._sending.update(keys)
        self._repairs.limits.sent(self._client.process.name, sum(map(len, batch.entries)))
        try:
            reply = await self._inner.add(bookie, batch, timeout_s)
        finally:
            self._sending.subtract(keys)
        if reply.status is Status.OK:
            self._repairs.copied(bookie, batch)
        elif reply.status is not Status.TOO_MANY_REQUESTS:
            self._repairs.efforts[batch.ledger_id].is_started_again = True
            self.forget(batch.ledger_id)  # the copy ends and drops all its entries
            self._refused_s = self._repairs.now_s()
        for key in keys:
            if self._sending[key] <= 0:  # no other target waits for it
                del self._sending[key]
                self._in_hand.pop(key, None)
        return reply

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        if isinstance(request, Copy):
            self._check_enabled(request.ledger_id)
        reply = await self._inner.ask(bookie, request, timeout_s)
        if isinstance(request, Copy) and isinstance(reply, CopyReply):
            self._repairs.limits.sent(self._client.process.name, reply.stored_bytes)
            self._repairs.heard_of_pull(bookie, request, reply)
        if isinstance(request, Read) and isinstance(reply, ReadReply):
            for result in reply.results:
                if result.packet:
                    key = request.ledger_id, result.entry_id
                    self._in_hand[key], self._read_s[key] = len(result.packet), self._repairs.now_s()
            # Entries read but not sent at once were dropped at the end of their copy, or wait for a busy target.
            new_s = self._repairs.now_s() - SENT_S
            sizes = [
                size for key, size in self._in_hand.items() if self._sending[key] > 0 or self._read_s[key] >= new_s
            ]
            held = sum(sizes)
            is_ending = self._repairs.now_s() - self._refused_s < SETTLING_S
            if not is_ending and held > max(self._budget_bytes, max(sizes, default=0)):
                self._world.truth.fail("R43", f"{self._client.process.name} holds {held} bytes of copies")
        return reply

    @override
    async def close(self) -> None:
        await self._inner.close()

    def _check_enabled(self, ledger_id: LedgerId) -> None:
        stat = self._world.cell.stat(disable_path(ROOT))
        if stat is None:
            return
        since_s = self._repairs.now_s() - max(self._world.disabled_since_s, self._world.limits_changed_s)
        faults = self._client.faults
        if since_s > PROMPT_S + 2 * (faults.lag_s + (faults.slow_s if faults.slow_share else 0.0)):
            self._world.truth.fail(
                "S7", f"{self._client.process.name} copies {ledger_id}, {since_s:.0f} s after repair was disabled"
            )
