"""Settings of the auditor service. All problems are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from auditor.api.settings import anonymous_write_problems
from auditor.service.runs.schedule import InvalidScheduleError, Schedule, parse_schedule
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.uri import InvalidUriError, parse_uri
from bookie.model.run import RunKind
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.security import SaslMechanism, SecurityFiles

LOOPBACK: Final = "127.0.0.1"

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "schedule_jitter_s": (0, 86_400),
    "misfire_grace_s": (1, 7 * 86_400),
    "missing_share_max": (0, 1),
    "session_timeout_s": (2, 40),  # what a ZooKeeper server with its default tick time grants
    "backlog_interval_s": (1, 3600),
    "http_port": (0, 65_535),
    "grpc_port": (0, 65_535),
    "ui_port": (0, 65_535),
    "requests_per_second": (1, 10_000),
    "min_racks": (1, 100),
    "min_zones": (1, 100),
    "min_regions": (1, 100),
    "reports_kept": (1, 100_000),
    "runs_kept": (1, 100_000),
}
_FILES: Final = (
    *("tokens_file", "tls_cert", "tls_key", "tls_client_ca"),
    "topology_file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What ``bkheal auditor`` does. An empty text means "not given"."""

    metadata_uri: str
    """The cluster, for example ``zk://zk1:2181;zk2:2181/ledgers``."""
    report_dir: str = "reports"
    """Directory with the reports of all runs."""
    bookies_schedule: str = "24h"
    """When the bookies check runs besides after each loss of a bookie: ``off``, an interval, or cron in UTC."""
    placement_schedule: str = "off"
    """When the placement check runs."""
    replicas_schedule: str = "off"
    """When the replicas check runs; it asks every bookie for everything it holds."""
    schedule_jitter_s: int = 60
    """Longest random delay of a scheduled run, so that many clusters do not begin together; at most a tenth of an
    interval."""
    misfire_grace_s: int = 3600
    """How late a scheduled run may still begin; later it is skipped."""
    missing_share_max: float = MISSING_SHARE_MAX
    """Largest share of the known bookies, 0 to 1, that may be missing before the mass-loss brake holds everything."""
    session_timeout_s: float = 10.0
    """How long ZooKeeper waits for a silent auditor before another one may take over."""
    backlog_interval_s: float = 15.0
    """Time between two counts of the ledgers marked for repair."""
    http_host: str = LOOPBACK
    """Address of the HTTP API, metrics and probes."""
    http_port: int = 8080
    """Its port; 0 picks a free one."""
    grpc_host: str = LOOPBACK
    """Address of the gRPC control service."""
    grpc_port: int = 8081
    """Its port; 0 picks a free one."""
    tokens_file: str = ""
    """File with API tokens and their roles."""
    allow_anonymous_read: bool = True
    """Whether status, runs and reports are shown without a token."""
    allow_anonymous_write: bool = False
    """Whether runs may be started and ended without a token."""
    tls_cert: str = ""
    """PEM file: HTTP and gRPC speak TLS. Needs ``tls_key``."""
    tls_key: str = ""
    """PEM file of the key."""
    tls_client_ca: str = ""
    """PEM file: clients need a certificate signed by it. Needs ``tls_cert``."""
    requests_per_second: float = 20.0
    """Per client of the API; more are refused with 429."""
    spark_master: str = ""
    """Spark master; empty: all cores of this machine, or what ``spark-submit`` was given."""
    driver_memory: str = "1g"
    """Java heap of the Spark driver."""
    ui_enabled: bool = True
    """Whether Spark's UI runs, with the tab "Auditor"."""
    ui_host: str = LOOPBACK
    """Address of Spark's UI."""
    ui_port: int = 4040
    """Its port; 0 picks a free one."""
    ui_trigger_enabled: bool = False
    """Whether the tab has buttons that start and cancel runs."""
    ui_allow_anonymous: bool = False
    """Whether the buttons work without an authenticated user; for a loopback address only."""
    ui_proxy_base: str = ""
    """Path under which a reverse proxy serves Spark's UI, such as ``/spark``."""
    topology_file: str = ""
    """The locations of bookies; empty: from ZooKeeper."""
    min_racks: int = 2
    """Racks that each write quorum must span, for the placement check."""
    min_zones: int = 1
    """Zones that each write quorum must span."""
    min_regions: int = 1
    """Regions that each write quorum must span."""
    strict_placement: bool = False
    """Whether the placement check reports ensembles that span every domain there is."""
    bookie_tls_ca: str = ""
    """PEM file: bookies speak TLS, with certificates that it signed. For the replicas check and bookies' figures."""
    bookie_tls_cert: str = ""
    """PEM file: this side's certificate, with ``bookie_tls_ca``."""
    bookie_tls_key: str = ""
    """PEM file of its key."""
    bookie_sasl_username: str = ""
    """Name to log in with at Apache bookies that ask for it; with ``bookie_sasl_password_file``."""
    bookie_sasl_password_file: str = ""
    """File whose first line is the password."""
    bookie_sasl_mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5
    bookie_frame_bytes_max: int = FRAME_BYTES_MAX
    """Longest frame of Apache bookies, in bytes: their ``nettyMaxFrameSizeBytes`` if it was raised."""
    reports_kept: int = 50
    """Reports that are kept; the oldest go first."""
    runs_kept: int = 200
    """Run records that are kept in ZooKeeper."""
    compat_metrics: bool = False
    """Whether metrics also carry the names of Apache's auditor."""

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            ConfigurationError: names every problem.
        """
        problems = list(_problems(self))
        if problems:
            raise ConfigurationError(problems)

    @property
    def bookie_security(self) -> SecurityFiles:
        """How to reach bookies."""
        return SecurityFiles(
            _path(self.bookie_tls_ca),
            _path(self.bookie_tls_cert),
            _path(self.bookie_tls_key),
            self.bookie_sasl_username,
            _path(self.bookie_sasl_password_file),
            SaslMechanism(self.bookie_sasl_mechanism),
            self.bookie_frame_bytes_max,
        )

    @property
    def schedules(self) -> Mapping[RunKind, Schedule]:
        """The schedule of each kind; None: off."""
        return {kind: parse_schedule(text) for kind, text in self._texts().items()}

    @property
    def schedule_texts(self) -> Mapping[RunKind, str]:
        """The schedules as they were written, of the kinds that are not off."""
        return {kind: text.strip() for kind, text in self._texts().items() if parse_schedule(text) is not None}

    def _texts(self) -> Mapping[RunKind, str]:
        return {kind: getattr(self, f"{kind.value}_schedule") for kind in RunKind}


def _problems(settings: ServiceSettings) -> Iterator[str]:
    try:
        parse_uri(settings.metadata_uri)
    except InvalidUriError as error:
        yield f"metadata_uri: {error}"
    for kind in RunKind:
        name = f"{kind.value}_schedule"
        try:
            parse_schedule(getattr(settings, name))
        except InvalidScheduleError as error:
            yield f"{name}: {error}"
    for name, (least, most) in RANGES.items():
        if not least <= getattr(settings, name) <= most:
            yield f"{name} = {getattr(settings, name)} is out of range, need {least:g} to {most:g}"
    for name in _FILES:
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            yield f"{name}: there is no file {path}"
    yield from _contradictions(settings)


def _contradictions(settings: ServiceSettings) -> Iterator[str]:
    if not settings.report_dir:
        yield "report_dir is empty: name a directory"
    if bool(settings.tls_cert) != bool(settings.tls_key):
        yield "tls_cert and tls_key go together"
    yield from settings.bookie_security.problems("bookie_")
    if settings.allow_anonymous_write:
        yield from anonymous_write_problems((settings.http_host, settings.grpc_host))
    if settings.tls_client_ca and not settings.tls_cert:
        yield "tls_client_ca needs tls_cert and tls_key"
    if settings.ui_trigger_enabled and not settings.ui_enabled:
        yield "ui_trigger_enabled needs ui_enabled"
    if settings.ui_allow_anonymous and settings.ui_host not in (LOOPBACK, "localhost", "::1"):
        yield f"ui_allow_anonymous is for a loopback ui_host, not {settings.ui_host}: any client there could start runs"
    if settings.ui_allow_anonymous and settings.spark_master and not settings.spark_master.startswith("local"):
        yield f"ui_allow_anonymous is for a local Spark master, not {settings.spark_master}: its UI listens everywhere"
    if settings.ui_proxy_base and not settings.ui_proxy_base.startswith("/"):
        yield f"ui_proxy_base = {settings.ui_proxy_base!r} is no path: begin it with a slash"
    if settings.http_port == settings.grpc_port != 0 and settings.http_host == settings.grpc_host:
        yield f"http_port and grpc_port are both {settings.http_port}"


def _path(text: str) -> Path | None:
    return Path(text) if text else None
