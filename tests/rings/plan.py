"""The pytest processes of a run: one for each ring, or several with a share of its files."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
RINGS: Final = Path(__file__).with_name("rings.toml")
OVER_BUDGET: Final = 1.5
"""The summary reports a ring that takes more than this many times its budget."""


@dataclass(frozen=True, slots=True)
class Ring:
    """One folder of tests."""

    name: str
    budget_s: float
    """The wall time of all its processes together while the other rings run too, on two cores."""
    test_limit_s: float
    """A test that takes longer is stopped, because it hangs."""
    parts: int = 1
    """How many processes share its files."""


@dataclass(frozen=True, slots=True)
class Part:
    """One pytest process: some files of one ring."""

    ring: str
    number: int
    files: Sequence[Path]

    @property
    def name(self) -> str:
        """The name of the part, unique in a run and valid as a file name."""
        return f"{self.ring}-{self.number}"


def load_rings(path: Path = RINGS) -> Sequence[Ring]:
    """Return all rings, in the order in which their processes start."""
    return [Ring(name, **table) for name, table in tomllib.loads(path.read_text()).items()]


def parts_of(ring: Ring, files: Sequence[Path]) -> Sequence[Part]:
    """Distribute ``files``, in order, over the processes of ``ring``. A process without a file is left out.

    Args:
        ring: the ring, with its number of processes.
        files: the test files of the ring.
    """
    dealt = [Part(ring.name, number + 1, list(files[number :: ring.parts])) for number in range(ring.parts)]
    return [part for part in dealt if part.files]


def files_of(ring: str, tests: Path = TESTS) -> Sequence[Path]:
    """Return the test files of a ring, sorted by path."""
    return sorted((tests / ring).rglob("test_*.py"))
