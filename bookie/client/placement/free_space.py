"""The free space of each writable bookie, requested in the background. Placement weights bookies by it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bookie.metadata.bookies.registration import Registrations
from bookie.model.errors import PermanentError, TransientError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import Status, Transport
from bookie.wire.requests import Info

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FreeSpaceSettings:
    """The rate of the requests. By default each bookie gets one request in five minutes, without bursts."""

    round_s: float = 300.0
    """Time from the start of one round over all bookies to the start of the next, in seconds."""
    gap_s: float = 0.1
    """Pause after each request, in seconds: at most ten requests a second, regardless of the number of bookies."""
    timeout_s: float = 5.0
    """Timeout of one request, in seconds."""
    begin_s: float = 10.0
    """Delay before the first round, in seconds, so that a short-lived client sends no requests."""


class FreeSpace:
    """Free bytes of the bookies that were writable in the last round and have answered at least once."""

    def __init__(
        self,
        registrations: Registrations,
        transport: Transport,
        clock: Clock,
        settings: FreeSpaceSettings = FreeSpaceSettings(),
    ) -> None:
        self._registrations = registrations
        self._transport = transport
        self._clock = clock
        self._settings = settings
        self._known: dict[BookieId, int] = {}
        self.known: Mapping[BookieId, int] = MappingProxyType(self._known)
        """Free bytes by bookie: a live view."""

    async def run(self) -> None:
        """Ask the bookies in rounds until cancelled."""
        await self._clock.sleep(self._settings.begin_s)
        while True:
            started_s = self._clock.monotonic_s()
            try:
                await self.refresh()
            except (
                TransientError,
                PermanentError,
            ) as error:  # the next round asks again; the old values remain in use
                _log.info("free space was not requested", extra={"error": str(error)})
            spent_s = self._clock.monotonic_s() - started_s
            await self._clock.sleep(max(self._settings.gap_s, self._settings.round_s - spent_s))

    async def refresh(self) -> None:
        """Ask every writable bookie once. A bookie that does not answer keeps its old value.

        Raises:
            StoreUnavailableError: the writable bookies are unknown.
        """
        writable = (await self._registrations.list()).writable
        for gone in sorted(self._known.keys() - writable):
            del self._known[gone]
        for bookie in sorted(writable):
            reply = await self._transport.ask(bookie, Info(), self._settings.timeout_s)
            if reply.status is Status.OK and reply.info is not None:
                self._known[bookie] = max(0, reply.info.disk_free_bytes)
            if fault_point("free_space.forget"):
                self._known.pop(bookie, None)
            await self._clock.sleep(self._settings.gap_s)
