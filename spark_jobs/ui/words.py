"""Times, spans and sizes as text."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024


def span(milliseconds: int) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 5 min``, ``4 d 3 h``; nothing below zero."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{int(seconds)} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count_bytes: int) -> str:
    """``512 B``, ``1.5 GiB``."""
    value = float(count_bytes)
    for unit in _UNITS:
        if value < _STEP or unit == _UNITS[-1]:
            break
        value /= _STEP
    return f"{count_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
