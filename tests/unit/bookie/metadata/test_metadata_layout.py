"""Paths of ledgers, tasks and locks: the tables of the reference, and from a path back to its id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.layout import (
    LayoutKind,
    ledger_id_of,
    ledger_ids_under,
    ledger_path,
    lock_path,
    parents_of,
    task_branches,
    task_directory,
    task_ledger_id,
    task_path,
    top_names,
)
from bookie.model.ids import LEDGER_ID_MAX

HIERARCHICAL, LONG, FLAT = LayoutKind.HIERARCHICAL, LayoutKind.LONG_HIERARCHICAL, LayoutKind.FLAT
ROOT = "/some/ledgers12"


@pytest.mark.parametrize(
    ("ledger_id", "hierarchical", "long", "flat"),
    [
        (0, "/00/0000/L0000", "/000/0000/0000/0000/L0000", "/L0000000000"),
        (12345, "/00/0001/L2345", "/000/0000/0000/0001/L2345", "/L0000012345"),
        (2147483646, "/21/4748/L3646", "/000/0000/0021/4748/L3646", "/L2147483646"),
        (2147483647, "/000/0000/0021/4748/L3647", "/000/0000/0021/4748/L3647", "/L2147483647"),
        (4294967296, "/000/0000/0042/9496/L7296", "/000/0000/0042/9496/L7296", "/L4294967296"),
        (LEDGER_ID_MAX, "/922/3372/0368/5477/L5807", "/922/3372/0368/5477/L5807", "/L9223372036854775807"),
    ],
)
def test_paths_of_ledgers(ledger_id: int, hierarchical: str, long: str, flat: str) -> None:
    assert ledger_path(HIERARCHICAL, ROOT, ledger_id) == ROOT + hierarchical
    assert ledger_path(LONG, ROOT, ledger_id) == ROOT + long
    assert ledger_path(FLAT, ROOT, ledger_id) == ROOT + flat


@given(st.sampled_from(LayoutKind), st.integers(0, LEDGER_ID_MAX) | st.integers(2147483600, 2147483700))
def test_path_gives_its_ledger(kind: LayoutKind, ledger_id: int) -> None:
    assert ledger_id_of(kind, ROOT, ledger_path(kind, ROOT, ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/available",
        "/idgen/ID-0000000001",
        "/00",
        "/00/0000",
        "/00/0000/0000",
        "/00/0000/L00000",
        "/00/0000/L000x",
        "/00/000/L0000",
        "/00/0000/0000/0000/L0000",
        "/000/0000/L0000",
        "/0a/0000/L0000",
        "/LAYOUT",
        "/ID-0000000001",
        "/underreplication/ledgers/0000/0000/0000/3039/urL0000012345",
        "/99/9999/L9999",  # in the default layout, such an id belongs into the long tree
        "/000/0000/0000/0000/L0000",  # and such an id into the short tree
        "/999/9999/9999/9999/L9999",  # more than 63 bits
        "/00/0000/L\u0661\u0661\u0661\u0661",
    ],
)
def test_other_paths_are_not_ledgers(path: str) -> None:
    assert ledger_id_of(HIERARCHICAL, ROOT, ROOT + path) is None


def test_path_outside_the_root_is_not_a_ledger() -> None:
    for path in ("/other/00/0000/L0000", "/some/ledgers123/00/0000/L0000", "/00/0000/L0000"):
        assert ledger_id_of(HIERARCHICAL, ROOT, path) is None
    assert ledger_id_of(FLAT, ROOT, f"{ROOT}/x/L0000000001") is None


def test_ids_under_a_parent_are_sorted_and_other_names_skipped() -> None:
    names = ["L0002", "L0001", "x", "L1", "ID-0000000007", "L00010"]
    assert ledger_ids_under(HIERARCHICAL, ROOT, f"{ROOT}/01/0002", names) == [1_0002_0001, 1_0002_0002]
    assert ledger_ids_under(LONG, ROOT, f"{ROOT}/01/0002", names) == []
    flat = ["L0000000002", "L0000000001", "L1", "ID-0000000003", "L00000000003", "L10000000000"]
    assert ledger_ids_under(FLAT, ROOT, ROOT, flat) == [1, 2, 10**10]


def test_tree_tops_by_kind() -> None:
    names = ("001", "00", "available", "1", "0000", "LAYOUT", "02", "01", "idgen-long")
    assert top_names(HIERARCHICAL, names) == (["00", "01", "02"], ["001"])
    assert top_names(LONG, names) == ([], ["001"])
    assert top_names(FLAT, names) == ([], [])


@pytest.mark.parametrize(
    ("ledger_id", "leaf"),
    [
        (0, "/0000/0000/0000/0000/urL0000000000"),
        (12345, "/0000/0000/0000/3039/urL0000012345"),
        (1000000, "/0000/0000/000f/4240/urL0001000000"),
        (4294967296, "/0000/0001/0000/0000/urL4294967296"),
        (LEDGER_ID_MAX, "/7fff/ffff/ffff/ffff/urL9223372036854775807"),
    ],
)
def test_paths_of_tasks_and_locks(ledger_id: int, leaf: str) -> None:
    assert task_path(ROOT, ledger_id) == f"{ROOT}/underreplication/ledgers{leaf}"
    name = leaf.rpartition("/")[2]
    assert lock_path(ROOT, ledger_id) == f"{ROOT}/underreplication/locks/{name}"
    assert task_ledger_id(name) == ledger_id


@given(st.lists(st.integers(0, 1 << 18) | st.integers(0, LEDGER_ID_MAX)))
def test_branches_are_the_parents_of_the_directories_of_tasks(ledger_ids: list[int]) -> None:
    directories = [parents_of(task_path(ROOT, ledger_id), ROOT)[0] for ledger_id in ledger_ids]
    assert directories == [task_directory(ROOT, ledger_id) for ledger_id in ledger_ids]
    assert task_branches(ROOT, ledger_ids) == sorted({parents_of(each, ROOT)[0] for each in directories})


@pytest.mark.parametrize("name", ["urL1", "url0000000001", "urL", "urL00000000x1", "urL9223372036854775808", "0000"])
def test_other_names_are_not_tasks(name: str) -> None:
    assert task_ledger_id(name) is None


def test_parents_are_returned_nearest_first() -> None:
    assert parents_of(f"{ROOT}/00/0001/L2345", ROOT) == [f"{ROOT}/00/0001", f"{ROOT}/00"]
    assert parents_of(f"{ROOT}/L0000000001", ROOT) == []
