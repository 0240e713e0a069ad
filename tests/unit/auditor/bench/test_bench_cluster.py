"""The figures of the benchmark of a whole cluster."""

from __future__ import annotations

from auditor.bench.repairs.cluster import Finished, order, percentiles


def test_the_result_counts_less_urgent_repairs_begun_before_the_last_more_urgent_one() -> None:
    ends = ((0.5, 1.0, 1), (0.6, 1.5, 2), (0.9, 2.0, 1), (2.5, 3.0, 3), (3.0, 4.0, 2))

    figures = order([Finished(*each) for each in ends])

    assert list(figures) == ["1 copy left", "2 copies left", "3 copies left"]
    assert [each["less_urgent_began_sooner"] for each in figures.values()] == [1, 1, 0]
    assert figures["2 copies left"] == {
        "ledgers": 2,
        "first_repaired_s": 1.5,
        "last_repaired_s": 4.0,
        "less_urgent_began_sooner": 1,
    }


def test_one_append_in_a_hundred_reaches_the_99th_percentile() -> None:
    assert percentiles([0.001 * n for n in range(1, 101)]) == {"p50": 51.0, "p99": 100.0, "max": 100.0, "appends": 100}
    assert percentiles([0.004]) == {"p50": 4.0, "p99": 4.0, "max": 4.0, "appends": 1}
