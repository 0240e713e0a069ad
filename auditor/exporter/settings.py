"""Settings of the exporter. All problems are reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from bookie.metadata.bookies.marking_policy import MarkingRules
from bookie.metadata.bookies.marking_times import CRITICAL_DELAY_S
from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S
from bookie.metadata.uri import uri_problems
from bookie.model.option import Group, Option
from bookie.runtime.configuration.options import file_problem, range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from spark_jobs.options.marking import CriticalDelay, FlappingDelay, MissingShareMax, RackOutageDelay

PORT: Final = 8002
"""Differs from the ports of a bookie (8000) and a replicator (8001), which may run on the same machine."""


@dataclass(frozen=True, slots=True)
class ExporterServerSettings(StatusServerSettings):
    """The metrics server of an exporter, which always runs."""

    port: Annotated[int, Option("Port of /metrics, /livez, /readyz; 0 picks a free one.", minimum=0, maximum=65535)] = (
        PORT
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Settings of ``bkheal exporter``. Invalid values are refused together, and the error names each of them.

    Raises:
        ConfigurationError: at least one value is invalid.
    """

    metadata_uri: str
    """The cluster, for example ``zk://zk1:2181;zk2:2181/ledgers``."""
    backlog_interval_s: Annotated[
        float, Option("Time between two counts of the ledgers marked for repair.", minimum=1, maximum=3600)
    ] = 15.0
    """The pause after a long count is longer."""
    missing_share_max: MissingShareMax = MISSING_SHARE_MAX
    """This option and the next three need the same values as for the audits, so that reasons and times agree."""
    critical_delay_s: CriticalDelay = CRITICAL_DELAY_S
    rack_outage_delay_s: RackOutageDelay = RACK_OUTAGE_DELAY_S
    flapping_delay_s: FlappingDelay = FLAPPING_DELAY_S
    session_timeout_s: Annotated[float, Option("ZooKeeper session timeout of the exporter.", minimum=2, maximum=40)] = (
        10.0
    )
    topology_file: Annotated[
        Path | None,
        Option(
            "Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper.",
            is_file=True,
        ),
    ] = None
    http: Annotated[ExporterServerSettings, Group("http_", heading="Metrics and probes")] = field(
        default=ExporterServerSettings()
    )

    def __post_init__(self) -> None:
        problems = [*uri_problems(self.metadata_uri), *range_problems(self), *self.http.problems()]
        if (problem := file_problem("topology_file", self.topology_file)) is not None:
            problems.append(problem)
        if problems:
            raise ConfigurationError(problems)

    @property
    def marking_rules(self) -> MarkingRules:
        """Return the rules for holding back the ledgers of lost bookies, as configured for the audits."""
        return MarkingRules(self.critical_delay_s, self.rack_outage_delay_s, self.flapping_delay_s, self.topology_file)
