"""Concurrent look-ups of host names, with a deadline.

A name whose look-up is slow does not delay the connection to servers with other names. A look-up cannot be interrupted,
so each runs in a thread that does not delay the exit of the process. There is one at most for each server.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

LOOK_UP_TIMEOUT_S: Final = 3.0
"""Longest wait for the look-ups of one attempt to connect."""
LATE_ANSWER_AGE_S_MAX: Final = 60.0
"""How long a late answer is used by later attempts. An older address may already belong to another server."""

Server = tuple[str, int]
"""Host and port."""


class _LookUp(threading.Thread):
    """One look-up. The other fields are valid after its end."""

    def __init__(self, server: Server, now_s: Callable[[], float]) -> None:
        super().__init__(name=f"look-up of {server[0]}", daemon=True)
        self._server = server
        self._now_s = now_s
        self.addresses: list[Server] = []
        self.problem: Exception | None = None
        self.ended_s = 0.0

    def run(self) -> None:
        """Called by the thread."""
        try:
            found = socket.getaddrinfo(*self._server, 0, 0, socket.IPPROTO_TCP)
            self.addresses = [(str(address[0]), int(address[1])) for *_, address in found]
        except (OSError, UnicodeError) as error:
            self.problem = error
        self.ended_s = self._now_s()


class NameLookup:
    """Finds the addresses of servers. ``failed`` is called with a host and the reason. For one thread at a time."""

    def __init__(self, failed: Callable[[str, object], None], now_s: Callable[[], float]) -> None:
        self._failed = failed
        self._now_s = now_s
        self._late: dict[Server, _LookUp] = {}
        """Look-ups without an answer in time. A look-up stays here until a call finds that it has ended."""

    def find(self, servers: Iterable[Server]) -> list[tuple[str, str, int]]:
        """Return ``(host, address, port)`` for each address of each server whose look-up ends in time."""
        began_s = self._now_s()
        look_ups = [(server, *self._look_up(server, began_s)) for server in dict.fromkeys(servers)]
        found: list[tuple[str, str, int]] = []
        for server, look_up, is_new in look_ups:
            if is_new and look_up.is_alive():
                look_up.join(max(0.0, began_s + LOOK_UP_TIMEOUT_S - self._now_s()))
            if look_up.is_alive():
                self._late[server] = look_up
                self._failed(server[0], f"no answer within {LOOK_UP_TIMEOUT_S:g} s")
                continue
            if look_up.problem is not None:
                self._failed(server[0], look_up.problem)
            found += [(server[0], *address) for address in look_up.addresses]
        return found

    def _look_up(self, server: Server, now_s: float) -> tuple[_LookUp, bool]:
        late = self._late.pop(server, None)
        if late is not None and (late.is_alive() or now_s - late.ended_s <= LATE_ANSWER_AGE_S_MAX):
            return late, False
        look_up = _LookUp(server, self._now_s)
        try:
            look_up.start()
        except RuntimeError:  # the limit of threads is reached
            look_up.run()
        return look_up, True
