"""The wait of adds for a storage that accepts none at the moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


class WaitingCaller:
    """One caller whose adds wait.

    Attributes:
        is_over: whether no add may wait any more, because its answer cannot be sent.
        places: events of the waiting adds; each add checks again after its event is set.
    """

    __slots__ = ("is_over", "places")

    def __init__(self) -> None:
        self.is_over = False
        self.places: set[asyncio.Event] = set()

    def end(self) -> None:
        """End every wait of the caller, including later ones."""
        self.is_over = True
        for place in self.places:
            place.set()


@dataclass(frozen=True, slots=True)
class AddWait:
    """The wait of adds for room in a bookie's storage, instead of a refusal at once."""

    caller: WaitingCaller
    until_s: float
    """End of the wait, on the clock of the event loop."""
