"""Settings of a replicator process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bookie.metadata.uri import uri_problems
from bookie.model.option import Group, Option
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, PlacementPolicy
from bookie.runtime.configuration.options import range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from bookie.wire.security import NO_FILES, SecurityFiles
from replicator.copying.transfer_slots import SLOTS_MAX


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """The options that an operator sets. One error names all invalid values.

    Raises:
        ConfigurationError: a value is invalid.
    """

    metadata_uri: str
    """The metadata service URI of the cluster, such as ``zk+hierarchical://host:2181/ledgers``."""
    ledgers_in_flight: Annotated[int, Option("Ledgers repaired at the same time.", minimum=1, maximum=256)] = 64
    """The default is high, because the repair of a small ledger mostly waits for answers. A worker repairs fewer large
    ledgers at a time."""
    bytes_per_second: Annotated[int, Option("Copy limit of this process; 0 for none.", minimum=0, is_live=True)] = 0
    """The limit for the bytes sent to targets, and separately for the bytes read."""
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
    """The longest time until new tasks are found without a watch event: the list of tasks is then read again."""
    open_ledger_grace_s: Annotated[
        float,
        Option(
            "Seconds that a bookie of an open ledger may be missing before the ledger is recovered.",
            "open_ledger_grace",
            minimum=0,
        ),
    ] = 30.0
    """How long a bookie of an unclosed ledger's last fragment must be missing before the ledger is recovered, which
    fences its writer. A live writer replaces the bookie within this time. The default is Apache's."""
    grace_s: Annotated[
        float, Option("Seconds for which repairs in progress may continue after SIGTERM.", "grace", minimum=0)
    ] = 30.0
    """Kubernetes kills a process after 30 s by default."""
    once: Annotated[bool, Option("End when every task is repaired or parked.")] = False
    is_output_json: bool = False
    """One JSON object per event on stdout instead of readable lines."""
    placement: Annotated[
        PlacementPolicy,
        Group(heading="Placement of copies", help={"is_strict": "Park a ledger rather than break the policy."}),
    ] = DEFAULT_PLACEMENT_POLICY
    """The placement policy for copies. It must equal the policy of the cluster's writers."""
    topology_file: Annotated[
        Path | None,
        Option(
            "Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper.",
            is_file=True,
        ),
    ] = None
    """The file is read once."""
    security: Annotated[SecurityFiles, Group(heading="How to reach bookies")] = NO_FILES
    """By default, connections are plain."""
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
