"""Run ids: the time that they contain, and which of them come from a wrong clock."""

from __future__ import annotations

import random

import pytest

from bookie.model.run import is_misdated, new_run_id, newest_first, started_ms

NOW_MS = 1_767_323_045_000
DAY_MS = 86_400_000


def test_an_id_has_the_time_of_the_start() -> None:
    assert started_ms(new_run_id(NOW_MS + 999, random.Random(1))) == NOW_MS


@pytest.mark.parametrize("run_id", ["", "run", "manifest.json", "20261399T000000Z-000000", "20260102-000000"])
def test_an_id_of_another_form_has_no_time(run_id: str) -> None:
    assert started_ms(run_id) is None
    assert not is_misdated(run_id, 0)


def test_an_id_a_day_in_the_future_is_from_a_wrong_clock() -> None:
    run_id = new_run_id(NOW_MS, random.Random(1))
    assert is_misdated(run_id, NOW_MS - DAY_MS)
    assert is_misdated(f"{run_id}.placement", NOW_MS - DAY_MS)
    assert not is_misdated(run_id, NOW_MS - DAY_MS + 1)
    assert not is_misdated(run_id, NOW_MS + DAY_MS)


def test_an_id_from_a_clock_that_was_ahead_is_not_the_newest() -> None:
    rng = random.Random(1)
    ahead, older, newer, soon = (
        new_run_id(NOW_MS + shift_ms, rng) for shift_ms in (365 * DAY_MS, -DAY_MS, -1000, DAY_MS - 1000)
    )
    assert newest_first([older, ahead, "run", newer, soon], NOW_MS) == ["run", soon, newer, older, ahead]
    assert newest_first([older, ahead], NOW_MS + 366 * DAY_MS) == [ahead, older]
