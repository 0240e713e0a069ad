"""How a process reaches ZooKeeper: TLS, login, the ACL of new nodes, and the root of bkheal's own state.

The values name files and never contain a secret, so they may be logged and sent to Spark's executors. Secrets are read
from these files, or from environment variables, for each new connection (``store.credentials``). So a renewed
certificate or password takes effect without a restart.

**One access per process.** All connections of a process use the same access, so none can be left out
(docs/decisions/0062). It is set once, at the start of the process (``set_current_access``). Otherwise it is read from
the environment, so child processes inherit it.
"""

from __future__ import annotations

import enum
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from bookie.model.errors import PermanentError
from bookie.model.option import Option
from bookie.runtime.configuration.options import build, options_of
from bookie.runtime.configuration.settings import ConfigurationError

VARIABLES: Final = "BKHEAL_"
"""Prefix of the environment variable of each option: ``BKHEAL_ZK_TLS_CA``."""
KEY_PASSWORD_VARIABLE: Final = "BKHEAL_ZK_TLS_PASSWORD"  # noqa: S105 (a name)
SASL_PASSWORD_VARIABLE: Final = "BKHEAL_ZK_PASSWORD"  # noqa: S105 (a name)
DIGEST_VARIABLE: Final = "BKHEAL_ZK_DIGEST"
"""Secrets not stored in files. The names are fixed: a value of an option could end up in a log."""

DEFAULT_STATE_ROOT: Final = "/bkheal"
"""Default root of bkheal's own state, which Apache's tools do not know. Never inside the ledgers root."""

_STATE_ROOT: Final = re.compile(r"(/[A-Za-z0-9._-]+)+")
_STATE_ROOT_CHARACTERS_MAX: Final = 200
_ZOOKEEPER_SYSTEM_PATH: Final = "/zookeeper"
_PERMISSION_BITS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_ALL: Final = 31
_ENTRIES_MAX: Final = 64
_ACL_BYTES_MAX: Final = 16 * 1024
"""Size limit of an ACL. Each create contains the ACL, and the largest create has to fit into one request."""
_ACL_COUNT_BYTES: Final = 4
_ACL_ENTRY_BYTES: Final = 12
"""Bytes that the number of entries takes in a request, and bytes of each entry in addition to its two strings."""


class ZooKeeperAccessError(PermanentError):
    """ZooKeeper cannot be reached with these settings: a file, a certificate or a login is wrong."""


class TlsVerify(enum.Enum):
    """Requirements for a server's certificate."""

    HOST = "host"
    """Signed by the authority, and issued for the host of the metadata URI."""
    AUTHORITY = "authority"
    """Signed by the authority. The host is not checked, so a server with any such certificate is accepted."""


