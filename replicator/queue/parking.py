"""Decide when to try a parked or failed task again. Nothing is ever retried in a hot loop.

A parked task is tried again if the planner, a pure function, would now do something other than block: because of new
bookies, returned members, or changed metadata. Planning cannot judge unreadable entries and impossible recoveries, so
these are tried again after a bookie has registered. It need not accept copies, because it may have the entries (R93).
In either case the same process does not try the same state twice, except after half an hour: a disk may have been
repaired, or the end of an open ledger may have been written, without any trace in the store.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Generator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.tasks.failures import FailedTask
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.ids import LedgerId
from bookie.runtime.clock import Clock
from replicator.plan.moves import planning_moves
from replicator.plan.planner import Plan, planning_repair
from replicator.plan.target_choice import Choose

RECHECK_S: Final = 1800.0
"""How long a parked task rests if no change is visible in the store."""
SOON_S: Final = 300.0
"""The same for causes that often end without a trace in the store: a bookie does not answer, or accepts no copies."""
ATTEMPTS_MAX: Final = 5
"""The number of failures in a row after which a task is parked, if there is a reason to park it. A run with ``once``
then no longer waits for it."""
_BACKOFF_S: Final = 5.0
_BACKOFF_S_MAX: Final = 300.0
_DOUBLINGS_MAX: Final = 10
_TOKEN_BITS: Final = 48


_REASONS_RECHECKED_SOON: Final = frozenset({ParkReason.UNREACHABLE_BOOKIES, ParkReason.TARGETS_REFUSE})


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the store shows about a task. Under equal circumstances, the same outcome is expected."""

    task_version: int
    ledger_version: int
    """The version of the metadata; -1 if there is none to compare."""
    bookies: Bookies
    topology: str = ""
    """For a placement mark, the policy and the topology (``EnsembleJudge.fingerprint``); otherwise empty."""


def circumstances_of(
    task: Task, ledger: Versioned | Unreadable | None, bookies: Bookies, topology: str = ""
) -> Circumstances:
    """Return the circumstances. They contain no metadata, because there may be a million tasks."""
    return Circumstances(task.version, ledger.version if isinstance(ledger, Versioned) else -1, bookies, topology)


def judging_retry(
    task: Task, ledger: Versioned | Unreadable | None, bookies: Bookies, parked: ParkedTask, choose: Choose
) -> Generator[None, None, bool]:
    """Return whether another attempt can have a different result, with pauses; ``ledger`` is None if it was deleted."""
    if task.version != parked.task_version or ledger is None:
        return True
    if isinstance(ledger, Unreadable):
        return parked.reason is not ParkReason.UNREADABLE_METADATA
    if parked.reason is ParkReason.INTERNAL_ERROR:
        return False
    if parked.reason is ParkReason.UNREACHABLE_BOOKIES:
        return not (bookies.registered ^ parked.bookies_seen).isdisjoint(ledger.metadata.members())
    if parked.reason is ParkReason.TARGETS_REFUSE:
        return bool(bookies.writable - parked.bookies_seen)
    plan = yield from planning_repair(ledger, bookies, choose, steps_max=1)
    if parked.reason is ParkReason.OPEN_LEDGER:
        return plan.is_nothing_missing or bool(plan.steps) or _may_leave_parked(ledger, plan)
    if parked.reason is ParkReason.NEEDS_RECOVERY and bookies.registered - parked.bookies_seen:
        return True
    if parked.reason is ParkReason.UNREADABLE_ENTRIES:
        return plan.is_nothing_missing or bool(bookies.registered - parked.bookies_seen)
    return plan.is_nothing_missing or bool(plan.steps)


