"""Withdraw marks whose reason has ended: without workers, they would stay in the backlog forever (R78).

The invariant: a mark is deleted under the ledger's lock, at the version read under this lock (S5), and only if the
metadata, read under the same lock, proves that nothing is left to do: the ledger was deleted, or no ensemble names any
bookie of the mark, and all members are registered and not draining. The transaction checks the version of the metadata
(I18). So the mark stays if a writer, an auditor of Apache's or a worker changes the mark or the metadata in the
meantime.

A mark without such a proof stays. A named bookie may be registered again and lack entries (R31). Only its own list
shows this, and the worker that takes the task asks for the list. A mark without bookies requests better placement,
which a worker judges. If a worker has begun (a reservation, doubted members) or has parked the ledger, the mark is left
to the worker, unless the ledger was deleted.

No mark is removed just because a scan did not see its ledger (S20): each mark is read together with its ledger. If the
run has a finding for a ledger, its mark is not examined, and stays. The number of marks in one run is bounded, and
nothing is withdrawn while auto-recovery is disabled (S7). A crash leaves a lock, which ends with the session, or a
parked record, which a worker's listing removes; the next run withdraws the rest.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable, Versioned
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.port import AccessDeniedError, Check, MetadataStore
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTasks
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.metadata.tasks.locks import HeldTask, SeenNode, Task
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import Ended
from bookie.runtime.waiting import results_as_completed
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.port import Gate

_log = logging.getLogger(__name__)

WITHDRAWN_MAX: Final = 10_000
"""Largest number of marks withdrawn in one run, in about 15 s: each needs its own lock and a few requests. The next run
continues."""
MARKS_READ_PER_PASS: Final = 2_000
"""Number of marks that are read with their ledgers between two passes of the gate."""
_AT_ONCE: Final = 32
"""Number of marks withdrawn at the same time."""


def why_ended(task: Task, ledger: Versioned | Unreadable | None, staying: AbstractSet[BookieId]) -> Ended | None:
    """Return why nothing is left to do for a mark; None: this is not proven. Pure.

    Args:
        task: the mark.
        ledger: its ledger, no older than the mark; None: the ledger does not exist.
        staying: registered bookies that are not draining, in a list that may be older than the ledger. The audit of a
            loss marks the ledgers of members that have left since then.
    """
    if ledger is None:
        return Ended.LEDGER_DELETED
    if isinstance(ledger, Unreadable) or not task.missing:
        return None
    members = ledger.metadata.members()
    if not members.isdisjoint(task.missing) or not members <= staying:
        return None
    return Ended.REPLACED


@dataclass(frozen=True, slots=True)
class WithdrawalStep:
    """A part of the marks, in the order of their ledgers."""

    withdrawn: Mapping[Ended, int] = field(default_factory=dict)
    next_after: LedgerId | None = None
    """The next step begins after this ledger; None: there is nothing more to do."""


class Withdrawal:
    """Withdraws the marks of one cluster."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        tasks: UnderReplication,
        staying: Callable[[], Awaitable[AbstractSet[BookieId]]],
    ) -> None:
        """Prepare.

        Args:
            store: its session holds the locks.
            cluster: the cluster.
            tasks: must be the only instance for this session.
            staying: lists the registered bookies that are not draining.
        """
        self._tasks = tasks
        self._staying = staying
        self._ledgers = LedgerStore(store, cluster, random.SystemRandom())
        self._parked = ParkedTasks(store, cluster.root)
        self._reservations = Reservations(store, cluster.root)
        self._doubts = DoubtedMembers(store, cluster.root)
        self._failures = FailedTasks(store, cluster.root)
        self._owner = socket.gethostname()

    async def step(
        self, after: LedgerId | None, count_max: int, found: Container[LedgerId] = frozenset()
    ) -> WithdrawalStep:
        """Check the marks after a ledger, except those of ``found``, and withdraw at most ``count_max`` of them.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; withdrawing again is safe.
            AccessDeniedError: this identity may not delete marks.
        """
        if await self._tasks.switches.is_disabled():
            return WithdrawalStep()
        part = await self._tasks.page(after, MARKS_READ_PER_PASS, found)
        tasks = [task for task in part.tasks if isinstance(task, Task)]
        ledgers = await self._ledgers.read_many_permitted([task.ledger_id for task in tasks])
        staying = await self._staying()  # after the metadata (R2)
        ended = [
            task.ledger_id
            for task, ledger in zip(tasks, ledgers, strict=True)
            if why_ended(task, ledger, staying) is not None
        ][:count_max]
        try:
            works = (self._withdraw(ledger_id, staying) for ledger_id in ended)
            async with contextlib.aclosing(results_as_completed(works, _AT_ONCE)) as results:
                reasons = Counter([reason async for reason in results if reason is not None])
        finally:
            await self._tasks.locks.prune()
        return WithdrawalStep(reasons, part.next_after)

    async def _withdraw(self, ledger_id: LedgerId, staying: AbstractSet[BookieId]) -> Ended | None:
        """Withdraw one mark if its reason has ended, as read under the lock; return the reason, or None if it stays."""
        locks = self._tasks.locks
        try:
            held = await locks.lock(ledger_id, self._owner, [self._ledgers.path(ledger_id)])
        except UnreadableTaskError:
            return None
        if held is None:
            return None
        try:
            ledger = self._ledger(held)
            ended = why_ended(held.task, ledger, staying)
            if ended is None:
                await locks.release(held.lock)
                return None
            checks = [Check(self._ledgers.path(ledger_id), ledger.version)] if isinstance(ledger, Versioned) else []
            if not await locks.complete(
                held, checks, seen=self._no_work_records(ledger_id, ended), is_pruned_later=True
            ):
                return None
        except BaseException:
            with contextlib.suppress(TransientError, OutcomeUnknownError):  # the lock ends with the session
                await locks.release(held.lock)
            raise
        _log.info("mark withdrawn", extra={"ledger_id": ledger_id, "reason": ended.value, "named": held.task.missing})
        if ended is Ended.LEDGER_DELETED:
            await self._unpark(ledger_id)
        return ended

    def _ledger(self, held: HeldTask) -> Versioned | Unreadable | None:
        """Return the ledger as read under the lock."""
        ledger_id, node = held.task.ledger_id, held.other_nodes[0]
        if node is None:
            return None
        try:
            return self._ledgers.versioned(ledger_id, node)
        except UnreadableMetadataError as error:
            return Unreadable(ledger_id, str(error))

    def _no_work_records(self, ledger_id: LedgerId, ended: Ended) -> Sequence[SeenNode]:
        """Return the condition that the ledger has no records of work.

        If a worker has begun work, it has to finish it.
        """
        records = [self._reservations.path(ledger_id)]
        if ended is not Ended.LEDGER_DELETED:
            records += [each.path(ledger_id) for each in (self._parked, self._doubts, self._failures)]
        return [SeenNode(path, None) for path in records]

    async def _unpark(self, ledger_id: LedgerId) -> None:
        """Delete the parked record of a deleted ledger.

        Best effort: otherwise a worker deletes it when it lists the records.
        """
        try:
            await self._parked.unpark(ledger_id)
        except (TransientError, OutcomeUnknownError) as error:
            _log.info(
                "record of a parked task could not be removed yet", extra={"ledger_id": ledger_id, "error": str(error)}
            )


