"""Configuration files for Apache's programs: small caches, loopback only, every write on disk before its answer."""

from __future__ import annotations

import enum
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.model.errors import PermanentError

SESSION_TIMEOUT_MS: Final = 6000
"""Short, so that a killed bookie is unregistered within seconds: three ticks of the embedded ZooKeeper."""

_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = {pattern}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
_SHELL_LOG_PATTERN: Final = "%m%replace{ %X}{^ [{][}]$}{}%n%rEx{12}"
"""The message and its attributes, if any: release 4.18 logs values as attributes of a constant message."""
_BOOKIE_LOG_PATTERN: Final = "%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1} " + _SHELL_LOG_PATTERN

_BOOKIE_LOGGERS: Final = ("org.apache.bookkeeper.common.component.ComponentStarter",)
"""Logger of the line that is printed once everything has started."""
_SHELL_LOGGERS: Final = ("org.apache.bookkeeper.tools", "org.apache.bookkeeper.bookie.BookieShell")
"""Apache's shell prints most of its answers to the log."""


class ApacheStorage(enum.Enum):
    """The storage of a bookie; the value is Apache's ``ledgerStorageClass``."""

    SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
    """Apache's default."""
    DB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
    """Indexes in RocksDB, as in large deployments.

    Such a bookie never answers a request for a list of entries: its storage does not support the request, and the
    client gets no error. The client waits until its own deadline.
    """


@dataclass(frozen=True, slots=True)
class ApacheTls:
    """Certificates for the bookies' TLS, as PEM files."""

    certificate: Path
    private_key: Path
    """PKCS #8, without a password."""
    ca_certificates: Path
    """The CA of the clients' certificates, if they are required."""
    asks_clients: bool = False

    def settings(self) -> dict[str, str]:
        """Return the settings by Apache's names (docs/formats.md#settings)."""
        return {
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": str(self.private_key),
            "tlsCertificatePath": str(self.certificate),
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": str(self.ca_certificates),
            "tlsClientAuthentication": str(self.asks_clients).lower(),
        }


@dataclass(frozen=True, slots=True)
class ApacheSasl:
    """Names and passwords accepted by bookies (DIGEST-MD5), and the one used by Apache's own clients."""

    passwords: Mapping[str, str] = field(repr=False)
    own_name: str
    """The name in ``passwords`` for logins of auto-recovery, the shell and Apache's client."""

    def jaas(self) -> str:
        """Return the content of the file for Java's login."""
        users = "\n".join(f"  user_{name}={_quoted(password)}" for name, password in self.passwords.items())
        name, password = _quoted(self.own_name), _quoted(self.passwords[self.own_name])
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        own = f"  {module}\n  username={name}\n  password={password};\n"
        return f"Bookie {{\n  {module}\n{users};\n}};\nBookKeeper {{\n{own}}};\nAuditor {{\n{own}}};\n"

    def settings(self) -> dict[str, str]:
        """Return the settings by Apache's names (docs/formats.md#settings)."""
        return {
            "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
            "clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory",
            "saslJaasClientAllowedIds": ".*",
        }


@dataclass(frozen=True, slots=True)
class ApacheOptions:
    """Configuration of all programs of one cluster. Each program may have further settings."""

    storage: ApacheStorage = ApacheStorage.SORTED
    tls: ApacheTls | None = None
    sasl: ApacheSasl | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Any settings by Apache's names; they override the settings made here."""

    def shared(self, metadata_uri: str) -> dict[str, str]:
        """Return the settings that servers and clients share."""
        return {
            "metadataServiceUri": metadata_uri,
            "zkTimeout": str(SESSION_TIMEOUT_MS),
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            **(self.tls.settings() if self.tls else {}),
            **(self.sasl.settings() if self.sasl else {}),
        }

    def bookie(self, metadata_uri: str, port: int, directory: Path) -> dict[str, str]:
        """Return the settings of a bookie with its directories in ``directory``. Its id is ``127.0.0.1:port``."""
        return {
            **self.shared(metadata_uri),
            "bookiePort": str(port),
            "listeningInterface": _loopback_interface(),
            "journalDirectory": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "ledgerStorageClass": self.storage.value,
            "journalSyncData": "true",
            "journalPreAllocSizeMB": "4",
            # Bookies must work on a nearly full disk. Apache's defaults stop them at 95 %, or below a few free GB.
            "diskUsageThreshold": "0.999",
            "diskUsageLwmThreshold": "0.998",
            "diskUsageWarnThreshold": "0.998",
            "logSizeLimit": str(256 << 20),
            "minUsableSizeForEntryLogCreation": str(32 << 20),
            "minUsableSizeForIndexFileCreation": str(16 << 20),
            "minUsableSizeForHighPriorityWrites": str(16 << 20),
            # Sizes of caches that fit in a heap of 200 MiB.
            "skipListSizeLimit": str(16 << 20),
            "pageLimit": "2048",
            "dbStorage_writeCacheMaxSizeMb": "16",
            "dbStorage_readAheadCacheMaxSizeMb": "16",
            "dbStorage_rocksDB_blockCacheSize": str(16 << 20),
            **self.extra,
        }


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a configuration file.

    Raises:
        PermanentError: a value contains a line break, which is impossible in such a file.
    """
    for name, value in settings.items():
        if "\n" in name + value:
            raise PermanentError(f"the value of {name} holds a line break: write it in one line")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Apache's parser treats a backslash as an escape and splits values at commas, which is how it reads lists.
    path.write_text("".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items()))


def write_log_settings(path: Path, *, is_shell: bool) -> None:
    """Write a log configuration for warnings, and for the line about a started server or the answers of the shell."""
    text = _LOG4J.replace("{pattern}", _SHELL_LOG_PATTERN if is_shell else _BOOKIE_LOG_PATTERN)
    for number, name in enumerate(_SHELL_LOGGERS if is_shell else _BOOKIE_LOGGERS):
        text += f"logger.l{number}.name = {name}\nlogger.l{number}.level = info\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _loopback_interface() -> str:
    return next(name for _, name in socket.if_nameindex() if name.rstrip("0123456789") == "lo")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
