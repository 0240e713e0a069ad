"""The answers of bookies about unreadable entries, which are the reasons to end or park a repair.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.wire.port import Status

SHOWN_MAX: Final = 5
"""The most entries that a text names; further ones are only counted."""

DETAIL_MAX: Final = 160
"""The most characters of one bookie's message in a text with several messages."""

_FINAL: Final = frozenset({Status.NO_ENTRY, Status.NO_LEDGER, Status.CORRUPT, Status.LIMBO, Status.UNAUTHORIZED})


@dataclass(frozen=True, slots=True)
class BookieAnswer:
    """One bookie's answer for one entry. A copy with a wrong digest or wrong ids is CORRUPT."""

    bookie: BookieId
    status: Status
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the bookie would soon give the same answer again. Only final answers may park a task (S6)."""
        return self.status in _FINAL

    def __str__(self) -> str:
        """Return the bookie, the status, and the beginning of the detail in brackets."""
        text = f"{self.bookie}={self.status.name}"
        return f"{text} ({shortened(self.detail, DETAIL_MAX)})" if self.detail else text


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that no live holder served, with the answers of all of them."""

    entry_id: EntryId
    answers: tuple[BookieAnswer, ...]

    @property
    def is_final(self) -> bool:
        """Whether the answers of all holders are final."""
        return all(answer.is_final for answer in self.answers)

    def proves_loss(self, digest_type: DigestType | None) -> bool:
        """Whether every holder denied the entry or has a damaged copy, so that no bookie can serve it now (R148).

        Without a digest, or with an assumed one, a copy that does not verify is no evidence of damage.
        """
        is_verified = digest_type is not None and digest_type is not DigestType.DUMMY
        return all(
            answer.status.is_absent or (is_verified and answer.status is Status.CORRUPT) for answer in self.answers
        )

    def __str__(self) -> str:
        return f"entry {self.entry_id}: {', '.join(map(str, self.answers)) or 'no live holder'}"


@dataclass(frozen=True, slots=True)
class CorruptCopy:
    """A stored copy with a wrong digest: a finding about its bookie's disk."""

    bookie: BookieId
    entry_id: EntryId
    detail: str


def shortened(text: str, length_max: int) -> str:
    """Return the beginning of ``text``, with a mark if the rest is omitted."""
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def describe(unreadable: tuple[UnreadableEntry, ...], count: int) -> str:
    """Return a text for people: the first entries with their answers, and how many others there are."""
    shown = "; ".join(str(entry) for entry in unreadable[:SHOWN_MAX])
    more = count - min(len(unreadable), SHOWN_MAX)
    return f"{shown}; and {more} more" if more > 0 else shown
