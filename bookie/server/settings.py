"""The settings of a bookie process."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from bookie.metadata.uri import uri_problems
from bookie.model.hosts import host_problems
from bookie.model.ids import InvalidIdError, bookie_id
from bookie.model.option import Group, Option, parse_directories
from bookie.runtime.access.access import anonymous_write_problems
from bookie.runtime.configuration.options import file_problem, range_problems
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.listening import is_loopback
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from bookie.storage.settings import READ_CACHE_BYTES
from bookie.wire.security import TlsSettings

DEFAULT_PORT: Final = 3181
"""The default port of bookies, as in Apache BookKeeper."""
LOOPBACK: Final = "127.0.0.1"
JOURNAL_DIRS_MAX: Final = 16
"""The most journals of one bookie: more than a process can use fully. Each may hold 64 MiB of waiting records."""
LEDGER_DIRS_MAX: Final = 32
"""The most ledger directories of one bookie: one for each disk of a large host."""


@dataclass(frozen=True, slots=True)
class AdministrationAccess:
    """The permissions for the administration; see ``bookie.runtime.access.access.AccessSettings``."""

    tokens_file: Path | None
    allow_anonymous_read: bool
    allow_anonymous_write: bool
    requests_per_second: float = 20.0
    clients_max: int = 1000


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Settings of one bookie process.

    Raises:
        ConfigurationError: values are invalid. The error lists all of them.
    """

    metadata_uri: str
    """For example ``zk+hierarchical://host1:2181,host2:2181/ledgers``."""
    journal_dir: Annotated[
        str,
        Option(
            "Directory of the journal; best on a disk of its own. Several are separated by commas, and each ledger "
            "uses one of them: their number and order can never change."
        ),
    ]
    """``journal_dirs`` has the separate paths."""
    ledger_dir: Annotated[
        str,
        Option(
            "Directory of entry logs and index. Several are separated by commas: entry logs are spread over them, and "
            "the index is in the first one."
        ),
    ]
    """Directories other than the journal's, on other devices if possible; see ``ledger_dirs``."""
    host: Annotated[str, Option("Address to listen on.")] = LOOPBACK
    advertised_host: Annotated[str | None, Option("Host for the connections of clients; default: --host.")] = None
    port: Annotated[int, Option("Port to listen on; 0 picks a free one.", minimum=0, maximum=65535)] = DEFAULT_PORT
    """The actual port is registered."""
    apache_port: Annotated[
        int | None,
        Option(
            "Also speak Apache BookKeeper's protocol on this port, so that Apache's clients and tools can use this "
            "bookie; 0 picks a free one.",
            minimum=0,
            maximum=65535,
        ),
    ] = None
    apache_connections_max: Annotated[
        int,
        Option(
            "Connections to that port at once; one more replaces the oldest one without a request, or is closed. "
            "Apache's clients open up to 16 each under Pulsar, and each may take half a megabyte here in addition to "
            "what all of them share.",
            minimum=1,
        ),
    ] = 1024
    bookie_id: Annotated[
        str | None, Option("Default: the directory's own, else HOST:PORT (HOST:APACHE_PORT, if given).")
    ] = None
    """The default has the port of Apache's protocol if that is enabled: its clients may be configured to use an id as
    an address."""
    read_only_below_bytes: Annotated[
        int, Option("Become read-only while a disk has less free space; 0: never.", minimum=0)
    ] = 1 << 30
    """The default leaves space for several flushes of the journal and both write caches."""
    is_new_incarnation: Annotated[
        bool,
        Option(
            "The old disks are lost permanently: start on these empty ones. Remove it after this start: with it, a "
            "start while the disks are not mounted gives them up.",
            "new_incarnation",
        ),
    ] = False
    """Start with empty directories although the bookie id had others. The old content then counts as unknown, and is
    copied to this bookie again."""
    may_salvage_journal: Annotated[
        bool, Option("If the journal is damaged, salvage it at the start instead of refusing.", "salvage_journal")
    ] = False
    """The journal's content then counts as unknown, and is copied to this bookie again (docs/bookie.md#disks)."""
    session_timeout_s: Annotated[
        float,
        Option("ZooKeeper session timeout, in seconds.", "session_timeout", above=0),
    ] = 10.0
    """Time for which a killed bookie still counts as registered."""
    connect_timeout_s: Annotated[
        float,
        Option("Time limit of each attempt to reach ZooKeeper at the start, in seconds.", "connect_timeout", above=0),
    ] = 15.0
    takeover_deadline_s: float = 60.0
    """Deadline for the end of an earlier session's registration of this bookie; longer than any session timeout."""
    concurrent_requests_max: int = 512
    """The most concurrent gRPC calls other than add streams and health watches. Further calls are refused."""
    collect_interval_s: Annotated[
        float,
        Option(
            "Seconds between garbage collections (deleted or moved ledgers). 0 disables them.",
            "collect_interval",
            minimum=0,
        ),
    ] = 3600.0
    collect_ratio_max: Annotated[
        float,
        Option(
            "Collect nothing if more than this share of the ledgers would be deleted, unless `bkheal collection allow` "
            "permits it.",
            above=0,
            maximum=1,
        ),
    ] = 0.5
    """It applies only above a hundred local ledgers."""
    scrub_interval_s: Annotated[
        float,
        Option(
            "Seconds between scrubs, which verify every stored entry. 0 disables them.", "scrub_interval", minimum=0
        ),
    ] = 604800.0
    scrub_bytes_per_second: Annotated[int, Option("Bytes per second to read in a scrub.", minimum=1)] = 2 << 20
    """With the default, a scrub of 1 TB takes six days."""
    tokens_file: Annotated[
        Path | None,
        Option("File with tokens and their roles, for `bkheal bookie ... --at`; as the auditor's.", is_file=True),
    ] = None
    """The file is read again after each change (``bookie.runtime.access.tokens``)."""
    allow_anonymous_read: Annotated[bool, Option("Show status and ledgers to operators without a token.")] = True
    allow_anonymous_write: Annotated[
        bool,
        Option(
            "Let operators without a token start scrubs and garbage collections, and make the bookie read-only; for "
            "loopback addresses only."
        ),
    ] = False
    read_cache_bytes: Annotated[
        int,
        Option("Memory for entries read ahead for sequential readers. 0: no read-ahead.", minimum=0),
    ] = READ_CACHE_BYTES
    drain_deadline_s: float = 20.0
    """Deadline for running requests after a request to stop; shorter than Kubernetes' grace period of 30 s."""
    is_plaintext: Annotated[bool, Option("Allow plaintext on an address that others can reach.", "plaintext")] = False
    tls: Annotated[TlsSettings | None, Group("tls_", heading="TLS")] = None
    http: Annotated[StatusServerSettings | None, Group("http_", heading="Metrics and probes")] = None
    """The address of metrics and probes, or None."""

    def __post_init__(self) -> None:
        if problems := [*uri_problems(self.metadata_uri), *range_problems(self), *self._problems()]:
            raise ConfigurationError(problems)

    @property
    def journal_dirs(self) -> tuple[Path, ...]:
        """The journal directories; each ledger uses one of them (R125)."""
        return parse_directories(self.journal_dir)

    @property
    def ledger_dirs(self) -> tuple[Path, ...]:
        """The ledger directories; the first one has the index."""
        return parse_directories(self.ledger_dir)

    @property
    def advertised(self) -> str:
        """The host that clients use."""
        return self.advertised_host or self.host

    @property
    def access(self) -> AdministrationAccess:
        """The permissions for the administration."""
        return AdministrationAccess(self.tokens_file, self.allow_anonymous_read, self.allow_anonymous_write)

    def _problems(self) -> Iterator[str]:
        """Yield the contradictions between the values."""
        if self.apache_port is not None and self.apache_port == self.port != 0:
            yield f"gRPC and Apache's protocol cannot both use port {self.port}: give each its own"
        yield from host_problems("host", self.host)
        yield from host_problems("advertised_host", self.advertised_host)
        yield from _directory_problems(self.journal_dirs, self.ledger_dirs)
        if self.bookie_id is not None:
            yield from _id_problems(self.bookie_id)
        if self.tls is not None and self.is_plaintext:
            yield "TLS and plaintext exclude each other: choose one"
        if self.tls is not None and (self.tls.cert is None or self.tls.key is None):
            yield "tls_ca needs tls_cert and tls_key: clients verify the certificate of a bookie"
        if self.tls is None and not self.is_plaintext and not is_loopback(self.host):
            yield f"host {self.host} is reachable from outside: give tls_ca, tls_cert and tls_key, or set plaintext"
        if _is_wildcard(self.advertised):
            yield f"clients cannot connect to {self.advertised}: give advertised_host"
        if self.allow_anonymous_write:
            yield from anonymous_write_problems((self.host,), "change the state of this bookie")
        if (problem := file_problem("tokens_file", self.tokens_file)) is not None:
            yield problem
        if self.http is not None:
            yield from self.http.problems()


def _directory_problems(journal_dirs: tuple[Path, ...], ledger_dirs: tuple[Path, ...]) -> Iterator[str]:
    for option, paths, most in (
        ("journal_dir", journal_dirs, JOURNAL_DIRS_MAX),
        ("ledger_dir", ledger_dirs, LEDGER_DIRS_MAX),
    ):
        if not paths:
            yield f"{option} names no directory"
        if len(paths) > most:
            yield f"{option} names {len(paths)} directories, allowed are {most}"
        places = [path.resolve() for path in paths]
        if twice := sorted({str(path) for path in places if places.count(path) > 1}):
            yield f"{option} names {', '.join(twice)} more than once"
    ledgers = {path.resolve() for path in ledger_dirs}
    for path in journal_dirs:
        if path.resolve() in ledgers:
            yield f"journal and ledger directory are both {path}: give two directories"


def _id_problems(text: str) -> list[str]:
    try:
        bookie_id(text)
    except InvalidIdError as error:
        return [str(error)]
    return []


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
