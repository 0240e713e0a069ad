"""How much room each writable bookie has, asked for in the background; placement weighs bookies by it."""

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
    """How often to ask. The defaults are one question to each bookie in five minutes, in no burst."""

    round_s: float = 300.0
    """From the begin of one round over all bookies to the next."""
    gap_s: float = 0.1
    """Pause after each question: at most ten a second, however many bookies there are."""
    timeout_s: float = 5.0
    """For one answer."""
    begin_s: float = 10.0
    """Delay before the first round: a client with a shorter life asks no bookie."""


class FreeSpace:
    """Free bytes of the bookies that were writable a moment ago and have answered at least once."""

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
        """A live view of the figures."""

    async def run(self) -> None:
        """Ask, round after round, until cancelled."""
        await self._clock.sleep(self._settings.begin_s)
        while True:
            started_s = self._clock.monotonic_s()
            try:
                await self.refresh()
            except (
                TransientError,
                PermanentError,
            ) as error:  # the next round tries again; until then the old figures stand
                _log.info("free space was not requested", extra={"error": str(error)})
            spent_s = self._clock.monotonic_s() - started_s
            await self._clock.sleep(max(self._settings.gap_s, self._settings.round_s - spent_s))

    async def refresh(self) -> None:
        """Ask every writable bookie once. A silent bookie keeps its figure.

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
