"""Settings and exit codes of an audit. Importable without Spark."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from typing_extensions import override

from bookie.metadata.bookies.marking_policy import MarkingRules
from bookie.metadata.bookies.marking_times import CRITICAL_DELAY_S
from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S
from bookie.metadata.uri import uri_problems
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.option import Group, Option
from bookie.model.run import RunKind
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, PlacementPolicy
from bookie.runtime.configuration.options import range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.wire.security import NO_FILES, SecurityFiles
from spark_jobs.kept import HISTORY_DAYS, HISTORY_DAYS_MAX, HISTORY_MIB, Kept
from spark_jobs.options.checks import (
    INVENTORY_GRACE_S,
    RECOVERY_AGE_MAX_S,
    REFERENCE_GRACE_S,
    REFERENCES,
    InventoryGrace,
    InventoryTokenFile,
    PulsarRoots,
    RecoveryAgeMax,
    ReferenceGrace,
    WithInventory,
)
from spark_jobs.options.findings import FindingsDir, findings_dir_problems
from spark_jobs.options.image import (
    IMAGE_AGE_MAX_S,
    REREAD_WITHIN_S,
    ImageAgeMax,
    ImageDir,
    Incremental,
    RereadWithin,
    WithImage,
    image_dir_problems,
    image_text,
)
from spark_jobs.options.marking import (
    CriticalDelay,
    FlappingDelay,
    MarkBytesMax,
    MarksMax,
    MissingShareMax,
    RackOutageDelay,
    RunLimits,
)
from spark_jobs.options.namespaces import NamespacesInMetrics
from spark_jobs.options.reading import (
    MetadataBytesRate,
    MetadataConnections,
    MetadataLatencyFactor,
    MetadataObservers,
    MetadataRate,
    observer_hosts,
    observer_problems,
)
from spark_jobs.options.snapshot import SnapshotAuthorizationFile, SnapshotCa, SnapshotUrl, url_problems
from spark_jobs.pacing.budget import LATENCY_FACTOR, Budget
from spark_jobs.store_address import ReportStoreOption, address_problems

CONNECT_TIMEOUT_S: Final = 15.0
"""How long to try to connect to ZooKeeper. It is longer than an election in its ensemble takes."""
SNAPSHOT_HELP: Final = (
    "Read ledger metadata from this snapshot of ZooKeeper (plain, gzip or Snappy), and from ZooKeeper only what it "
    "cannot decide; with --kind bookies or everything."
)
SNAPSHOT_READING_KINDS: Final = (RunKind.BOOKIES, RunKind.EVERYTHING)
"""The kinds of runs that may read ledger metadata from a snapshot."""
KINDS_WITH_OPTION: Final[Mapping[str, tuple[RunKind, ...]]] = {
    "mark_misplaced": (RunKind.PLACEMENT, RunKind.EVERYTHING),
    "ledger_min": (RunKind.REPLICAS,),
    "ledger_max": (RunKind.REPLICAS,),
    "sample": (RunKind.REPLICAS,),
    "sample_seed": (RunKind.REPLICAS,),
    "apache_lists": (RunKind.REPLICAS,),
    "export": (RunKind.REFERENCES,),
}
"""The options of ``AuditSettings`` that change what a run checks or writes, and that only some kinds have. A command
refuses them for the other kinds, because a run that ignores them would do more than its caller requested."""
_PLACEMENT: Final = "Placement check"
_REPLICAS: Final = "Replicas check"


def problem_of_kind(kind: RunKind, given: Iterable[str]) -> str | None:
    """Return why a run of this kind cannot have the given options (by name), in one sentence; None if it can."""
    wrong = sorted(name for name in given if kind not in KINDS_WITH_OPTION.get(name, (kind,)))
    having = {name: " and ".join(each.value for each in KINDS_WITH_OPTION[name]) for name in wrong}
    named = ", ".join(f"--{name.replace('_', '-')} (of {kinds})" for name, kinds in having.items())
    return f"a run of kind {kind.value} has no {named}" if named else None


class FailOn(enum.Enum):
    """The least severe findings that cause the exit code ``FINDINGS``.

    Unreadable metadata counts at every level except NEVER.
    """

    NEVER = "never"
    NO_LIVE_COPY = "no-live-copy"
    CRITICAL = "critical"
    UNDER_REPLICATED = "under-replicated"
    """Some entry has fewer live copies than its write quorum."""
    ANY = "any"
    """Also findings with a missing bookie that stores no entry of the fragment."""

    @classmethod
    @override
    def _missing_(cls, value: object) -> FailOn | None:
        """Accept underscores in place of hyphens, because reports and metrics write severities with them."""
        text = str(value).replace("_", "-")
        return next((each for each in cls if each.value == text), None)


def fail_on(text: object) -> FailOn:
    """Return the level with this name, written with hyphens or underscores.

    Raises:
        ValueError: there is no such level.
    """
    try:
        return FailOn(text)
    except ValueError:
        levels = ", ".join(each.value for each in FailOn)
        raise ValueError(f"{text!r} is not one of {levels}") from None


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Settings of one audit run. All impossible values are refused in one error, each with its name.

    Raises:
        ConfigurationError: some value is impossible.
    """

    metadata_uri: str
    report_dir: Annotated[Path, Option("Holds a directory with the report of each run.")] = Path("reports")
    """If executors run on other machines and ``findings_dir`` is not set, this must be on a file system that they
    share."""
    report_store: ReportStoreOption = ""
    findings_dir: FindingsDir = ""
    is_dry_run: Annotated[bool, Option("Find and report, but mark nothing.", "dry_run")] = False
    missing_share_max: MissingShareMax = MISSING_SHARE_MAX
    critical_delay_s: CriticalDelay = CRITICAL_DELAY_S
    rack_outage_delay_s: RackOutageDelay = RACK_OUTAGE_DELAY_S
    flapping_delay_s: FlappingDelay = FLAPPING_DELAY_S
    marks_max: MarksMax = None
    mark_bytes_max: MarkBytesMax = None
    num_partitions: int | None = None
    """Number of partitions of the metadata scan; None: it is derived from the numbers of cores and ledgers."""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    """How long to try to connect to ZooKeeper. The driver tries once, each task of the scan as often as Spark repeats
    it."""
    worst_ledgers_max: int = 20
    """Number of the worst ledgers that the summary names."""
    topology_file: Annotated[
        Path | None,
        Option(
            "Topology file (JSON): the rack of each bookie. Default: the topology in ZooKeeper.",
            is_file=True,
            heading=_PLACEMENT,
        ),
    ] = None
    placement_policy: Annotated[
        PlacementPolicy,
        Group(heading=_PLACEMENT, help={"is_strict": "Report also ensembles that span all existing domains."}),
    ] = DEFAULT_PLACEMENT_POLICY
    """For the placement check: what each write set must span. Strict: this holds even if the topology has too few
    domains."""
    mark_misplaced: Annotated[
        bool,
        Option(
            "With --kind placement or everything, mark closed ledgers that a replacement would improve, so that "
            "workers move their copies.",
            heading=_PLACEMENT,
        ),
    ] = False
    """Marks are made with an empty list of replicas, as Apache's auditor does with
    ``repairedPlacementPolicyNotAdheringBookieEnabled``."""
    ledger_min: Annotated[
        int, Option("With --kind replicas, the lowest ledger id to check.", minimum=0, heading=_REPLICAS)
    ] = 0
    ledger_max: Annotated[
        int,
        Option(
            "With --kind replicas, the highest ledger id to check.",
            minimum=0,
            maximum=LEDGER_ID_MAX,
            default_text="the highest",
            heading=_REPLICAS,
        ),
    ] = LEDGER_ID_MAX
    sample: Annotated[
        float,
        Option(
            "With --kind replicas, the share of the ledgers to check, such as 0.01; chosen by id.",
            above=0,
            maximum=1,
            heading=_REPLICAS,
        ),
    ] = 1.0
    """The selection depends only on the ids and the seed."""
    sample_seed: Annotated[int | None, Option("Seed of the sample; default: a random one.", heading=_REPLICAS)] = None
    apache_lists: Annotated[
        bool,
        Option(
            "With --kind replicas, ask Apache's bookies with SortedLedgerStorage for complete lists. Each list takes "
            "memory until the bookie restarts, and a bookie that lists too many ledgers hangs: see docs/audits.md.",
            heading=_REPLICAS,
        ),
    ] = False
    recovery_age_max_s: RecoveryAgeMax = RECOVERY_AGE_MAX_S
    with_inventory: WithInventory = True
    inventory_grace_s: InventoryGrace = INVENTORY_GRACE_S
    inventory_token_file: InventoryTokenFile = None
    pulsar_roots: PulsarRoots = ""
    reference_grace_s: ReferenceGrace = REFERENCE_GRACE_S
    export: Annotated[
        Path | None,
        Option(
            "With --kind references, write the ids of unreferenced ledgers to this file, one in a line.",
            heading=REFERENCES,
        ),
    ] = None
    namespaces_in_metrics: NamespacesInMetrics = 0
    security: Annotated[SecurityFiles, Group(heading="How to reach bookies")] = NO_FILES
    """For the replicas check. Default: plain connections."""
    reports_kept: Annotated[
        int | None, Option("Remove the oldest reports above this number.", minimum=1, default_text="all")
    ] = None
    """Rows of removed reports stay in the tables of all runs."""
    snapshot: Path | None = None
    """Snapshot of ZooKeeper to read ledger metadata from, in the checks of bookies and of everything; on a file system
    that the Spark executors share."""
    snapshot_url: SnapshotUrl = ""
    snapshot_authorization_file: SnapshotAuthorizationFile = None
    snapshot_ca: SnapshotCa = None
    history_days: Annotated[
        int, Option("Days to keep in the tables of all runs.", minimum=1, maximum=HISTORY_DAYS_MAX)
    ] = HISTORY_DAYS
    history_mib: Annotated[int, Option("Size of each of these tables, MiB; its oldest days go first.", minimum=1)] = (
        HISTORY_MIB
    )

    metadata_rate: MetadataRate = 0.0
    metadata_bytes_rate: MetadataBytesRate = 0.0
    metadata_connections: MetadataConnections = 0
    metadata_latency_factor: MetadataLatencyFactor = LATENCY_FACTOR
    metadata_observers: MetadataObservers = ""
    with_image: WithImage = True
    image_dir: ImageDir = ""
    image_age_max_s: ImageAgeMax = IMAGE_AGE_MAX_S
    incremental: Incremental = False
    reread_within_s: RereadWithin = REREAD_WITHIN_S

    @property
    def is_from_snapshot(self) -> bool:
        """Whether ledger metadata is read from a snapshot."""
        return self.snapshot is not None or bool(self.snapshot_url)

    @property
    def image_place(self) -> str:
        """The directory or the address of the image of ledger metadata; empty: there is no image."""
        return image_text(self.report_dir, self.image_dir, has_image=self.with_image)

    @property
    def marking_rules(self) -> MarkingRules:
        """The configured reasons to hold back the ledgers of lost bookies."""
        return MarkingRules(self.critical_delay_s, self.rack_outage_delay_s, self.flapping_delay_s, self.topology_file)

    @property
    def run_limits(self) -> RunLimits:
        """How much one run may mark."""
        return RunLimits(self.marks_max, self.mark_bytes_max)

    @property
    def budget(self) -> Budget:
        """The limits on the reads of a run's tasks from ZooKeeper."""
        return Budget(
            self.metadata_rate,
            self.metadata_bytes_rate,
            self.metadata_connections,
            self.metadata_latency_factor,
            observer_hosts(self.metadata_observers),
        )

    @property
    def kept(self) -> Kept:
        """Limits on the reports and tables to keep."""
        return Kept(self.reports_kept, self.history_days, self.history_mib << 20)

    def __post_init__(self) -> None:
        if problems := [
            *uri_problems(self.metadata_uri),
            *observer_problems(self.metadata_observers),
            *range_problems(self),
            *self._problems(),
        ]:
            raise ConfigurationError(problems)

    def _problems(self) -> Iterator[str]:
        if self.num_partitions is not None and self.num_partitions < 1:
            yield f"num_partitions = {self.num_partitions} is out of range, need at least 1"
        if not 0 < self.connect_timeout_s <= 3600:
            yield f"connect_timeout_s = {self.connect_timeout_s} is out of range, need 0 to 3600"
        if self.worst_ledgers_max < 0:
            yield f"worst_ledgers_max = {self.worst_ledgers_max} is out of range, need at least 0"
        if self.ledger_min > self.ledger_max:
            yield f"ledger_min = {self.ledger_min} and ledger_max = {self.ledger_max} select no ledger"
        if self.incremental and not self.with_image:
            yield "incremental needs with_image: what is not read comes from the image"
        if self.incremental and self.is_from_snapshot:
            yield "incremental and a snapshot exclude each other"
        if self.snapshot_url:
            yield from url_problems(self.snapshot_url)
            if self.snapshot is not None:
                yield "snapshot and snapshot_url exclude each other"
        if self.report_store:
            yield from address_problems(self.report_store)
        if self.findings_dir:
            yield from findings_dir_problems(self.findings_dir)
        yield from image_dir_problems(self.image_dir)
        yield from self.security.problems()
