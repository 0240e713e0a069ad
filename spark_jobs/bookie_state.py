"""Registration of a bookie, in the words of tables and reports."""

from __future__ import annotations

import enum

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId


class BookieState(enum.Enum):
    """Whether a bookie is registered, and how."""

    WRITABLE = "WRITABLE"
    READ_ONLY = "READ_ONLY"
    """A source of copies: not missing (S8, R17)."""
    UNREGISTERED = "UNREGISTERED"


def state_of(bookie: BookieId, bookies: Bookies) -> BookieState:
    """Return the state of ``bookie`` in a listing."""
    if bookie in bookies.writable:
        return BookieState.WRITABLE
    return BookieState.READ_ONLY if bookie in bookies.read_only else BookieState.UNREGISTERED
