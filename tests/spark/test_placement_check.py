"""The placement check on literal tables, compared with the pure verdict."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.model.ids import BookieId
from bookie.model.isolation import Isolation
from bookie.model.ownership import NO_OWNER
from bookie.model.spread import PlacementPolicy
from spark_jobs.checks.bookie_check import bookie_check
from spark_jobs.checks.placement_check import ensemble_verdicts, placed_fragments, placement_check
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from spark_jobs.checks.rack_matrix import cells_of, rack_cells
from spark_jobs.datasource.ledger_schema import LEDGER_DDL
from spark_jobs.group_rows import groups_text, parse_groups_text
from spark_jobs.runs.kinds.rack_matrix import RackMatrix

pytestmark = pytest.mark.spark

RACKS = {"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r2", "e": "/r3", "o\\f": "/r3"}
GROUPS = {"red": "ace", "blue": "bd"}
TOPOLOGY = parse_topology(
    json.dumps({**{name: {each: {"rack": RACKS[each]} for each in GROUPS[name]} for name in GROUPS}, "o\\f": "/r3"})
)
UP = Bookies(frozenset({BookieId("c"), BookieId("e")}), frozenset())
NAMES = ["a", "b", "c", "d", "e", "o\\f", "unknown"]
RULES = PlacementRules.of(PlacementPolicy(min_racks=2), TOPOLOGY, map(BookieId, NAMES), UP)
GROUPS_OF_LEDGERS = [
    None,
    groups_text(Isolation(frozenset({"red"}))),
    groups_text(Isolation(frozenset({"red"}), frozenset({"blue"}))),
    groups_text("no JSON"),
]

Parts = Sequence[tuple[int, int | None, Sequence[str]]]


def row(
    ledger_id: int,
    parts: Parts,
    write_quorum: int = 2,
    *,
    last: int | None = None,
    wish: str | None = None,
) -> tuple[Any, ...]:
    state = "OPEN" if parts[-1][1] is None else "CLOSED"
    end = parts[-1][1] if last is None else last
    fragments = [(first, until, list(members)) for first, until, members in parts]
    return (
        ledger_id,
        state,
        len(parts[0][2]),
        write_quorum,
        1,
        end,
        100,
        "CRC32C",
        None,
        3,
        fragments,
        None,
        *NO_OWNER,
        wish,
    )


def judged(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the findings in order, and the verdicts."""
    fragments = placed_fragments(table(spark, rows))
    verdicts = ensemble_verdicts(fragments, RULES).cache()
    found = placement_check(fragments, verdicts).orderBy("ledger_id", "fragment_index").collect()
    return [each.asDict() for each in found], [each.asDict() for each in verdicts.collect()]


def table(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, LEDGER_DDL)


def test_each_kind_of_fragment_gets_its_finding(spark: SparkSession) -> None:
    found, verdicts = judged(
        spark,
        [
            row(1, [(0, 9, "ac")]),
            row(2, [(0, 9, "ab")]),
            row(3, [(0, 9, "ab"), (10, None, "cd")]),
            row(4, [(0, 9, "ac"), (10, 19, "ab")], last=9),  # the second fragment is beyond the end
            row(5, [(0, 9, ["a", "unknown"])]),
            row(6, [(0, -1, "ab")]),
            row(7, [(0, 9, "ab")], write_quorum=1),
            (8, *[None] * 10, "cut short", *NO_OWNER, None),
            row(9, [(0, 9, "ad")], wish=GROUPS_OF_LEDGERS[1]),
            row(10, [(0, 9, "ad")], wish=GROUPS_OF_LEDGERS[3]),
        ],
    )
    assert [(each["ledger_id"], each["fragment_index"], each["kind"], each["is_fixable"]) for each in found] == [
        (2, 0, "MISPLACED", True),
        (3, 0, "MISPLACED", True),
        (3, 1, "MISPLACED", True),
        (5, 0, "UNKNOWN_PLACE", False),
        (9, 0, "MISPLACED", True),
        (10, 0, "UNKNOWN_PLACE", False),
    ]
    first, _, tail, unknown, stranger, unreadable = found
    assert (stranger["severity"], stranger["detail"]) == ("misplaced", "d outside the bookie groups red")
    assert (unreadable["severity"], unreadable["detail"]) == (None, "no JSON")
    assert (first["severity"], first["severity_rank"], first["missing"], first["entries"]) == ("misplaced", 6, [], 10)
    assert first["detail"] == "positions 0, 1 are in /r1 and need 2 racks"
    assert (tail["fragment_last_entry_id"], tail["is_last_fragment"], tail["state"]) == (None, True, "OPEN")
    assert (unknown["severity"], unknown["severity_rank"]) == (None, None)
    counts = {(tuple(each["members"]), each["write_quorum"]): each["fragments"] for each in verdicts}
    assert counts[("a", "c"), 2] == 2
    assert counts[("a", "b"), 2] == 2


