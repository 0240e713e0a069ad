"""The results of an audit run as one value, the content of ``summary.json``. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.model.times import rfc3339, rfc3339_if_known
from spark_jobs.report.counts import (
    AcceptedCounts,
    BookieCount,
    CheckPart,
    DriverMarksCounts,
    ImageCounts,
    InventoryCounts,
    LedgerCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    ReferenceCounts,
    ReplicaCounts,
    SeverityCount,
    SnapshotCounts,
    WaitingBookie,
    WorstLedger,
)
from spark_jobs.report.impact import Impact
from spark_jobs.settings import FailOn


@dataclass(frozen=True, slots=True)
class ClusterName:
    """The cluster of a report."""

    metadata_uri: str
    instance_id: str


API_VERSION: Final = "bkheal/v1"
KIND: Final = "AuditReport"

_THRESHOLDS: Final = {
    FailOn.NO_LIVE_COPY: Severity.NO_LIVE_COPY,
    FailOn.CRITICAL: Severity.CRITICAL,
    FailOn.UNDER_REPLICATED: Severity.BELOW_WRITE_QUORUM,
    FailOn.ANY: max(Severity),
}


class Verdict(enum.Enum):
    """The result of a run in a few words, the most serious one that applies."""

    HELD = "held"
    """The input was implausible: nothing was published."""
    INCOMPLETE = "incomplete"
    """Not every ledger was checked."""
    LOST = "entries lost"
    """Some entry is denied by every bookie that should hold it."""
    NO_LIVE_COPY = "no live copy"
    """Some entry has no copy on a registered bookie."""
    UNDER_REPLICATED = "under-replicated"
    UNREADABLE_METADATA = "unreadable metadata"
    FAULTY_METADATA = "faulty metadata"
    """The metadata of some ledgers contradicts itself, and no copy is missing."""
    DAMAGED = "damaged copies"
    """No copy is missing, but bookies report damaged entries."""
    METADATA_ONLY = "metadata only"
    """Metadata names missing bookies, but no entry lacks a copy."""
    MISPLACED = "misplaced"
    """Every copy exists, but some are too close together."""
    DRAINING = "draining"
    """Every copy exists, but some are on draining bookies."""
    UNREFERENCED = "unreferenced ledgers"
    """Every copy exists, but nothing in Pulsar refers to some ledgers."""
    SURPLUS = "superfluous copies"
    """Every copy exists, but bookies hold superfluous copies."""
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of a run. Times are epoch milliseconds, sizes bytes."""

    run_id: str
    cluster: ClusterName
    started_ms: int
    finished_ms: int
    counts: LedgerCounts
    severities: tuple[SeverityCount, ...]
    bookies: tuple[BookieCount, ...]
    """Every bookie that has a registration or a cookie, or that metadata names; sorted by id."""
    worst_ledgers: tuple[WorstLedger, ...]
    published: PublishResult
    problems: tuple[str, ...] = ()
    """Why the run is not complete, one sentence each."""
    held_because: str | None = None
    """Why the brake holds."""
    kind: RunKind = RunKind.BOOKIES
    is_dry_run: bool = False
    waiting: tuple[WaitingBookie, ...] = ()
    """Missing bookies that are not due yet (kind ``bookies``)."""
    placement: PlacementCounts | None = None
    replicas: ReplicaCounts | None = None
    references: ReferenceCounts | None = None
    accepted: AcceptedCounts = field(default_factory=AcceptedCounts)
    """The accepted losses (kinds ``bookies`` and ``replicas``)."""
    impact: Impact = field(default_factory=Impact)
    """The impact of the findings on the topics of Pulsar."""
    snapshot: SnapshotCounts | None = None
    """The counts of the snapshot, if one was the source of metadata (kind ``bookies``)."""
    image: ImageCounts = field(default_factory=ImageCounts)
    driver_marks: DriverMarksCounts = field(default_factory=DriverMarksCounts)
    """The marks made by the driver (kinds ``bookies`` and ``everything``)."""
    parts: tuple[CheckPart, ...] = ()
    """The checks of the run (kind ``everything``)."""
    lint: LintCounts | None = None
    inventory: InventoryCounts | None = None

    @property
    def is_every_ledger(self) -> bool:
        """Whether the run was meant to check every ledger. Only a replicas check can have a range or a sample."""
        return self.replicas is None or self.replicas.is_every_ledger

    @property
    def ledgers_checked(self) -> int:
        """Number of ledgers that were checked: fewer than were read if a replicas check had a range or a sample."""
        return self.counts.ledgers if self.replicas is None or self.is_every_ledger else self.replicas.ledgers

    @property
    def is_read(self) -> bool:
        """Whether every existing ledger was read, or is reported as unreadable."""
        return not self.problems

    @property
    def is_complete(self) -> bool:
        """Whether every check of the run checked every existing ledger, or reported it as unreadable."""
        return not self.incomplete_reasons

    @property
    def kinds_done(self) -> tuple[RunKind, ...]:
        """The kinds of checks that this run completed, its own first.

        It may not have marked all ledgers that it found.
        """
        if self.held_because is not None or self.problems:
            return ()
        done = {part.check for part in self.parts if not part.problem}
        contained = tuple(kind for kind in self.kind.contained if kind.value in done)
        return (self.kind, *contained) if self.is_complete else contained

    @property
    def incomplete_reasons(self) -> tuple[str, ...]:
        """Why the run is not complete, one sentence each: its ``problems``, and those of its checks."""
        return (*self.problems, *(f"{part.check}: {part.problem}" for part in self.parts if part.problem))

    @property
    def worst(self) -> Severity | None:
        """The most serious severity found."""
        return min((count.severity for count in self.severities if count.fragments), default=None)

    @property
    def verdict(self) -> Verdict:
        """The result of the run in a few words."""
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
        if self.lint is not None and (self.lint.errors or (self.lint.ledgers and worst is None)):
            return Verdict.FAULTY_METADATA
        inventory = self.inventory or InventoryCounts(0.0)
        if inventory.damaged:
            return Verdict.DAMAGED
        if worst is None and inventory.surplus:
            return Verdict.SURPLUS
        if worst is None:
            has_unreferenced = self.references is not None and self.references.unreferenced > 0
            return Verdict.UNREFERENCED if has_unreferenced else Verdict.CLEAN
        if worst is Severity.METADATA_ONLY:
            return Verdict.METADATA_ONLY
        return Verdict.DRAINING if worst is Severity.DRAIN else Verdict.MISPLACED

    def exit_code(self, fail_on: FailOn = FailOn.NEVER) -> ExitCode:
        """Return the exit code of a one-shot run: the first of held, interrupted, partial, findings and ok."""
        if self.held_because is not None:
            return ExitCode.HELD
        if self.published.outcome is PublishOutcome.INTERRUPTED:
            return ExitCode.STORE_UNREACHABLE
        if not self.is_complete:
            return ExitCode.PARTIAL
        return ExitCode.FINDINGS if self._fails(fail_on) else ExitCode.OK

    def to_json(self) -> Mapping[str, Any]:
        """Return the document of ``summary.json``: snake_case names, RFC 3339 times in UTC, sizes as whole bytes.

        ``kind`` is the kind of document, the same for every audit; ``run_kind`` is the kind of check.
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
            "parts": [asdict(part) for part in self.parts],
            "held_because": self.held_because,
            "counts": asdict(self.counts),
            "findings": [asdict(count) | {"severity": count.severity.label} for count in self.severities],
            "bookies": [asdict(count) | {"state": count.state.label} for count in self.bookies],
            "worst_ledgers": [asdict(ledger) | {"severity": ledger.severity.label} for ledger in self.worst_ledgers],
            "published": asdict(self.published)
            | {"outcome": self.published.outcome.value, "ledgers_waiting": self.published.ledgers_waiting},
            "waiting": [_waiting(bookie) for bookie in self.waiting],
            "placement": None if self.placement is None else asdict(self.placement),
            "replicas": None if self.replicas is None else asdict(self.replicas),
            "references": None if self.references is None else asdict(self.references),
            "lint": None if self.lint is None else asdict(self.lint),
            "inventory": None if self.inventory is None else asdict(self.inventory),
            "accepted": asdict(self.accepted),
            "impact": self.impact.to_json(),
            "snapshot": None if self.snapshot is None else asdict(self.snapshot),
            "image": _image(self.image),
            "driver_marks": _driver_marks(self.driver_marks),
        }

    def _fails(self, fail_on: FailOn) -> bool:
        if fail_on is FailOn.NEVER:
            return False
        is_bad = self.worst is not None and self.worst <= _THRESHOLDS[fail_on]
        is_faulty = fail_on is FailOn.ANY and self.lint is not None and self.lint.ledgers > 0
        is_damaged = fail_on is FailOn.ANY and self.inventory is not None and self.inventory.damaged > 0
        return is_bad or is_faulty or is_damaged or self.counts.unreadable > 0


def _image(image: ImageCounts) -> Mapping[str, Any]:
    return {
        "read_from": rfc3339_if_known(image.read_from_ms),
        "suspects": image.suspects,
        "marked": image.marked,
        "first_mark": rfc3339_if_known(image.first_mark_ms),
        "last_mark": rfc3339_if_known(image.last_mark_ms),
        "problem": image.problem or None,
        "written_from": rfc3339_if_known(image.written_from_ms),
        "written_ledgers": image.written_ledgers,
        "written_bytes": image.written_bytes,
        "write_problem": image.write_problem or None,
        "carried": image.carried,
        "carried_from": rfc3339_if_known(image.carried_from_ms),
        "carried_problem": image.carried_problem or None,
    }


def _driver_marks(marks: DriverMarksCounts) -> Mapping[str, Any]:
    return {
        "ledgers": marks.ledgers,
        "marked": marks.marked,
        "first_mark": rfc3339_if_known(marks.first_mark_ms),
        "last_mark": rfc3339_if_known(marks.last_mark_ms),
        "problem": marks.problem or None,
    }


def _waiting(bookie: WaitingBookie) -> Mapping[str, Any]:
    return {
        "bookie_id": bookie.bookie_id,
        "first_seen_down": rfc3339(bookie.first_seen_down_ms),
        "until": rfc3339(bookie.until_ms),
        "critical_until": rfc3339_if_known(bookie.critical_until_ms),
        "reason": bookie.reason,
        "detail": bookie.detail or None,
        "ledgers": bookie.ledgers,
    }
