"""In which racks the members of ensembles are."""

from __future__ import annotations

from bookie.metadata.bookies.topology import parse_topology
from bookie.model.ids import BookieId
from spark_jobs.checks.rack_matrix import Cell, cells_of
from spark_jobs.runs.kinds.rack_matrix import PAIRS_MAX, RackMatrix

TOPOLOGY = parse_topology('{"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r3"}')


def cells(*ensembles: str) -> set[Cell]:
    return cells_of([list(map(BookieId, members)) for members in ensembles], TOPOLOGY)


def test_pairs_are_two_different_racks_or_two_bookies_in_one_rack() -> None:
    assert cells("acd") == {(3, None, None), (None, "/r1", "/r2"), (None, "/r1", "/r3"), (None, "/r2", "/r3")}
    assert cells("ab") == {(1, None, None), (None, "/r1", "/r1")}
    assert cells("a") == {(1, None, None)}


def test_a_ledger_counts_once_for_a_pair_and_with_its_fewest_racks() -> None:
    assert cells("ac", "bc", "ab") == {(1, None, None), (None, "/r1", "/r2"), (None, "/r1", "/r1")}


def test_an_ensemble_with_a_member_without_a_location_is_left_out() -> None:
    assert cells("ax") == set()
    assert cells("ax", "cd") == cells("cd")


def test_only_the_largest_pairs_are_listed() -> None:
    many: dict[Cell, tuple[int, int, float]] = {
        (None, f"/r{number:04d}", "/s"): (number, number, 0.4) for number in range(PAIRS_MAX + 1)
    }
    matrix = RackMatrix({**many, (2, None, None): (3, 4, 5.6)})
    assert (len(matrix.pairs), matrix.is_cut, matrix.pairs[0].first) == (PAIRS_MAX, True, "/r0001")
    matrix.plus(RackMatrix({(2, None, None): (1, 1, 1.0), (1, None, None): (1, 1, 0.0)}))
    assert [(each.racks, each.ledgers, each.fragments, each.payload_bytes) for each in matrix.numbers] == [
        (1, 1, 1, 0),
        (2, 4, 5, 7),
    ]
