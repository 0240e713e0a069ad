"""What an audit run found, as one value: the content of ``summary.json``. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.bookies.registration import BookieState
from bookie.model.exit_codes import ExitCode
from bookie.model.metadata_faults import MetadataFault, Weight
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.model.times import rfc3339, rfc3339_if_known
from spark_jobs.report.impact import Impact
from spark_jobs.settings import FailOn


class PublishOutcome(enum.Enum):
    """What became of a run's findings."""

    PUBLISHED = "published"
    NOTHING_TO_PUBLISH = "nothing to publish"
    DRY_RUN = "dry run"
    DISABLED = "disabled"
    """Auto-recovery is disabled cluster-wide; what was marked before that was seen stays."""
    HELD = "held"
    """The mass-loss brake holds."""
    INTERRUPTED = "interrupted"
    """The metadata store stopped answering; what was marked before stays."""

    @property
    def is_all(self) -> bool:
        """Whether everything that was to be marked is marked."""
        return self in (PublishOutcome.PUBLISHED, PublishOutcome.NOTHING_TO_PUBLISH)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of publishing."""

    outcome: PublishOutcome
    ledgers: int = 0
    """Ledgers handed to marking."""
    tasks_changed: int = 0
    """Tasks that were created or extended by another missing bookie; the others were complete already."""
    held_back: Mapping[str, int] = field(default_factory=dict)
    """Ledgers with findings of which nothing was marked yet, by reason (``HoldReason``)."""
    withdrawn: Mapping[str, int] = field(default_factory=dict)
    """Marks that the run deleted because their reason had ended, by ``Ended``."""

    @property
    def is_limited(self) -> bool:
        """Whether a limit of the run held ledgers back, for the next run."""
        return HoldReason.LIMIT.value in self.held_back

    @property
    def ledgers_waiting(self) -> int:
        """All ledgers of which nothing was marked yet."""
        return sum(self.held_back.values())


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """What was read. ``ledgers`` includes the unreadable ones, and not those deleted during the scan (``vanished``)."""

    ledgers: int
    fragments: int
    unreadable: int
    vanished: int
    open: int
    in_recovery: int
    closed: int


@dataclass(frozen=True, slots=True)
class SeverityCount:
    """Findings of one severity. A ledger counts once, at its worst."""

    severity: Severity
    ledgers: int
    fragments: int
    bytes_estimate: int


@dataclass(frozen=True, slots=True)
class FindingSums:
    """Sums over all findings of a run."""

    severities: tuple[SeverityCount, ...] = ()
    """The severities that occur, worst first."""
    by_bookie: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Per missing bookie the ledgers and the fragments that name it."""


@dataclass(frozen=True, slots=True)
class BookieCount:
    """One bookie as metadata and registration know it."""

    bookie_id: str
    state: BookieState
    has_cookie: bool
    ledgers: int
    """Ledgers that name it."""
    fragments: int
    ledgers_found: int
    """Ledgers with a finding because it is missing."""
    fragments_found: int


@dataclass(frozen=True, slots=True)
class WorstLedger:
    """One of the ledgers to look at first."""

    ledger_id: int
    severity: Severity
    fragments: int
    bytes_estimate: int
    missing: tuple[str, ...]
    topic: str = ""
    """Of Pulsar; empty: it names none."""


@dataclass(frozen=True, slots=True)
class WaitingBookie:
    """A missing bookie that is not due: reported, and no more than its critical ledgers are marked yet."""

    bookie_id: str
    first_seen_down_ms: int
    until_ms: int
    """When its ledgers may be marked."""
    ledgers: int
    """Ledgers with a finding because of it."""
    critical_until_ms: int = 0
    """When its critical ledgers may be marked; 0: not known, in reports of earlier releases."""
    reason: str = HoldReason.DELAY.value
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AcceptedCounts:
    """Losses that operators accepted: neither part of the findings by severity, nor marked."""

    ledgers: int = 0
    fragments: int = 0
    ledgers_returned: int = 0
    """Ledgers with an accepted loss of which a bookie is registered again: marked, and not accepted any more."""


@dataclass(frozen=True, slots=True)
class RackPair:
    """What is in two racks at the same time: fragments of which some ensemble position is in each."""

    first: str
    second: str
    """The same as ``first``: two or more positions of the ensemble are in this rack."""
    ledgers: int
    fragments: int
    payload_bytes: int
    """Of the fragments, each entry once, of closed ledgers."""


