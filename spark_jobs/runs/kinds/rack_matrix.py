"""The placement matrix of a run, added up over its chunks. Only ``add`` uses Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame

from spark_jobs.checks.rack_matrix import Cell
from spark_jobs.report.counts import RackNumber, RackPair

PAIRS_MAX: Final = 1_000
"""Largest number of pairs in a report: all pairs of up to 44 racks."""


@dataclass(slots=True)
class RackMatrix:
    """The sums over some chunks of different ledgers."""

    cells: dict[Cell, tuple[int, int, float]] = field(default_factory=dict)

    def add(self, cells: DataFrame) -> None:
        """Add the rows of ``rack_cells``. This runs a Spark job."""
        for row in cells.collect():
            key = (row["racks"], row["first"], row["second"])
            self._add(key, (row["ledgers"], row["fragments"], row["payload_bytes"]))

    def plus(self, other: RackMatrix) -> None:
        """Add the sums of other ledgers."""
        for key, sums in other.cells.items():
            self._add(key, sums)

    @property
    def numbers(self) -> tuple[RackNumber, ...]:
        """The sums by number of racks."""
        found = sorted((racks, sums) for (racks, _, _), sums in self.cells.items() if racks is not None)
        return tuple(RackNumber(racks, ledgers, fragments, round(size)) for racks, (ledgers, fragments, size) in found)

    @property
    def pairs(self) -> tuple[RackPair, ...]:
        """The sums by pair of racks."""
        found = [
            RackPair(first, second, ledgers, fragments, round(size))
            for (_, first, second), (ledgers, fragments, size) in self.cells.items()
            if first is not None and second is not None
        ]
        largest = sorted(found, key=lambda pair: (-pair.ledgers, pair.first, pair.second))[:PAIRS_MAX]
        return tuple(sorted(largest, key=lambda pair: (pair.first, pair.second)))

    @property
    def is_cut(self) -> bool:
        """Whether ``pairs`` leaves some out."""
        return sum(first is not None for _, first, _ in self.cells) > PAIRS_MAX

    def _add(self, key: Cell, sums: tuple[int, int, float]) -> None:
        ledgers, fragments, size = self.cells.get(key, (0, 0, 0.0))
        self.cells[key] = (ledgers + sums[0], fragments + sums[1], size + sums[2])
