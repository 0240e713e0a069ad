"""The port through which a bookie check reads all ledger metadata, and its implementation on ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.report.counts import SnapshotCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.port import Phase
from spark_jobs.runs.reading.completeness import NO_TOTALS, problems
from spark_jobs.runs.reading.image_upkeep import ImageUpkeep
from spark_jobs.runs.reading.ledger_scan import LedgerScan, scan_ledgers


class Reading(Protocol):
    """The scans of one run. Each scan starts from the beginning."""

    def scan(self, live: AbstractSet[str]) -> LedgerScan:
        """Read every ledger once.

        Ledgers on only ``live`` bookies are only counted. See ``scan_ledgers`` for errors.
        """
        ...

    def problems(self) -> tuple[str, ...]:
        """Report the missing parts of the last scan, one sentence each; nothing for a complete one."""
        ...

    @property
    def counts(self) -> SnapshotCounts | None:
        """The counts of the last scan of a snapshot; None without a snapshot."""
        ...


class LiveReading:
    """Reads everything from ZooKeeper."""

    counts: SnapshotCounts | None = None

    def __init__(self, context: RunContext, image: ImageUpkeep | None = None, *, keeps_all: bool = False) -> None:
        """Prepare. With ``image``, each scan writes a new image, and the caller has to commit it.

        With ``keeps_all``, a scan returns every ledger, including those on live bookies.
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
        from_ms, unsettled = (0, ()) if self._image is None else (self._image.read_from_ms, self._image.unsettled)
        with context.tasks(Phase.SCAN):
            kept = None if self._keeps_all else live
            scan = scan_ledgers(
                context.spark,
                context.settings,
                self._plan,
                kept,
                image=image,
                image_from_ms=from_ms,
                image_unsettled=unsettled,
                budget=context.budget,
            )
        self._totals = scan.totals
        return scan

    def problems(self) -> tuple[str, ...]:
        """Count the planned ledgers of nodes with short listings again, and report the missing parts."""
        return problems(self._plan, self._totals, self._context.cluster.count_planned(self._plan, self._totals))
