"""Metrics as data: the only source for the registry of a process, for ``docs/metrics.md`` and for tests.

Names follow Prometheus: prefix, base units, unit suffix, ``_total`` for counters. A label has a fixed set of values,
all exported as 0 from the start, so ``increase()`` counts the first event. Ids of ledgers, entries and runs are never
labels.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "bkheal_"

REQUEST_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
"""From an answer from memory to a failing disk; clients give up before the last one."""
SYNC_BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""From a battery-backed cache to a failing disk."""
WORK_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
"""The work on one ledger: from a few round trips to many gigabytes."""
WAIT_BUCKETS_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""The time with too few copies of some data: seconds to a week."""
RUN_BUCKETS_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0, 86_400.0)
"""One audit run."""


class MetricType(enum.StrEnum):
    """The kind of a metric, with Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric."""

    name: str
    """The full name, as in queries (a histogram adds ``_bucket``, ``_sum`` and ``_count``)."""
    type: MetricType
    help: str
    """What it counts or measures, in one sentence without a final full stop."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names and all allowed values."""
    buckets: tuple[float, ...] = ()
    """Upper bounds; only for a histogram."""
    watch: str = ""
    """Condition that needs attention, for the documentation."""
    is_leader_only: bool = False
    """Only the leading auditor exports it."""
    is_free: bool = False
    """The label values are not fixed (versions, for example): no sample until they are known."""

    @property
    def unit(self) -> str:
        """The unit of the values; empty for plain numbers."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("bytes_per_second", *_UNITS) if stem.endswith(f"_{unit}")), "")

    def combinations(self) -> Iterator[dict[str, str]]:
        """Yield every combination of label values; without labels, one empty combination."""
        for values in itertools.product(*self.labels.values()):
            yield dict(zip(self.labels, values, strict=True))


_UNITS: Final = ("seconds", "bytes", "entries", "ratio", "info")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_FORBIDDEN_LABELS: Final = frozenset({"ledger", "ledger_id", "entry", "entry_id", "run", "run_id", "le", "quantile"})


def problems(definitions: Iterable[Definition]) -> list[str]:
    """Return the violations of Prometheus' rules and ours in ``definitions``; empty if none."""
    found: list[str] = []
    seen: set[str] = set()
    for definition in definitions:
        found += [f"{definition.name}: {problem}" for problem in _problems_of(definition)]
        stem = definition.name.removesuffix("_total")  # OpenMetrics' name for a counter's family
        if stem in seen:
            found.append(f"{definition.name}: {stem} is defined twice")
        seen.add(stem)
    return found


def _problems_of(definition: Definition) -> Iterator[str]:
    name, is_counter = definition.name, definition.type is MetricType.COUNTER
    if not name.startswith(PREFIX) or not _NAME.fullmatch(name):
        yield f"is not {PREFIX}snake_case"
    if is_counter != name.endswith("_total"):
        yield "counters end in _total, and nothing else does"
    if name.endswith(("_count", "_sum", "_bucket", "_created")):
        yield "has a suffix that belongs to histograms"
    if not definition.help or definition.help.endswith(".") or "\n" in definition.help:
        yield "help is one sentence without a full stop"
    if (definition.type is MetricType.HISTOGRAM) != bool(definition.buckets):
        yield "histograms have buckets, and nothing else has"
    if list(definition.buckets) != sorted(set(definition.buckets)):
        yield "buckets do not ascend"
    if definition.type is MetricType.HISTOGRAM and not definition.unit:
        yield "has no unit"
    for label, values in definition.labels.items():
        if label in _FORBIDDEN_LABELS or not _NAME.fullmatch(label):
            yield f"label {label} is reserved, or not bounded"
        if len(set(values)) != len(values) or (not values and not definition.is_free):
            yield f"label {label} needs values, each once"
