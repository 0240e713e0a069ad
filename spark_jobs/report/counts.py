"""The counts and samples in the summary of an audit run, as values. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.bookies.registration import BookieState
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.metadata_faults import MetadataFault, Weight
from bookie.model.severity import Severity


class PublishOutcome(enum.Enum):
    """The outcome of publishing a run's findings."""

    PUBLISHED = "published"
    NOTHING_TO_PUBLISH = "nothing to publish"
    DRY_RUN = "dry run"
    DISABLED = "disabled"
    """Auto-recovery is disabled cluster-wide; marks that the run made before it saw this stay."""
    HELD = "held"
    """The mass-loss brake holds."""
    INTERRUPTED = "interrupted"
    """The metadata store stopped answering; existing marks stay."""

    @property
    def is_all(self) -> bool:
        """Whether all ledgers to be marked are marked."""
        return self in (PublishOutcome.PUBLISHED, PublishOutcome.NOTHING_TO_PUBLISH)


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of publishing."""

    outcome: PublishOutcome
    ledgers: int = 0
    """Ledgers passed to marking."""
    tasks_changed: int = 0
    """Tasks created, or extended by another missing bookie; the others were already complete."""
    held_back: Mapping[str, int] = field(default_factory=dict)
    """Ledgers with findings that are not marked yet, by reason (``HoldReason``)."""
    withdrawn: Mapping[str, int] = field(default_factory=dict)
    """Marks deleted by the run because their reason had ended, by ``Ended``."""
    damage_marked: int = 0
    """Closed ledgers that the run marked because of damage that workers had recorded (R140). They are not counted in
    ``ledgers``."""
    repaired_early: int = 0
    """Ledgers that the run marked before it read all ledgers, and that had no finding then: they were repaired or
    deleted. They are counted in ``tasks_changed``, and not in ``ledgers``."""

    @property
    def is_limited(self) -> bool:
        """Whether a limit of the run held ledgers back, for the next run."""
        return HoldReason.LIMIT.value in self.held_back

    @property
    def ledgers_waiting(self) -> int:
        """The number of all ledgers that are not marked yet."""
        return sum(self.held_back.values())


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Counts of metadata.

    ``ledgers`` includes unreadable ledgers, but not ``vanished`` ones, which were deleted during the scan.
    """

    ledgers: int
    fragments: int
    unreadable: int
    vanished: int
    open: int
    in_recovery: int
    closed: int


@dataclass(frozen=True, slots=True)
class SeverityCount:
    """Findings of one severity. A ledger counts once, at its worst severity."""

    severity: Severity
    ledgers: int
    fragments: int
    bytes_estimate: int


@dataclass(frozen=True, slots=True)
class FindingSums:
    """Sums over all findings of a run."""

    severities: tuple[SeverityCount, ...] = ()
    """The occurring severities, worst first."""
    by_bookie: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each missing bookie, the numbers of ledgers and of fragments that name it."""


@dataclass(frozen=True, slots=True)
class BookieCount:
    """One bookie, according to metadata and registrations."""

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
    """One of the worst ledgers."""

    ledger_id: int
    severity: Severity
    fragments: int
    bytes_estimate: int
    missing: tuple[str, ...]
    topic: str = ""
    """Topic of Pulsar; empty: the ledger has none."""


@dataclass(frozen=True, slots=True)
class WaitingBookie:
    """A missing bookie that is not due yet. It is reported, and at most its critical ledgers are marked."""

    bookie_id: str
    first_seen_down_ms: int
    until_ms: int
    """Time from which its ledgers may be marked, epoch milliseconds."""
    ledgers: int
    """Ledgers with a finding because of it."""
    critical_until_ms: int = 0
    """Time from which its critical ledgers may be marked, epoch milliseconds; 0: unknown (in reports of earlier
    releases)."""
    reason: str = HoldReason.DELAY.value
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AcceptedCounts:
    """Losses that operators accepted. They are neither counted in the findings by severity, nor marked."""

    ledgers: int = 0
    fragments: int = 0
    ledgers_returned: int = 0
    """Ledgers with an accepted loss of which a bookie is registered again. They are marked, and no longer accepted."""


@dataclass(frozen=True, slots=True)
class RackPair:
    """What two racks have in common: fragments with an ensemble position in each of them."""

    first: str
    second: str
    """If it is the same as ``first``, two or more positions of the ensemble are in this rack."""
    ledgers: int
    fragments: int
    payload_bytes: int
    """Payload of the fragments of closed ledgers, each entry counted once."""


@dataclass(frozen=True, slots=True)
class RackNumber:
    """The data in ensembles that span a number of racks. A ledger counts for its fragment with the fewest racks."""

    racks: int
    ledgers: int
    fragments: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class PlacementCounts:
    """The results of a placement check."""

    min_racks: int
    min_zones: int
    min_regions: int
    is_strict: bool
    topology: str
    """The node or the file with the topology."""
    fragments: int = 0
    """Fragments with entries; fragments without entries are not judged."""
    ensembles: int = 0
    """Distinct ensembles of the fragments, counted once for each chunk of the run."""
    misplaced_ledgers: int = 0
    misplaced_fragments: int = 0
    as_good_as_possible_fragments: int = 0
    """Fragments that violate the policy, but span every existing domain. They are findings only under a strict
    policy."""
    unknown_fragments: int = 0
    """Fragments with a member outside the topology, which were not judged."""
    unknown_bookies: tuple[str, ...] = ()
    rack_numbers: tuple[RackNumber, ...] = ()
    """By number of racks, ascending. Fragments with a member outside the topology are left out, also in ``racks``."""
    racks: tuple[RackPair, ...] = ()
    """By pair of racks, sorted by name; pairs without a fragment are left out."""
    racks_cut: bool = False
    """Whether ``racks`` is not complete, and has only the pairs with the most ledgers."""
    outside_groups_fragments: int = 0
    """Misplaced fragments with a member outside the bookie groups that the ledger requests."""
    unreadable_groups_fragments: int = 0
    """Fragments that span enough domains, but whose ledger's bookie groups cannot be read."""


