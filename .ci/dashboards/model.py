"""Dashboards as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
ALARM: Mapping[float, str] = {1: RED}
NOTE: Mapping[float, str] = {1: YELLOW}
YES_NO: Mapping[int, str] = {0: "no", 1: "yes"}


@dataclass(frozen=True)
class Panel:
    """One panel; ``<>`` in a query stands for the chosen cluster and namespace."""

    title: str
    description: str
    queries: Mapping[str, str]
    """Queries by legend."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    base_color: str = GREEN
    steps: Mapping[float, str] = field(default_factory=dict)
    """Colors from a value on."""
    words: Mapping[int, str] = field(default_factory=dict)
    """Words for values."""
    is_stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under a title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[str] = ()
    """Beside data source, cluster and namespace."""


def stat(
    title: str,
    description: str,
    query: str,
    *,
    unit: str = "short",
    steps: Mapping[float, str] | None = None,
    base_color: str = GREEN,
    words: Mapping[int, str] | None = None,
    width: int = 4,
) -> Panel:
    """One number of now."""
    return Panel(title, description, {"": query}, unit, "stat", width, 4, base_color, steps or {}, words or {})


def percentiles(metric: str, *labels: str, window: str = "$__rate_interval", matchers: str = "<>") -> Mapping[str, str]:
    """Median and 95th percentile of a histogram, by ``labels``."""
    by = ", ".join([*labels, "le"])
    prefix = "".join(f"{{{{{label}}}}} " for label in labels)
    rates = f"sum by ({by}) (rate({metric}_bucket{{{matchers}}}[{window}]))"
    return {f"{prefix}p{share * 100:g}": f"histogram_quantile({share}, {rates})" for share in (0.5, 0.95)}
