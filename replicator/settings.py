"""Settings of a replicator process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bookie.metadata.uri import uri_problems
from bookie.model.option import Group, Option
from bookie.model.spread import STANDARD, PlacementPolicy
from bookie.runtime.configuration.options import range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from bookie.wire.security import NO_FILES, SecurityFiles
from replicator.copying.transfer_slots import SLOTS_MAX


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """The options of an operator. Impossible values are refused together, each with its name.

    Raises:
        ConfigurationError: some value is impossible.
    """

    metadata_uri: str
    """The metadata service URI of the cluster, such as ``zk+hierarchical://host:2181/ledgers``."""
    ledgers_in_flight: Annotated[int, Option("Ledgers repaired at the same time.", minimum=1, maximum=256)] = 64
    """Many, because a small ledger mostly waits for round trips. A worker repairs fewer large ledgers at a time."""
    bytes_per_second: Annotated[int, Option("Copy limit of this process; 0 for none.", minimum=0, is_live=True)] = 0
    """Bound on bytes sent to targets, and on bytes read."""
    copies_per_bookie: Annotated[
        int, Option("Requests of copies under way to one bookie, up to 1 MiB each.", minimum=1, maximum=256)
    ] = SLOTS_MAX
    """Per process. Further requests wait: those of ledgers with the fewest copies come first."""
    is_pulling: Annotated[
        bool,
        Option("Let targets read entries from the sources by themselves, instead of through this process.", "pull"),
    ] = False
    """Entries then cross the network once, and bookies do part of this process's work (docs/decisions/0044)."""
    poll_interval_s: Annotated[
        float,
        Option("Seconds between two reads of the list of tasks while the process is idle.", "poll_interval", above=0),
    ] = 5.0
    """Longest time until new tasks are noticed without a watch event, and the age at which the list is renewed."""
    open_ledger_grace_s: Annotated[
        float,
        Option(
            "Seconds that a bookie of an open ledger may be missing before the ledger is recovered.",
            "open_ledger_grace",
            minimum=0,
        ),
    ] = 30.0
    """Time for which a bookie of an unclosed ledger's last fragment must be missing before the ledger is taken from its
    writer: fenced, recovered and closed. A live writer replaces the bookie within this time. Apache's default."""
    grace_s: Annotated[
        float, Option("Seconds for which repairs in progress may continue after SIGTERM.", "grace", minimum=0)
    ] = 30.0
    """Kubernetes kills after 30 s by default."""
    once: Annotated[bool, Option("End when every task is repaired or parked.")] = False
    is_output_json: bool = False
    """One JSON object per event on stdout instead of readable lines."""
    placement: Annotated[
        PlacementPolicy,
        Group(heading="Placement of copies", help={"is_strict": "Park a ledger rather than break the policy."}),
    ] = STANDARD
    """The placement policy for copies. Must equal the policy of the cluster's writers."""
    topology_file: Annotated[
        Path | None,
        Option(
            "Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper.",
            is_file=True,
        ),
    ] = None
    """Read once."""
    security: Annotated[SecurityFiles, Group(heading="How to reach bookies")] = NO_FILES
    """Default: plain connections."""
    http: Annotated[StatusServerSettings | None, Group("http_", heading="Metrics and probes")] = None
    """The address of metrics and probes; None: not served."""
    has_apache_metrics: Annotated[
        bool, Option("Also show the metrics of Apache's replication worker.", "compat_metrics")
    ] = False

    def __post_init__(self) -> None:
        problems = [*uri_problems(self.metadata_uri), *range_problems(self), *self.security.problems()]
        if self.http is not None:
            problems += self.http.problems()
        if problems:
            raise ConfigurationError(problems)
