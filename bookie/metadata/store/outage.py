"""Log one outage of ZooKeeper as such, instead of a line for each attempt to reach it.

kazoo tries every two seconds and logs each attempt. Of these, the first failure is logged, then one at growing
intervals, each new reason, and the recovery. All other lines of kazoo pass unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Final

INTERVAL_S_MIN: Final = 15.0
INTERVAL_S_MAX: Final = 300.0
"""The last minutes of a log still show the outage."""
REASONS_MAX: Final = 8
"""Logged once each per outage; each server of an ensemble may have its own."""

_ATTEMPTS: Final = frozenset({"Connection dropped: %s", "Connection time-out: %s", "Cannot resolve %s: %s"})
"""kazoo's texts for an attempt that failed."""
_ENTAILED: Final = "Transition to CONNECTING"
"""Follows the first failure and adds nothing."""


class Outage:
    """Decide which attempts are logged. Pure; times are of a monotonic clock."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._next_s = 0.0
        self._interval_s = INTERVAL_S_MIN
        self._reasons: set[str] = set()
        self.attempts = 0
        """That failed, in this outage or the last one."""

    def failed(self, reason: str, now_s: float) -> float | None:
        """An attempt failed.

        Seconds since the server became unreachable, if this attempt is to be logged; otherwise None.
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
        """There is a connection. How long there was none, in seconds; None: it was not missed."""
        began_s, self._began_s = self._began_s, None
        return None if began_s is None else now_s - began_s


class OutageLog(logging.LoggerAdapter[logging.Logger]):
    """The logger that kazoo is given. For its connection's thread; see the module docstring."""

    def __init__(self, logger: logging.Logger, hosts: str, now_s: Callable[[], float]) -> None:
        """``hosts`` is what the connection was made with, for people; ``now_s`` a monotonic clock."""
        super().__init__(logger, {})
        self._hosts = hosts
        self._now_s = now_s
        self._outage = Outage()

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As a logger does, except for reports of attempts."""
        if msg in _ATTEMPTS:
            self._attempt_failed(str(msg) % args)
        elif msg != _ENTAILED:
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Adds nothing."""
        return msg, kwargs

    def connected(self) -> None:
        """There is a connection again, or for the first time."""
        away_s = self._outage.over(self._now_s())
        if away_s is not None:
            self.logger.warning("ZooKeeper reachable again", extra=self._fields(away_s))

    def _attempt_failed(self, reason: str) -> None:
        away_s = self._outage.failed(reason, self._now_s())
        if away_s is not None:
            self.logger.warning("ZooKeeper unreachable, retrying", extra={"reason": reason, **self._fields(away_s)})

    def _fields(self, away_s: float) -> dict[str, object]:
        return {"hosts": self._hosts, "away_s": round(away_s, 1), "attempts": self._outage.attempts}
