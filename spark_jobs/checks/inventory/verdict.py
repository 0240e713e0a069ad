"""Whether a copy is where the metadata does not place it. Pure.

What is not sure is not a finding. A ledger that is not closed has a writer, and one that is marked, locked or reserved
has a repair: both may have copies that the metadata does not name yet (S16). A copy that became superfluous a short
time ago waits for the garbage collection of its bookie. And what cannot be read is unknown, never absent (S6).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata


class Verdict(enum.Enum):
    """What a copy is."""

    OVER_REPLICATED = "over-replicated"
    """Its ledger is closed, and no fragment with any of these entries names the bookie."""
    UNOWNED = "unowned"
    """There is no such ledger."""
    PLACED = "placed"
    """The metadata places it there after all."""
    NOT_JUDGED = "not judged"


class NotJudged(enum.Enum):
    """Why there is no verdict."""

    OPEN = "the ledger is not closed, so its writer may still count on the copy"
    REPAIR = "the ledger is marked, locked or reserved, so a repair may be making the copy"
    CHANGED = "the metadata changed within the grace time, so the bookie may not have collected the copy yet"
    DELETED = "the ledger, or one beside it, was deleted within the grace time"
    UNREADABLE = "the metadata cannot be read"


@dataclass(frozen=True, slots=True)
class Copy:
    """Entries of a ledger on one bookie, from the first to the last, which may have gaps."""

    bookie: BookieId
    first_entry_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Grace:
    """What is older than the grace time."""

    before_ms: int
    """Changes of metadata up to this time, epoch milliseconds by ZooKeeper's clock."""
    before_zxid: int | None
    """Transactions up to this one; None: all of them, as there is no grace time."""


@dataclass(frozen=True, slots=True)
class Present:
    """A ledger as it is now."""

    metadata: LedgerMetadata | None
    """None: it cannot be read."""
    changed_ms: int
    is_in_repair: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """There is no such ledger now."""

    quiet_since_zxid: int
    """The last transaction that created or deleted anything under the nearest node above it."""


Judged = tuple[Verdict, NotJudged | None]


def judged(
    ledger: Present | Deleted, copies: Sequence[Copy], grace: Grace
) -> Iterator[tuple[Verdict, NotJudged | None, Sequence[Copy]]]:
    """Yield the verdicts on the copies of a ledger, each with the copies that have it.

    Args:
        ledger: read after the bookies listed the copies.
        copies: of different bookies.
        grace: what is old enough for a verdict.
    """
    if isinstance(ledger, Deleted):
        is_old = grace.before_zxid is None or ledger.quiet_since_zxid <= grace.before_zxid
        yield (Verdict.UNOWNED, None, copies) if is_old else (Verdict.NOT_JUDGED, NotJudged.DELETED, copies)
        return
    metadata = ledger.metadata
    if metadata is None:
        yield Verdict.NOT_JUDGED, NotJudged.UNREADABLE, copies
        return
    placed = [copy for copy in copies if is_placed(metadata, copy)]
    if placed:
        yield Verdict.PLACED, None, placed
    if surplus := [copy for copy in copies if copy not in placed]:
        yield *_of_surplus(metadata, ledger, grace), surplus


def _of_surplus(metadata: LedgerMetadata, ledger: Present, grace: Grace) -> Judged:
    if not metadata.is_closed:
        return Verdict.NOT_JUDGED, NotJudged.OPEN
    if ledger.is_in_repair:
        return Verdict.NOT_JUDGED, NotJudged.REPAIR
    if ledger.changed_ms > grace.before_ms:
        return Verdict.NOT_JUDGED, NotJudged.CHANGED
    return Verdict.OVER_REPLICATED, None


def is_placed(metadata: LedgerMetadata, copy: Copy) -> bool:
    """Whether a fragment that names the bookie may contain an entry of the copy.

    The last fragment has no end here: a recovery may close a ledger before entries that were never acknowledged.
    """
    fragments = metadata.fragments
    for index, fragment in enumerate(fragments):
        if copy.bookie in fragment.members and fragment.first_entry_id <= copy.last_entry_id:
            is_last = index + 1 == len(fragments)
            if is_last or copy.first_entry_id < fragments[index + 1].first_entry_id:
                return True
    return False
