"""Settings and exit codes of an audit. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.uri import parse_uri
from bookie.model.errors import PermanentError
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.spread import STANDARD, PlacementPolicy
from bookie.wire.security import NO_FILES, SecurityFiles
from spark_jobs.connect import CONNECT_TIMEOUT_S


class InvalidSettingError(PermanentError):
    """Settings that make no sense; ``problems`` holds every one found."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class FailOn(enum.Enum):
    """From which findings on an audit exits with ``FINDINGS``. Unreadable metadata counts at every level but NEVER."""

    NEVER = "never"
    NO_LIVE_COPY = "no-live-copy"
    CRITICAL = "critical"
    UNDER_REPLICATED = "under-replicated"
    """Some entry has fewer live copies than its write quorum."""
    ANY = "any"
    """Also a missing bookie that stores no entry of the fragment."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What one audit run does."""

    metadata_uri: str
    report_dir: Path
    """Reports of all runs; on a file system that the Spark executors share, if there are any on other machines."""
    is_dry_run: bool = False
    """Report, and mark nothing."""
    missing_share_max: float = MISSING_SHARE_MAX
    """Largest share of the known bookies, 0 to 1, that may be missing before the brake holds."""
    num_partitions: int | None = None
    """Partitions of the metadata scan; None: by cores and ledgers."""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    """How long to try to connect to ZooKeeper: the driver once, each task of the scan as often as Spark repeats it."""
    worst_ledgers_max: int = 20
    """How many of the worst ledgers the summary names."""
    topology_file: Path | None = None
    """Placement: the locations of bookies; None to read them from the metadata store."""
    placement_policy: PlacementPolicy = STANDARD
    """Placement: what each write set must span. Strict: also if the topology has no more domains to offer."""
    mark_misplaced: bool = False
    """Placement: mark what a replacement can improve, as Apache's auditor does with
    ``repairedPlacementPolicyNotAdheringBookieEnabled``: with an empty list of replicas, closed ledgers only."""
    ledger_min: int = 0
    """Replicas: lowest ledger id to ask for, inclusive."""
    ledger_max: int = LEDGER_ID_MAX
    """Replicas: highest ledger id to ask for, inclusive."""
    sample: float = 1.0
    """Replicas: share of the ledgers to ask for, above 0 to 1; which ones depends on their ids and the seed alone."""
    sample_seed: int | None = None
    """Replicas: None for another sample in each run."""
    security: SecurityFiles = NO_FILES
    """Replicas: how to reach bookies that speak TLS or ask for a login; default plain connections."""
    reports_kept: int | None = None
    """Runs whose report directories are kept, at least 1; None: all. The tables of all runs keep their rows."""

    @property
    def is_every_ledger(self) -> bool:
        """Whether a replicas check leaves out no ledger."""
        return self.sample >= 1 and self.ledger_min == 0 and self.ledger_max == LEDGER_ID_MAX

    def __post_init__(self) -> None:
        """Check everything at once.

        Raises:
            InvalidSettingError: a value makes no sense; names every one.
            InvalidUriError: the metadata URI cannot be used.
        """
        parse_uri(self.metadata_uri)
        if problems := list(self._problems()):
            raise InvalidSettingError(problems)

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.missing_share_max <= 1:
            yield f"missing_share_max={self.missing_share_max} is not a share, need 0 to 1"
        if self.num_partitions is not None and self.num_partitions < 1:
            yield f"num_partitions={self.num_partitions} is out of range, need at least 1"
        if not 0 < self.connect_timeout_s <= 3600:
            yield f"connect_timeout_s={self.connect_timeout_s} is out of range, need 0 to 3600"
        if self.worst_ledgers_max < 0:
            yield f"worst_ledgers_max={self.worst_ledgers_max} is out of range, need at least 0"
        if not 0 <= self.ledger_min <= self.ledger_max <= LEDGER_ID_MAX:
            yield f"ledger_min={self.ledger_min} and ledger_max={self.ledger_max} leave no ledger"
        if self.reports_kept is not None and self.reports_kept < 1:
            yield f"reports_kept={self.reports_kept} is out of range, need at least 1"
        yield from self.security.problems()
        if not 0 < self.sample <= 1:
            yield f"sample={self.sample} is not a share, need more than 0 and at most 1"
