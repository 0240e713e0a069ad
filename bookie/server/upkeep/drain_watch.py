"""The watch for drains of the bookie, which operators request and the store records (see ``Drains``)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bookie.metadata.bookies.drains import Drains, SeenDrains
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

RETRY_S: Final = 1.0


class DrainWatch:
    """Tracks whether one bookie is being drained, while ``run`` is running."""

    def __init__(self, drains: Drains, bookie: BookieId, clock: Clock) -> None:
        self._drains = drains
        self._bookie = bookie
        self._clock = clock
        self._seen: SeenDrains | None = None
        self.is_drained = False
        """According to the last answer of the store, which remains valid while the store does not answer."""

    async def check(self) -> None:
        """Query the store once.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        self._note(await self._drains.see())

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Follow the store until cancelled, and call ``changed`` after each change."""
        while True:
            before, seen = self.is_drained, self._seen
            try:
                self._note(await self._drains.see() if seen is None else await self._drains.wait_changed(seen))
            except BkhealError as error:
                _log.info("drains cannot be read, trying again", extra={"error": str(error)})
                self._seen = None
                await self._clock.sleep(RETRY_S)
                continue
            if self.is_drained != before:
                _log.warning("drain begins" if self.is_drained else "drain ends", extra={"bookie_id": self._bookie})
                await changed()

    def _note(self, seen: SeenDrains) -> None:
        self._seen, self.is_drained = seen, self._bookie in seen.bookies
