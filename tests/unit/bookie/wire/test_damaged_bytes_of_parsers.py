"""Parsers of bytes from disks and the network reject damage with the errors that their callers expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.command import crashes
from tests.fuzzing.parsers import NO_TARGET, TARGET_OF, parsing_modules
from tests.fuzzing.target import HOSTILE
from tests.fuzzing.targets import TARGETS, crash_of, describe


@pytest.mark.parametrize("name", TARGETS)
def test_no_parser_crashes_on_intact_hostile_or_damaged_input(name: str) -> None:
    target = TARGETS[name]
    for data in target.corpus:
        target.parse(data)
    for data in (*HOSTILE, *target.hostile):
        if (error := crash_of(target, data)) is not None:
            pytest.fail(describe(name, "of its own", data, error))
    assert list(crashes(name, "gate", target.gate_inputs)) == []


def test_each_module_with_a_parser_has_a_target() -> None:
    found = set(parsing_modules(Path(__file__).parents[4]))
    assert found - TARGET_OF.keys() - NO_TARGET.keys() == set(), "add a target to tests/fuzzing and a row to parsers.py"
    assert (TARGET_OF.keys() | NO_TARGET.keys()) - found == set(), "these modules no longer have a parser"
    assert set(TARGET_OF.values()) <= TARGETS.keys()
