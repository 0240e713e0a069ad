"""Log an outage of ZooKeeper in a few lines, instead of one line for each connection attempt.

kazoo tries every two seconds and logs each attempt. Here, only the first failure is logged, then one failure at growing
intervals, each new reason, and the recovery. All other lines of kazoo pass unchanged. The connections that a service
opens one after another while it waits for ZooKeeper at its start have one outage.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

INTERVAL_S_MIN: Final = 15.0
INTERVAL_S_MAX: Final = 300.0
"""Short enough for the last minutes of a log to show the outage."""
REASONS_MAX: Final = 8
"""Reasons logged once each per outage; each ZooKeeper server may have its own."""

_ATTEMPTS: Final = frozenset({"Connection dropped: %s", "Connection time-out: %s", "Cannot resolve %s: %s"})
"""kazoo's texts for a failed attempt."""
_IMPLIED: Final = frozenset(
    {"Transition to CONNECTING", "Failed connecting to Zookeeper within the connection retry policy."}
)
"""Logged by kazoo after the first failure, and if it is stopped during an attempt; without new information."""


class Outage:
    """Decides which attempts are logged. Pure; times come from a monotonic clock."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._next_s = 0.0
        self._interval_s = INTERVAL_S_MIN
        self._reasons: set[str] = set()
        self.attempts = 0
        """Failed attempts, in this outage or the last one."""

    def failed(self, reason: str, now_s: float) -> float | None:
        """Count a failed attempt.

        Return the seconds since the beginning of the outage, if this attempt is to be logged; otherwise None.
        """
        if self._began_s is None:
            self._began_s, self.attempts, self._interval_s = now_s, 0, INTERVAL_S_MIN
            self._next_s = now_s
            self._reasons.clear()
        self.attempts += 1
        is_new = reason not in self._reasons and len(self._reasons) < REASONS_MAX
        if is_new:
            self._reasons.add(reason)
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._interval_s = min(2 * self._interval_s, INTERVAL_S_MAX)
        elif not is_new:
            return None
        return now_s - self._began_s

    def over(self, now_s: float) -> float | None:
        """End the outage after a successful connection. Return its duration in seconds; None if there was no outage."""
        began_s, self._began_s = self._began_s, None
        return None if began_s is None else now_s - began_s


_shared: ContextVar[list[Outage] | None] = ContextVar("outage of connections opened in turn", default=None)
"""The outage of all connections that are opened in this context; empty after the context."""


@contextlib.contextmanager
def one_outage() -> Iterator[None]:
    """Log the failed attempts of all connections that are opened in this context as those of one outage.

    It ends with the first connection that succeeds; each later outage belongs to one connection.
    """
    shared = [Outage()]
    token = _shared.set(shared)
    try:
        yield
    finally:
        shared.clear()  # because tasks that were started in this context keep the variable
        _shared.reset(token)


class OutageLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's logger, for the thread of its connection. See the module docstring."""

    def __init__(self, logger: logging.Logger, hosts: str, now_s: Callable[[], float]) -> None:
        """Store the arguments. ``hosts`` are the connection's hosts, for the logs; ``now_s`` is a monotonic clock."""
        super().__init__(logger, {})
        self._hosts = hosts
        self._now_s = now_s
        self._outage = next(iter(_shared.get() or ()), None) or Outage()

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, except for most failed attempts."""
        if msg in _ATTEMPTS:
            self._attempt_failed(str(msg) % args)
        elif msg not in _IMPLIED:
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the arguments unchanged."""
        return msg, kwargs

    def connected(self) -> None:
        """Log the recovery if there was an outage. Call it after each connection."""
        away_s = self._outage.over(self._now_s())
        if away_s is not None:
            self.logger.warning("ZooKeeper reachable again", extra=self._fields(away_s))
        self._outage = Outage()

    def _attempt_failed(self, reason: str) -> None:
        away_s = self._outage.failed(reason, self._now_s())
        if away_s is not None:
            self.logger.warning("ZooKeeper unreachable, retrying", extra={"reason": reason, **self._fields(away_s)})

    def _fields(self, away_s: float) -> dict[str, object]:
        return {"hosts": self._hosts, "away_s": round(away_s, 1), "attempts": self._outage.attempts}
