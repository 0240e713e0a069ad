"""The choice of a TCP port on the loopback interface for a server started on this machine."""

from __future__ import annotations

import errno
import random
import socket
from typing import Final

from bookie.model.errors import TransientError

_FIRST: Final = 15_000
_END: Final = 32_000
"""Below the ports used by Linux (32768+) and macOS (49152+) for outgoing connections. Otherwise such a connection could
take the port of a restarting server. A retrying client could even connect to itself, which TCP allows if the source
port happens to equal the target port."""
_ATTEMPTS: Final = 100


class NoFreePortError(TransientError):
    """No free port was found in the attempts allowed."""


def free_loopback_port(rng: random.Random) -> int:
    """Return a port on 127.0.0.1 that was just free. The caller must handle another process taking it.

    Raises:
        NoFreePortError: every attempted port was in use.
    """
    for _ in range(_ATTEMPTS):
        port = rng.randrange(_FIRST, _END)
        if is_loopback_port_free(port):
            return port
    raise NoFreePortError(f"{_ATTEMPTS} random ports of {_FIRST} to {_END - 1} on 127.0.0.1 are all in use")


def is_loopback_port_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1 at ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore closed connections of an earlier run
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
