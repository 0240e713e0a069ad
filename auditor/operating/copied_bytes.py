"""The bytes of ledgers that lack copies, as text."""

from __future__ import annotations

from typing import Final

from bookie.model.severity import Severity
from bookie.runtime.human import size

_WITHOUT_COPIES: Final = frozenset(level.label for level in Severity if not level.has_copies)


def copied_bytes(severity: str, bytes_estimate: int) -> str:
    """Return how much is to be copied, or for ledgers with entries without a live copy, how much lacks copies.

    Other fragments of such a ledger may have copies, so a part of it can be copied.

    Args:
        severity: the label in a document.
        bytes_estimate: in all fragments of the ledgers that lack copies.
    """
    return f"{size(bytes_estimate)} {'lacking copies' if severity in _WITHOUT_COPIES else 'to copy'}"