@dataclass(frozen=True, slots=True)
class UnknownAnswers:
    """A registered bookie whose entries of some ledgers are unknown."""

    bookie_id: str
    status: str
    """Name of a ``bookie.wire.port.Status``."""
    ledgers: int
    detail: str = ""
    """The first detail reported with the status."""

    @property
    def reason(self) -> str:
        """Status and detail as one text."""
        return f"{self.status}: {self.detail}" if self.detail else self.status


@dataclass(frozen=True, slots=True)
class SampledBookie:
    """A bookie that cannot list entries, with the number of its ledgers judged by their first and last entries."""

    bookie_id: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The results and the cost of a replicas check."""

    ledgers: int
    """Ledgers that were checked: those in the range and the sample."""
    requests: int
    """Requests to bookies for lists, and for samples if a bookie cannot list."""
    expected: int
    """Copies assigned to registered bookies, including those with an unknown answer."""
    absent: int
    """Copies that their bookie denied twice. The metadata was read again between the two answers."""
    unknown: tuple[UnknownAnswers, ...]
    sample: float
    sample_seed: int
    ledger_min: int
    ledger_max: int
    full_run_estimate_s: float
    """Estimated duration of a check of every ledger at the pace of this run, seconds."""
    sampled: tuple[SampledBookie, ...] = ()
    """Empty in reports of releases that took no samples."""

    @property
    def is_every_ledger(self) -> bool:
        """Whether the check left out no ledger, because it had neither a range nor a sample."""
        return self.sample >= 1 and self.ledger_min == 0 and self.ledger_max == LEDGER_ID_MAX


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """The numbers of ledgers read from a snapshot of ZooKeeper, and from ZooKeeper itself."""

    file: str
    bytes_read: int
    """Size of the unpacked snapshot."""
    ledgers: int
    """Ledgers judged by the snapshot: closed, and only on live bookies."""
    read_again: int
    """Ledgers of the snapshot that were read again from ZooKeeper."""
    read_live: int
    """Ledgers that were not read from the snapshot, because ledgers were created under the same node since then."""


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """How an audit used the image of ledger metadata; times are epoch milliseconds."""

    read_from_ms: int = 0
    """When the reading for the used image began; 0: the run used no image."""
    suspects: int = 0
    """Ledgers that were read first, because the image names a lost bookie for them."""
    marked: int = 0
    """Ledgers among these that were marked before all ledgers were read."""
    first_mark_ms: int = 0
    """When the first of them was marked; 0: none was marked."""
    last_mark_ms: int = 0
    problem: str = ""
    """Why the image was not used, or only in part; empty: there was no problem, or no loss."""
    written_from_ms: int = 0
    """When the reading for the written image began; 0: the run wrote no image."""
    written_ledgers: int = 0
    written_bytes: int = 0
    write_problem: str = ""
    """Why the run wrote no image."""
    carried: int = 0
    """Ledgers that an incremental run did not read. In the image, they are closed and on bookies that are still live,
    and their part of the ledger tree is unchanged.
    """
    carried_from_ms: int = 0
    """When the oldest of these were read; 0: there are none."""
    carried_problem: str = ""
    """Why an incremental run read all ledgers, or some ledgers that the image has."""


@dataclass(frozen=True, slots=True)
class DriverMarksCounts:
    """The marks that an audit of a small cluster made before Spark read the ledgers; times are epoch milliseconds."""

    ledgers: int = 0
    """Ledgers read by the driver; 0: it read none."""
    marked: int = 0
    """Ledgers among these that it marked."""
    first_mark_ms: int = 0
    """When the first of them was marked; 0: none was marked."""
    last_mark_ms: int = 0
    problem: str = ""
    """Why the driver marked none, or only a part; empty: there was no problem, no loss, or a larger cluster."""


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """Unreferenced ledgers of a namespace."""

    namespace: str
    """Name with the tenant."""
    ledgers: int
    stored_bytes: int
    """Payload on all bookies together, bytes."""


@dataclass(frozen=True, slots=True)
class UndecodableNode:
    """An undecodable node of Pulsar."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReferenceCounts:
    """The results of a references check."""

    roots: tuple[str, ...]
    """Roots of the brokers' metadata."""
    grace_s: float
    """Ledgers younger than this many seconds have no verdict."""
    referenced: int = 0
    offloaded_and_here: int = 0
    """Referenced ledgers that are offloaded, and still in BookKeeper."""
    offloaded: int = 0
    """References to ledgers that are offloaded, and no longer in BookKeeper."""
    unreferenced: int = 0
    unreferenced_stored_bytes: int = 0
    namespaces: tuple[NamespaceCount, ...] = ()
    """The namespaces with the most bytes in unreferenced ledgers."""
    lost: int = 0
    """References to ledgers that do not exist."""
    not_judged: Mapping[str, int] = field(default_factory=dict)
    """Ledgers without a reference and without a verdict, by reason."""
    undecodable: int = 0
    """Number of undecodable nodes of Pulsar."""
    undecodable_nodes: tuple[UndecodableNode, ...] = ()
    """The first of these nodes."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """One check of a run with several (kind ``everything``)."""

    check: str
    """``bookies``, ``placement``, ``metadata`` or ``inventory``."""
    problem: str = ""
    """Why the check is not complete; empty: it is complete if all metadata was read."""


@dataclass(frozen=True, slots=True)
class LintCounts:
    """The results of the metadata lint (kind ``everything``)."""

    faults: Mapping[str, int] = field(default_factory=dict)
    """Ledgers by fault, see ``MetadataFault``."""
    recovery_age_max_s: float = 0.0
    """Longest normal duration of a recovery, seconds."""
    dangling_cookies: tuple[str, ...] = ()
    """Bookies with a cookie and without a registration that no ledger names."""
    cookies_not_judged: str = ""
    """Why dangling cookies are unknown; ``dangling_cookies`` is then empty."""

    @property
    def ledgers(self) -> int:
        """The sum over all faults. A ledger counts once for each of its faults."""
        return sum(self.faults.values())

    @property
    def errors(self) -> int:
        """The same as ``ledgers``, for the faults that endanger entries."""
        grave = {fault.label for fault in MetadataFault if fault.weight is Weight.ERROR}
        return sum(count for label, count in self.faults.items() if label in grave)


@dataclass(frozen=True, slots=True)
class InventoryBookie:
    """The answer of one registered bookie to the request for its ledgers.

    Times are in RFC 3339; an empty time is unknown.
    """

    bookie_id: str
    state: str
    """``listed``, or why its ledgers are unknown: ``not offered``, ``refused``, ``not asked``, ``no answer`` or
    ``bad answer``."""
    detail: str = ""
    ledgers: int = 0
    """Listed ledgers, some of which may have no entries."""
    over_replicated: int = 0
    """Closed ledgers with entries on this bookie that the metadata does not place there."""
    unowned: int = 0
    """Nonexistent ledgers with entries on this bookie."""
    damaged_entries: int = 0
    """Damaged entries that the bookie knows of and could not replace."""
    scrub: str = ""
    """Phase of its scrub: ``waiting``, ``running``, ``stopped`` or ``disabled``."""
    scrub_finished: str = ""
    collection_finished: str = ""
    """End of the last garbage collection since the bookie started."""


@dataclass(frozen=True, slots=True)
class InventoryCounts:
    """The inventories of bookies, compared with the metadata (kind ``everything``)."""

    grace_s: float
    """Copies that have been superfluous for less than this many seconds are not judged."""
    bookies: tuple[InventoryBookie, ...] = ()
    over_replicated: int = 0
    """Number of ledgers; each counts once."""
    unowned: int = 0
    damaged: int = 0
    """Ledgers of which a bookie reports damaged entries."""
    not_judged: Mapping[str, int] = field(default_factory=dict)
    """Ledgers with copies outside of the metadata that have no verdict, by reason."""

    @property
    def unknown(self) -> tuple[InventoryBookie, ...]:
        """Bookies whose ledgers are not all known."""
        return tuple(bookie for bookie in self.bookies if bookie.state != LISTED)

    @property
    def surplus(self) -> int:
        """The number of ledgers with superfluous copies."""
        return self.over_replicated + self.unowned


LISTED: Final = "listed"
"""The state of a bookie whose ledgers are all known."""
