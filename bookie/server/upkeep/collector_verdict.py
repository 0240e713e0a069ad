"""May a bookie delete a ledger? A pure decision from the ledger's metadata.

In doubt the data is kept: a ledger that is not closed has readers and writers that may still count on this bookie,
whatever its metadata is.
"""

from __future__ import annotations

import enum

from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata


class Verdict(enum.Enum):
    """The verdict of the metadata about a ledger's entries on one bookie."""

    KEEP = "keep"
    DELETED = "deleted"
    """There is no such ledger (ids are never reused)."""
    SURPLUS = "surplus"
    """It is closed and no fragment names the bookie. It may still be reserved."""


def verdict(metadata: LedgerMetadata | None, bookie: BookieId) -> Verdict:
    """Return the verdict on metadata just read; None: there was none."""
    if metadata is None:
        return Verdict.DELETED
    if metadata.is_closed and bookie not in metadata.members():
        return Verdict.SURPLUS
    return Verdict.KEEP


def is_mass_deletion(suspects: int, known: int, *, ratio_max: float, known_min: int) -> bool:
    """Whether a pass would delete implausibly much (S12); with few ledgers nothing is implausible."""
    return known > known_min and suspects > ratio_max * known
