"""Settings of the auditor service. All problems are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from auditor.api.access.proxies import parse_proxies
from auditor.api.settings import ANONYMOUS_ACTIONS_TEXT
from auditor.service.addresses import leader_port_problems, public_url_problems, ui_proxy_problems
from bookie.metadata.bookies.marking_policy import MarkingRules
from bookie.metadata.bookies.marking_times import CRITICAL_DELAY_S
from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S
from bookie.metadata.uri import uri_problems
from bookie.model.hosts import host_problems
from bookie.model.option import Group, Option
from bookie.model.run import PAUSE_S, PAUSE_S_MAX, RunKind
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, PlacementPolicy
from bookie.runtime.access.access import anonymous_write_problems
from bookie.runtime.configuration.options import file_problem, range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.wire.security import NO_FILES, SecurityFiles
from spark_jobs.kept import HISTORY_DAYS, HISTORY_DAYS_MAX, HISTORY_MIB, Kept
from spark_jobs.options.checks import (
    INVENTORY_GRACE_S,
    RECOVERY_AGE_MAX_S,
    REFERENCE_GRACE_S,
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
)
from spark_jobs.options.marking import (
    CriticalDelay,
    FlappingDelay,
    MarkBytesMax,
    MarksMax,
    MissingShareMax,
    RackOutageDelay,
)
from spark_jobs.options.namespaces import NamespacesInMetrics
from spark_jobs.options.reading import (
    MetadataBytesRate,
    MetadataConnections,
    MetadataLatencyFactor,
    MetadataObservers,
    MetadataRate,
    observer_problems,
)
from spark_jobs.pacing.budget import LATENCY_FACTOR, NICE, NICE_MAX
from spark_jobs.spark_master import master_problems
from spark_jobs.store_address import ReportStoreOption, address_problems

if TYPE_CHECKING:
    from auditor.service.runs.schedule import Schedule

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of ``bkheal auditor``. Invalid values are refused together, and the error names each of them.

    Raises:
        ConfigurationError: at least one value is invalid.
    """

    metadata_uri: str
    """The cluster, for example ``zk://zk1:2181;zk2:2181/ledgers``."""
    report_dir: Annotated[Path, Option("Holds a directory with the report of each run.")] = Path("reports")
    report_store: ReportStoreOption = ""
    findings_dir: FindingsDir = ""
    bookies_schedule: Annotated[
        str,
        Option("When the bookies check runs, in addition to the checks after losses: off, 30m, 24h, or cron in UTC."),
    ] = "24h"
    placement_schedule: Annotated[str, Option("When the placement check runs.")] = "off"
    replicas_schedule: Annotated[
        str, Option("When the replicas check runs; it requests the entry lists of every bookie.")
    ] = "off"
    references_schedule: Annotated[
        str, Option("When the references check runs; it compares ledgers with what Pulsar refers to.")
    ] = "off"
    everything_schedule: Annotated[
        str,
        Option(
            "When the checks of bookies and placement, the metadata lint and the inventory of bookies run with one "
            "reading."
        ),
    ] = "off"
    recovery_age_max_s: RecoveryAgeMax = RECOVERY_AGE_MAX_S
    with_inventory: WithInventory = True
    inventory_grace_s: InventoryGrace = INVENTORY_GRACE_S
    inventory_token_file: InventoryTokenFile = None
    pulsar_roots: PulsarRoots = ""
    reference_grace_s: ReferenceGrace = REFERENCE_GRACE_S
    schedule_jitter_s: Annotated[
        int,
        Option("Longest random delay of a scheduled run; at most a tenth of an interval.", minimum=0, maximum=86_400),
    ] = 60
    """Prevents many clusters from starting together."""
    misfire_grace_s: Annotated[
        int, Option("How late a scheduled run may still begin.", minimum=1, maximum=7 * 86_400)
    ] = 3600
    """A run that cannot begin within this time is skipped."""
    pause_s: Annotated[
        float,
        Option("How long a pause of a run, or of a schedule, lasts.", minimum=60, maximum=PAUSE_S_MAX),
    ] = PAUSE_S
    """It then continues by itself. Pausing again extends the pause. The reaction to a lost bookie is never paused."""
    missing_share_max: MissingShareMax = MISSING_SHARE_MAX
    critical_delay_s: CriticalDelay = CRITICAL_DELAY_S
    rack_outage_delay_s: RackOutageDelay = RACK_OUTAGE_DELAY_S
    flapping_delay_s: FlappingDelay = FLAPPING_DELAY_S
    marks_max: MarksMax = None
    mark_bytes_max: MarkBytesMax = None
    namespaces_in_metrics: NamespacesInMetrics = 0
    session_timeout_s: Annotated[
        float,
        Option(
            "ZooKeeper session timeout: an auditor that does not answer for this time is replaced as leader.",
            minimum=2,
            maximum=40,
        ),
    ] = 10.0
    """The range is the one that a ZooKeeper server with its default tick time allows."""
    backlog_interval_s: Annotated[
        float, Option("Time between two counts of the ledgers marked for repair.", minimum=1, maximum=3600)
    ] = 15.0
    http_host: Annotated[str, Option("Address of the HTTP API, metrics and probes.")] = LOOPBACK
    http_port: Annotated[int, Option("Its port; 0 picks a free one.", minimum=0, maximum=65_535)] = 8080
    grpc_host: Annotated[str, Option("Address of the gRPC control service.")] = LOOPBACK
    grpc_port: Annotated[int, Option("Its port; 0 picks a free one.", minimum=0, maximum=65_535)] = 8081
    advertised_host: Annotated[
        str, Option("Host or address under which other auditors reach this one; default: the host name.")
    ] = ""
    """The vote contains it, with the HTTP port."""
    leader_http_port: Annotated[
        int, Option("Port that leads to the leader's HTTP API; 0: none.", minimum=0, maximum=65_535)
    ] = 0
    """All auditors must have the same ports."""
    leader_grpc_port: Annotated[
        int, Option("Port that leads to the leader's gRPC service; 0: none.", minimum=0, maximum=65_535)
    ] = 0
    leader_ui_port: Annotated[
        int, Option("Port that leads to the leader's Spark UI; 0: none.", minimum=0, maximum=65_535)
    ] = 0
    public_url: Annotated[
        str,
        Option("URL under which browsers reach the HTTP API; links to reports begin with it. Default: its address."),
    ] = ""
    """Such as ``https://bkheal.example.org``, of a proxy or a load balancer."""
    tokens_file: Annotated[Path | None, Option("File with API tokens and their roles.", is_file=True)] = None
    allow_anonymous_read: Annotated[bool, Option("Show status, runs and reports without a token.")] = True
    allow_anonymous_write: Annotated[
        bool, Option("Start and end runs without a token; for loopback addresses only.")
    ] = False
    tls_cert: Annotated[Path | None, Option("PEM file: HTTP and gRPC speak TLS; with --tls-key.", is_file=True)] = None
    tls_key: Annotated[Path | None, Option("PEM file of the key.", is_file=True)] = None
    tls_client_ca: Annotated[
        Path | None, Option("PEM file: clients need a certificate that it signed.", is_file=True)
    ] = None
    requests_per_second: Annotated[
        float, Option("Requests per second of one API client.", minimum=1, maximum=10_000, is_live=True)
    ] = 20.0
    """Further requests are refused with 429."""
    trusted_proxies: Annotated[
        str, Option("Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Host count, with commas.")
    ] = ""
    """Such as ``10.0.0.7,10.1.0.0/16``. Rate limits and the log then use the address of the client."""
    spark_master: Annotated[str, Option("Spark master; default: all cores of this machine, or spark-submit's.")] = ""
    driver_memory: Annotated[str, Option("Java heap of the Spark driver.")] = "1g"
    spark_nice: Annotated[
        int,
        Option(
            "Nice value of Spark's processes, with a local Spark master; 0: the auditor's own.",
            minimum=0,
            maximum=NICE_MAX,
        ),
    ] = NICE
    ui_enabled: Annotated[bool, Option("Run Spark's UI, with the tab Auditor.")] = True
    ui_host: Annotated[str, Option("Address of Spark's UI.")] = LOOPBACK
    ui_port: Annotated[int, Option("Port of Spark's UI; 0 picks a free one.", minimum=0, maximum=65_535)] = 4040
    ui_trigger_enabled: Annotated[bool, Option("Buttons to start and cancel runs in the tab.")] = False
    ui_allow_anonymous: Annotated[
        bool, Option("The buttons work without a user name; for a loopback address only.")
    ] = False
    ui_user_header: Annotated[
        str,
        Option(
            "Header with the user that a proxy in front of Spark's UI has authenticated; with --ui-trusted-proxies."
        ),
    ] = ""
    """Such as ``X-Forwarded-User``."""
    ui_trusted_proxies: Annotated[
        str, Option("Addresses of that proxy, numeric, separated by commas; the header of other clients is ignored.")
    ] = ""
    ui_proxy_port: Annotated[
        int,
        Option(
            "Port of that proxy on this machine, to which --leader-ui-port leads; 0: none.", minimum=0, maximum=65_535
        ),
    ] = 0
    ui_proxy_base: Annotated[str, Option("Path under which a proxy serves Spark's UI.")] = ""
    """Such as ``/spark``."""
    topology_file: Annotated[
        Path | None,
        Option(
            "Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper.",
            is_file=True,
        ),
    ] = None
    placement: Annotated[
        PlacementPolicy,
        Group(heading="Placement check", help={"is_strict": "Report also ensembles that span all existing domains."}),
    ] = DEFAULT_PLACEMENT_POLICY
    bookie_security: Annotated[SecurityFiles, Group("bookie_", heading="How to reach bookies")] = NO_FILES
    """For the replicas check, and for the figures of bookies."""
    reports_kept: Annotated[int, Option("Number of reports to keep.", minimum=1, maximum=100_000)] = 50
    """The oldest reports are removed first."""
    history_days: Annotated[
        int, Option("Days to keep in the tables of all runs.", minimum=1, maximum=HISTORY_DAYS_MAX)
    ] = HISTORY_DAYS
    history_mib: Annotated[int, Option("Size of each of these tables, MiB; its oldest days go first.", minimum=1)] = (
        HISTORY_MIB
    )
    runs_kept: Annotated[
        int,
        Option("Run records kept in ZooKeeper; the last complete run of each kind stays.", minimum=1, maximum=100_000),
    ] = 200
    """The leading auditor records the number for runs outside the service, which also remove old records."""
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
    compat_metrics: Annotated[bool, Option("Also export the metric names of Apache's auditor.")] = False

    def __post_init__(self) -> None:
        problems = [
            *uri_problems(self.metadata_uri),
            *observer_problems(self.metadata_observers),
            *range_problems(self),
            *_problems(self),
        ]
        if problems:
            raise ConfigurationError(problems)

    @property
    def kept(self) -> Kept:
        """How many reports are kept, and for how long."""
        return Kept(self.reports_kept, self.history_days, self.history_mib << 20)

    @property
    def marking_rules(self) -> MarkingRules:
        """The rules that hold back ledgers of lost bookies, as configured here."""
        return MarkingRules(self.critical_delay_s, self.rack_outage_delay_s, self.flapping_delay_s, self.topology_file)

    @property
    def schedules(self) -> Mapping[RunKind, Schedule]:
        """The schedule of each kind; None: off."""
        from auditor.service.runs.schedule import parse_schedule  # imports APScheduler, unneeded elsewhere

        return {kind: parse_schedule(text) for kind, text in self._texts().items()}

    @property
    def schedule_texts(self) -> Mapping[RunKind, str]:
        """The schedules as configured, for the kinds that have one."""
        from auditor.service.runs.schedule import parse_schedule

        return {kind: text.strip() for kind, text in self._texts().items() if parse_schedule(text) is not None}

    def _texts(self) -> Mapping[RunKind, str]:
        return {kind: getattr(self, f"{kind.value}_schedule") for kind in RunKind}


