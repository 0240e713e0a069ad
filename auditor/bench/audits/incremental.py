"""Audits after one ledger in a hundred was deleted or created: an incremental one, and one of all ledgers.

Each round changes the cluster, audits it incrementally, and then completely. The findings must be the same. Both audits
mark and write an image. The second of two rounds counts, because the first one warms up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from auditor.bench.zookeeper_counters import counters
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS: Final = 2
_CHANGED_ONE_IN: Final = 200
"""One in this number of ledgers is deleted, and the same number is created."""


class DifferentMarksError(AssertionError):
    """Two audits did not find or mark the same, so their times cannot be compared."""


@dataclass(slots=True)
class LedgerChanges:
    """Changes a cluster whose ledgers have the ids from 0 on."""

    runner: asyncio.Runner
    ledgers: LedgerStore
    count: int
    """Number of ledgers."""
    metadata: Callable[[], LedgerMetadata]
    _rng: random.Random = field(default_factory=lambda: random.Random(4))
    _deleted: set[int] = field(default_factory=set)

    def make(self) -> None:
        """Delete ledgers anywhere, and create others at the end."""
        some = max(1, self.count // _CHANGED_ONE_IN)
        gone = {self._rng.randrange(self.count) for _ in range(some)} - self._deleted
        self._deleted |= gone
        self.runner.run(self._make(gone, range(self.count, self.count + some)))
        self.count += some

    async def _make(self, gone: set[int], new: range) -> None:
        await asyncio.gather(*(self.ledgers.delete(LedgerId(ledger_id)) for ledger_id in gone))
        await self.ledgers.create_many([(LedgerId(ledger_id), self.metadata()) for ledger_id in new])


@dataclass(frozen=True, slots=True)
class _Audit:
    seconds: float
    requests: int
    ledgers: int
    marks: int
    carried: int


def measure(spark: SparkSession, settings: AuditSettings, change: LedgerChanges, port: int) -> Mapping[str, Any]:
    """Measure on a cluster with an image.

    Args:
        spark: a warm session.
        settings: of the audits.
        change: of the cluster.
        port: of ZooKeeper on this machine.

    Raises:
        DifferentMarksError: the incremental audit found different marks, or read everything.
    """
    for _ in range(_ROUNDS):
        change.make()
        part = _audit(spark, replace(settings, incremental=True), change, port)
        whole = _audit(spark, settings, change, port)
        if (part.ledgers, part.marks) != (whole.ledgers, whole.marks) or not part.carried:
            raise DifferentMarksError("an incremental audit found something else, or read everything")
    return {
        "after_1_percent_s": {"incremental": round(part.seconds, 2), "whole": round(whole.seconds, 2)},
        "ledgers_read": {"incremental": part.ledgers - part.carried, "whole": whole.ledgers},
        "requests_per_1000_ledgers": {"incremental": _per_1000(part), "whole": _per_1000(whole)},
        "ratio_incremental": round(whole.seconds / part.seconds, 2),
    }


def _per_1000(audit: _Audit) -> float:
    return round(audit.requests * 1000 / audit.ledgers, 2)


def _audit(spark: SparkSession, settings: AuditSettings, change: LedgerChanges, port: int) -> _Audit:
    from spark_jobs.runs.run import run_audit

    clock = SystemClock()
    before, started_ms = change.runner.run(counters(port)), clock.epoch_ms()
    summary = run_audit(spark, settings).summary
    ended_ms, after = clock.epoch_ms(), change.runner.run(counters(port))
    return _Audit(
        max(1, ended_ms - started_ms) / 1000,
        after.received - before.received,
        summary.counts.ledgers,
        summary.published.ledgers,
        summary.image.carried,
    )
