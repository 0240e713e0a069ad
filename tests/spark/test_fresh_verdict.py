"""The verdict on one ledger equals that of the check of all ledgers: hundreds of random ledgers in one Spark job."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bookie.metadata.ledgers.serde import encode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from spark_jobs.checks.bookie_check import bookie_check_by_ledger
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.runs.findings import ledgers_judged, to_mark
from spark_jobs.runs.marking.fresh_verdict import FreshVerdict, fresh_verdict

pytestmark = pytest.mark.spark

LIVE = frozenset(BookieId(f"live-{number}:1") for number in range(4))
GONE = [BookieId(f"gone-{number}:1") for number in range(3)]
LEDGERS = 800


def ledger(rng: random.Random) -> LedgerMetadata:
    """Draw a ledger of up to three fragments, some empty or short, of up to five members; a bookie may occur twice."""
    size = rng.randint(1, 5)
    write_quorum = rng.randint(1, size)
    starts = sorted(rng.sample(range(12), rng.randint(1, 3)))
    bookies = [*sorted(LIVE), *GONE]
    fragments = tuple(Fragment(EntryId(start), tuple(rng.choices(bookies, k=size))) for start in starts)
    metadata = LedgerMetadata(size, write_quorum, rng.randint(0, write_quorum), fragments)
    return metadata if rng.random() < 0.3 else metadata.closed(EntryId(starts[-1] + rng.randint(-1, 8)), 100)


def test_a_single_ledger_gets_the_same_verdict_as_in_a_check_of_all_ledgers(spark: SparkSession) -> None:
    rng = random.Random(7)
    ledgers = {LedgerId(number): ledger(rng) for number in range(LEDGERS)}
    columns = LedgerColumns(LIVE)
    for ledger_id, metadata in ledgers.items():
        columns.add(ledger_id, encode(metadata))
    rows = spark.createDataFrame(pa.Table.from_batches([columns.take_batch()]))
    judged = ledgers_judged(bookie_check_by_ledger(rows, sorted(LIVE))).persist()
    ranks = {row["ledger_id"]: row["severity_rank"] for row in judged.collect()}
    expected = {
        found.ledger_id: (ranks[found.ledger_id], found.missing, frozenset(found.critical_missing))
        for found in to_mark(judged)
    }
    judged.unpersist()

    verdicts = [fresh_verdict(ledger_id, metadata, LIVE) for ledger_id, metadata in ledgers.items()]
    assert {each.ledger.ledger_id: values(each) for each in verdicts if each is not None} == expected
    assert len(expected) > LEDGERS / 2


def values(verdict: FreshVerdict) -> tuple[int, tuple[BookieId, ...], frozenset[BookieId]]:
    ledger = verdict.ledger
    return verdict.severity.value, ledger.missing, frozenset(ledger.critical_missing)
