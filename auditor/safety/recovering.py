"""Checks before the ledgers of lost bookies are marked at once, without waiting for the delay for lost bookies."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted


def refusal(bookies: Collection[BookieId], registered: Bookies) -> str | None:
    """Return why the ledgers of these bookies must not be marked: some bookies are registered.

    The result is None if none is registered.
    """
    there = sorted(set(bookies) & registered.registered)
    if not there:
        return None
    names = ", ".join(there)
    return f"{names} is registered: use `bkheal drain start {' '.join(there)}` to move what it holds while it serves"


def brake(known: AbstractSet[BookieId], registered: Bookies, missing_share_max: float) -> str | None:
    """Return the reason to mark nothing; None: mark. Too many missing bookies are more likely an outage (S12)."""
    absent = known - registered.registered
    if not known or len(absent) <= missing_share_max * len(known):
        return None
    of, are = counted(len(known), "known bookie"), agreeing(len(absent), "is", "are")
    it, lost = ("it", "it is") if len(absent) == 1 else ("them", "they are")
    return (
        f"{len(absent)} of {of} {are} not registered: that looks like an outage, and copying would make it worse; "
        f"bring {it} back, or raise --missing-share-max if {lost} lost permanently"
    )
