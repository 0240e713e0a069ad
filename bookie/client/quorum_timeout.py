"""How long the oldest unconfirmed entry has waited: one note for each burst of entries, none for each entry. Pure."""

from __future__ import annotations

from collections import deque


class QuorumTimeout:
    """Tells when an entry has waited for longer than ``timeout_s``."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._bursts: deque[tuple[int, float]] = deque()
        """(end of the burst's entry ids, when it was admitted), ascending."""
        self._end = 0

    def admitted(self, end: int, now_s: float) -> None:
        """Note that every entry before ``end`` has been admitted by now."""
        if end > self._end:
            self._bursts.append((end, now_s))
            self._end = end

    def due_s(self, last_add_confirmed: int) -> float | None:
        """When the oldest entry after ``last_add_confirmed`` will have waited for too long; None if there is none."""
        bursts = self._bursts
        while bursts and bursts[0][0] <= last_add_confirmed + 1:
            bursts.popleft()
        return bursts[0][1] + self.timeout_s if bursts else None
