"""Lookouts: a few idle workers look for work for all others, so a task does not wake the whole fleet.

A worker without work enters a line (``bookie.metadata.tasks.standby``). The first few in line are lookouts: after each
change they list the tasks, start as many as they can, and call workers from the end of the line for the others. A
called worker lists tasks by itself until it finds nothing more to do or to wait for, and enters the line again.

The cost of an event, in requests of the whole fleet:

* a task or a change of registrations: a listing by each lookout, and a read of the registrations by each active worker.
  A worker in line watches neither, so the number of idle workers does not matter;
* a call: one request for all called workers, and their listings;
* the end of a worker in line: two requests of the next one, to read its new place and to watch again.

A worker in line looks by itself after ``LONELY_S``, or later if the line is long. So no task waits without end if the
lookouts cannot work, and a long line costs no more than a short one.

Source: R46, docs/failure-model.md#R46.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.standby import LOOKOUTS, Place, StandbyWorkers
from bookie.model.errors import PermanentError
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import first_of

_log = logging.getLogger(__name__)

LONELY_S: Final = 60.0
"""Time in line after which a worker looks by itself."""
LONELY_S_PER_WORKER: Final = 1.0
"""The same per worker in line, if longer: one look per second, however many workers are in line."""
_TOKEN_BITS: Final = 48


class Duty:
    """The place of one worker: at work, in line, or a lookout."""

    def __init__(self, store: MetadataStore, line: StandbyWorkers, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._line = line
        self._clock = clock
        self._rng = rng
        self._token = f"{rng.getrandbits(_TOKEN_BITS):012x}"
        self._lookouts = 1 if fault_point("queue.one_lookout") else LOOKOUTS
        self._name = ""
        self._is_refused = False
        self._epoch = -1
        self.is_lookout = False
        """Whether this worker reacts to every change: on behalf of the others, or because it cannot use the line."""

    @property
    def is_in_line(self) -> bool:
        """Whether this worker has a place in line in this session, or was refused one."""
        return bool(self._name or self._is_refused) and self._epoch == self._store.session.epoch

    async def wait_for_work(self, stop: asyncio.Event, note_waiting: Callable[[], None]) -> bool:
        """Take a place in line; return at once as a lookout, otherwise after a call or a long wait.

        Args:
            stop: set it to end the wait.
            note_waiting: called before each wait, and after a call: earlier observations may be outdated.

        Returns:
            Whether this worker was called, or has waited for too long. False for a lookout, and at ``stop``. If the
            line cannot be used, the worker does not wait, and acts as a lookout.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        lonely_s: float | None = None
        while True:
            try:
                place = await self._enter()
            except PermanentError as error:  # without the line, looking costs more but works
                _log.warning("the line of idle workers cannot be used", extra={"error": str(error)})
                self.is_lookout = self._is_refused = True
                return False
            if place is None:
                note_waiting()
                return True
            self.is_lookout = place.position < self._lookouts
            if self.is_lookout or stop.is_set():
                return False
            if lonely_s is None:
                pause_s = max(LONELY_S, place.size * LONELY_S_PER_WORKER) * (0.5 + self._rng.random())
                lonely_s = self._clock.monotonic_s() + pause_s
            left_s = lonely_s - self._clock.monotonic_s()
            if left_s > 0:
                note_waiting()
                await first_of([self._line.wait_moved(place), self._clock.sleep(left_s), stop.wait()])
            if self._clock.monotonic_s() >= lonely_s:
                await self.leave()
                return True

    async def _enter(self) -> Place | None:
        """Return the place in line, entering it if necessary; None if this worker was called."""
        if not self.is_in_line:
            if self._name:  # perhaps the entry was made in the new session
                await self._line.leave(self._name)
            self._name, self._is_refused = "", False
            self._epoch = self._store.session.epoch
            self._name = await self._line.enter(self._token)
        place = await self._line.place(self._name)
        if place is None:
            self._name, self.is_lookout = "", False
        return place

    async def call(self, count: int) -> None:
        """Call others for work beyond the capacity of this lookout.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; some may have been called.
        """
        if self.is_lookout and self._name and self.is_in_line and count > 0:
            called = await self._line.call(count, self._lookouts)
            if called:
                _log.info("idle workers called", extra={"workers": called})

    async def leave(self) -> None:
        """Leave the line, if this worker is in it."""
        name, self._name, self.is_lookout = self._name, "", False
        if name and self._epoch == self._store.session.epoch:
            await self._line.leave(name)
