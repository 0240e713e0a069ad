"""A bookie's row in the inventory of a run."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from spark_jobs.checks.inventory.asking import InventoryState
from spark_jobs.report.counts import InventoryBookie, InventoryCounts
from spark_jobs.runs.kinds.inventory_part import _bookie, _problem


@pytest.mark.parametrize(
    ("at_ms", "text"), [(1_767_323_045_000, "2026-01-02T03:04:05.000Z"), (0, ""), (1 << 60, ""), (-(1 << 60), "")]
)
def test_an_impossible_time_of_a_bookie_is_unknown_and_not_an_error(at_ms: int, text: str) -> None:
    row = Row(
        bookie_id="a:3181", state="listed", detail="", ledgers=3, damaged=0, scrub="idle",
        scrub_finished_ms=at_ms, collection_finished_ms=at_ms,
    )  # fmt: skip
    found = _bookie(row, {})
    assert (found.scrub_finished, found.collection_finished) == (text, text)


@pytest.mark.parametrize("state", list(InventoryState))
def test_only_bookies_that_do_not_support_lists_may_be_left_out(state: InventoryState) -> None:
    """If a bookie could have listed them but did not, the check is incomplete."""
    listed = InventoryBookie("a:3181", InventoryState.LISTED.value)
    problem = _problem(InventoryCounts(0.0, (listed, InventoryBookie("b:3181", state.value, "why"))))
    is_whole = state in (InventoryState.LISTED, InventoryState.NOT_OFFERED)
    assert problem == ("" if is_whole else f"the ledgers of 1 bookie are not all known: b:3181 ({state.value}: why)")
