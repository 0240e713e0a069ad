"""Times as text, and how far clocks may differ. In all other modules a time is a number of epoch milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

CLOCK_SKEW_MS_MAX: Final = 60_000
"""Largest accepted difference between the clocks of two machines. A later time is from a wrong clock."""
_EPOCH_MS_END: Final = 253_402_300_800_000
"""The end of the year 9999, exclusive: the end of the range of ``datetime``."""


def rfc3339(epoch_ms: float, timespec: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """Return a time in the form of RFC 3339, in UTC: ``2026-11-20T10:15:00.000Z``."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def epoch_ms(text: str) -> int:
    """Return the epoch milliseconds of a time written by ``rfc3339``.

    Raises:
        ValueError: it is not such a time.
    """
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def rfc3339_if_known(epoch_ms: int, timespec: Literal["seconds", "milliseconds"] = "milliseconds") -> str | None:
    """Return ``rfc3339`` of a time; None if unknown: for 0 and below, and for a time after the year 9999."""
    return rfc3339(epoch_ms, timespec) if 0 < epoch_ms < _EPOCH_MS_END else None


def utc_text(epoch_ms: int) -> str:
    """Return ``2026-11-20 10:15:00 UTC``; empty for 0 and below, and for a time after the year 9999."""
    if not 0 < epoch_ms < _EPOCH_MS_END:
        return ""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
