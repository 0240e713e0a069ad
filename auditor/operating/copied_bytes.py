"""The bytes of ledgers that lack copies, as text."""

from __future__ import annotations

from typing import Final

from bookie.model.severity import Severity
from bookie.runtime.human import size

_WITHOUT_COPIES: Final = frozenset(level.label for level in Severity if not level.has_copies)


def copied_bytes(severity: str, bytes_estimate: int) -> str:
    """Return how much is to be copied, or what has nothing to copy from. ``severity`` is the label in a document."""
    return f"{size(bytes_estimate)} {'with nothing to copy from' if severity in _WITHOUT_COPIES else 'to copy'}"
