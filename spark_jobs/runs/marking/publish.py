"""Turn findings into under-replication tasks, with one gate for all marks.

Marking merges with existing marks and changes nothing if they are complete. So a run may be repeated, may die half-way,
and may run at the same time as another (R21, R22). It only adds marks (S20). Nothing is published while auto-recovery
is disabled: an operator is working on the cluster (S7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.report.counts import PublishOutcome, PublishResult
from spark_jobs.runs.port import Gate, OpenGate, RunStoppedError

_log = logging.getLogger(__name__)

BATCH: Final = 4_000
"""Number of ledgers between two checks of the disable switch: a fraction of a second of marking."""

Marking = tuple[LedgerId, tuple[BookieId, ...]]
"""A ledger and all of its missing bookies."""


class Publisher:
    """Marks ledgers, by means of ``UnderReplication``."""

    def __init__(self, under_replication: UnderReplication) -> None:
        self._under_replication = under_replication
        self._is_initialized = False

    async def is_disabled(self) -> bool:
        """Return whether auto-recovery is disabled cluster-wide."""
        return await self._under_replication.switches.is_disabled()

    async def mark(self, batch: Sequence[Marking]) -> int | None:
        """Mark a batch; return how many tasks changed. While auto-recovery is disabled, do nothing and return None."""
        if await self.is_disabled():
            return None
        if not self._is_initialized:
            await self._under_replication.initialize()
            self._is_initialized = True
        return await self._under_replication.marking.mark_many(batch)


class MarkReceiver(Protocol):
    """Receives the batches of ``publish``."""

    def mark(self, batch: Sequence[Marking]) -> int | None:
        """Mark a batch, as ``Publisher.mark`` does."""
        ...


def publish(
    markings: Iterable[Marking],
    target: MarkReceiver,
    batch_size: int = BATCH,
    *,
    gate: Gate | None = None,
    note: Callable[[Sequence[Marking]], None] | None = None,
    count: Callable[[Sequence[Marking]], None] | None = None,
) -> PublishResult:
    """Publish ``markings`` in order, in bounded batches, until all are done or auto-recovery is disabled.

    If the store stops answering, the result is ``INTERRUPTED``: marking is idempotent, and the next run repeats it.

    Args:
        markings: ledgers with their missing bookies.
        target: receives the batches.
        batch_size: number of ledgers in a batch.
        gate: passed before each batch.
        note: receives each marked batch; None: no receiver.
        count: receives each batch that was marked, or may have been (``MarkLimiter.count``); None: no receiver.

    Raises:
        RunStoppedError: from ``gate``.
    """
    gate = gate or OpenGate()
    ledgers = changed = 0
    remaining = iter(markings)
    while True:
        try:
            batch = tuple(islice(remaining, batch_size))  # if the run has limits, this reads existing marks
            if not batch:
                break
            gate.pass_through()
            marked = _mark(batch, target, count)
        except RunStoppedError:
            raise
        except (TransientError, ConflictError, OutcomeUnknownError) as error:
            _log.error("marking interrupted", extra={"ledgers_marked": ledgers, "reason": str(error)})
            return PublishResult(PublishOutcome.INTERRUPTED, ledgers, changed)
        if marked is None:
            _log.warning("marking stopped, auto-recovery is disabled", extra={"ledgers_marked": ledgers})
            return PublishResult(PublishOutcome.DISABLED, ledgers, changed)
        ledgers += len(batch)
        changed += marked
        if note is not None:
            note(batch)
    return PublishResult(PublishOutcome.PUBLISHED if ledgers else PublishOutcome.NOTHING_TO_PUBLISH, ledgers, changed)


def _mark(
    batch: Sequence[Marking], target: MarkReceiver, count: Callable[[Sequence[Marking]], None] | None
) -> int | None:
    """Mark a batch, and count it unless nothing was marked. After an error, a part of it may be marked."""
    marked: int | None = 0
    try:
        marked = target.mark(batch)
    finally:
        if count is not None and marked is not None:
            count(batch)
    return marked
