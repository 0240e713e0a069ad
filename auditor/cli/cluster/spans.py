"""Time spans on a command line: 90s, 30m, 2h, 1d. Pure."""

from __future__ import annotations

import re
from typing import Final

import typer

_SPAN: Final = re.compile(r"(\d{1,6})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def span_s(text: str, longest_s: int, option: str) -> int:
    """Return the seconds of a span; ends the command if it is none, or longer than ``longest_s``, whole days."""
    match = _SPAN.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match else 0
    if not 0 < seconds <= longest_s:
        longest = f"{longest_s // 86400}d"
        raise typer.BadParameter(f"{text!r} is no time span up to {longest}: write 30m, 1h or 2d", param_hint=option)
    return seconds
