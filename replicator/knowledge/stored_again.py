"""Count how often copies that a bookie could not read were stored again on the same bookie.

An Apache bookie serves a stored entry from its memory until its next flush, so a successful read does not prove that
its disk is good. If the disk loses what is written to it, each audit finds the same copies again. So after
``STORED_AGAIN_MAX`` times another bookie replaces it.

The counts do not outlive the process. After a restart, copies may be stored in place ``STORED_AGAIN_MAX`` more times.

Source: R139, docs/failure-model.md#R139.
"""

from __future__ import annotations

from typing import Final

from bookie.model.ids import BookieId, LedgerId

STORED_AGAIN_MAX: Final = 3
"""How often unread copies of a ledger are stored again on the same bookie."""
COUNTS_MAX: Final = 100_000
"""The most counts kept, about 10 MB. If there are more, the oldest is forgotten."""


class RestoredCopyCounts:
    """The counts of a process. Shared by all its turns."""

    def __init__(self) -> None:
        self._counts: dict[tuple[LedgerId, BookieId], int] = {}

    def note(self, ledger_id: LedgerId, bookie: BookieId) -> None:
        """Record that unread copies of the ledger were stored again on the bookie."""
        key = ledger_id, bookie
        self._counts[key] = self._counts.pop(key, 0) + 1
        if len(self._counts) > COUNTS_MAX:
            del self._counts[next(iter(self._counts))]

    def is_at_bound(self, ledger_id: LedgerId, bookie: BookieId) -> bool:
        """Whether unread copies of the ledger must not be stored on the bookie again."""
        return self._counts.get((ledger_id, bookie), 0) >= STORED_AGAIN_MAX
