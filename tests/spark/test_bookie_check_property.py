"""Severity and bytes to copy in Spark SQL equal the pure functions: a thousand random fragments in one Spark job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.model.ownership import NO_OWNER
from bookie.model.severity import bytes_to_copy, fragment_health
from spark_jobs.checks.bookie_check import bookie_check
from spark_jobs.datasource.ledger_schema import LEDGER_DDL

pytestmark = pytest.mark.spark

LIVE = ["live-0", "live-1", "live-2", "live-3"]
GONE = ["gone-0", "gone-1"]
DRAINING = frozenset({"live-2", "live-3", "gone-1"})


@st.composite
def fragment_row(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw a ledger of one fragment: up to 7 members, a short, long, empty or unknown range, small or huge ids."""
    size = draw(st.integers(1, 7))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(0, write_quorum))
    members = draw(st.lists(st.sampled_from([*LIVE, *GONE]), min_size=size, max_size=size))
    first = draw(st.integers(0, 20) | st.integers(0, (1 << 63) - 100))
    last = draw(st.none() | st.integers(-3, 12).map(lambda more: first + more) | st.just(-1))
    state = "OPEN" if last is None else "CLOSED"
    length = None if last is None else draw(st.integers(0, 1 << 40))
    return (state, size, write_quorum, ack_quorum, last, length, "CRC32C", None, 3, [(first, last, members)], None)


def drawn_rows(count: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []

    @seed(20)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(fragment_row())
    def collect(row: tuple[Any, ...]) -> None:
        rows.append((len(rows), *row))

    collect()
    return rows


def test_severity_and_bytes_in_spark_equal_those_of_the_pure_functions(spark: SparkSession) -> None:
    rows = drawn_rows(1_000)
    table = bookie_check(spark.createDataFrame([(*row, *NO_OWNER, None) for row in rows], LEDGER_DDL), LIVE, DRAINING)
    found = {row["ledger_id"]: row for row in table.collect()}
    expected = {}
    for ledger_id, state, size, write_quorum, ack_quorum, end, length, *_, fragments, _ in rows:
        ((first, last, members),) = fragments
        is_live, leaving = [member in LIVE for member in members], [member in DRAINING for member in members]
        health = fragment_health(is_live, write_quorum, ack_quorum, first, last, leaving, members=members)
        metadata = LedgerMetadata(
            size, write_quorum, ack_quorum, (Fragment(first, tuple(members)),), LedgerState[state], end, length
        )
        if health.severity is not None:
            expected[ledger_id] = (
                list(health.missing_positions),
                health.copies_min,
                health.severity.label,
                health.severity,
                pytest.approx(bytes_to_copy(metadata, 0, len(health.missing_positions), health.severity), abs=0.5),
            )
    actual = {
        ledger_id: (
            row["missing_positions"],
            row["copies_min"],
            row["severity"],
            row["severity_rank"],
            row["bytes_estimate"] or 0,
        )
        for ledger_id, row in found.items()
    }
    assert actual == expected
    assert len({severity for _, _, severity, *_ in expected.values()}) == 6, "a severity of this check was not drawn"
