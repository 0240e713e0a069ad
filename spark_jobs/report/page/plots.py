"""Geometry of the plots: numbers in, coordinates out. The templates draw them as inline SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from spark_jobs.report.tables.run_tables import TrendPoint

WIDTH: Final = 460
HEIGHT: Final = 190
_LEFT: Final = 52.0
_RIGHT: Final = 14.0
_TOP: Final = 14.0
_BOTTOM: Final = 30.0
_BAR_PERCENT_MIN: Final = 0.8
"""Smallest part of a bar, in percent, so that one ledger of ten million is visible."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """A stretch of a bar, in percent of its length."""

    x: float
    width: float


def parts(values: Sequence[int], total: int) -> tuple[BarPart, ...]:
    """Place ``values`` end to end on a bar of length ``total``. Zeros have no width, all others a visible one."""
    widths = [max(100 * value / total, _BAR_PERCENT_MIN) if value > 0 and total > 0 else 0.0 for value in values]
    scale = 100 / sum(widths) if sum(widths) > 100 else 1.0
    placed, x = [], 0.0
    for width in widths:
        placed.append(BarPart(round(x, 3), round(width * scale, 3)))
        x += width * scale
    return tuple(placed)


@dataclass(frozen=True, slots=True)
class Dot:
    """A run in the line chart."""

    x: float
    y: float
    y_serious: float
    run_id: str
    finished_ms: int
    ledgers_found: int
    ledgers_serious: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Ledgers with findings by run. Runs held by the brake have no number, and leave a gap."""

    dots: tuple[Dot, ...]
    held: tuple[float, ...]
    """The positions of held runs on the x axis."""
    line: str
    """Points of the line, in SVG's format."""
    line_serious: str
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    left: float
    right: float
    bottom: float


def line_chart(points: Sequence[TrendPoint]) -> LineChart | None:
    """Return a chart of runs, evenly spaced, oldest left; None: fewer than two were not held by the brake."""
    checked = [point for point in points if not point.is_held]
    if len(checked) < 2:
        return None
    step = round_axis_step(max(point.ledgers_found for point in checked))
    top = step * max(1, -(-max(point.ledgers_found for point in checked) // step))
    x_of = _xs(len(points))
    dots = tuple(_dot(point, x, top) for point, x in zip(points, x_of, strict=True) if not point.is_held)
    return LineChart(
        dots=dots,
        held=tuple(x for point, x in zip(points, x_of, strict=True) if point.is_held),
        line=" ".join(f"{dot.x},{dot.y}" for dot in dots),
        line_serious=" ".join(f"{dot.x},{dot.y_serious}" for dot in dots),
        y_ticks=tuple(Tick(_y(value, top), short(value)) for value in range(0, top + 1, step)),
        x_ticks=_days(points, x_of),
        left=_LEFT,
        right=WIDTH - _RIGHT,
        bottom=HEIGHT - _BOTTOM,
    )


def round_axis_step(highest: int) -> int:
    """Return a round step for an axis that reaches ``highest`` in two to five steps."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if highest <= 4 * step * factor:
                return step * factor
        step *= 10


def short(value: int) -> str:
    """Return a number for an axis: 1,500 as 1.5k."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return str(value)


def _xs(count: int) -> list[float]:
    room = WIDTH - _LEFT - _RIGHT - 12
    return [round(_LEFT + 6 + room * index / max(count - 1, 1), 1) for index in range(count)]


def _y(value: int, top: int) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / top, 1)


def _dot(point: TrendPoint, x: float, top: int) -> Dot:
    return Dot(
        x,
        _y(point.ledgers_found, top),
        _y(point.ledgers_serious, top),
        point.run_id,
        point.finished_ms,
        point.ledgers_found,
        point.ledgers_serious,
        point.is_complete,
    )


def _days(points: Sequence[TrendPoint], x_of: Sequence[float]) -> tuple[Tick, ...]:
    """Return the times of the first and the last run, with hours if they are less than two days apart."""
    first, last = points[0].finished_ms, points[-1].finished_ms
    pattern = "%d %b %H:%M" if last - first < 2 * 86_400_000 else "%d %b %Y"
    return tuple(
        Tick(x, f"{datetime.fromtimestamp(at / 1000, UTC):{pattern}}") for x, at in ((x_of[0], first), (x_of[-1], last))
    )
