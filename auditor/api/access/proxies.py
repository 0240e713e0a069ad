"""Headers of proxies count only if they come from an address that the settings name.

Every client can send ``X-Forwarded-For``: if it always counted, each request could have a rate limit of its own, and a
false address in the log. A named proxy adds the address of its client at the end, in the same header or in another one
of this name, so the last address that is not itself a named proxy is the client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from multidict import MultiMapping

_HOPS_MAX: Final = 20
"""Addresses of a header that are looked at, from its end."""
UNKNOWN: Final = "unknown"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_proxies(text: str) -> tuple[Network, ...]:
    """Read addresses and networks that are separated by commas.

    Raises:
        ValueError: one of them is none.
    """
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


class TrustedProxies:
    """Reads who asks, and for which name, from connections and headers."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)

    def client(self, remote: str | None, headers: MultiMapping[str]) -> str:
        """The address of the client: that of the connection, or the one that named proxies forward."""
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
        """The host that the client asked for: that of the request, or the one that a named proxy forwards."""
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
