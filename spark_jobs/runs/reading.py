"""How a bookie check reads all ledger metadata: a port with two sources, ZooKeeper and a snapshot of it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.report.summary import SnapshotCounts
from spark_jobs.runs.completeness import NO_TOTALS, problems, short_parents
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.image_upkeep import ImageUpkeep
from spark_jobs.runs.ledger_scan import LedgerScan, scan_ledgers
from spark_jobs.runs.port import Phase


class Reading(Protocol):
    """The scans of one run, each from the beginning."""

    def scan(self, live: AbstractSet[str]) -> LedgerScan:
        """Read every ledger once; those on ``live`` bookies alone are counted only. Errors: ``scan_ledgers``."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Report the missing parts of the last scan, one sentence each; nothing for a complete one."""
        ...

    @property
    def counts(self) -> SnapshotCounts | None:
        """What the last scan read in a snapshot; None: there is none."""
        ...


class LiveReading:
    """Everything is read in ZooKeeper."""

    counts: SnapshotCounts | None = None

    def __init__(self, context: RunContext, image: ImageUpkeep | None = None, *, keeps_all: bool = False) -> None:
        """With ``image``, each scan writes a new one, which is not committed yet.

        With ``keeps_all``, a scan returns every ledger, those on live bookies as well.
        """
        self._context = context
        self._image = image
        self._keeps_all = keeps_all
        self._plan: Sequence[LeafParent] = ()
        self._totals = NO_TOTALS

    def scan(self, live: AbstractSet[str]) -> LedgerScan:
        """Read every ledger once."""
        context = self._context
        self._plan = context.cluster.leaf_parents()
        image = None if self._image is None else self._image.begin(live)
        from_ms = 0 if self._image is None else self._image.read_from_ms
        with context.tasks(Phase.SCAN):
            kept = None if self._keeps_all else live
            scan = scan_ledgers(
                context.spark,
                context.settings,
                self._plan,
                kept,
                image=image,
                image_from_ms=from_ms,
                budget=context.budget,
            )
        self._totals = scan.totals
        return scan

    def problems(self) -> tuple[str, ...]:
        """Count the nodes again that listed too few ledgers, and report what is missing."""
        short = [parent.path for parent in short_parents(self._plan, self._totals)]
        return problems(self._plan, self._totals, self._context.cluster.count_ledgers(short))
