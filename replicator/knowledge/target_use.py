"""Which bookies are targets of this process: the number of positions per bookie, and the chosen targets per ledger.

With the counts, the next repair can choose a less busy target (``plan.target_choice``). But counts change, so
the next attempt at a ledger could choose another target, and copy everything again (R38). Therefore the last choice for
each position is kept until the ledger is repaired, and is preferred. If a choice is forgotten, entries may be copied
twice.

Nothing is written to the store: the progress of larger copies (R44) is recorded in the reservation. Memory is bounded:
the choices for the last 10,000 ledgers are kept.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from bookie.model.ids import BookieId, EntryId, LedgerId

LEDGERS_MAX: Final = 10_000

Choices = Mapping[tuple[EntryId, int], BookieId]
"""The target of each position, by the first entry of the fragment and the position."""

_NO_CHOICES: Final[Choices] = MappingProxyType({})


class TargetUse:
    """The targets of one process, for all its turns."""

    def __init__(self) -> None:
        """Start without targets."""
        self._positions: Counter[BookieId] = Counter()
        self._chosen: dict[LedgerId, Choices] = {}
        self.positions: Mapping[BookieId, int] = MappingProxyType(self._positions)
        """The number of positions per bookie that are copied to it in a current round, or wait for it."""

    def chosen(self, ledger_id: LedgerId) -> Choices:
        """Return the targets of the last attempt at a ledger; empty if unknown."""
        return self._chosen.get(ledger_id, _NO_CHOICES)

    @contextmanager
    def copying(self, ledger_id: LedgerId, targets: Choices) -> Iterator[None]:
        """Count the positions of a round while the context lasts, and remember its targets."""
        if targets:
            self._chosen.pop(ledger_id, None)
            self._chosen[ledger_id] = MappingProxyType(dict(targets))
            if len(self._chosen) > LEDGERS_MAX:
                del self._chosen[next(iter(self._chosen))]
        self._positions.update(targets.values())
        try:
            yield
        finally:
            self._positions.subtract(targets.values())
            for bookie in set(targets.values()):
                if not self._positions[bookie]:
                    del self._positions[bookie]

    def forget(self, ledger_id: LedgerId) -> None:
        """Forget the choices for a repaired ledger."""
        self._chosen.pop(ledger_id, None)
