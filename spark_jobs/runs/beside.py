"""Checks that use the ledgers which a bookie check has read: a port, and none of them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame

from bookie.model.ids import BookieId
from spark_jobs.report.summary import (
    CheckPart,
    FindingSums,
    InventoryCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    WorstLedger,
)
from spark_jobs.runs.ledger_scan import LedgerScan
from spark_jobs.runs.limits import MarkLimiter
from spark_jobs.runs.outcome import ScanResult


@dataclass(frozen=True, slots=True)
class FoundBeside:
    """What the checks found, while Spark keeps it."""

    findings: tuple[DataFrame, ...] = ()
    """For the report."""
    sums: FindingSums = field(default_factory=FindingSums)
    worst: tuple[WorstLedger, ...] = ()
    published: PublishResult = field(default_factory=lambda: PublishResult(PublishOutcome.NOTHING_TO_PUBLISH))
    placement: PlacementCounts | None = None
    lint: LintCounts | None = None
    inventory: InventoryCounts | None = None
    parts: tuple[CheckPart, ...] = ()


class Beside(Protocol):
    """The checks of one run beside that of bookies."""

    needs_all: bool
    """Whether they need every ledger, and not only those on lost bookies."""

    def found(
        self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId], limiter: MarkLimiter
    ) -> AbstractContextManager[FoundBeside]:
        """Judge the ledgers, and mark what is to be marked.

        Args:
            scan: the ledgers that were read.
            scanned: what reading them gave.
            cookies: every bookie that ever joined.
            limiter: the limits of the run.

        Raises:
            MetadataReadAgainError: Spark lost a part of them; nothing was reported.
        """
        ...


class NothingBeside(Beside):
    """No other check."""

    needs_all = False

    @contextmanager
    def found(
        self, scan: LedgerScan, scanned: ScanResult, cookies: AbstractSet[BookieId], limiter: MarkLimiter
    ) -> Iterator[FoundBeside]:
        """Find nothing."""
        yield FoundBeside()
