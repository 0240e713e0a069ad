"""Settings of a replicator process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bookie.model.spread import STANDARD, PlacementPolicy
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_server import StatusServerSettings
from bookie.wire.security import NO_FILES, SecurityFiles


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """What an operator may choose. Refuses impossible values as a whole, naming each of them.

    Raises:
        ConfigurationError: some value is impossible.
    """

    metadata_uri: str
    """The metadata service URI of the cluster, such as ``zk+hierarchical://host:2181/ledgers``."""
    ledgers_in_flight: int = 16
    """Ledgers repaired at a time. Many, because a small ledger mostly waits for the store's round trips."""
    copy_bytes_per_second: int = 0
    """Bound on bytes sent to targets by this process; 0 means unlimited."""
    poll_interval_s: float = 5.0
    """How long new tasks may go unnoticed while there is nothing to do, and the age at which the list is renewed."""
    open_ledger_grace_s: float = 30.0
    """How long a bookie of an unclosed ledger's last fragment must be gone before the ledger is taken from its writer:
    fenced, recovered and closed. A writer that lives replaces the bookie within it. Apache's default."""
    grace_s: float = 30.0
    """On SIGTERM: how long work in flight may go on before it is given up. Kubernetes kills after 30 s by default."""
    once: bool = False
    """End when every task is repaired or parked, instead of waiting for more."""
    is_output_json: bool = False
    """One JSON object per event on stdout instead of readable lines."""
    placement: PlacementPolicy = STANDARD
    """How copies must be spread. To be that of the cluster's writers."""
    topology_file: Path | None = None
    """The racks of the bookies, read once; None to read them from ZooKeeper."""
    security: SecurityFiles = NO_FILES
    """How to reach bookies that speak TLS, ask for a login or send long frames; default plain connections."""
    http: StatusServerSettings | None = None
    """The address that serves metrics and probes; None: none."""
    has_apache_metrics: bool = False
    """Also show the metrics that boards for Apache's replication worker ask for."""

    def __post_init__(self) -> None:
        problems = [
            problem
            for is_bad, problem in (
                (not self.metadata_uri, "metadata_uri is empty"),
                (self.ledgers_in_flight < 1, f"ledgers_in_flight is {self.ledgers_in_flight}, need at least 1"),
                (self.copy_bytes_per_second < 0, f"copy_bytes_per_second is {self.copy_bytes_per_second}, need >= 0"),
                (self.poll_interval_s <= 0, f"poll_interval_s is {self.poll_interval_s}, need more than 0"),
                (self.open_ledger_grace_s < 0, f"open_ledger_grace_s is {self.open_ledger_grace_s}, need >= 0"),
                (self.grace_s < 0, f"grace_s is {self.grace_s}, need >= 0"),
            )
            if is_bad
        ]
        problems += self.security.problems()
        if self.http is not None:
            problems += self.http.problems()
        if problems:
            raise ConfigurationError(problems)
