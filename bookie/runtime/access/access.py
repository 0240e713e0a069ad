"""The identity of a caller and its permissions, with the same rules for every API."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote

from bookie.model.errors import PermanentError, TransientError
from bookie.runtime.access.rate_limit import RateLimit
from bookie.runtime.access.tokens import ANONYMOUS, Role, Tokens
from bookie.runtime.clock import Clock
from bookie.runtime.listening import is_loopback

_PEER_KINDS: Final = ("ipv4:", "ipv6:")
_IPV6_CLIENT_BITS: Final = 64
"""A client usually owns a whole network of this size, so all its addresses count as one client."""

_NO_TOKENS: Final = (
    "this process runs without --tokens-file; `bkheal auditor-token` prints a token, and a line for such a file"
)


class UnauthenticatedError(PermanentError):
    """A required token is missing, or a token is unknown."""


class ForbiddenError(PermanentError):
    """The token is known, but its role does not permit the request."""


class RateLimitedError(TransientError):
    """This client sent too many requests."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many requests of this client: try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Principal:
    """An admitted caller."""

    name: str
    """Name of its token, or ``anonymous``."""
    address: str
    role: Role = Role.READ
    """Its highest role."""

    def require(self, needed: Role, what: str) -> None:
        """Refuse ``what`` to a caller whose role does not include ``needed``.

        Raises:
            ForbiddenError, UnauthenticatedError: with what to do.
        """
        if self.role.includes(needed):
            return
        if self.is_anonymous:
            raise UnauthenticatedError(f"{what} needs a token with the role {needed.value}: send it as a bearer token")
        raise ForbiddenError(f"the token of {self.name} has the role {self.role.value}; {what} needs {needed.value}")

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller sent no token."""
        return self.name == ANONYMOUS

    @property
    def client(self) -> str:
        """Key of the client for its limits: the token if there is one, else the address."""
        return f"address {client_of(self.address)}" if self.is_anonymous else f"token {self.name}"


class AccessSettings(Protocol):
    """The settings for the admission of callers."""

    @property
    def tokens_file(self) -> Path | None:
        """The tokens file (``bookie.runtime.access.tokens``). None means no tokens."""
        ...

    @property
    def allow_anonymous_read(self) -> bool:
        """Whether callers without a token may read."""
        ...

    @property
    def allow_anonymous_write(self) -> bool:
        """Whether callers without a token may make changes. Requires all listeners on loopback addresses."""
        ...

    @property
    def requests_per_second(self) -> float:
        """Long-term rate of each client; a burst may be twice as large."""
        ...

    @property
    def clients_max(self) -> int:
        """Number of clients with a stored rate."""
        ...


def anonymous_write_problems(hosts: Iterable[str], what: str) -> list[str]:
    """Return why listeners on ``hosts`` must not accept changes without a token. Empty means they may.

    Args:
        hosts: addresses of the listeners.
        what: the change open to every client that reaches them.
    """
    open_hosts = sorted({host for host in hosts if not is_loopback(host)})
    if not open_hosts:
        return []
    who = ", ".join(open_hosts)
    advice = "listen on 127.0.0.1, or give callers tokens (tokens_file)"
    return [f"allow_anonymous_write would let every client that reaches {who} {what}: {advice}"]


class Access:
    """The admission of callers of one API."""

    def __init__(self, settings: AccessSettings, clock: Clock) -> None:
        self._clock = clock
        self._tokens = Tokens(settings.tokens_file)
        self._has_tokens = settings.tokens_file is not None
        self._limit = RateLimit(settings.requests_per_second, settings.clients_max, clock)
        self._anonymous = dict.fromkeys(Role, settings.allow_anonymous_write)
        self._anonymous[Role.READ] = settings.allow_anonymous_read

    @property
    def open_to_all(self) -> frozenset[Role]:
        """The roles of a caller without a token."""
        return frozenset(role for role, is_open in self._anonymous.items() if is_open)

    def set_requests_per_second(self, rate: float) -> None:
        """Change the rate of each client, from its next request on."""
        self._limit.set_rate(rate)

    def admit(self, address: str, token: str | None, needed: Role, *, is_limited: bool = True) -> Principal:
        """Return the admitted caller.

        Requests with a wrong token count for the rate of their address, which limits guessing. A wrong token is refused
        even if none is needed, because its owner expects to be authenticated.

        Args:
            address: IP address of the caller.
            token: the caller's token, or None.
            needed: role required by the request.
            is_limited: whether the request counts for the client's rate. A wrong token always counts.

        Raises:
            RateLimitedError, UnauthenticatedError, ForbiddenError: see the classes.
        """
        entry = None if token is None else self._tokens.find(token)
        caller = Principal(ANONYMOUS, address, max(self.open_to_all, default=Role.READ, key=list(Role).index))
        if entry is not None:
            caller = Principal(entry.name, address, entry.role)
        is_wrong = token is not None and entry is None
        wait_s = self._limit.wait_s(caller.client) if is_limited or is_wrong else 0.0
        if wait_s > 0:
            raise RateLimitedError(wait_s)
        if token is not None and entry is None:
            reason = "it was revoked, or mistyped" if self._has_tokens else _NO_TOKENS
            raise UnauthenticatedError(f"this token is not known: {reason}")
        if entry is not None and entry.is_expired(self._clock.epoch_ms()):
            raise UnauthenticatedError(f"the token of {entry.name} has expired: ask for a new one")
        if entry is None and not self._anonymous[needed]:
            advice = "send it as a bearer token" if self._has_tokens else _NO_TOKENS
            raise UnauthenticatedError(f"this needs a token with the role {needed.value}: {advice}")
        if entry is not None and not entry.role.includes(needed):
            raise ForbiddenError(
                f"the token of {entry.name} has the role {entry.role.value}; this needs {needed.value}"
            )
        return caller


def bearer_token(header: str | None) -> str | None:
    """Return the token in an ``Authorization`` header, or None without a header.

    Raises:
        UnauthenticatedError: the header is of another kind.
    """
    if header is None:
        return None
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError("the Authorization header must be `Bearer TOKEN`")
    return token.strip()


def metadata_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the token in the metadata of a gRPC call, or None without one.

    Raises:
        UnauthenticatedError: it is of another kind.
    """
    for name, value in metadata:
        if name == "authorization":
            if isinstance(value, bytes):
                raise UnauthenticatedError("the authorization metadata must be text")
            return bearer_token(value)
    return None


def peer_address(peer: str) -> str:
    """Return the IP address in gRPC's name of a peer, such as ``ipv4:10.0.0.1:5123`` or ``ipv6:%5B::1%5D:5123``."""
    for kind in _PEER_KINDS:
        if peer.startswith(kind):
            return unquote(peer.removeprefix(kind)).rpartition(":")[0].strip("[]")
    return peer


def client_of(address: str) -> str:
    """Return the address or network counted as one client."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_CLIENT_BITS), strict=False))
    return address
