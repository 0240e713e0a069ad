"""The decision whether a bookie may delete a ledger, made only from the ledger's metadata.

In doubt, the data is kept: readers and writers of a ledger that is not closed may still rely on this bookie, even if
its metadata does not name the bookie.
"""

from __future__ import annotations

import enum

from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata


class CollectorVerdict(enum.Enum):
    """The verdict about a ledger's entries on one bookie, according to the metadata."""

    KEEP = "keep"
    DELETED = "deleted"
    """The ledger does not exist (ids are never reused)."""
    SURPLUS = "surplus"
    """The ledger is closed and no fragment names the bookie. The bookie may still be reserved."""


def verdict(metadata: LedgerMetadata | None, bookie: BookieId) -> CollectorVerdict:
    """Return the verdict about metadata that was just read; None: there was none."""
    if metadata is None:
        return CollectorVerdict.DELETED
    if metadata.is_closed and bookie not in metadata.members():
        return CollectorVerdict.SURPLUS
    return CollectorVerdict.KEEP


def is_mass_deletion(suspects: int, known: int, *, ratio_max: float, known_min: int) -> bool:
    """Return whether a pass would delete implausibly much (S12). Nothing is implausible if there are few ledgers."""
    return known > known_min and suspects > ratio_max * known
