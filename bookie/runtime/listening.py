"""The error of every process that cannot listen on its address: one error, one text, one exit code (78).

gRPC does not report the reason, so a plain socket is opened to find it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket

from bookie.model.errors import PermanentError


class AddressInUseError(PermanentError):
    """A server cannot listen on the address: it is in use, not an address of this machine, or not allowed."""


def address_in_use(
    host: str, port: int, what: str, options: tuple[str, str], reason: OSError | None = None
) -> AddressInUseError:
    """Return the error to raise.

    Args:
        host: the host as configured.
        port: the port as configured.
        what: the service on this address, such as ``HTTP``.
        options: the options for the port and the host, such as ``--http-port`` and ``--http-host``.
        reason: the error of the operating system. If it is None or has no number, it is found by trying to listen.
    """
    why = _words(reason) if reason is not None and reason.errno else _bind_refusal_reason(host, port)
    return AddressInUseError(
        f"cannot listen on {host_and_port(host, port)} for {what} ({why}): "
        f"stop what listens there, or choose another {' or '.join(options)}"
    )


def accept_one_at_a_time(server: asyncio.Server, backlog: int = 128) -> None:
    """Let up to ``backlog`` connections wait for a server that was started with ``backlog=1``.

    asyncio attempts to accept ``backlog`` connections in one step of the loop. If no file can be opened, each attempt
    is logged and scheduled again. With a ``backlog`` above 1, this happens thousands of times per second (R134).
    """
    for each in server.sockets:
        with socket.fromfd(each.fileno(), each.family, each.type) as same:
            same.listen(backlog)


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_refusal_reason(host: str, port: int) -> str:
    """Return the operating system's reason for refusing the address now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return _words(error)
    return "taken until a moment ago"


def _words(error: OSError) -> str:
    """Return the reason without the address added by asyncio. Failed name look-ups have negative error numbers."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on ``host``, an address or ``localhost``. Other names: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