def _problems(settings: ServiceSettings) -> Iterator[str]:
    from auditor.service.runs.schedule import InvalidScheduleError, parse_schedule

    if settings.report_store:
        yield from address_problems(settings.report_store)
    if settings.findings_dir:
        yield from findings_dir_problems(settings.findings_dir)
    yield from image_dir_problems(settings.image_dir)
    for kind in RunKind:
        name = f"{kind.value}_schedule"
        try:
            parse_schedule(getattr(settings, name))
        except InvalidScheduleError as error:
            yield f"{name}: {error}"
    for name in ("tokens_file", "tls_cert", "tls_key", "tls_client_ca", "topology_file", "inventory_token_file"):
        if (problem := file_problem(name, getattr(settings, name))) is not None:
            yield problem
    yield from _contradictions(settings)


def _contradictions(settings: ServiceSettings) -> Iterator[str]:
    if settings.incremental and not settings.with_image:
        yield "incremental needs with_image: what is not read comes from the image"
    for name in ("http_host", "grpc_host", "ui_host"):
        yield from host_problems(name, getattr(settings, name))
    yield from public_url_problems(settings.public_url)
    yield from master_problems(settings.spark_master)
    yield from leader_port_problems(settings)
    yield from ui_proxy_problems(settings)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        yield "tls_cert and tls_key go together"
    try:
        parse_proxies(settings.trusted_proxies)
    except ValueError as error:
        yield f"trusted_proxies: {error}: name addresses or networks, such as 10.0.0.7,10.1.0.0/16"
    yield from settings.bookie_security.problems("bookie_")
    if settings.allow_anonymous_write:
        yield from anonymous_write_problems((settings.http_host, settings.grpc_host), ANONYMOUS_ACTIONS_TEXT)
    if settings.tls_client_ca and not settings.tls_cert:
        yield "tls_client_ca needs tls_cert and tls_key"
    if settings.ui_trigger_enabled and not settings.ui_enabled:
        yield "ui_trigger_enabled needs ui_enabled"
    if settings.ui_allow_anonymous and settings.ui_host not in (LOOPBACK, "localhost", "::1"):
        yield f"ui_allow_anonymous is for a loopback ui_host, not {settings.ui_host}: any client there could start runs"
    if settings.ui_allow_anonymous and settings.spark_master and not settings.spark_master.startswith("local"):
        yield f"ui_allow_anonymous is for a local Spark master, not {settings.spark_master}: its UI listens everywhere"
    if settings.ui_proxy_base and not settings.ui_proxy_base.startswith("/"):
        yield f"ui_proxy_base = {settings.ui_proxy_base!r} is not a path: begin it with a slash"
    if settings.http_port == settings.grpc_port != 0 and settings.http_host == settings.grpc_host:
        yield f"http_port and grpc_port are both {settings.http_port}"