@dataclass(frozen=True, slots=True)
class RackNumber:
    """What is in ensembles that span a number of racks. A ledger counts at its fragment with the fewest racks."""

    racks: int
    ledgers: int
    fragments: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class PlacementCounts:
    """What a placement check judged."""

    min_racks: int
    min_zones: int
    min_regions: int
    is_strict: bool
    topology: str
    """Node or file that the topology is from."""
    fragments: int = 0
    """Fragments with entries; the others are not judged."""
    ensembles: int = 0
    """Different ensembles among them, counted once for each chunk of the run."""
    misplaced_ledgers: int = 0
    misplaced_fragments: int = 0
    as_good_as_possible_fragments: int = 0
    """Fragments that break the policy and span every domain there is; findings only with a strict policy."""
    unknown_fragments: int = 0
    """Fragments with a member outside the topology: not judged."""
    unknown_bookies: tuple[str, ...] = ()
    rack_numbers: tuple[RackNumber, ...] = ()
    """By number of racks, ascending. Fragments with a member outside the topology are left out, here and below."""
    racks: tuple[RackPair, ...] = ()
    """By pair of racks, in the order of their names; pairs without a fragment are left out."""
    racks_cut: bool = False
    """Whether there are more pairs than are listed: those with the most ledgers are."""
    outside_groups_fragments: int = 0
    """Of the misplaced fragments, those with a member outside the bookie groups that the ledger asks for."""
    unreadable_groups_fragments: int = 0
    """Fragments that span enough domains, of ledgers whose bookie groups cannot be read."""


@dataclass(frozen=True, slots=True)
class UnknownAnswers:
    """A registered bookie with unknown contents for some ledgers."""

    bookie_id: str
    status: str
    """Name of ``bookie.wire.port.Status``."""
    ledgers: int
    detail: str = ""
    """The first detail beside it."""

    @property
    def reason(self) -> str:
        """Status and detail as one text."""
        return f"{self.status}: {self.detail}" if self.detail else self.status


@dataclass(frozen=True, slots=True)
class SampledBookie:
    """A bookie that cannot list, and how many ledgers it was judged for by their first and last entries there."""

    bookie_id: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """What a replicas check asked, and what it cost."""

    ledgers: int
    """Ledgers that were asked for; those outside of the range or the sample are not."""
    requests: int
    """Lists asked of bookies, and samples of those that cannot list."""
    expected: int
    """Copies assigned to registered bookies, including those with an unknown answer."""
    absent: int
    """Copies that their bookie denies, twice, with the metadata read again between the two."""
    unknown: tuple[UnknownAnswers, ...]
    sample: float
    sample_seed: int
    ledger_min: int
    ledger_max: int
    full_run_estimate_s: float
    """How long asking for every ledger would take at this run's pace, seconds."""
    sampled: tuple[SampledBookie, ...] = ()
    """Reports of before there were samples have none."""


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """What an audit read in a snapshot of ZooKeeper, and what it read in ZooKeeper itself."""

    file: str
    bytes_read: int
    """Size of the snapshot, unpacked."""
    ledgers: int
    """Ledgers that were judged by the snapshot: closed, and on live bookies alone."""
    read_again: int
    """Ledgers of the snapshot that were read again in ZooKeeper."""
    read_live: int
    """Ledgers that were not read in the snapshot, as ledgers were created beside them since."""


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """What an audit did with the image of ledger metadata; times are epoch milliseconds."""

    read_from_ms: int = 0
    """When the reading of the image began that the run used; 0: it used none."""
    suspects: int = 0
    """Ledgers that were read first, as the image names a lost bookie for them."""
    marked: int = 0
    """Those of them that were marked before all ledgers were read."""
    first_mark_ms: int = 0
    """When the first of them was marked; 0: none was."""
    last_mark_ms: int = 0
    problem: str = ""
    """Why the image was not used, or not to its end; empty: no reason, or no loss to react to."""
    written_from_ms: int = 0
    """When the reading of the image began that the run wrote; 0: it wrote none."""
    written_ledgers: int = 0
    written_bytes: int = 0
    write_problem: str = ""
    """Why the run wrote no image."""
    carried: int = 0
    """Ledgers that an incremental run did not read: the image has them as closed, on bookies that are still live, in a
    part of the ledger tree that has the same ledgers."""
    carried_from_ms: int = 0
    """When the oldest of them were read; 0: there are none."""
    carried_problem: str = ""
    """Why an incremental run read all ledgers, or some that the image has."""


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """Unreferenced ledgers of a namespace."""

    namespace: str
    """With its tenant."""
    ledgers: int
    stored_bytes: int
    """Payload on all bookies together."""


