"""Computes from measured figures how many times better this project is than Apache in the same run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

OURS: Final = "ours"
_APACHE: Final = ("apache", "apache tuned")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of one case."""

    case: str
    measure: str
    """The name of the measure, with its unit."""
    against: str
    """The name of Apache's contestant."""
    apache: float
    ours: float
    ratio: float
    """Above 1: ours is better by this factor, no matter whether higher or lower values are better."""

    @property
    def is_apache_ahead(self) -> bool:
        """Return whether Apache is better."""
        return self.ratio < 1

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {**asdict(self), "apache_wins": self.is_apache_ahead}


def less_is_better(case: str, measure: str, against: str, apache: float, ours: float) -> Comparison:
    """Compare seconds, requests and the like."""
    return Comparison(case, measure, against, apache, ours, _ratio(apache, ours))


def more_is_better(case: str, measure: str, against: str, apache: float, ours: float) -> Comparison:
    """Compare rates."""
    return Comparison(case, measure, against, apache, ours, _ratio(ours, apache))


def audit_comparisons(audits: Sequence[Mapping[str, Any]]) -> Iterator[Comparison]:
    """Compare for each size the first and the median later audit, and the requests of each."""
    for audit in audits:
        case = f"audit of {audit['ledgers']:,} ledgers"
        rounds = audit["rounds"]
        ours = rounds[OURS]
        for name in _present(rounds):
            theirs = rounds[name]
            yield less_is_better(case, "cold, s", name, theirs[0]["seconds"], ours[0]["seconds"])
            yield less_is_better(
                case, "cold from launch, s", name, theirs[0]["from_launch_s"], ours[0]["from_launch_s"]
            )
            yield less_is_better(case, "cold, ZooKeeper requests", name, theirs[0]["requests"], ours[0]["requests"])
            for label, field in (("warm, s", "seconds"), ("warm, ZooKeeper requests", "requests")):
                if len(theirs) > 1 and len(ours) > 1:
                    yield less_is_better(
                        case, label, name, _median_of_later_rounds(theirs, field), _median_of_later_rounds(ours, field)
                    )


def repair_comparisons(repairs: Sequence[Mapping[str, Any]]) -> Iterator[Comparison]:
    """Compare for each case the rates, and the bytes written for each lost byte. Ledgers without entries have none."""
    for repair in repairs:
        case = f"repair of {repair['case']}"
        results = repair["results"]
        ours = results[OURS]
        for name in _present(results):
            theirs = results[name]
            yield more_is_better(case, "ledgers/s", name, theirs["ledgers_per_second"], ours["ledgers_per_second"])
            if not repair["entry_bytes"]:
                continue
            yield more_is_better(case, "MB/s", name, theirs["mb_per_second"], ours["mb_per_second"])
            field = "written_per_lost"
            yield less_is_better(case, "bytes written per byte lost", name, theirs[field], ours[field])


def add_comparisons(adds: Sequence[Mapping[str, Any]]) -> Iterator[Comparison]:
    """Compare for each payload our bookie with each of its protocols."""
    for add in adds:
        results = add["results"]
        theirs = results["apache"]["adds_per_second"]
        for name, result in results.items():
            if name.startswith(OURS):
                case = f"adds of {add['payload_bytes']:,} B, {name}"
                yield more_is_better(case, "adds/s", "apache", theirs, result["adds_per_second"])


def comparisons(figures: Mapping[str, Any]) -> list[Comparison]:
    """Return the comparisons of all measured figures."""
    return [
        *audit_comparisons(figures.get("audit", ())),
        *repair_comparisons(figures.get("repair", ())),
        *add_comparisons(figures.get("add", ())),
    ]


def row(comparison: Comparison) -> tuple[str, ...]:
    """Return the cells of a table, in the order of ``HEADINGS``."""
    return (
        comparison.case,
        comparison.measure,
        comparison.against,
        _shown(comparison.apache),
        _shown(comparison.ours),
        f"{comparison.ratio:.2f}",
        "APACHE WINS" if comparison.is_apache_ahead else "",
    )


HEADINGS: Final = ("case", "measure", "against", "Apache", "ours", "times better", "")
NUMBERS: Final = (3, 4, 5)


def _present(results: Mapping[str, Any]) -> list[str]:
    return [name for name in _APACHE if name in results]


def _median_of_later_rounds(rounds: Sequence[Mapping[str, Any]], field: str) -> float:
    return float(statistics.median(each[field] for each in rounds[1:]))


def _ratio(above: float, below: float) -> float:
    return round(above / below, 3) if below else float("inf")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
