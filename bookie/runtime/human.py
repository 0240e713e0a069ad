"""Format names, sizes and time spans for people to read."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a foreign name with its control characters escaped, so that it breaks neither a line nor a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(number: int, noun: str, separator: str = "") -> str:
    """Return a number with its noun, such as ``1 ledger`` and ``2 entries``; the separator is between thousands."""
    return f"{number:{separator}} {noun if number == 1 else _plural(noun)}"


def agreeing(number: int, singular: str, plural: str) -> str:
    """Return the form of a word that agrees with a number, such as ``is`` or ``are``."""
    return singular if number == 1 else plural


def size(count_bytes: float) -> str:
    """Return a number of bytes as text in binary units, such as ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count_bytes) < 1024:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:,.1f} PiB"


def duration(milliseconds: float) -> str:
    """Return a time span as text in its two largest units, such as ``0.4 s`` or ``2 h 5 min``; nothing below zero."""
    if milliseconds < 60_000:
        return f"{max(0, milliseconds) / 1000:.1f} s"
    seconds = int(milliseconds // 1000)
    for unit, below, length, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit} {rest} {below}" if rest else f"{seconds // length} {unit}"
    raise AssertionError("unreachable: a minute or more has a unit")


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "sh", "x")) else f"{noun}s"
