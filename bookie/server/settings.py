"""The settings of a bookie process."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.ids import InvalidIdError, bookie_id
from bookie.runtime.telemetry.status_server import StatusServerSettings
from bookie.wire.tls import TlsSettings

DEFAULT_PORT: Final = 3181
"""Apache's."""


class InvalidSettingsError(PermanentError):
    """The settings cannot work; the text lists every problem."""


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Settings of one bookie process. ``check`` verifies that they are consistent."""

    metadata_uri: str
    """Such as ``zk+hierarchical://host1:2181,host2:2181/ledgers``."""
    journal_dir: Path
    ledger_dir: Path
    """Another directory than the journal's, on another device if there is one."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = DEFAULT_PORT
    """0: any free port; the real one is registered."""
    apache_port: int | None = None
    """The port of Apache's own protocol, for its clients and tools; 0: any free port, None: none."""
    apache_connections_max: int = 1024
    """Connections to ``apache_port`` at once; one more is closed."""
    advertised_host: str | None = None
    """Host name or address for clients; default ``host``."""
    bookie_id: str | None = None
    """Default: the id in the directories, or ``advertised_host:port`` if they are new, with the port of Apache's
    protocol if it is spoken: its clients may be configured to use an id as an address."""
    tls: TlsSettings | None = None
    is_plaintext: bool = False
    """No TLS although ``host`` is not a loopback address."""
    read_only_below_bytes: int = 1 << 30
    """Read-only while the journal's or the ledgers' device has less free space; 0: never. The default is room for the
    journal and both write caches to be flushed several times over."""
    session_timeout_s: float = 10.0
    """ZooKeeper's. A bookie that was killed counts as registered for this long."""
    connect_timeout_s: float = 15.0
    """How long ZooKeeper may take to answer at the start."""
    takeover_deadline_s: float = 60.0
    """How long an earlier session's registration of this bookie may take to vanish; more than any session timeout."""
    concurrent_requests_max: int = 512
    """gRPC calls at once, add streams among them; one more is refused."""
    is_new_incarnation: bool = False
    """Start although the directories are empty and the bookie id had others: what these held counts as unknown and is
    copied to this bookie again."""
    collect_interval_s: float = 3600.0
    """Between two passes that delete the entries of deleted and moved ledgers. 0: never."""
    collect_ratio_max: float = 0.5
    """A pass that would delete more than this part of the local ledgers (and there are more than a hundred) does
    nothing and reports it. Raise it for the one start at which that much is meant to go."""
    drain_deadline_s: float = 20.0
    """How long requests may take to end once a stop was asked for; below Kubernetes' grace period of 30 s."""
    http: StatusServerSettings | None = None
    """The address of metrics and probes; None: none."""

    @property
    def advertised(self) -> str:
        """Host for clients."""
        return self.advertised_host or self.host

    def check(self) -> None:
        """Look at the values, not at the disk or the network.

        Raises:
            InvalidSettingsError: with every problem that was found.
        """
        if problems := self.problems():
            raise InvalidSettingsError("; ".join(problems))

    def problems(self) -> list[str]:
        """The problems visible in the values alone; empty without any."""
        problems = []
        if not 0 <= self.port <= 65535:
            problems.append(f"port {self.port} is not in 0 to 65535")
        if self.apache_port is not None:
            problems += _port_problems(self.apache_port, self.port)
        if self.apache_connections_max < 1:
            problems.append(f"apache_connections_max is {self.apache_connections_max}: give 1 or more")
        if self.journal_dir.resolve() == self.ledger_dir.resolve():
            problems.append(f"journal and ledger directory are both {self.journal_dir}: give two directories")
        if self.read_only_below_bytes < 0:
            problems.append(f"read_only_below_bytes is {self.read_only_below_bytes}: give 0 (never) or more")
        if not 0 < self.collect_ratio_max <= 1:
            problems.append(f"collect_ratio_max is {self.collect_ratio_max}: give more than 0 and at most 1")
        if self.collect_interval_s < 0:
            problems.append(f"collect_interval_s is {self.collect_interval_s}: give 0 (never) or more")
        if self.bookie_id is not None:
            problems += _id_problems(self.bookie_id)
        if self.tls is not None and self.is_plaintext:
            problems.append("both TLS and plaintext were asked for: choose one")
        if self.tls is None and not self.is_plaintext and not _is_loopback(self.host):
            problems.append(f"host {self.host} is reachable from outside: give TLS files, or ask for plaintext")
        if _is_wildcard(self.advertised):
            problems.append(f"clients cannot connect to {self.advertised}: give an advertised host")
        if self.http is not None:
            problems += self.http.problems()
        return problems


def _port_problems(apache_port: int, port: int) -> list[str]:
    if not 0 <= apache_port <= 65535:
        return [f"apache_port {apache_port} is not in 0 to 65535"]
    if apache_port == port != 0:
        return [f"gRPC and Apache's protocol are both to use port {port}: give each its own"]
    return []


def _id_problems(text: str) -> list[str]:
    try:
        bookie_id(text)
    except InvalidIdError as error:
        return [str(error)]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
