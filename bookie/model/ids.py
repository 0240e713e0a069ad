"""Identifiers of ledgers, entries and bookies, and their grammar.

Source of the rules: docs/formats.md#registration (bookie ids) and docs/formats.md#ledger-ids.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from bookie.model.errors import PermanentError

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

NO_ENTRY: Final = EntryId(-1)
"""Last entry id of an empty ledger, and the initial last add confirmed."""

LEDGER_ID_MAX: Final = (1 << 63) - 1
"""A ledger with this id is read and repaired, but never created. If the metadata contains this id, the garbage
collector of an Apache bookie (seen with 4.17) treats every other ledger as deleted and discards its entries."""

# The upstream class is written ``[a-zA-Z0-9:-_.\-]``; its ``:-_`` is a range (0x3A-0x5F), kept here on purpose.
_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+")


class InvalidIdError(PermanentError):
    """An identifier not accepted by any BookKeeper cluster."""


def bookie_id(text: str) -> BookieId:
    """Return ``text`` as a bookie id.

    Raises:
        InvalidIdError: it does not match the grammar, or is the reserved word ``readonly``.
    """
    if not is_bookie_id(text):
        raise InvalidIdError(f"not a bookie id: {text!r} (letters, digits and :;<=>?@[\\]^_.- only, not 'readonly')")
    return BookieId(text)


def is_bookie_id(text: str) -> bool:
    """Whether ``text`` is a bookie id; see ``bookie_id``."""
    return _BOOKIE_ID.fullmatch(text) is not None and text.lower() != "readonly"


def ledger_id(value: int) -> LedgerId:
    """Return ``value`` as a ledger id.

    Raises:
        InvalidIdError: it is negative or does not fit in 63 bits.
    """
    if not 0 <= value <= LEDGER_ID_MAX:
        raise InvalidIdError(f"not a ledger id: {value} (0 to 2^63-1)")
    return LedgerId(value)
