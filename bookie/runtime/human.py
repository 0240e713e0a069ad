"""Format names and sizes for people to read."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a foreign name with its control characters escaped, so that it breaks neither a line nor a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size(count_bytes: float) -> str:
    """Return a number of bytes as text in binary units, such as ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count_bytes) < 1024 or unit == "TiB":
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1024
    raise AssertionError("unreachable: the last unit always returns")
