"""The parts of a run's summary, as values. Importable without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.metadata.bookies.registration import BookieState
from bookie.model.severity import Severity


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """What was read. ``ledgers`` includes the unreadable ones, and not those deleted meanwhile (``vanished``)."""

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


@dataclass(frozen=True, slots=True)
class WaitingBookie:
    """A missing bookie within the delay for lost bookies: reported, and nothing is marked because of it yet."""

    bookie_id: str
    first_seen_down_ms: int
    until_ms: int
    """When the delay is over."""
    ledgers: int
    """Ledgers with a finding because of it."""


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
    """Fragments with a bookie of which the topology says nothing: not judged."""
    unknown_bookies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownAnswers:
    """A registered bookie that could not tell for some ledgers what it holds."""

    bookie_id: str
    status: str
    """Name of ``bookie.wire.port.Status``."""
    ledgers: int
    detail: str = ""
    """What was said besides, the first time that anything was."""

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
    """Copies that registered bookies should hold, those of their bookies that could not tell included."""
    absent: int
    """Copies that their bookie denies, twice, with the metadata read again in between."""
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
class ClusterName:
    """Which cluster a report is about."""

    metadata_uri: str
    instance_id: str
