"""Spark SQL compares copies with the metadata like the pure function: random ledgers in one Spark job."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookie.model.ids import BookieId
from bookie.model.ownership import NO_OWNER
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.checks.inventory.asking import HELD_DDL
from spark_jobs.checks.inventory.comparison import damage_findings, suspects
from spark_jobs.checks.inventory.verdict import Copy, is_placed
from spark_jobs.datasource.ledger_schema import LEDGER_DDL
from tests.spark.test_metadata_lint import drawn, row

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_suspects_in_spark_equal_those_of_the_pure_function(spark: SparkSession) -> None:
    rng = random.Random(110)
    metadata = {number: drawn(rng) for number in range(400)}
    unreadable = (400, *[None] * 10, "ledger metadata is truncated: 12 bytes", *NO_OWNER, None)
    ledgers = spark.createDataFrame([*(row(*each) for each in metadata.items()), unreadable], LEDGER_DDL)
    copies = []
    for ledger_id in range(403):
        for bookie in rng.sample("abcde", 2):
            first, last = sorted(rng.choices(range(12), k=2))
            copies.append((bookie, ledger_id, first, last))
    with_a = next(number for number, each in metadata.items() if "a" in each.members())
    without_a = next(number for number, each in metadata.items() if "a" not in each.members())
    damaged = [("a", number, [5, 3]) for number in (with_a, without_a, 400, 401)]
    rows: list[tuple[Any, ...]] = [(*copy, None, None) for copy in copies]
    rows += [(bookie, number, None, None, entries, None) for bookie, number, entries in damaged]
    rows.append(("a", None, None, None, None, ("listed", "", 3, 0, "", 0, 0)))
    held = spark.createDataFrame(rows, HELD_DDL)

    found = {
        (each["bookie_id"], row["ledger_id"], each["first_entry_id"], each["last_entry_id"])
        for row in suspects(held, ledgers).collect()
        for each in row["copies"]
    }
    expected = {
        copy
        for copy in copies
        if copy[1] > 400
        or (copy[1] < 400 and not is_placed(metadata[copy[1]], Copy(BookieId(copy[0]), copy[2], copy[3])))
    }
    assert 6 < len(expected) < len(copies) - 6, "the draw has too few of one kind"
    assert found == expected

    damage = damage_findings(held, ledgers)
    assert damage.dtypes == spark.createDataFrame([], FINDING_DDL).dtypes
    assert [(each["ledger_id"], each["kind"], each["detail"]) for each in damage.collect()] == [
        (with_a, "KNOWN_DAMAGE", "a has 2 damaged entries: 3, 5")
    ]
