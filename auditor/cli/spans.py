"""Parses time spans and times of a command line: 90s, 30m, 2h, 1d, 2026-01-31T12:00. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_SPAN: Final = re.compile(r"(\d{1,6})([smhd])")
_AGO: Final = re.compile(r"(\d+)([smhd])")
_DIGITS_MAX: Final = 20
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def span_s(text: str, longest_s: int, option: str) -> int:
    """Return the seconds of a span; stop the command if it is invalid, or longer than ``longest_s``, whole days."""
    match = _SPAN.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match else 0
    if not 0 < seconds <= longest_s:
        longest = f"{longest_s // 86400}d"
        raise typer.BadParameter(f"{text!r} is not a time span up to {longest}: write 30m, 1h or 2d", param_hint=option)
    return seconds


def delay_s(text: str, longest_s: int, option: str) -> int:
    """Return the seconds of a delay, a number of seconds or a span; stop the command if it is another text or longer.

    Unlike a span, a delay may be 0.
    """
    if not text.isdecimal():
        return span_s(text, longest_s, option)
    if len(text) > _DIGITS_MAX or int(text) > longest_s:
        raise typer.BadParameter(f"{text[:_DIGITS_MAX]} s is more than {longest_s}", param_hint=option)
    return int(text)


def moment_ms(text: str, now_ms: int) -> int:
    """Return a time in UTC, or a span before ``now_ms``, in epoch milliseconds; stop the command on other text."""
    if match := _AGO.fullmatch(text):
        try:
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            moment = now - timedelta(seconds=int(match[1]) * _UNIT_S[match[2]])
        except (OverflowError, ValueError) as error:
            raise typer.BadParameter(f"{text!r} is before the first year") from error
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not a time: write 2026-01-31T12:00, or 30m, 2h, 7d") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