def judging_move_retry(
    task: Task, ledger: Versioned, bookies: Bookies, parked: ParkedTask, placement: Placement
) -> Generator[None, None, bool]:
    """Do the same as ``judging_retry``, for a task that only requests better placement.

    There may be many such tasks after a change of the topology, so closed ledgers are not planned here: a new bookie,
    another topology or another policy is a sufficient reason. The attempt makes a new plan.
    """
    if task.version != parked.task_version or parked.topology != placement.judge().fingerprint:
        return True
    if parked.reason is ParkReason.OPEN_LEDGER:
        plan = yield from planning_moves(ledger, bookies, placement, steps_max=1)
        return bool(plan.steps) or not plan.blocked
    if parked.reason is ParkReason.UNREACHABLE_BOOKIES:
        return not (bookies.registered ^ parked.bookies_seen).isdisjoint(ledger.metadata.members())
    if parked.reason is ParkReason.INTERNAL_ERROR:
        return False
    if parked.reason is ParkReason.UNREADABLE_ENTRIES:
        return bool(bookies.registered - parked.bookies_seen)
    return bool(bookies.writable - parked.bookies_seen)


def _may_leave_parked(ledger: Versioned, plan: Plan) -> bool:
    """Return whether the cause has changed, or the writer has continued with another ensemble. Then a turn decides."""
    last = len(ledger.metadata.fragments) - 1
    return any(block.reason is not ParkReason.OPEN_LEDGER or block.fragment_index < last for block in plan.blocked)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failures:
    count: int
    until_s: float
    noted_s: float
    """A listing that starts after this time contains the record, unless it was deleted. Infinity while it is
    written."""
    token: str
    """The token of the record."""
    is_own: bool
    """Whether an attempt of this process was among those that failed."""
    is_kept: bool
    """Whether the pause applies although the store has no record of it."""


@dataclass(frozen=True, slots=True)
class _Resting:
    circumstances: Circumstances
    since_s: float
    attempts: int
    """The number of attempts in the parked record."""


