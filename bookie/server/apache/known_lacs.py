"""The greatest last add confirmed of each ledger that this listener has seen, for its answers to reads.

It is a hint that saves readers a request. It comes from the headers of entries that are durable here, and from explicit
LACs that the service accepted or returned, so it never exceeds the value that a writer confirmed. The LAC of a ledger
without recent requests is removed; an answer then contains only what its own entry proves.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from bookie.model.ids import NO_ENTRY, LedgerId
from bookie.runtime.clock import Clock

LEDGERS_MAX: Final = 10_000


class KnownLacs:
    """The greatest known last add confirmed of each ledger."""

    def __init__(self, clock: Clock, ledgers_max: int = LEDGERS_MAX) -> None:
        self._clock = clock
        self._ledgers_max = ledgers_max
        self._known: OrderedDict[LedgerId, tuple[int, int]] = OrderedDict()

    def note(self, ledger_id: LedgerId, lac: int) -> int:
        """Take ``lac`` into account, and return the greatest known one, or -1."""
        known = self._known.get(ledger_id)
        if known is not None:
            self._known.move_to_end(ledger_id)
            if lac <= known[0]:
                return known[0]
        if lac <= NO_ENTRY:
            return NO_ENTRY
        self._known[ledger_id] = (lac, self._clock.epoch_ms())
        if len(self._known) > self._ledgers_max:
            self._known.popitem(last=False)
        return lac

    def updated_ms(self, ledger_id: LedgerId) -> int | None:
        """Return when the known LAC was first seen, in epoch milliseconds, or None if there is none."""
        known = self._known.get(ledger_id)
        return None if known is None else known[1]