def test_the_verdict_in_spark_is_that_of_the_pure_function(spark: SparkSession) -> None:
    rng = random.Random(4)
    rows = []
    for ledger_id in range(300):
        size = rng.randint(1, 5)
        rows.append(
            row(ledger_id, [(0, 9, rng.sample(NAMES, size))], rng.randint(1, size), wish=rng.choice(GROUPS_OF_LEDGERS))
        )
    found, verdicts = judged(spark, rows)
    expected = {}
    for ledger_id, each in enumerate(rows):
        verdict = RULES.judge(each[10][0][2], each[3], *parse_groups_text(each[-1] or ""))
        if verdict.spread in (Spread.MISPLACED, Spread.UNKNOWN, Spread.UNREADABLE_GROUPS):
            expected[ledger_id] = (verdict.spread is Spread.MISPLACED, verdict.detail, verdict.is_fixable)
    assert {each["ledger_id"]: (each["kind"] == "MISPLACED", each["detail"], each["is_fixable"]) for each in found} == (
        expected
    )
    assert sum(each["fragments"] for each in verdicts) == len(rows)
    judged_once = {(tuple(each["members"]), each["write_quorum"], each["groups_text"]) for each in verdicts}
    assert len(judged_once) == len(verdicts)
    assert {each["is_outside"] for each in verdicts} == {True, False}


def test_the_rack_matrix_in_spark_equals_the_sum_of_the_pure_cells(spark: SparkSession) -> None:
    rng = random.Random(99)
    rows, expected = [], RackMatrix()
    for ledger_id in range(200):
        starts = sorted({0, *rng.sample(range(1, 30), rng.choice([0, 0, 1, 2]))})
        members = [rng.sample(NAMES, 3) for _ in starts]
        last = rng.choice([None, 9, 19, 29])
        ends = [*(start - 1 for start in starts[1:]), last]
        rows.append(row(ledger_id, list(zip(starts, ends, members, strict=True)), last=last))
        held = [
            (
                each,
                100 / (last + 1) * (min(last if end is None else end, last) - start + 1) if last is not None else 0.0,
            )
            for start, end, each in zip(starts, ends, members, strict=True)
            if end is None or min(end, 29 if last is None else last) >= start
        ]
        ids = [list(map(BookieId, each)) for each, _ in held]
        expected.plus(RackMatrix(dict.fromkeys(cells_of(ids, TOPOLOGY), (1, 0, 0.0))))
        for each, size in zip(ids, (size for _, size in held), strict=True):
            expected.plus(RackMatrix(dict.fromkeys(cells_of([each], TOPOLOGY), (0, 1, size))))
    ledgers, found = table(spark, rows), RackMatrix()
    found.add(rack_cells(ledgers, ensemble_verdicts(placed_fragments(ledgers), RULES), TOPOLOGY))
    assert (found.numbers, found.pairs) == (expected.numbers, expected.pairs)
    assert [each.racks for each in found.numbers] == [2, 3]


def test_a_damaged_last_entry_does_not_end_the_check(spark: SparkSession) -> None:
    huge = (1 << 63) - 1
    found, verdicts = judged(spark, [row(1, [(0, huge, "ab")]), row(2, [(0, 9, "ab")])])
    assert [(each["ledger_id"], each["entries"]) for each in found] == [(1, None), (2, 10)]
    (verdict,) = verdicts
    assert (verdict["fragments"], verdict["payload_bytes"]) == (2, pytest.approx(200))


def test_the_columns_are_those_of_every_check(spark: SparkSession) -> None:
    rows = table(spark, [row(1, [(0, 9, "ab")])])
    fragments = placed_fragments(rows)
    found = placement_check(fragments, ensemble_verdicts(fragments, RULES)).drop("is_fixable")
    assert found.dtypes == bookie_check(rows, []).dtypes


def test_without_groups_in_the_topology_the_groups_of_a_ledger_are_ignored(spark: SparkSession) -> None:
    rows = table(
        spark, [row(1, [(0, 9, "ac")], wish=GROUPS_OF_LEDGERS[3]), row(2, [(0, 9, "ac")], wish=GROUPS_OF_LEDGERS[1])]
    )
    verdicts = ensemble_verdicts(placed_fragments(rows, has_groups=False), RULES).collect()
    assert [(each["groups_text"], each["fragments"], each["spread"]) for each in verdicts] == [("", 2, "met")]