class ZooKeeperLogin(enum.Enum):
    """Ways to log in at ZooKeeper by SASL."""

    NONE = "none"
    DIGEST_MD5 = "DIGEST-MD5"
    GSSAPI = "GSSAPI"
    """Kerberos: the ticket or the keytab of the process (``KRB5CCNAME``, ``KRB5_CLIENT_KTNAME``)."""


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One entry of an access control list."""

    permissions: int
    scheme: str
    identity: str


Acl = tuple[AclEntry, ...]
"""Never empty."""

OPEN_ACL: Final[Acl] = (AclEntry(_ALL, "world", "anyone"),)
CREATOR_ACL: Final[Acl] = (AclEntry(_ALL, "auth", ""),)
"""ZooKeeper replaces it with the identities of the session."""
_NAMED: Final = {"world": OPEN_ACL, "creator": CREATOR_ACL}


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How this process reaches ZooKeeper. Contains no secret.

    Raises:
        ConfigurationError: values contradict each other; names every problem.
    """

    tls_ca: Annotated[
        Path | None,
        Option(
            "PEM file of the authority that signed the certificates of ZooKeeper's servers; enables TLS.", "zk_tls_ca"
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, Option("PEM file of the certificate chain that this process presents.", "zk_tls_cert")
    ] = None
    tls_key: Annotated[Path | None, Option("PEM file of its key.", "zk_tls_key")] = None
    tls_key_password_file: Annotated[
        Path | None,
        Option(
            "Its first line is the password of the key.",
            "zk_tls_password_file",
        ),
    ] = None
    tls_verify: Annotated[
        TlsVerify,
        Option(
            "What a server's certificate must match: the host in the metadata URI, or only the authority.",
            "zk_tls_verify",
        ),
    ] = TlsVerify.HOST
    login: Annotated[ZooKeeperLogin, Option("Log in to ZooKeeper by SASL.", "zk_login")] = ZooKeeperLogin.NONE
    sasl_username: Annotated[
        str, Option("User of the login; with GSSAPI the principal, by default the ticket's.", "zk_username")
    ] = ""
    sasl_password_file: Annotated[
        Path | None,
        Option("Its first line is the password.", "zk_password_file"),
    ] = None
    sasl_service: Annotated[str, Option("First part of the servers' Kerberos principals.", "zk_service")] = "zookeeper"
    digest_file: Annotated[
        Path | None,
        Option(
            "Its first line is user:password of the scheme digest.",
            "zk_digest_file",
        ),
    ] = None
    acl: Annotated[
        str,
        Option(
            "ACL of every node that is created: world, creator, or entries such as world:anyone:r.",
            "zk_acl",
        ),
    ] = "world"
    state_root: Annotated[
        str,
        Option(
            "Where bkheal keeps its own state in ZooKeeper; the same for all processes of a cluster.",
            "state_root",
        ),
    ] = DEFAULT_STATE_ROOT

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigurationError(problems)

    @property
    def is_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.tls_ca is not None

    @property
    def acl_entries(self) -> Acl:
        """The ACL of new nodes."""
        return parse_acl(self.acl)

    @property
    def acl_bytes(self) -> int:
        """Size of the ACL in each request that creates a node."""
        return _bytes_of_text(self.acl)

    @property
    def identity(self) -> str:
        """Identity of this process at ZooKeeper, as text for messages. Only what the settings contain."""
        parts = []
        if self.login is ZooKeeperLogin.GSSAPI:
            parts.append(f"the Kerberos principal {self.sasl_username}" if self.sasl_username else "a Kerberos ticket")
        elif self.login is not ZooKeeperLogin.NONE:
            parts.append(f"sasl:{self.sasl_username}")
        if self.digest_file is not None:
            parts.append(f"the digest user of {self.digest_file}")
        elif os.environ.get(DIGEST_VARIABLE):
            parts.append(f"the digest user of ${DIGEST_VARIABLE}")
        if self.tls_cert is not None:
            parts.append(f"the certificate {self.tls_cert}")
        return " and ".join(parts) or "world:anyone (no login)"

    def to_text(self) -> str:
        """Return the access as text, for an option of Spark; ``access_from_text`` reads it."""
        values = {option.fields[0]: getattr(self, option.fields[0]) for option in options_of(ZooKeeperAccess)}
        return json.dumps({name: _plain(value) for name, value in values.items() if value is not None})

    def _problems(self) -> Iterator[str]:
        if (self.tls_cert is None) != (self.tls_key is None):
            yield "zk_tls_cert and zk_tls_key go together"
        if not self.is_tls and (self.tls_cert or self.tls_key):
            yield "zk_tls_cert and zk_tls_key need zk_tls_ca"
        if self.tls_key_password_file is not None and self.tls_key is None:
            yield "zk_tls_password_file needs zk_tls_key"
        if self.login is ZooKeeperLogin.DIGEST_MD5 and not self.sasl_username:
            yield "zk_login = DIGEST-MD5 needs zk_username"
        if self.login is ZooKeeperLogin.NONE and (self.sasl_username or self.sasl_password_file):
            yield "zk_username and zk_password_file need zk_login"
        if self.login is ZooKeeperLogin.GSSAPI and self.sasl_password_file:
            yield "zk_password_file is for DIGEST-MD5: Kerberos takes a ticket or a keytab"
        try:
            parse_acl(self.acl)
        except ZooKeeperAccessError as error:
            yield str(error)
        if why := _state_root_problem(self.state_root):
            yield f"state_root = {self.state_root[:_STATE_ROOT_CHARACTERS_MAX]!r} {why}"


def _state_root_problem(path: str) -> str:
    if not path.startswith("/"):
        return f"is not absolute: write a path such as {DEFAULT_STATE_ROOT}"
    if not _STATE_ROOT.fullmatch(path) or {".", ".."} & set(path.split("/")):
        return "is not a path of plain names (letters, digits, '.', '_', '-'), without '/' at its end"
    if len(path) > _STATE_ROOT_CHARACTERS_MAX:
        return f"is longer than {_STATE_ROOT_CHARACTERS_MAX} characters"
    return (
        f"belongs to ZooKeeper: use a path outside of {_ZOOKEEPER_SYSTEM_PATH}"
        if f"{path}/".startswith(f"{_ZOOKEEPER_SYSTEM_PATH}/")
        else ""
    )


def parse_acl(text: str) -> Acl:
    """Read an ACL: ``world``, ``creator``, or entries ``scheme:identity:permissions`` (of ``cdrwa``).

    Raises:
        ZooKeeperAccessError: the text is not an ACL or is too long, or an entry has no permission or an unknown one.
    """
    if text in _NAMED:
        return _NAMED[text]
    entries = [_entry(each.strip()) for each in text.split(";" if ";" in text else ",") if each.strip()]
    if not 0 < len(entries) <= _ENTRIES_MAX:
        raise ZooKeeperAccessError(f"zk_acl = {text!r} is no ACL: give world, creator, or 1 to {_ENTRIES_MAX} entries")
    acl = tuple(entries)
    if (size := _bytes_of(acl)) > _ACL_BYTES_MAX:
        raise ZooKeeperAccessError(f"zk_acl has {size} bytes in a request: at most {_ACL_BYTES_MAX} are allowed")
    return acl


@functools.lru_cache(16)
def _bytes_of_text(acl: str) -> int:
    return _bytes_of(parse_acl(acl))


def _bytes_of(acl: Acl) -> int:
    texts = sum(len(each.scheme.encode()) + len(each.identity.encode()) for each in acl)
    return _ACL_COUNT_BYTES + _ACL_ENTRY_BYTES * len(acl) + texts


def _entry(text: str) -> AclEntry:
    scheme, colon, rest = text.partition(":")
    identity, last, letters = rest.rpartition(":")
    if not (scheme and colon and last and letters) or not set(letters) <= _PERMISSION_BITS.keys():
        raise ZooKeeperAccessError(
            f"zk_acl: {text!r} is not an ACL entry: write scheme:identity:permissions, with letters of "
            "cdrwa (create, delete, read, write, admin)"
        )
    return AclEntry(sum(_PERMISSION_BITS[letter] for letter in set(letters)), scheme, identity)


PLAIN_ACCESS: Final = ZooKeeperAccess()
"""No TLS, no login, open ACLs: for a ZooKeeper on loopback or in a trusted network."""

_process_access: list[ZooKeeperAccess] = []


def set_current_access(access: ZooKeeperAccess) -> None:
    """Set the access of this process. Call it at the start, before any connection."""
    _process_access[:] = [access]


def current_access() -> ZooKeeperAccess:
    """Return the access of this process, or that of its environment if none was set.

    Raises:
        ConfigurationError: the environment has unusable values.
    """
    if not _process_access:
        set_current_access(access_from_environment(os.environ))
    return _process_access[0]


def access_from_environment(environment: Mapping[str, str]) -> ZooKeeperAccess:
    """Return the access described by environment variables (``BKHEAL_ZK_TLS_CA``). An empty variable counts as unset.

    Raises:
        ConfigurationError: a value is not of its type, or contradicts another; names every problem.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    for option in options_of(ZooKeeperAccess):
        variable = f"{VARIABLES}{option.name.upper()}"
        if text := environment.get(variable, "").strip():
            try:
                values[option.name] = option.type(text)
            except ValueError as error:
                problems.append(f"{variable}: {error}")
    if problems:
        raise ConfigurationError(problems)
    return build(ZooKeeperAccess, values)


def access_from_text(text: str) -> ZooKeeperAccess:
    """Read the output of ``ZooKeeperAccess.to_text``.

    Raises:
        ConfigurationError: ``text`` is anything else.
    """
    fields = {option.fields[0]: option for option in options_of(ZooKeeperAccess)}
    try:
        values = {fields[name].name: fields[name].type(value) for name, value in json.loads(text).items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError([f"the access to ZooKeeper cannot be read from {text!r}: {error}"]) from error
    return build(ZooKeeperAccess, values)


def use_plain_access() -> None:
    """Drop the access of the environment, for this process and its children: they use their own ZooKeeper."""
    kept = without_access(os.environ)
    for name in [name for name in os.environ if name not in kept]:
        del os.environ[name]
    set_current_access(PLAIN_ACCESS)


def without_access(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` for a child process with its own ZooKeeper, without TLS and login."""
    names = {f"{VARIABLES}{option.name.upper()}" for option in options_of(ZooKeeperAccess)}
    secrets = {KEY_PASSWORD_VARIABLE, SASL_PASSWORD_VARIABLE, DIGEST_VARIABLE}
    return {name: value for name, value in environment.items() if name not in names | secrets}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return str(value)
