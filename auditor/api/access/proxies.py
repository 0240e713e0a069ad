"""Headers of proxies, which count only if they come from an address named in the settings.

Every client can send ``X-Forwarded-For``. If the header always counted, a client could give each request its own rate
limit and a false address in the log. A named proxy appends the address of its client to this header, or adds another
header with this name. Therefore the client's address is the last one that does not belong to a named proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from multidict import MultiMapping

_HOPS_MAX: Final = 20
"""Largest number of addresses examined in a header, from its end."""
UNKNOWN: Final = "unknown"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_proxies(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks separated by commas.

    Raises:
        ValueError: an item is neither an address nor a network.
    """
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


class TrustedProxies:
    """Determines the client and the requested host name from connections and headers."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)

    def client(self, remote: str | None, headers: MultiMapping[str]) -> str:
        """Return the client's address: the connection's, or the one forwarded by named proxies."""
        if remote is None:
            return UNKNOWN
        if not self._names(remote):
            return remote
        forwarded = [part.strip() for part in ",".join(headers.getall("X-Forwarded-For", [])).split(",")][-_HOPS_MAX:]
        for address in reversed(forwarded):
            if _parsed(address) is None:
                return remote
            if not self._names(address):
                return address
        return remote

    def host(self, remote: str | None, host: str, headers: MultiMapping[str]) -> str:
        """Return the host requested by the client: the request's own, or the one forwarded by a named proxy."""
        if remote is None or not self._names(remote):
            return host
        return ",".join(headers.getall("X-Forwarded-Host", [])).rpartition(",")[2].strip() or host

    def _names(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
