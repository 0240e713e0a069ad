"""Compares measured figures of a bookie with a baseline of the same run, and with the aims. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from auditor.bench.bookies.contestants import APACHE, OURS_APACHE, OURS_GRPC
from auditor.bench.bookies.journal import NOT_RESERVED, RESERVED

ADDS_OVER_APACHE_AIM: Final = 1.0
"""Least ratio: at least as fast as Apache's bookie over its own protocol."""
ADDS_OVER_GRPC_AIM: Final = 2.0
_GRPC_AIM_BYTES_MAX: Final = 16_384
LONE_AIM: Final = 3.0
"""Longest time of a lone add without its round trip, in fdatasyncs."""
COLD_AIM: Final = 0.5
"""Least share of the speed of reading a plain file."""
WRITTEN_AIM: Final = 2.1
"""Most bytes written for each stored byte: one to the journal, one to an entry log, and some to the index."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of one case.

    Attributes:
        case: the measured operation.
        measure: its name and unit.
        ours: the figure of bkheal's bookie.
        baseline: the name of the baseline; empty if there is none.
        baseline_value: the figure of the baseline.
        ratio: ours to the baseline, or the figure to compare with the aim.
        aim: the bound that the ratio has to meet; None if there is none.
        is_least: whether the aim is the least ratio instead of the largest.
    """

    case: str
    measure: str
    ours: float
    baseline: str = ""
    baseline_value: float | None = None
    ratio: float | None = None
    aim: float | None = None
    is_least: bool = True

    @property
    def is_met(self) -> bool | None:
        """Return whether the aim is met; None without an aim."""
        if self.aim is None or self.ratio is None:
            return None
        return self.ratio >= self.aim if self.is_least else self.ratio <= self.aim

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {**asdict(self), "is_met": self.is_met}


HEADINGS: Final = ("case", "measure", "ours", "baseline", "its figure", "ratio", "aim")
NUMBERS: Final = (2, 4, 5)


def measured(figures: Mapping[str, Any]) -> list[Measured]:
    """Compare all measured figures."""
    return [
        *_adds(figures.get("adds", ())),
        *_lone_add_measures(figures.get("lone", {}).get("times", {})),
        *_reads(figures.get("reads", ())),
        *_reserved(figures.get("reserved", {})),
        *_engine_measures(figures.get("engine", ())),
    ]


def row(each: Measured) -> tuple[str, ...]:
    """Return the cells of a table, in the order of ``HEADINGS``."""
    aim = (
        "" if each.aim is None else f"{'>=' if each.is_least else '<='} {each.aim:g}{'' if each.is_met else ' MISSED'}"
    )
    return (
        each.case,
        each.measure,
        _shown(each.ours),
        each.baseline,
        _shown(each.baseline_value),
        _shown(each.ratio),
        aim,
    )


def _adds(adds: Any) -> Iterator[Measured]:
    for add in adds:
        size, writers, results = add["payload_bytes"], add["writers"], add["results"]
        for name, aim in ((OURS_GRPC, ADDS_OVER_GRPC_AIM), (OURS_APACHE, ADDS_OVER_APACHE_AIM)):
            case = f"adds of {size:,} B, {writers} writer{'s' if writers > 1 else ''}, {name}"
            used = None if name == OURS_GRPC and size > _GRPC_AIM_BYTES_MAX else aim
            yield _compared_measure(case, "adds/s", results, name, APACHE, "per_second", used)
            yield Measured(case, "MB/s", results[name]["mb_per_second"])
            yield _compared_measure(case, "CPU of the bookie, us/add", results, name, APACHE, "bookie_cpu_us", None)


