"""The wait of adds for a storage that takes none at the moment."""

from __future__ import annotations

import asyncio


class AddWait:
    """How long the adds of one caller wait for room in a bookie's storage, instead of being refused at once.

    Attributes:
        seconds_max: the longest wait of one add.
        is_over: no add waits any more, because its answer cannot be sent.
        places: set to make the waiting adds look again.
    """

    __slots__ = ("is_over", "places", "seconds_max")

    def __init__(self, seconds_max: float) -> None:
        self.seconds_max = seconds_max
        self.is_over = False
        self.places: set[asyncio.Event] = set()

    def end(self) -> None:
        """End every wait of the caller, also later ones."""
        self.is_over = True
        for place in self.places:
            place.set()