class MarkWithdrawalPort(Protocol):
    """The part of the cluster that ``withdraw_ended`` uses."""

    def withdraw_step(self, after: LedgerId | None, count_max: int, found: Container[LedgerId]) -> WithdrawalStep:
        """Withdraw at most ``count_max`` marks after a ledger, as ``Withdrawal.step`` does."""
        ...


class LedgerIdSet:
    """The ids of many ledgers, in 8 bytes each. All ids must be added before the first lookup."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._sorted: Sequence[int] | None = None

    def add(self, ids: Iterable[LedgerId]) -> None:
        """Add ids."""
        self._sorted = None
        self._ids.extend(ids)

    def added(self, ledgers: Iterable[LedgerWithFindings]) -> Iterator[LedgerWithFindings]:
        """Yield the given ledgers, and add their ids."""
        self._sorted = None
        for ledger in ledgers:
            self._ids.append(ledger.ledger_id)
            yield ledger

    def count_outside(self, others: LedgerIdSet) -> int:
        """Return the number of ids that are not in ``others``."""
        is_inside = pc.is_in(self._array(), value_set=others._array())
        return int(len(is_inside) - is_inside.true_count)

    def __contains__(self, ledger_id: object) -> bool:
        if not isinstance(ledger_id, int):
            return False
        if (ids := self._sorted) is None:
            ids = self._sorted = memoryview(self._array().sort().buffers()[1]).cast("q")[: len(self._ids)]
        index = bisect_left(ids, ledger_id)
        return index < len(ids) and ids[index] == ledger_id

    def _array(self) -> pa.Array:
        """Return the ids as an array on the same memory. No id can be added while it exists."""
        return pa.Array.from_buffers(pa.int64(), len(self._ids), [None, pa.py_buffer(self._ids)])


def withdraw_ended(
    target: MarkWithdrawalPort, gate: Gate, count_max: int = WITHDRAWN_MAX, *, found: Container[LedgerId] = frozenset()
) -> Mapping[str, int]:
    """Withdraw the marks whose reason has ended; return their numbers by reason (``bookie.model.run.Ended``).

    If the store does not answer, or refuses a request, the next run withdraws the rest.

    Args:
        target: the cluster.
        gate: passed before each part.
        count_max: largest number of marks to withdraw.
        found: ledgers for which this run has findings.

    Raises:
        RunStoppedError: from ``gate``.
    """
    withdrawn: Counter[str] = Counter()
    after: LedgerId | None = None
    while (left := count_max - withdrawn.total()) > 0:
        gate.pass_through()
        try:
            step = target.withdraw_step(after, left, found)
        except (TransientError, ConflictError, OutcomeUnknownError, AccessDeniedError) as error:
            _log.warning("withdrawal of marks ended early", extra={"withdrawn": dict(withdrawn), "reason": str(error)})
            break
        withdrawn.update({ended.value: count for ended, count in step.withdrawn.items()})
        after = step.next_after
        if after is None:
            break
    else:
        _log.info("the limit of marks that one run withdraws is reached", extra={"withdrawn": dict(withdrawn)})
    return dict(withdrawn)
