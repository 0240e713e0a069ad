"""Settings and exit codes of an audit. Importable without Spark."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from bookie.metadata.uri import parse_uri
from bookie.model.errors import PermanentError
from spark_jobs.brake import MISSING_SHARE_MAX
from spark_jobs.connect import CONNECT_TIMEOUT_S


class InvalidSettingError(PermanentError):
    """A setting that makes no sense; the text names it."""


class ExitCode(enum.IntEnum):
    """What a one-shot audit tells whoever started it."""

    OK = 0
    FINDINGS = 1
    """Findings at or above ``--fail-on``."""
    USAGE = 2
    STORE_UNREACHABLE = 3
    PARTIAL = 5
    """Not every ledger was checked. What was found is published all the same."""
    HELD = 6
    """The mass-loss brake holds: nothing was published, a person has to look."""
    INTERNAL = 70
    """Spark or this program failed; the log says how."""
    CONFIGURATION = 78
    """A setting is wrong, or there is no cluster at the metadata URI."""


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

    def __post_init__(self) -> None:
        """Check everything at once.

        Raises:
            InvalidSettingError: a number is out of range.
            InvalidUriError: the metadata URI cannot be used.
        """
        parse_uri(self.metadata_uri)
        if not 0 <= self.missing_share_max <= 1:
            raise InvalidSettingError(f"missing_share_max={self.missing_share_max} is not a share, need 0 to 1")
        if self.num_partitions is not None and self.num_partitions < 1:
            raise InvalidSettingError(f"num_partitions={self.num_partitions} is out of range, need at least 1")
        if not 0 < self.connect_timeout_s <= 3600:
            raise InvalidSettingError(f"connect_timeout_s={self.connect_timeout_s} is out of range, need 0 to 3600")
        if self.worst_ledgers_max < 0:
            raise InvalidSettingError(f"worst_ledgers_max={self.worst_ledgers_max} is out of range, need at least 0")
