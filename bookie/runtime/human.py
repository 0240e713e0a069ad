"""Format names and sizes for people to read."""

from __future__ import annotations


def printable(text: str) -> str:
    """A name that others chose, without control characters that would break a line or a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size(count_bytes: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count_bytes) < 1024 or unit == "TiB":
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1024
    raise AssertionError("unreachable: the last unit always returns")
