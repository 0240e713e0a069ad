"""The errors with which a store refuses to open. Each message names the place and the remedy."""

from __future__ import annotations

from typing import Final

from bookie.model.errors import FatalError

SALVAGE_HINT: Final = (
    "run `bkheal bookie salvage-journal`, which keeps what can be read; the rest is then unknown, and repair "
    "restores it"
)
"""The remedy for a journal without a copy."""


class DamagedJournalError(FatalError):
    """Acknowledged records cannot be read back (rules J3 and J4). Nothing was removed from the disk."""


class WrongJournalError(FatalError):
    """A directory belongs to a different journal than configured. Nothing was removed from the disk."""


class UnsupportedFormatError(FatalError):
    """A file was written by a newer version of this program, or by another program."""


class LostIndexError(FatalError):
    """The index does not belong to the other files: one of them was lost or replaced."""