@dataclass(frozen=True, slots=True)
class UndecodableNode:
    """A node of Pulsar that cannot be decoded."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReferenceCounts:
    """What a references check found."""

    roots: tuple[str, ...]
    """Of the brokers' metadata."""
    grace_s: float
    """Ledgers that were created since have no verdict."""
    referenced: int = 0
    offloaded_and_here: int = 0
    """Referenced ledgers that are offloaded, and still in BookKeeper."""
    offloaded: int = 0
    """References to ledgers that are offloaded and not in BookKeeper any more."""
    unreferenced: int = 0
    unreferenced_stored_bytes: int = 0
    namespaces: tuple[NamespaceCount, ...] = ()
    """Those with the most bytes in unreferenced ledgers."""
    lost: int = 0
    """References to ledgers that do not exist."""
    not_judged: Mapping[str, int] = field(default_factory=dict)
    """Ledgers without a reference and without a verdict, by reason."""
    undecodable: int = 0
    """Nodes of Pulsar that cannot be decoded."""
    undecodable_nodes: tuple[UndecodableNode, ...] = ()
    """The first of them."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """One check of a run that does several (kind ``everything``)."""

    check: str
    """``bookies``, ``placement``, ``metadata`` or ``inventory``."""
    problem: str = ""
    """Why it is not complete; empty: it is, as far as all metadata was read."""


@dataclass(frozen=True, slots=True)
class LintCounts:
    """What the metadata lint found (kind ``everything``)."""

    faults: Mapping[str, int] = field(default_factory=dict)
    """Ledgers by fault, see ``MetadataFault``."""
    recovery_age_max_s: float = 0.0
    """How long a recovery may take."""
    dangling_cookies: tuple[str, ...] = ()
    """Bookies with a cookie that are not registered, and that no ledger names."""
    cookies_not_judged: str = ""
    """Why ``dangling_cookies`` is empty whatever there is."""

    @property
    def ledgers(self) -> int:
        """The sum over all faults: a ledger counts once for each."""
        return sum(self.faults.values())

    @property
    def errors(self) -> int:
        """As ``ledgers``, of the faults that endanger entries."""
        grave = {fault.label for fault in MetadataFault if fault.weight is Weight.ERROR}
        return sum(count for label, count in self.faults.items() if label in grave)


@dataclass(frozen=True, slots=True)
class InventoryBookie:
    """What one registered bookie answered when it was asked for its ledgers. Times are RFC 3339; empty: not known."""

    bookie_id: str
    state: str
    """``listed``, or why its ledgers are unknown: ``not offered``, ``refused``, ``not asked``, ``no answer`` or
    ``bad answer``."""
    detail: str = ""
    ledgers: int = 0
    """Ledgers that it listed, some of them perhaps without entries."""
    over_replicated: int = 0
    """Closed ledgers with entries on it that the metadata does not place there."""
    unowned: int = 0
    """Ledgers with entries on it that do not exist."""
    damaged_entries: int = 0
    """That it knows of, and could not replace."""
    scrub: str = ""
    """Phase of its scrub: ``waiting``, ``running``, ``stopped``, ``disabled``."""
    scrub_finished: str = ""
    collection_finished: str = ""
    """Of the last garbage collection since its start."""


@dataclass(frozen=True, slots=True)
class InventoryCounts:
    """What bookies hold, compared with the metadata (kind ``everything``)."""

    grace_s: float
    """Copies that became superfluous less than so many seconds ago are not judged."""
    bookies: tuple[InventoryBookie, ...] = ()
    over_replicated: int = 0
    """Ledgers; each counts once."""
    unowned: int = 0
    damaged: int = 0
    """Ledgers of which a bookie knows damaged entries."""
    not_judged: Mapping[str, int] = field(default_factory=dict)
    """Ledgers with copies that the metadata does not place there, by the reason why there is no verdict."""

    @property
    def unknown(self) -> tuple[InventoryBookie, ...]:
        """Bookies whose ledgers are not all known."""
        return tuple(bookie for bookie in self.bookies if bookie.state != LISTED)

    @property
    def surplus(self) -> int:
        """Ledgers with copies that nothing needs."""
        return self.over_replicated + self.unowned


LISTED: Final = "listed"
"""The state of a bookie whose ledgers are all known."""


@dataclass(frozen=True, slots=True)
class ClusterName:
    """Which cluster a report is about."""

    metadata_uri: str
    instance_id: str


__all__ = [
    "API_VERSION",
    "KIND",
    "AcceptedCounts",
    "BookieCount",
    "CheckPart",
    "ClusterName",
    "FindingSums",
    "ImageCounts",
    "InventoryBookie",
    "InventoryCounts",
    "LedgerCounts",
    "LintCounts",
    "NamespaceCount",
    "PlacementCounts",
    "RackNumber",
    "RackPair",
    "ReferenceCounts",
    "ReplicaCounts",
    "RunSummary",
    "SampledBookie",
    "SeverityCount",
    "SnapshotCounts",
    "UndecodableNode",
    "UnknownAnswers",
    "Verdict",
    "WaitingBookie",
    "WorstLedger",
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
    """Every bookie that should hold some entry denies it."""
    NO_LIVE_COPY = "no live copy"
    """Some entry is on no registered bookie."""
    UNDER_REPLICATED = "under-replicated"
    UNREADABLE_METADATA = "unreadable metadata"
    FAULTY_METADATA = "faulty metadata"
    """The metadata of some ledgers contradicts itself, and no copy is missing."""
    DAMAGED = "damaged copies"
    """No copy is missing, and bookies know of damaged entries."""
    METADATA_ONLY = "metadata only"
    """Missing bookies are named, and no entry lacks a copy."""
    MISPLACED = "misplaced"
    """Every copy exists, and some are too close together."""
    DRAINING = "draining"
    """Every copy exists, and some are on bookies that are being drained."""
    UNREFERENCED = "unreferenced ledgers"
    """Every copy exists, and nothing in Pulsar refers to some ledgers."""
    SURPLUS = "superfluous copies"
    """Every copy exists, and bookies hold copies that nothing needs."""
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
    """Every bookie that is registered, has a cookie or is named in metadata; by id."""
    worst_ledgers: tuple[WorstLedger, ...]
    published: PublishResult
    problems: tuple[str, ...] = ()
    """Why the run is not complete, one sentence each."""
    held_because: str | None = None
    """Why the brake holds."""
    kind: RunKind = RunKind.BOOKIES
    is_dry_run: bool = False
    waiting: tuple[WaitingBookie, ...] = ()
    """Missing bookies that are not due (kind ``bookies``)."""
    placement: PlacementCounts | None = None
    replicas: ReplicaCounts | None = None
    references: ReferenceCounts | None = None
    accepted: AcceptedCounts = AcceptedCounts()
    """Kinds ``bookies`` and ``replicas``."""
    impact: Impact = field(default_factory=Impact)
    """What the findings mean for the topics of Pulsar."""
    snapshot: SnapshotCounts | None = None
    """If a snapshot was the source of metadata (kind ``bookies``)."""
    image: ImageCounts = field(default_factory=ImageCounts)
    """Kinds ``bookies`` and ``everything``."""
    parts: tuple[CheckPart, ...] = ()
    """The checks of kind ``everything``."""
    lint: LintCounts | None = None
    inventory: InventoryCounts | None = None

    @property
    def is_read(self) -> bool:
        """Whether every ledger that exists was read, or is reported as unreadable."""
        return not self.problems

    @property
    def is_complete(self) -> bool:
        """Whether every ledger that exists was checked by every check of the run, or is reported as unreadable."""
        return not self.shortcomings

    @property
    def kinds_done(self) -> tuple[RunKind, ...]:
        """The kinds of check that this run did completely, its own first; it may have marked less than it found."""
        if self.held_because is not None or self.problems:
            return ()
        done = {part.check for part in self.parts if not part.problem}
        contained = tuple(kind for kind in self.kind.contained if kind.value in done)
        return (self.kind, *contained) if self.is_complete else contained

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """Why the run is not complete, one sentence each: ``problems``, and those of its checks."""
        return (*self.problems, *(f"{part.check}: {part.problem}" for part in self.parts if part.problem))

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
