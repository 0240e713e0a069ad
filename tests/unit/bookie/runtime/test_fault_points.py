"""Unlikely branches are taken only on request, and only while the request is active."""

from __future__ import annotations

import pytest

from bookie.runtime.fault_points import fault_point, inject_faults


def test_no_fault_point_fires_outside_a_simulation() -> None:
    assert not fault_point("journal.roll_early")


def test_a_simulation_decides_at_each_fault_point() -> None:
    asked: list[str] = []

    def every_other(name: str) -> bool:
        asked.append(name)
        return len(asked) % 2 == 0

    with inject_faults(every_other):
        assert [fault_point("journal.roll_early") for _ in range(4)] == [False, True, False, True]
    assert asked == ["journal.roll_early"] * 4
    assert not fault_point("journal.roll_early")


def test_an_error_ends_the_simulation_as_well() -> None:
    with pytest.raises(KeyError), inject_faults(lambda name: True):
        raise KeyError
    assert not fault_point("journal.roll_early")
