"""One entry's answers during recovery, and the proof in them: pure bookkeeping, no I/O.

Source of the rule: docs/failure-model.md#recovery-rules, docs/formats.md#recovery step 4. One valid copy proves the
entry. Only enough explicit "never stored" answers prove that it cannot have been acknowledged; silence, corruption,
limbo and refusal prove nothing (S6).
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from bookie.model.packet import Entry
from bookie.wire.port import Status


class EntryVerdict(enum.Enum):
    """The facts proved about an entry."""

    FOUND = enum.auto()
    ABSENT = enum.auto()
    WAITING = enum.auto()
    """Not decided; some member has not answered."""
    UNKNOWN = enum.auto()
    """Every member has answered, and the answers decide nothing."""


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """A verified entry with its stored form, which is passed on verbatim."""

    entry: Entry
    packet: bytes


class Votes:
    """Answers of one entry's write set, each counted once and only for its own request (S18)."""

    __slots__ = ("_answers", "_asked", "_negatives", "_negatives_needed", "_write_set", "found")

    def __init__(self, write_set: tuple[int, ...], negatives_needed: int) -> None:
        self._write_set = write_set
        self._negatives = 0
        self._negatives_needed = negatives_needed
        self._asked: set[int] = set()
        self._answers: dict[int, Status] = {}
        self.found: FoundEntry | None = None

    @property
    def verdict(self) -> EntryVerdict:
        """The verdict of the answers so far. FOUND and ABSENT are final."""
        if self.found is not None:
            return EntryVerdict.FOUND
        if self._negatives >= self._negatives_needed:
            return EntryVerdict.ABSENT
        return EntryVerdict.UNKNOWN if len(self._answers) == len(self._write_set) else EntryVerdict.WAITING

    @property
    def evidence(self) -> dict[int, Status]:
        """The answers by ensemble position."""
        return dict(self._answers)

    @property
    def is_awaiting_answer(self) -> bool:
        """Whether a position that was asked has not answered."""
        return len(self._asked) > len(self._answers)

    def take_next_position(self, last: Collection[int]) -> int | None:
        """Return the next position to ask (``last`` after the others), and record it as asked; None if all were."""
        left = [position for position in self._write_set if position not in self._asked]
        if not left:
            return None
        position = next((position for position in left if position not in last), left[0])
        self._asked.add(position)
        return position

    def answer(self, position: int, outcome: FoundEntry | Status) -> None:
        """Count one answer. An unexpected answer, and any after the decision, changes nothing."""
        if position not in self._asked or position in self._answers:
            return
        if self.verdict in (EntryVerdict.FOUND, EntryVerdict.ABSENT):
            return
        if isinstance(outcome, FoundEntry):
            self._answers[position] = Status.OK
            self.found = outcome
        else:
            assert outcome is not Status.OK, "an OK answer brings its entry"
            self._answers[position] = outcome
            self._negatives += outcome.is_absent
