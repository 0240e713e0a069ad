"""The error of every process that cannot listen on its address: one error, one text, one exit code (78).

gRPC keeps the reason to itself, so it is found out with a plain socket.
"""

from __future__ import annotations

import os
import socket

from bookie.model.errors import PermanentError


class AddressInUseError(PermanentError):
    """The address cannot be listened on: it is taken, not of this machine, or not allowed."""


def address_in_use(
    host: str, port: int, what: str, options: tuple[str, str], reason: OSError | None = None
) -> AddressInUseError:
    """The error to raise.

    Args:
        host: as it was given.
        port: as it was given.
        what: what was to be served there, such as ``HTTP``.
        options: of the port and of the host, as a person gives them, such as ``--http-port`` and ``--http-host``.
        reason: of the operating system; None: it is asked.
    """
    why = _why_not(host, port) if reason is None else _words(reason)
    return AddressInUseError(
        f"cannot listen on {shown(host, port)} for {what} ({why}): "
        f"stop what listens there, or choose another {' or '.join(options)}"
    )


def shown(host: str, port: int) -> str:
    """An address with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_not(host: str, port: int) -> str:
    """What the operating system has against it now."""
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
    """Without the address that asyncio adds; failed look-ups of names have numbers below 0 and words of their own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
