"""Bounded calls: a caller waits only until a deadline, and a late answer delays no other call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from bookie.runtime.clock import Clock
from spark_jobs.ui.port import TabState

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FAILURE_CHARS_MAX: Final = 300
"""Number of characters of an error's text that are shown."""
_VIEW_REQUESTS_MAX: Final = 2
"""Number of requests for one view. The first may have been sent before the last action, and then one more is needed."""


class OneCall(Generic[T]):
    """Runs at most one call at a time, in a daemon thread, so a hanging call keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._current: Future[T] | None = None

    def begin(self, call: Callable[[], T]) -> Future[T] | None:
        """Start ``call``; None: an earlier call has not returned yet."""
        with self._lock:
            return None if self._is_busy() else self._start(call)

    def join(self, call: Callable[[], T]) -> Future[T]:
        """Start ``call``, or return the call that is running."""
        with self._lock:
            return self._current if self._current is not None and self._is_busy() else self._start(call)

    def _is_busy(self) -> bool:
        return self._current is not None and not self._current.done()

    def _start(self, call: Callable[[], T]) -> Future[T]:
        self._current = future = Future[T]()
        try:
            threading.Thread(target=_settle, args=(future, call), name=self._name, daemon=True).start()
        except RuntimeError as error:  # no thread can be started, so nothing else would complete the call
            future.set_exception(error)
        return future


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001  the boundary: any error of the other side is the caller's to show
        future.set_exception(error)
    else:
        future.set_result(result)


class Snapshots:
    """The last known state. It is requested again if it is old and a page is viewed, and each wait has a deadline."""

    def __init__(self, take: Callable[[], TabState], clock: Clock, age_max_s: float, deadline_s: float) -> None:
        self._take = take
        self._clock = clock
        self._age_max_s = age_max_s
        self._deadline_s = deadline_s
        self._calls: OneCall[TabState] = OneCall("auditor-tab-state")
        self._lock = threading.Lock()
        self._state: TabState | None = None
        self._taken_s = 0.0
        self._is_stale = False

    def get(self) -> tuple[TabState | None, str]:
        """Return the newest state (None: there was never one), and why it is not fresh (empty: it is)."""
        deadline_s = time.monotonic() + self._deadline_s  # real time, because it bounds a wait of this thread
        try:
            for _ in range(_VIEW_REQUESTS_MAX):
                if self._is_fresh():
                    break
                self._calls.join(self._refresh).result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            return self._state, "The auditor has not answered yet; this is the last known state."
        except Exception as error:  # noqa: BLE001  as above: shown on the page, never raised into Spark
            _log.warning("the state for the tab could not be read", extra={"reason": repr(error)[:_FAILURE_CHARS_MAX]})
            return self._state, f"The state of the auditor is unknown: {str(error)[:_FAILURE_CHARS_MAX]}"
        return self._state, ""

    def expire(self) -> None:
        """Request the state again at the next view, because an action has just changed it."""
        with self._lock:
            self._is_stale = True

    def _is_fresh(self) -> bool:
        with self._lock:
            is_young = self._clock.monotonic_s() - self._taken_s <= self._age_max_s
            return self._state is not None and not self._is_stale and is_young

    def _refresh(self) -> TabState:
        if self._state is not None and self._is_fresh():  # another thread has refreshed it
            return self._state
        with self._lock:
            self._is_stale = False
        state = self._take()
        with self._lock:
            self._state, self._taken_s = state, self._clock.monotonic_s()
        return state


class ActionRate:
    """A token bucket: permissions that refill at a constant rate. Thread-safe."""

    def __init__(self, clock: Clock, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._per_second = per_minute / 60
        self._burst = float(burst)
        self._left = float(burst)
        self._seen_s = clock.monotonic_s()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one permission; False: none is left now."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._left = min(self._burst, self._left + (now_s - self._seen_s) * self._per_second)
            self._seen_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True
