"""The first reaction of a one-shot run to a lost bookie in a small cluster: the driver reads all ledgers, and marks.

Spark takes seconds to start and to plan its first tasks. In this time, one process can read more than ten thousand
ledgers. The rules of ``early_marking`` apply: the pass over all ledgers follows, so nothing depends on these marks
(R143).

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from spark_jobs.options.marking import RunLimits
from spark_jobs.pacing.budget import Budget
from spark_jobs.pacing.pace import NODE_BYTES
from spark_jobs.report.counts import DriverMarksCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.marking.early_marking import EarlyMarking, NewLosses
from spark_jobs.runs.marking.fresh_verdict import FreshVerdict
from spark_jobs.runs.marking.lost_bookies import LostBookies

_log = logging.getLogger(__name__)

LEDGERS_MAX: Final = 20_000
"""Largest number of ledgers, which the driver reads in about a second. In larger clusters, Spark soon reads faster."""
START_S: Final = 5.0
"""Time in which Spark starts and plans its first tasks. If reads are limited, the driver does not read for longer."""
BATCH: Final = 5_000
"""Number of ledgers read at a time: a few megabytes."""


def _ledgers_max(budget: Budget) -> float:
    rates = (budget.nodes_per_s, budget.bytes_per_s / NODE_BYTES)
    return min([LEDGERS_MAX, *(rate * START_S for rate in rates if rate)])


class DriverMarks:
    """The marks that the driver of one run makes by itself. Belongs to the run's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self.marking = EarlyMarking(context)
        """The marks so far."""
        self._counts = DriverMarksCounts()

    @property
    def counts(self) -> DriverMarksCounts:
        """The ledgers read and marked so far."""
        return self.marking.counted(self._counts)

    def mark(self, cookies: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        """Mark the ledgers of new losses, worst first, in a cluster of up to ``LEDGERS_MAX`` ledgers.

        The number is lower if the limits on reads do not permit so many in ``START_S``; otherwise the pass over all
        ledgers would have to wait. A run with a limit on its marks does nothing here, because the limit is for the
        worst of all findings. Any failure is logged, and the run continues.

        Args:
            cookies: every bookie with a cookie.
            before: the first listing of bookies in this run.
            lost: the lost bookies, with their marking rules.

        Raises:
            RunStoppedError: from the gate.
        """
        losses = NewLosses.of(lost)
        if not losses or self._context.settings.run_limits != RunLimits():
            return
        try:
            self._mark(losses, cookies | before.registered, before, lost)
        except (TransientError, OutcomeUnknownError) as error:
            self._stopped(str(error))

    def _mark(self, losses: NewLosses, known: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        context, cluster = self._context, self._cluster
        parents = cluster.leaf_parents()
        if sum(parent.planned for parent in parents) > _ledgers_max(context.settings.budget):
            return
        decided = self.marking.decided()
        listed = chain.from_iterable(cluster.ledgers_under([parent.path for parent in parents]))
        ids = (ledger_id for ledger_id in listed if ledger_id not in decided)
        verdicts: list[FreshVerdict] = []
        members: set[BookieId] = set()
        while batch := list(islice(ids, BATCH)):
            context.gate.pass_through()
            read = self.marking.read(batch, before)
            verdicts += filter(losses.concern, read.verdicts)
            members |= read.members
            self._counts = replace(self._counts, ledgers=self._counts.ledgers + len(batch))
        if not verdicts:
            return
        if problem := self.marking.publish(verdicts, lost, known | members, self._counts.ledgers):
            self._stopped(problem)
            return
        fields = {"ledgers": self._counts.ledgers, "marked": self.marking.marked, "run_id": context.run_id}
        _log.info("ledgers of lost bookies were marked by the driver, Spark reads all ledgers now", extra=fields)

    def _stopped(self, reason: str) -> None:
        self._counts = replace(self._counts, problem=reason)
        fields = {"run_id": self._context.run_id, "reason": reason}
        _log.warning("the driver did not mark all ledgers of lost bookies, Spark reads all ledgers now", extra=fields)
