"""Reasons for which a store refuses to open. Each names the place and what a person can do."""

from __future__ import annotations

from bookie.model.errors import FatalError


class DamagedJournalError(FatalError):
    """Acknowledged records cannot be read back (rules J3 and J4). Nothing was removed from the disk."""


class UnsupportedFormatError(FatalError):
    """A file was written by a newer version of this program, or is not ours at all."""


class LostIndexError(FatalError):
    """The index does not belong to the files beside it: one of them was lost or replaced."""
