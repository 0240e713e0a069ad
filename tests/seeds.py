"""Seeds of random histories: the gate runs some of them, the long suites the others."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(first: int, end: int, in_gate: int) -> list[int | ParameterSet]:
    """Return the seeds from ``first`` to ``end - 1``; those after the first ``in_gate`` run in the long suites only."""
    searched = range(first + in_gate, end)
    return [*range(first, first + in_gate), *(pytest.param(seed, marks=pytest.mark.long) for seed in searched)]
