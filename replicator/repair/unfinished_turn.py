"""End a turn that leaves work: the task fails and is tried again soon, or it is parked with a reason.

A cause that may end soon counts as a failure, with short delays, until ``ATTEMPTS_MAX`` turns in a row have failed. For
every other cause the task is parked immediately. The record contains the present bookies and the lasting refusals, so
that later changes can be detected (``queue.parking``).

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.tasks.parked import CopyRefusal, ParkedTask, ParkReason
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId
from bookie.runtime.human import counted
from bookie.wire.port import Status
from replicator.knowledge.evidence import SHOWN_MAX
from replicator.knowledge.refusals import fenced, refusals_in_effect
from replicator.plan.planner import Blocked
from replicator.ports import RepairPorts
from replicator.queue.parking import ATTEMPTS_MAX
from replicator.queue.task_queue import Turn
from replicator.repair.lease import Lease
from replicator.repair.turn_findings import TurnFindings
from replicator.telemetry.events import Ending, TaskResult

_WORST_FIRST: Final = (
    ParkReason.UNREADABLE_METADATA,
    ParkReason.UNREADABLE_ENTRIES,
    ParkReason.NO_LIVE_COPY,
    ParkReason.NO_CANDIDATE_BOOKIE,
    ParkReason.NEEDS_RECOVERY,
    ParkReason.OPEN_LEDGER,
    ParkReason.MISPLACED,
)
_REASONS_ENDED_BY_ANY_BOOKIE: Final = (
    ParkReason.NEEDS_RECOVERY,
    ParkReason.UNREACHABLE_BOOKIES,
    ParkReason.UNREADABLE_ENTRIES,
)
"""Park reasons that a newly registered bookie may remove, writable or not (R93)."""
_REASONS_ENDED_BY_TARGET: Final = (ParkReason.NO_CANDIDATE_BOOKIE, ParkReason.OPEN_LEDGER, ParkReason.MISPLACED)
"""Park reasons that a bookie which accepts copies may remove."""
_LASTING: Final = frozenset({Status.BAD_REQUEST, Status.CORRUPT})
"""Refusals that do not end soon. CORRUPT means that a bookie served wrong bytes again after good ones were stored
there. An Apache bookie with ``SortedLedgerStorage`` does so until its next flush, and each attempt reads all its
entries."""
_EVIDENCE_MAX: Final = 2_000
"""The most characters of a traceback that are recorded."""


class UnfinishedTurn:
    """Ends a turn without completing its task."""

    def __init__(self, ports: RepairPorts, lease: Lease, turn: Turn, found: TurnFindings) -> None:
        self._ports = ports
        self._lease = lease
        self._turn = turn
        self._task = lease.held.task
        self._found = found
        self._refusals: dict[BookieId, CopyRefusal] | None = None
        """The lasting refusals that an earlier turn recorded; None until they are read."""

    async def recall_refusals(self) -> None:
        """Read the recorded refusals: the plans of this turn avoid these bookies."""
        if self._refusals is None:
            is_parked = self._turn.is_parked
            self._refusals = await refusals_in_effect(self._ports, self._task.ledger_id) if is_parked else {}
            self._found.failed_targets |= {bookie: fenced(bookie) for bookie in self._refusals}

    async def end_blocked(self, blocked: Sequence[Blocked], bookies: Bookies) -> TaskResult:
        """End a turn with blocked positions: park for the worst reason, or fail if another attempt may soon succeed."""
        reason = min((block.reason for block in blocked), key=_WORST_FIRST.index)
        detail = "; ".join(block.detail for block in blocked[:SHOWN_MAX])
        if len(blocked) > SHOWN_MAX:
            detail += f"; and {counted(len(blocked) - SHOWN_MAX, 'more position')}"
        if self._found.recovery_failure:
            detail += f"; {self._found.recovery_failure}"
            if not self._found.is_recovery_failure_permanent:
                return self._found.result(self._task, Ending.FAILED, detail=detail)
        failed = self._found.failed_targets
        if failed and any(block.reason in _REASONS_ENDED_BY_TARGET for block in blocked):
            detail += f"; refusals: {', '.join(map(str, failed.values()))}"
            if self._refusals and failed.keys() <= self._refusals.keys():  # no other bookie refused in this turn
                return await self.park(ParkReason.TARGETS_REFUSE, detail, bookies)
            if any(answer.status not in _LASTING for answer in failed.values()):
                return await self.fail_or_park(ParkReason.TARGETS_REFUSE, detail, bookies)
        return await self.park(reason, detail, bookies)

    async def fail_or_park(self, reason: ParkReason, detail: str, bookies: Bookies) -> TaskResult:
        """Fail, with a short delay, because the cause may end soon; park after several failures in a row."""
        if self._turn.failures + 1 < ATTEMPTS_MAX:
            return self._found.result(self._task, Ending.FAILED, detail=detail)
        return await self.park(reason, detail, bookies)

    async def park_broken(self, error: InvariantError) -> TaskResult:
        """Park because an internal rule was violated, with the end of the traceback as evidence."""
        evidence = "".join(traceback.format_exception(error)).strip()
        bookies = await self._ports.registrations.list()
        return await self.park(ParkReason.INTERNAL_ERROR, f"{error}\n{evidence[-_EVIDENCE_MAX:]}", bookies)

    async def park(self, reason: ParkReason, detail: str, bookies: Bookies) -> TaskResult:
        """Record the task as parked. If it was parked for the same reason, it keeps its time.

        Raises:
            LeaseLostError: the lock is no longer ours; nothing was recorded.
            StoreUnavailableError, WriteOutcomeUnknownError: the store does not answer; parking again is safe.
        """
        before = await self._ports.parked.get(self._task.ledger_id)
        is_same = before is not None and before.reason is reason
        since_ms = before.since_ms if before is not None and is_same else self._ports.clock.epoch_ms()
        known = bookies.registered if reason in _REASONS_ENDED_BY_ANY_BOOKIE else bookies.writable
        attempts = 0 if before is None else before.attempts + 1
        topology = "" if self._task.missing else self._ports.placement.judge().fingerprint
        record = ParkedTask(
            ledger_id=self._task.ledger_id,
            reason=reason,
            detail=detail,
            since_ms=since_ms,
            bookies_seen=known,
            task_version=self._task.version,
            attempts=attempts,
            topology=topology,
            refusals=self._lasting_refusals(),
        )
        await self._lease.ensure_ours()
        await self._ports.parked.park(record)
        return self._found.result(self._task, Ending.PARKED, reason=reason, detail=detail)

    def _lasting_refusals(self) -> tuple[CopyRefusal, ...]:
        """Return the refusals of this turn for the record. Refusals that were recorded before keep their time."""
        now_ms, zxid = self._ports.clock.epoch_ms(), self._lease.held.lock.czxid
        fenced_by = [each.bookie for each in self._found.failed_targets.values() if each.status is Status.FENCED]
        recorded = self._refusals or {}
        return tuple(recorded.get(bookie) or CopyRefusal(bookie, now_ms, zxid) for bookie in fenced_by)
