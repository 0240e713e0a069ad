"""The rings of tests: what each may cost (``rings.toml``), and a runner for many of them side by side."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
RINGS: Final = Path(__file__).with_name("rings.toml")


@dataclass(frozen=True, slots=True)
class Ring:
    """One folder of tests."""

    name: str
    budget_s: float
    """What it may take beside the others, on two cores."""
    test_limit_s: float
    """After this one test is ended."""


def load_rings(path: Path = RINGS) -> Sequence[Ring]:
    """Every ring, in the order of the file."""
    return [Ring(name, **table) for name, table in tomllib.loads(path.read_text()).items()]
