"""What an audit run found, as one value: the content of ``summary.json``. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.runs.publish import Published, PublishOutcome
from spark_jobs.settings import ExitCode, FailOn
from spark_jobs.summary_values import (
    BookieCount,
    ClusterName,
    FindingSums,
    LedgerCounts,
    PlacementCounts,
    ReplicaCounts,
    SampledBookie,
    SeverityCount,
    UnknownAnswers,
    WaitingBookie,
    WorstLedger,
)

__all__ = [
    "API_VERSION",
    "KIND",
    "BookieCount",
    "ClusterName",
    "FindingSums",
    "LedgerCounts",
    "PlacementCounts",
    "ReplicaCounts",
    "RunSummary",
    "SampledBookie",
    "SeverityCount",
    "UnknownAnswers",
    "Verdict",
    "WaitingBookie",
    "WorstLedger",
    "rfc3339",
]

API_VERSION: Final = "bkheal/v1"
KIND: Final = "AuditReport"

_THRESHOLDS: Final = {
    FailOn.NO_LIVE_COPY: Severity.NO_LIVE_COPY,
    FailOn.CRITICAL: Severity.CRITICAL,
    FailOn.UNDER_REPLICATED: Severity.BELOW_WRITE_QUORUM,
    FailOn.ANY: max(Severity),
}


class Verdict(enum.Enum):
    """A run in one word, the most serious that applies."""

    HELD = "held"
    """The input was implausible: nothing was published."""
    INCOMPLETE = "incomplete"
    """Not every ledger was checked."""
    LOST = "entries lost"
    """Every bookie that should hold some entry says that it does not."""
    NO_LIVE_COPY = "no live copy"
    """Some entry is on no registered bookie."""
    UNDER_REPLICATED = "under-replicated"
    UNREADABLE_METADATA = "unreadable metadata"
    METADATA_ONLY = "metadata only"
    """Missing bookies are named, and no entry lacks a copy."""
    MISPLACED = "misplaced"
    """Every copy is there, and some are too close together."""
    DRAINING = "draining"
    """Every copy is there, and some are on bookies that are being drained."""
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """See the module docstring. Times are epoch milliseconds, sizes bytes."""

    run_id: str
    cluster: ClusterName
    started_ms: int
    finished_ms: int
    counts: LedgerCounts
    severities: tuple[SeverityCount, ...]
    bookies: tuple[BookieCount, ...]
    """Every bookie that is registered, has a cookie or is named in metadata; by id."""
    worst_ledgers: tuple[WorstLedger, ...]
    published: Published
    problems: tuple[str, ...] = ()
    """Why the run is not complete, one sentence each."""
    held_because: str | None = None
    """Why the brake holds."""
    kind: RunKind = RunKind.BOOKIES
    is_dry_run: bool = False
    waiting: tuple[WaitingBookie, ...] = ()
    """Missing bookies within the delay for lost bookies (kind ``bookies``)."""
    placement: PlacementCounts | None = None
    replicas: ReplicaCounts | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every ledger that exists was checked, or is reported as unreadable."""
        return not self.problems

    @property
    def worst(self) -> Severity | None:
        """The most serious severity found."""
        return min((count.severity for count in self.severities if count.fragments), default=None)

    @property
    def verdict(self) -> Verdict:
        """The run in one word."""
        worst = self.worst
        if self.held_because is not None:
            return Verdict.HELD
        if not self.is_complete:
            return Verdict.INCOMPLETE
        if worst is Severity.LOST:
            return Verdict.LOST
        if worst is not None and worst <= Severity.NO_LIVE_COPY:
            return Verdict.NO_LIVE_COPY
        if worst is not None and worst <= Severity.BELOW_WRITE_QUORUM:
            return Verdict.UNDER_REPLICATED
        if self.counts.unreadable:
            return Verdict.UNREADABLE_METADATA
        if worst is None:
            return Verdict.CLEAN
        if worst is Severity.METADATA_ONLY:
            return Verdict.METADATA_ONLY
        return Verdict.DRAINING if worst is Severity.DRAIN else Verdict.MISPLACED

    def exit_code(self, fail_on: FailOn = FailOn.NEVER) -> ExitCode:
        """Exit code of a one-shot run: the first that applies of held, interrupted, partial, findings, ok."""
        if self.held_because is not None:
            return ExitCode.HELD
        if self.published.outcome is PublishOutcome.INTERRUPTED:
            return ExitCode.STORE_UNREACHABLE
        if not self.is_complete:
            return ExitCode.PARTIAL
        return ExitCode.FINDINGS if self._fails(fail_on) else ExitCode.OK

    def to_json(self) -> Mapping[str, Any]:
        """The document of ``summary.json``: snake_case names, RFC 3339 times in UTC, sizes as whole bytes.

        ``kind`` is the kind of document, the same for every audit; which check it was is ``run_kind``.
        """
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "run_id": self.run_id,
            "run_kind": self.kind.value,
            "dry_run": self.is_dry_run,
            "cluster": asdict(self.cluster),
            "started": rfc3339(self.started_ms),
            "finished": rfc3339(self.finished_ms),
            "verdict": self.verdict.value,
            "complete": self.is_complete,
            "problems": list(self.problems),
            "held_because": self.held_because,
            "counts": asdict(self.counts),
            "findings": [asdict(count) | {"severity": count.severity.name} for count in self.severities],
            "bookies": [asdict(count) | {"state": count.state.value} for count in self.bookies],
            "worst_ledgers": [asdict(ledger) | {"severity": ledger.severity.name} for ledger in self.worst_ledgers],
            "published": asdict(self.published) | {"outcome": self.published.outcome.value},
            "waiting": [_waiting(bookie) for bookie in self.waiting],
            "placement": None if self.placement is None else asdict(self.placement),
            "replicas": None if self.replicas is None else asdict(self.replicas),
        }

    def _fails(self, fail_on: FailOn) -> bool:
        if fail_on is FailOn.NEVER:
            return False
        is_bad = self.worst is not None and self.worst <= _THRESHOLDS[fail_on]
        return is_bad or self.counts.unreadable > 0


def _waiting(bookie: WaitingBookie) -> Mapping[str, Any]:
    return {
        "bookie_id": bookie.bookie_id,
        "first_seen_down": rfc3339(bookie.first_seen_down_ms),
        "until": rfc3339(bookie.until_ms),
        "ledgers": bookie.ledgers,
    }


def rfc3339(epoch_ms: int) -> str:
    """A time as people and programs write it, in UTC to the millisecond."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
