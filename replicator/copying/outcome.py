"""The outcome of a copy of one position, and the functions that a copy calls while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from replicator.copying.receiver import (
    NOTHING_HELD,
)
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy, UnreadableEntry

MayContinue = Callable[[], Awaitable[bool]]
"""Called before each read and each send. False stops the copy: repair is disabled, the session ended, or the process
stops."""
NoteLacking = Callable[[Set[BookieId]], Awaitable[None]]
"""Called with holders that denied entries that another holder served, could not read them (R140), or have damaged
copies of them (R41). The entries are sent only after it has returned: once a target lists them, they are not read
again, so the observation would be lost."""


NoteFound = Callable[[Mapping[EntryId, BookieId]], Awaitable[None]]
"""Called with entries that a record names as lost, each with the source that served it. They are sent only after it has
returned, because a record must not name entries that a bookie has (R148)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """The result of copying one position."""

    entries: int = 0
    """The number of entries that this copy made durable on the target."""
    bytes: int = 0
    unreadable: tuple[UnreadableEntry, ...] = ()
    unreadable_count: int = 0
    corrupt: tuple[CorruptCopy, ...] = ()
    """The damaged copies that were read for any of the positions copied together, whether or not another holder had a
    good copy. Empty if the digest type is only assumed."""
    target_failure: BookieAnswer | None = None
    is_interrupted: bool = False
    left_out: EntryRuns = NOTHING_HELD
    """The entries that were left out, because their loss was accepted and no source has them."""

    @property
    def is_complete(self) -> bool:
        """Whether every entry was stored on the target, except those that were left out."""
        return not self.unreadable_count and self.target_failure is None and not self.is_interrupted

    @property
    def is_permanent_failure(self) -> bool:
        """Whether some entry was refused permanently by every live holder."""
        return any(entry.is_final for entry in self.unreadable)


async def note_no_lacking(holders: Set[BookieId]) -> None:
    """Do nothing: a ``NoteLacking`` for callers that do not record these holders."""
    return


async def note_no_found(served_by: Mapping[EntryId, BookieId]) -> None:
    """Do nothing: a ``NoteFound`` for copies without entries that a record names as lost."""
    return
