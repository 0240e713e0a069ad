"""The bookie check in Spark equals the plain reference of the simulated audits, with drains and accepted losses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from auditor.safety.lost_entries import lost_fragments
from bookie.metadata.tasks.decisions import Decision, DecisionKind
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.ownership import NO_OWNER
from spark_jobs.checks.accepted_losses import without_accepted
from spark_jobs.checks.bookie_check import bookie_check_by_ledger
from spark_jobs.datasource.ledger_schema import LEDGER_DDL
from spark_jobs.runs.findings import ledgers_judged, to_mark
from tests.simulation.audits.judging import in_order, judged
from tests.worlds.ledgers import name_set

pytestmark = pytest.mark.spark

LEDGERS: Final = 1_000
REGISTERED = name_set("a b c d")
GONE = name_set("x y z")
DRAINING = name_set("d z")
CREATED_MS: Final = 1_700_000_000_000


def drawn_ledger(rng: random.Random) -> LedgerMetadata:
    size = rng.choice([2, 2, 3, 4])
    firsts = (0, 10)[: rng.choice([1, 2])]
    members = sorted(REGISTERED | GONE)
    fragments = tuple(Fragment(EntryId(first), tuple(rng.sample(members, size))) for first in firsts)
    ctime_ms = rng.choice([None, CREATED_MS, CREATED_MS + 1])
    metadata = LedgerMetadata(size, 2, rng.choice([1, 2]), fragments, ctime_ms=ctime_ms)
    return metadata if rng.random() < 0.2 else metadata.closed(EntryId(rng.choice([-1, 3, 10, 20])), 100)


def drawn_decision(ledger_id: int, metadata: LedgerMetadata, rng: random.Random) -> Decision | None:
    """Accept the loss of what is on most lost bookies, or on all of them."""
    lost = lost_fragments(metadata, rng.choice([GONE, GONE, GONE - {BookieId("x")}])) if metadata.is_closed else ()
    if not lost or rng.random() < 0.3:
        return None
    if rng.random() < 0.5:
        lost = tuple(replace(each, entries=(), shared=()) for each in lost)
    ctime_ms = rng.choice([None, metadata.ctime_ms, CREATED_MS])
    return Decision(LedgerId(ledger_id), DecisionKind.LOSS_ACCEPTED, "me", 0, "", lost=lost, ledger_ctime_ms=ctime_ms)


def row_of(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    fragments = [
        {
            "first_entry_id": fragment.first_entry_id,
            "last_entry_id": metadata.fragment_last_entry_id(number),
            "members": list(fragment.members),
        }
        for number, fragment in enumerate(metadata.fragments)
    ]
    return {
        "ledger_id": ledger_id,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest_type": "CRC32C",
        "ctime_ms": metadata.ctime_ms,
        "format_version": 3,
        "fragments": fragments,
        "error": None,
    }


def test_the_check_in_spark_equals_the_plain_reference(spark: SparkSession) -> None:
    rng = random.Random(1)
    ledgers = [drawn_ledger(rng) for _ in range(LEDGERS)]
    drawn = [drawn_decision(ledger_id, metadata, rng) for ledger_id, metadata in enumerate(ledgers)]
    decisions = [decision for decision in drawn if decision is not None]
    rows = [row_of(ledger_id, metadata) for ledger_id, metadata in enumerate(ledgers)]
    table = spark.createDataFrame([(*row.values(), *NO_OWNER, None) for row in rows], LEDGER_DDL)
    found, _ = without_accepted(spark, bookie_check_by_ledger(table, sorted(REGISTERED), DRAINING), decisions)
    marked = [
        replace(each, critical_missing=tuple(sorted(each.critical_missing)), bytes_estimate=0)
        for each in to_mark(ledgers_judged(found))
    ]
    assert marked == in_order(dict(judged(rows, REGISTERED, DRAINING, decisions)))
    without_decisions = in_order(dict(judged(rows, REGISTERED, DRAINING, ())))
    assert 10 < len(without_decisions) - len(marked) < len(decisions) - 10, "hardly any decision accepts, or refuses"
