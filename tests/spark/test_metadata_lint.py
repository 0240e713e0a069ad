"""The metadata lint in Spark SQL equals the pure functions: thousands of random ledgers in one Spark job."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.metadata_faults import MetadataFault, faults
from bookie.model.ownership import NO_OWNER
from spark_jobs.checks.bookie_check import bookie_check
from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.metadata_check import metadata_faults, stuck_recoveries
from spark_jobs.datasource.ledger_schema import LEDGER_DDL
from tests.worlds.metadata_faults import fault_of

pytestmark = pytest.mark.spark

REFUSED = [
    "impossible ledger metadata: fragment 5 does not follow 5",
    "impossible ledger metadata: fragment 3 does not follow 5",
    "impossible ledger metadata: fragment -4 does not follow None",
    "impossible ledger metadata: no fragment",
    "impossible ledger metadata: fragment 0 has 4 members, E=3",
    "impossible ledger metadata: E=3 Qw=4 Qa=2, need E >= Qw >= Qa and Qw >= 1",
    "closed ledger metadata without a last entry",
    "ledger metadata lacks a required field, or has an unknown state",
    "ledger metadata has an unknown digest type",
    "ledger metadata names 'a b', which is not a bookie id",
    "a key of the custom metadata is not text",
    "ledger metadata of format 4, only 1 to 3 are known",
    "ledger metadata without a format version",
    "ledger metadata is truncated: 12 bytes",
    "6 bytes that do not begin like ledger metadata",
    "access denied: the node's ACL does not let this session read it",
]


def drawn(rng: random.Random) -> LedgerMetadata:
    starts = sorted(rng.sample(range(8), rng.randint(1, 3)))
    fragments = tuple(Fragment(EntryId(each), tuple(map(BookieId, rng.choices("abcd", k=3)))) for each in starts)
    metadata = LedgerMetadata(3, 2, rng.randint(0, 2), fragments)
    return metadata if rng.random() < 0.2 else metadata.closed(EntryId(rng.randint(-3, 9)), rng.choice([-1, 0, 0, 70]))


def row(ledger_id: int, metadata: LedgerMetadata) -> tuple[Any, ...]:
    sizes = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    end = (metadata.last_entry_id, metadata.length)
    parts = [
        (each.first_entry_id, metadata.fragment_last_entry_id(index), list(each.members))
        for index, each in enumerate(metadata.fragments)
    ]
    return (ledger_id, metadata.state.name, *sizes, *end, "CRC32C", None, 3, parts, None, *NO_OWNER, None)


def test_metadata_faults_in_spark_equal_those_of_the_pure_functions(spark: SparkSession) -> None:
    rng = random.Random(98)
    readable = [drawn(rng) for _ in range(1_500)]
    rows = [row(number, metadata) for number, metadata in enumerate(readable)]
    rows += [(len(rows) + number, *[None] * 10, reason, *NO_OWNER, None) for number, reason in enumerate(REFUSED)]
    table = spark.createDataFrame(rows, LEDGER_DDL)
    lint = metadata_faults(table)
    assert lint.dtypes == bookie_check(table, []).dtypes, "the columns differ from those of the other checks"
    found = lint.collect()
    expected = {
        (number, fault.label, index) for number, metadata in enumerate(readable) for fault, index in faults(metadata)
    }
    expected |= {
        (len(readable) + number, fault.label, None)
        for number, reason in enumerate(REFUSED)
        if (fault := fault_of(reason)) is not None
    }
    assert {(each["ledger_id"], each["kind"], each["fragment_index"]) for each in found} == expected
    assert len(found) == len(expected), "a fault is reported more than once for a ledger and fragment"
    assert {name for _, name, _ in expected} == {
        fault.label for fault in MetadataFault if fault is not MetadataFault.STUCK_RECOVERY
    }, "a fault was not drawn"
    assert not any(each["severity"] or each["missing"] for each in found), "a fault would lead to a mark"
    assert all(each["detail"] for each in found)


def test_every_fault_is_a_kind_of_finding() -> None:
    assert {fault.label for fault in MetadataFault} <= {kind.value for kind in FindingKind}


def test_only_recoveries_in_the_given_list_are_stuck(spark: SparkSession) -> None:
    rows = [
        (number, "IN_RECOVERY", 1, 1, 1, None, None, "CRC32C", None, 3, [(0, None, ["a"])], None, *NO_OWNER, None)
        for number in range(3)
    ]
    table = spark.createDataFrame(rows, LEDGER_DDL)
    (found,) = stuck_recoveries(table, {1: 1_000}).collect()
    assert (found["ledger_id"], found["kind"], found["state"]) == (1, "STUCK_RECOVERY", "IN_RECOVERY")
    assert found["detail"] == "its metadata has not changed since 1970-01-01T00:00:01.000Z"
    assert stuck_recoveries(table, {}).collect() == []
