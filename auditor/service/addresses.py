"""The addresses under which browsers and other auditors reach this auditor.

A link is followed by a browser on another machine, so it never contains an address that only a listener can have, such
as ``0.0.0.0``. With a proxy or a load balancer, only the operator can configure the address (``public_url``).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from bookie.model.hosts import is_host

if TYPE_CHECKING:
    from auditor.service.settings import ServiceSettings

_HOST: Final = re.compile(r"[A-Za-z0-9:_.-]+")
"""The characters that Apache allows in a bookie id."""
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


def report_base_url(settings: ServiceSettings) -> str:
    """Return the prefix of links to reports, before the run id; empty if no browser can use the address."""
    base = base_url(settings)
    return f"{base}/reports" if base else ""


def base_url(settings: ServiceSettings) -> str:
    """Return the address of the HTTP API for browsers, without a slash at its end; empty: the port is not known."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    if not settings.http_port:
        return ""
    scheme = "https" if settings.tls_cert else "http"
    host = socket.gethostname() if is_wildcard(settings.http_host) else settings.http_host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.http_port}"


def public_url_problems(url: str) -> Iterator[str]:
    """Yield what is wrong with a ``public_url``; nothing if it is empty."""
    if not url:
        return
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"public_url = {url!r} is no URL such as https://bkheal.example.org"
    elif parts.username or parts.password:
        yield "public_url contains a user name: it would be in every link"
    elif parts.query or parts.fragment:
        yield f"public_url = {url!r} has a query or a fragment: paths are appended to it"


def leader_port_problems(settings: ServiceSettings) -> Iterator[str]:
    """Yield why this auditor cannot or must not relay connections to the leader; nothing without such ports."""
    if settings.advertised_host and not (
        _HOST.fullmatch(settings.advertised_host) and is_host(settings.advertised_host)
    ):
        yield f"advertised_host = {settings.advertised_host!r} is not a host: Apache's auditors could not read the vote"
    own = {name: getattr(settings, f"{name}_port") for name in ("http", "grpc", "ui")}
    own["ui"] = settings.ui_proxy_port or own["ui"]
    leader = {name: getattr(settings, f"leader_{name}_port") for name in own}
    used = [port for port in leader.values() if port]
    if not used:
        return
    if not settings.http_port:
        yield "leader ports need an http_port that is not 0: the vote names the leader by it"
        return
    for name, port in leader.items():
        if port and not own[name]:
            yield f"leader_{name}_port needs a {name}_port that is not 0"
    if len({*used, *own.values()}) < len(used) + len(set(own.values())):
        yield f"leader ports {', '.join(map(str, used))}: each must be a port of its own"
    if leader["ui"] and not settings.ui_enabled:
        yield "leader_ui_port needs ui_enabled"
    if leader["ui"] and settings.ui_allow_anonymous:
        yield (
            "leader_ui_port would let other machines use the buttons that ui_allow_anonymous allows only "
            "on this machine"
        )


def trusted_proxies(text: str) -> tuple[str, ...]:
    """The addresses in ``ui_trusted_proxies``, in their canonical form.

    Raises:
        ValueError: one of them is not a numeric address.
    """
    return tuple(str(ipaddress.ip_address(part.strip())) for part in text.split(",") if part.strip())


def ui_proxy_problems(settings: ServiceSettings) -> Iterator[str]:
    """Yield why the user name from a proxy cannot be trusted; nothing if there is no such proxy."""
    header, proxies = settings.ui_user_header, settings.ui_trusted_proxies
    if bool(header) != bool(proxies):
        yield "ui_user_header and ui_trusted_proxies go together"
    if header and not _HEADER.fullmatch(header):
        yield f"ui_user_header = {header!r} is not a header name"
    try:
        trusted_proxies(proxies)
    except ValueError:
        yield f"ui_trusted_proxies = {proxies!r}: give numeric addresses, such as 127.0.0.1,10.0.0.7"
    if proxies and settings.leader_ui_port and not settings.ui_proxy_port:
        yield (
            "leader_ui_port hides the address of the proxy: set ui_proxy_port, the port of a proxy next to each auditor"
        )


def is_wildcard(host: str) -> bool:
    """Whether ``host`` means all addresses: clients cannot connect to it."""
    if not host:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises if it is not a number
    except ValueError:
        return None
    return parts
