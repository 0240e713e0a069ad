"""Lookouts: a few idle workers look for work for all the others, so a task does not wake the whole fleet.

A worker without work enters a line (``bookie.metadata.tasks.standby``). The first few in line are lookouts: they list
the tasks as soon as something changes, start what they can, and call workers from the end of the line for the rest.
A worker that was called looks by itself until it finds nothing more to do or to wait for, and enters the line again.

What an event costs, in requests of the whole fleet:

* a task, or a bookie that comes or goes: a listing of each lookout, and the registrations for each worker that is at
  work. A worker in line has no watch on either, so the number of idle workers does not matter;
* a call: one request for all who are called, and their listings;
* a worker that ends: two requests of the next one, to read its new place and to watch again.

A worker in line looks by itself after ``LONELY_S``, or later if the line is long. So nothing waits for ever if the
lookouts cannot work, and a long line does not cost more than a short one.

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
"""After so long in line a worker looks by itself."""
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
        """Whether this worker reacts to every change: for the others, or because it cannot use the line."""

    @property
    def is_in_line(self) -> bool:
        """Whether this worker has a place in line in this session, or was refused one."""
        return bool(self._name or self._is_refused) and self._epoch == self._store.session.epoch

    async def wait_for_work(self, stop: asyncio.Event, note_waiting: Callable[[], None]) -> bool:
        """Take a place in line; return at once in the place of a lookout, otherwise when there may be work.

        Args:
            stop: set it to end the wait.
            note_waiting: called before each wait, and after a call: what was seen before it may be outdated.

        Returns:
            Whether this worker was called, or has waited for too long. False for a lookout, and at ``stop``. If the
            line cannot be used, the worker does not wait, and looks by itself.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        lonely_s: float | None = None
        while True:
            try:
                place = await self._enter()
            except PermanentError as error:  # looking costs more without the line, and works
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
        """The place in line, entered if need be; None if this worker was in line and has been called."""
        if not self.is_in_line:
            if self._name:  # perhaps it was entered in the session which has just begun
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
