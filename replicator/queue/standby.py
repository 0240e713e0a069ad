"""Standby: a worker without work waits for a call, so that a task does not wake all workers.

A worker without work takes the last place among the standby workers (``bookie.metadata.tasks.standby``). The first few
of them watch: after each change they list the tasks, start as many as they can, and call other standby workers, from
the last place on, for the remaining tasks. A called worker is active: it lists tasks by itself until it has nothing
more to do or to wait for, and then goes on standby again.

The cost of an event, in requests of all workers:

* a new task or a change of registrations: a listing by each watching worker, and a read of the registrations by each
  active worker. Other standby workers do not watch these, so their number does not matter;
* a call: one request for all called workers, and their listings;
* the end of a standby worker: two requests of the next one, to read its new place and to wait again.

A standby worker that is not called becomes active after ``STANDBY_S``, or later if there are many of them. So no task
waits forever if the watching workers cannot work, and many standby workers cost no more than a few.

Source: R46, docs/failure-model.md#R46.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable
from typing import Final

from bookie.metadata.port import MetadataStore
from bookie.metadata.tasks.standby import WATCHING_MAX, Place, StandbyWorkers
from bookie.model.errors import PermanentError
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import first_of

_log = logging.getLogger(__name__)

STANDBY_S: Final = 60.0
"""The time on standby after which a worker becomes active without a call."""
STANDBY_S_PER_WORKER: Final = 1.0
"""The same per standby worker, if that is longer: all of them together list the tasks once per second."""
_TOKEN_BITS: Final = 48


class StandbyEnd(enum.Enum):
    """Why a worker no longer waits on standby."""

    CALLED = "called"
    OVERDUE = "overdue"
    """The worker was not called for a long time."""
    WATCHING = "watching"
    """The worker watches for the others, or cannot use the standby nodes."""
    STOPPED = "stopped"


class Standby:
    """The state of one worker: active, on standby, or watching on standby."""

    def __init__(self, store: MetadataStore, workers: StandbyWorkers, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._workers = workers
        self._clock = clock
        self._rng = rng
        self._token = f"{rng.getrandbits(_TOKEN_BITS):012x}"
        self._watching_max = 1 if fault_point("queue.one_watching") else WATCHING_MAX
        self._name = ""
        self._is_refused = False
        self._epoch = -1
        self.is_watching = False
        """Whether this worker reacts to every change, for the others or because it cannot use the standby nodes."""

    @property
    def has_standby_node(self) -> bool:
        """Whether this worker has a standby node in this session, or the store refused to create one."""
        return bool(self._name or self._is_refused) and self._epoch == self._store.session.epoch

    async def wait(self, stop: asyncio.Event, forget_observations: Callable[[], None]) -> StandbyEnd:
        """Go on standby; return immediately if this worker watches, otherwise after a call or a long wait.

        Args:
            stop: ends the wait when it is set.
            forget_observations: called before each wait and after a call, because observations become outdated.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        end_s: float | None = None
        while True:
            try:
                place = await self._enter()
            except PermanentError as error:  # watching works without standby nodes, but costs more
                _log.warning("standby nodes cannot be used", extra={"error": str(error)})
                self.is_watching = self._is_refused = True
                return StandbyEnd.WATCHING
            if place is None:
                forget_observations()
                return StandbyEnd.CALLED
            self.is_watching = place.position < self._watching_max
            if self.is_watching:
                return StandbyEnd.WATCHING
            if stop.is_set():
                return StandbyEnd.STOPPED
            if end_s is None:
                pause_s = max(STANDBY_S, place.size * STANDBY_S_PER_WORKER) * (0.5 + self._rng.random())
                end_s = self._clock.monotonic_s() + pause_s
            left_s = end_s - self._clock.monotonic_s()
            if left_s > 0:
                forget_observations()
                await first_of([self._workers.wait_place_changed(place), self._clock.sleep(left_s), stop.wait()])
            if self._clock.monotonic_s() >= end_s:
                await self.leave()
                return StandbyEnd.OVERDUE

    async def _enter(self) -> Place | None:
        """Return this worker's place, or take the last one if it has none; return None if this worker was called."""
        if not self.has_standby_node:
            if self._name:  # the node may have been created in the new session
                await self._workers.leave(self._name)
            self._name, self._is_refused = "", False
            self._epoch = self._store.session.epoch
            self._name = await self._workers.enter(self._token)
        place = await self._workers.place(self._name)
        if place is None:
            self._name, self.is_watching = "", False
        return place

    async def call(self, count: int) -> None:
        """If this worker watches, call up to ``count`` others for work beyond its capacity.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: the store does not answer; some may have been called.
        """
        if self.is_watching and self._name and self.has_standby_node and count > 0:
            called = await self._workers.call(count, self._watching_max)
            if called:
                _log.info("standby workers called", extra={"workers": called})

    async def leave(self) -> None:
        """Delete this worker's standby node, if it has one."""
        name, self._name, self.is_watching = self._name, "", False
        if name and self._epoch == self._store.session.epoch:
            await self._workers.leave(name)