def _lone_add_measures(times: Mapping[str, Mapping[str, float]]) -> Iterator[Measured]:
    for name in (APACHE, OURS_GRPC, OURS_APACHE):
        if name not in times:
            continue
        for percentile in ("p50_ms", "p99_ms"):
            trip, sync = times[f"{name}, round trip"][percentile], times["fdatasync"][percentile]
            took = times[name][percentile]
            yield Measured(
                f"lone add, {name}",
                percentile.replace("_ms", ", ms"),
                took,
                f"fdatasync, beside a round trip of {trip:.2f}",
                sync,
                _ratio(took - trip, sync),
                LONE_AIM if percentile == "p50_ms" and name != APACHE else None,
                is_least=False,
            )


def _reads(reads: Any) -> Iterator[Measured]:
    for read in reads:
        results = read["results"]
        for kind in ("tail", "cold sequential", "cold random"):
            for name in (OURS_GRPC, OURS_APACHE):
                case = f"{kind} reads of {read['payload_bytes']:,} B, {name}"
                yield _compared_measure(case, "MB/s", results, name, APACHE, "mb_per_second", None, kind)
                if kind in results.get("plain file", {}):
                    yield _compared_measure(case, "MB/s", results, name, "plain file", "mb_per_second", None, kind)


def _reserved(figures: Mapping[str, Any]) -> Iterator[Measured]:
    for key, case in (("adds", "lone add, storage alone"), ("syncs", "bare write and fdatasync")):
        for percentile in ("p50_ms", "p99_ms"):
            if key in figures:
                ours, plain = (figures[key][name][percentile] for name in (RESERVED, NOT_RESERVED))
                name = percentile.replace("_ms", ", ms")
                yield Measured(case, name, ours, "without reserved space", plain, _ratio(ours, plain))


def _engine_measures(engine: Any) -> Iterator[Measured]:
    for each in engine:
        case = f"storage alone, {each['payload_bytes']:,} B"
        yield Measured(case, "adds, MB/s", each["adds"]["mb_per_second"])
        yield Measured(case, "adds, CPU s/GB", each["adds"]["cpu_seconds_per_gb"])
        if (written := each.get("bytes_written_per_byte_stored")) is not None:
            yield Measured(case, "bytes written", written, "bytes stored", 1.0, written, WRITTEN_AIM, is_least=False)
        for kind, plain, aim in (
            ("cold sequential", "plain sequential", COLD_AIM),
            ("cold sequential, one by one", "plain sequential", None),
            ("cold random", "plain random", None),
        ):
            ours, bare = each[kind]["mb_per_second"], each[plain]["mb_per_second"]
            yield Measured(case, f"{kind}, MB/s", ours, "plain file", bare, _ratio(ours, bare), aim)
        used, bare = each["cold sequential"]["cpu_seconds_per_gb"], each["plain sequential"]["mb_per_second"]
        yield Measured(case, "cold sequential, CPU s/GB", used)
        if used:
            allowed = round(1000 / used, 1)
            name = "cold sequential, MB/s that one core allows"
            yield Measured(case, name, allowed, "plain file", bare, _ratio(allowed, bare))
        yield Measured(case, "scrub, MB/s", each["scrub"]["mb_per_second"])
        yield Measured(case, "scrub, CPU s/GB", each["scrub"]["cpu_seconds_per_gb"])
        yield Measured(case, "recovery, s for a GiB of journal", each["recovery"]["seconds_per_gib"])
        yield Measured(case, "recovery, CPU s for a GiB of journal", each["recovery"]["cpu_seconds_per_gib"])


def _compared_measure(
    case: str,
    measure: str,
    results: Mapping[str, Any],
    name: str,
    baseline: str,
    field: str,
    aim: float | None,
    kind: str | None = None,
) -> Measured:
    def figure_of(which: str) -> float:
        found = results[which] if kind is None else results[which][kind]
        return float(found[field])

    ours = figure_of(name)
    if baseline not in results:
        return Measured(case, measure, ours)
    theirs = figure_of(baseline)
    return Measured(case, measure, ours, baseline, theirs, _ratio(ours, theirs), aim)


def _ratio(above: float, below: float) -> float | None:
    """Return the ratio; None if the baseline is too small to measure, such as the processor time of a short run."""
    return round(above / below, 3) if below else None


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
