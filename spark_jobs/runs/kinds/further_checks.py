"""The port for further checks of the ledgers that a bookie check has read, and its empty implementation."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame

from bookie.model.ids import BookieId
from spark_jobs.report.counts import (
    CheckPart,
    FindingSums,
    InventoryCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    WorstLedger,
)
from spark_jobs.runs.marking.limits import MarkLimiter
from spark_jobs.runs.outcome import ScanResult
from spark_jobs.runs.reading.ledger_scan import LedgerScan


@dataclass(frozen=True, slots=True)
class FurtherFindings:
    """The findings of the further checks. They are valid as long as Spark keeps them."""

    findings: tuple[DataFrame, ...] = ()
    """The findings, as rows for the report."""
    sums: FindingSums = field(default_factory=FindingSums)
    worst: tuple[WorstLedger, ...] = ()
    published: PublishResult = field(default_factory=lambda: PublishResult(PublishOutcome.NOTHING_TO_PUBLISH))
    placement: PlacementCounts | None = None
    lint: LintCounts | None = None
    inventory: InventoryCounts | None = None
    parts: tuple[CheckPart, ...] = ()


class FurtherChecks(Protocol):
    """The checks of one run that judge the ledgers read by its bookie check."""

    needs_all: bool
    """Whether the checks need every ledger, and not only the ledgers on lost bookies."""

    def judged(
        self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId], limiter: MarkLimiter
    ) -> AbstractContextManager[FurtherFindings]:
        """Judge the ledgers, and mark those to be marked.

        Args:
            scan: the ledgers read by the run.
            scanned: the result of reading them.
            cookies: every bookie with a cookie.
            limiter: the limits of the run.

        Raises:
            MetadataReadAgainError: Spark lost a part of the ledgers; nothing was reported.
        """
        ...


class NoFurtherChecks(FurtherChecks):
    """No further check."""

    needs_all = False

    @contextmanager
    def judged(
        self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId], limiter: MarkLimiter
    ) -> Iterator[FurtherFindings]:
        """Find nothing."""
        yield FurtherFindings()