class Memory:
    """The known failed and parked tasks, at most one record of each per task.

    All workers share the records of failures and of parked tasks in the store. Each measures pauses and rests by its
    own clock, from when it first read the record. So the next attempt by any worker starts them again for all.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._failures: dict[LedgerId, _Failures] = {}
        self._resting: dict[LedgerId, _Resting] = {}

    def record_failure(self, ledger_id: LedgerId) -> FailedTask:
        """Record a failure; its pause doubles from 5 s to 5 minutes. Return the record for other workers."""
        count, now_s = self.failures(ledger_id) + 1, self._clock.monotonic_s()
        pause_s = min(_BACKOFF_S * 2 ** min(count - 1, _DOUBLINGS_MAX), _BACKOFF_S_MAX) * (
            0.75 + 0.5 * self._rng.random()
        )
        token = f"{self._rng.getrandbits(_TOKEN_BITS):012x}"
        self._failures[ledger_id] = _Failures(
            count=count, until_s=now_s + pause_s, noted_s=math.inf, token=token, is_own=True, is_kept=False
        )
        return FailedTask(ledger_id, count, pause_s, token)

    def finish_recording(self, record: FailedTask, *, is_kept: bool) -> None:
        """Record that the attempt to write a record of ``record_failure`` to the store has ended, if there was one.

        ``is_kept``: the store has no record, and this process makes the pause anyway.
        """
        known = self._failures.get(record.ledger_id)
        if known is not None and known.token == record.token:
            noted_s = self._clock.monotonic_s()
            self._failures[record.ledger_id] = replace(known, noted_s=noted_s, is_kept=is_kept)

    def note_shared_failure(self, record: FailedTask) -> None:
        """Record a failure, of this process or another, that was read from the store."""
        known = self._failures.get(record.ledger_id)
        if known is not None and known.token == record.token:
            self._failures[record.ledger_id] = replace(known, is_kept=False)
        else:
            now_s, pause_s = self._clock.monotonic_s(), min(max(record.pause_s, 0.0), 2 * _BACKOFF_S_MAX)
            self._failures[record.ledger_id] = _Failures(
                count=record.failures,
                until_s=now_s + pause_s,
                noted_s=now_s,
                token=record.token,
                is_own=known is not None and known.is_own,
                is_kept=False,
            )

    def forget_deleted_failures(self, ledger_ids: Collection[LedgerId], listed_s: float) -> None:
        """Forget the failures whose record was deleted. Those with ``is_kept`` stay.

        Args:
            ledger_ids: the ledgers with a record, according to a listing.
            listed_s: when this listing started; failures noted later are kept.
        """
        gone = [
            ledger_id
            for ledger_id, known in self._failures.items()
            if not known.is_kept and ledger_id not in ledger_ids and known.noted_s < listed_s
        ]
        for ledger_id in gone:
            del self._failures[ledger_id]

    def token(self, ledger_id: LedgerId) -> str:
        """Return the token of the last failure; empty if there is none."""
        known = self._failures.get(ledger_id)
        return "" if known is None else known.token

    def record_parked(self, ledger_id: LedgerId, circumstances: Circumstances, attempts: int) -> None:
        """Record that this worker or another parked a task under these circumstances."""
        self._failures.pop(ledger_id, None)
        self._resting[ledger_id] = _Resting(circumstances, self._clock.monotonic_s(), attempts)

    def update_parked_circumstances(self, ledger_id: LedgerId, circumstances: Circumstances, attempts: int) -> None:
        """Record the present circumstances of a parked task without starting its rest again."""
        known = self._resting.get(ledger_id)
        since_s = self._clock.monotonic_s() if known is None else known.since_s
        self._failures.pop(ledger_id, None)
        self._resting[ledger_id] = _Resting(circumstances, since_s, attempts)

    def restart_rest_if_retried(self, ledger_id: LedgerId, attempts: int) -> None:
        """Start the rest of a parked task again if another worker has tried it since then."""
        known = self._resting.get(ledger_id)
        if known is not None and known.attempts != attempts:
            self._resting[ledger_id] = _Resting(known.circumstances, self._clock.monotonic_s(), attempts)

    def forget(self, ledger_id: LedgerId) -> None:
        """Forget everything about a ledger."""
        self._failures.pop(ledger_id, None)
        self._resting.pop(ledger_id, None)

    def failures(self, ledger_id: LedgerId) -> int:
        """Return the number of failures in a row."""
        known = self._failures.get(ledger_id)
        return known.count if known is not None else 0

    def is_given_up(self, ledger_id: LedgerId) -> bool:
        """Whether a run with ``once`` stops waiting for the task: many attempts failed, at least one of them here."""
        known = self._failures.get(ledger_id)
        return known is not None and known.is_own and known.count >= ATTEMPTS_MAX

    def due_in_s(self, ledger_id: LedgerId) -> float:
        """Return the seconds until a failed task may be retried; 0 or less if it may be retried now."""
        known = self._failures.get(ledger_id)
        return known.until_s - self._clock.monotonic_s() if known is not None else 0.0

    def is_resting(self, ledger_id: LedgerId, circumstances: Circumstances, reason: ParkReason) -> bool:
        """Whether the task was recorded as parked under the same circumstances, and its rest has not ended."""
        known = self._resting.get(ledger_id)
        return known is not None and known.circumstances == circumstances and not self.is_rest_over(ledger_id, reason)

    def is_rest_over(self, ledger_id: LedgerId, reason: ParkReason) -> bool:
        """Whether the rest of the task has ended, so that it is tried again without any change."""
        known = self._resting.get(ledger_id)
        rest_s = SOON_S if reason in _REASONS_RECHECKED_SOON else RECHECK_S
        return known is not None and self._clock.monotonic_s() - known.since_s >= rest_s

    def forget_parked(self) -> None:
        """Forget the rests of parked tasks. Pauses after failures stay, because each listing would start them again."""
        self._resting.clear()

    def keep_only(self, ledger_ids: Collection[LedgerId]) -> None:
        """Forget every ledger without a task."""
        kept = ledger_ids if isinstance(ledger_ids, AbstractSet) else frozenset(ledger_ids)
        for known in (self._failures, self._resting):
            for ledger_id in known.keys() - kept:
                del known[ledger_id]
