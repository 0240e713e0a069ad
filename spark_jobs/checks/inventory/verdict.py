"""Judge whether a copy is at a place outside of the metadata. Pure.

An uncertain case is not a finding. An unclosed ledger may have a writer, and a marked, locked or reserved ledger may be
under repair: both may have copies that the metadata does not name yet (S16). A copy that became superfluous recently
will be deleted by its bookie's garbage collection. Unreadable metadata means unknown, never absent (S6).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata


class CopyVerdict(enum.Enum):
    """The verdict on a copy."""

    OVER_REPLICATED = "over-replicated"
    """The ledger is closed, and no fragment with any of these entries names the bookie."""
    UNOWNED = "unowned"
    """The ledger does not exist."""
    PLACED = "placed"
    """The metadata places the copy there after all."""
    NOT_JUDGED = "not judged"


class CopyNotJudged(enum.Enum):
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
    """The limits of the grace time: copies are judged only if the change is older."""

    before_ms: int
    """Metadata is old if it was last changed at or before this time, epoch milliseconds by ZooKeeper's clock."""
    before_zxid: int | None
    """A deletion is old if its transaction is not after this one. None: there is no grace time, and every deletion is
    old."""


@dataclass(frozen=True, slots=True)
class Present:
    """An existing ledger."""

    metadata: LedgerMetadata | None
    """None: the metadata is unreadable."""
    changed_ms: int
    is_in_repair: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """A nonexistent ledger."""

    quiet_since_zxid: int
    """The last transaction that created or deleted a node under its nearest existing parent."""


Judged = tuple[CopyVerdict, CopyNotJudged | None]


def judged(
    ledger: Present | Deleted, copies: Sequence[Copy], grace: Grace
) -> Iterator[tuple[CopyVerdict, CopyNotJudged | None, Sequence[Copy]]]:
    """Yield each verdict on copies of a ledger, with the reason if there is no verdict, and these copies.

    Args:
        ledger: read after the bookies listed the copies.
        copies: the copies, each on a different bookie.
        grace: the limits of age for a verdict.
    """
    if isinstance(ledger, Deleted):
        is_old = grace.before_zxid is None or ledger.quiet_since_zxid <= grace.before_zxid
        yield (CopyVerdict.UNOWNED, None, copies) if is_old else (CopyVerdict.NOT_JUDGED, CopyNotJudged.DELETED, copies)
        return
    metadata = ledger.metadata
    if metadata is None:
        yield CopyVerdict.NOT_JUDGED, CopyNotJudged.UNREADABLE, copies
        return
    placed = [copy for copy in copies if is_placed(metadata, copy)]
    if placed:
        yield CopyVerdict.PLACED, None, placed
    if surplus := [copy for copy in copies if copy not in placed]:
        yield *_judge_surplus(metadata, ledger, grace), surplus


def _judge_surplus(metadata: LedgerMetadata, ledger: Present, grace: Grace) -> Judged:
    if not metadata.is_closed:
        return CopyVerdict.NOT_JUDGED, CopyNotJudged.OPEN
    if ledger.is_in_repair:
        return CopyVerdict.NOT_JUDGED, CopyNotJudged.REPAIR
    if ledger.changed_ms > grace.before_ms:
        return CopyVerdict.NOT_JUDGED, CopyNotJudged.CHANGED
    return CopyVerdict.OVER_REPLICATED, None


def is_placed(metadata: LedgerMetadata, copy: Copy) -> bool:
    """Return whether a fragment on the bookie may contain an entry of the copy.

    The last fragment counts as unbounded: a recovery may close a ledger at an entry before those that were never
    acknowledged.
    """
    fragments = metadata.fragments
    for index, fragment in enumerate(fragments):
        if copy.bookie in fragment.members and fragment.first_entry_id <= copy.last_entry_id:
            is_last = index + 1 == len(fragments)
            if is_last or copy.first_entry_id < fragments[index + 1].first_entry_id:
                return True
    return False
