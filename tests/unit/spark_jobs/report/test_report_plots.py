"""The geometry of the plots, and the format of numbers on pages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report.page.plots import HEIGHT, WIDTH, line_chart, parts, round_axis_step, short
from spark_jobs.report.tables.run_tables import TrendPoint
from spark_jobs.report.text import percent, plain, signed, some


def point(number: int, found: int, *, is_held: bool = False) -> TrendPoint:
    return TrendPoint(f"run{number}", number * 86_400_000, 100, found, found // 2, True, is_held)


@given(st.lists(st.integers(0, 10**12), max_size=12), st.integers(0, 10**12))
def test_parts_of_a_bar_fill_it_without_gaps_or_overlap(values: list[int], room: int) -> None:
    total = sum(values) + room
    placed = parts(values, total)
    assert len(placed) == len(values)
    for value, part in zip(values, placed, strict=True):
        assert (part.width > 0) == (value > 0)
        assert part.x >= 0
    for before, after in itertools.pairwise(placed):
        assert after.x == pytest.approx(before.x + before.width, abs=0.01)
    if placed:
        assert placed[-1].x + placed[-1].width <= 100.01


@given(st.integers(0, 10**12))
def test_an_axis_has_few_round_steps(highest: int) -> None:
    step = round_axis_step(highest)
    assert str(step).rstrip("0") in ("1", "2", "5")
    assert highest <= 4 * step
    assert step == 1 or highest > step


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), max_size=40))
def test_a_chart_stays_within_its_frame_and_leaves_held_runs_out(runs: list[tuple[int, bool]]) -> None:
    chart = line_chart([point(number, found, is_held=is_held) for number, (found, is_held) in enumerate(runs)])
    checked = [found for found, is_held in runs if not is_held]
    assert (chart is None) == (len(checked) < 2)
    if chart is None:
        return
    assert [dot.ledgers_found for dot in chart.dots] == checked
    assert len(chart.held) == len(runs) - len(checked)
    for dot in chart.dots:
        assert 0 <= dot.x <= WIDTH
        assert 0 <= dot.y <= dot.y_serious <= chart.bottom <= HEIGHT
    by_number = sorted(chart.dots, key=lambda dot: dot.ledgers_found)
    assert [dot.y for dot in by_number] == sorted((dot.y for dot in chart.dots), reverse=True)


def test_numbers_are_formatted_for_people() -> None:
    assert [short(value) for value in (0, 999, 1_500, 20_000, 3_000_000)] == ["0", "999", "1.5k", "20k", "3M"]
    assert [percent(part, 10**6) for part in (0, 1, 5_000, 500_000, 999_999, 10**6)] == [
        "0 %", "< 0.01 %", "0.50 %", "50.0 %", "> 99.9 %", "100 %"
    ]  # fmt: skip
    assert (percent(0, 0), signed(3), signed(-1200)) == ("0 %", "+3", "\N{MINUS SIGN}1,200")


def test_lists_and_names_are_bounded() -> None:
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert len(some(["x" * 500])) == 72
    assert plain("a\u202eb\n\x00") == "a\\u202eb\\n\\x00"
    assert len(plain("x" * 10_000)) < 1_100
