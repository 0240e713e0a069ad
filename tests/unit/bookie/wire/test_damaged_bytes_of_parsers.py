"""Parsers of bytes from disks and the network answer damage with the errors that their callers expect."""

from __future__ import annotations

import pytest

from tests.fuzzing.command import crashes
from tests.fuzzing.targets import TARGETS

INPUTS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_intact_inputs_and_a_few_hundred_damaged_ones_crash_no_parser(name: str) -> None:
    for data in TARGETS[name].corpus:
        TARGETS[name].parse(data)
    assert list(crashes(name, "gate", INPUTS)) == []
