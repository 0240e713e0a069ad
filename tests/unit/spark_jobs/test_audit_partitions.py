"""Planning of scans: balance, options, and completeness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.access import ZooKeeperAccess, current_access, set_current_access
from bookie.metadata.layout import LayoutKind, ledger_path
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.uri import InvalidUriError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from spark_jobs.datasource import ledgers
from spark_jobs.datasource.ledgers import LedgerPartition, LedgerReader
from spark_jobs.datasource.options import (
    FIRST_LEDGER,
    LAST_LEDGER,
    METADATA_URI,
    InvalidOptionError,
    LedgerOptions,
    ledger_options,
)
from spark_jobs.datasource.partitions import (
    LEDGERS_PER_PARTITION_MAX,
    LeafParent,
    balance,
    parents_of,
    parents_text,
    partition_count,
)
from spark_jobs.image.leaves import LeafStat
from spark_jobs.runs.reading.completeness import ScanTotals, incomplete_parents, problems
from tests.worlds.cluster import formatted

PARENTS = st.lists(st.integers(0, 10_000), max_size=40).map(
    lambda counts: [LeafParent(f"/ledgers/00/{number:04d}", count) for number, count in enumerate(counts)]
)


@given(PARENTS, st.integers(1, 12))
def test_every_parent_is_in_exactly_one_group(parents: list[LeafParent], count: int) -> None:
    groups = balance(parents, count)
    assert len(groups) == min(count, len(parents))
    assert all(groups)
    assert sorted((parent for group in groups for parent in group), key=lambda p: p.path) == parents


@given(PARENTS, st.integers(1, 12))
def test_groups_differ_by_no_more_than_the_largest_parent(parents: list[LeafParent], count: int) -> None:
    sizes = [sum(parent.planned for parent in group) for group in balance(parents, count)] or [0]
    assert max(sizes) - min(sizes) <= max((parent.planned for parent in parents), default=0)


def test_a_group_keeps_the_order_of_the_tree() -> None:
    parents = [LeafParent(path, planned) for path, planned in (("a", 1), ("b", 5), ("c", 3), ("d", 1))]
    assert balance(parents, 1) == [tuple(parents)]


def test_zero_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        balance([], 0)


@pytest.mark.parametrize(
    ("counts", "cores", "expected"),
    [([], 4, 1), ([0], 4, 1), ([5, 5], 4, 2), ([5] * 9, 4, 4), ([10_000] * 100, 2, 4)],
)
def test_the_number_of_partitions_depends_on_cores_and_then_on_ledgers(
    counts: list[int], cores: int, expected: int
) -> None:
    assert LEDGERS_PER_PARTITION_MAX == 250_000
    assert partition_count([LeafParent(str(count), count) for count in counts], cores) == expected


def test_a_group_of_nodes_is_read_back_from_its_text() -> None:
    group = (LeafParent("/ledgers/00/0001", 7), LeafParent("/ledgers/00/0002", 0, LeafStat(1, 2, 3, 0)))
    assert parents_of(parents_text(group)) == group
    assert parents_of(parents_text(())) == ()


URI = {"metadata_uri": "zk://zk1/ledgers"}


def test_options_have_defaults() -> None:
    options = ledger_options(URI)
    assert (options.first_ledger, options.last_ledger) == (0, LEDGER_ID_MAX)
    assert (options.num_partitions, options.live_bookies) == (None, None)
    assert not options.is_summarized
    assert options.is_wanted(0)
    assert options.is_wanted(LEDGER_ID_MAX)


def test_options_are_read() -> None:
    options = ledger_options(URI | {"first_ledger": "5", "last_ledger": "6", "num_partitions": "3"})
    assert [ledger_id for ledger_id in range(10) if options.is_wanted(ledger_id)] == [5, 6]
    assert options.num_partitions == 3


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"metadata_uri": ""}, "metadata_uri is missing"),
        ({"first_ledger": "x"}, "'x' is not a whole number"),
        ({"first_ledger": "-1"}, "out of range"),
        ({"first_ledger": "9", "last_ledger": "8"}, "select no ledger"),
        ({"num_partitions": "0"}, "out of range"),
        ({"connect_timeout_s": "soon"}, "not a number of seconds"),
        ({"connect_timeout_s": "0"}, "out of range"),
        ({"connect_timeout_s": "nan"}, "out of range"),
        ({"connect_timeout_s": "3600.5"}, "out of range"),
    ],
)
def test_invalid_options_are_named(wrong: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        ledger_options(URI | wrong)


def test_ranges_include_both_ends() -> None:
    options = ledger_options(
        URI | {"num_partitions": "1", "connect_timeout_s": "3600", "last_ledger": str(LEDGER_ID_MAX)}
    )
    assert (options.num_partitions, options.connect_timeout_s) == (1, 3600)
    assert ledger_options(URI | {"first_ledger": "7", "last_ledger": "7"}).is_wanted(7)


def test_the_access_is_that_of_the_option_or_else_of_the_process() -> None:
    set_current_access(ZooKeeperAccess(state_root="/of-the-process"))
    access = ZooKeeperAccess(state_root="/of-the-option")
    assert ledger_options(URI | {"zookeeper_access": access.to_text()}).access == access
    assert ledger_options(URI).access == current_access()


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (LayoutKind.HIERARCHICAL, {}, {0, 1, 2}),
        (LayoutKind.HIERARCHICAL, {"last_ledger": 9_999}, {0}),
        (LayoutKind.HIERARCHICAL, {"last_ledger": 10_000}, {0, 1}),
        (LayoutKind.HIERARCHICAL, {"first_ledger": 9_999}, {0, 1, 2}),
        (LayoutKind.HIERARCHICAL, {"first_ledger": 10_000}, {1, 2}),
        (LayoutKind.HIERARCHICAL, {"first_ledger": 10_000, "last_ledger": 10_000, "num_partitions": 9}, {1}),
        (LayoutKind.FLAT, {"first_ledger": 20_000}, {None}),
    ],
)
def test_only_nodes_that_can_contain_a_ledger_of_the_range_are_planned(
    monkeypatch: pytest.MonkeyPatch, kind: LayoutKind, given: dict[str, int], expected: set[int | None]
) -> None:
    @asynccontextmanager
    async def connected(*_: object, **more: object) -> AsyncIterator[SimpleNamespace]:
        store = MemoryStore(MemoryCell())
        cluster = await formatted(store, kind=kind)
        for number in (0, 9_999, 10_000, 19_999, 20_000):
            await create_with_parents(store, ledger_path(kind, cluster.root, LedgerId(number)), b"", cluster.root)
        yield SimpleNamespace(store=store, cluster=cluster)

    monkeypatch.setattr(ledgers, "connected_at_pace", connected)
    options = ledger_options(URI | {name: str(value) for name, value in given.items()})
    planned = [part for part in LedgerReader(options).partitions() if isinstance(part, LedgerPartition)]
    paths = [parent.path for part in planned for parent in part.parents]
    assert len(paths) == len(expected)
    assert {None if kind is LayoutKind.FLAT else int(path[-4:]) for path in paths} == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_scan_has_the_number_of_partitions_of_the_option(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    async def parents(options: LedgerOptions) -> tuple[LeafParent, ...]:
        return tuple(LeafParent(f"/{number}", 1) for number in range(3))

    monkeypatch.setattr(ledgers, "_list_parents", parents)
    assert len(LedgerReader(ledger_options(URI | {"num_partitions": str(count)})).partitions()) == count


def test_a_wrong_uri_is_refused() -> None:
    with pytest.raises(InvalidUriError):
        ledger_options({"metadata_uri": "http://zk1/ledgers"})


def totals(listed: Mapping[str, tuple[int, ...]], **counts: int) -> ScanTotals:
    names = ("ledgers", "fragments", "unreadable", "vanished", "skipped", "returned", "open", "in_recovery", "closed")
    zero = dict.fromkeys(names, 0) | {"ledgers": sum(map(sum, listed.values()))}
    return ScanTotals(**(zero | counts), listed=listed, ledgers_by_bookie={}, fragments_by_bookie={})


PLAN = (LeafParent("/a", 10), LeafParent("/b", 20))


def test_a_scan_that_listed_all_planned_nodes_is_complete() -> None:
    assert problems(PLAN, totals({"/a": (10,), "/b": (20,)}), {}) == ()


def test_ledgers_created_meanwhile_are_not_a_problem() -> None:
    assert problems(PLAN, totals({"/a": (10,), "/b": (25,)}), {}) == ()


def test_ledgers_deleted_before_they_were_listed_are_not_a_problem() -> None:
    seen = totals({"/a": (10,), "/b": (15,)})
    assert incomplete_parents(PLAN, seen) == [PLAN[1]]
    assert problems(PLAN, seen, {"/b": 15}) == ()


def test_ledgers_deleted_before_they_were_read_are_not_a_problem() -> None:
    assert problems(PLAN, totals({"/a": (10,), "/b": (20,)}, ledgers=27, vanished=2, unreadable=1), {}) == ()


@pytest.mark.parametrize(
    ("listed", "recount", "text"),
    [
        ({"/a": (10,)}, {"/b": 20}, "1 metadata node was not read: /b"),
        ({"/a": (10,)}, {"/b": 0}, "1 metadata node was not read: /b"),
        ({"/a": (10,), "/b": (15,)}, {"/b": 18}, "3 ledgers exist and were not listed, under /b"),
        ({"/a": (10,), "/b": (10, 10)}, {}, "read more than once: /b"),
    ],
)
def test_nodes_and_ledgers_not_read_exactly_once_are_reported(
    listed: Mapping[str, tuple[int, ...]], recount: Mapping[str, int], text: str
) -> None:
    (problem,) = problems(PLAN, totals(listed), recount)
    assert text in problem


def test_ledgers_that_are_not_accounted_for_are_reported() -> None:
    (problem,) = problems(PLAN, totals({"/a": (10,), "/b": (20,)}, ledgers=29), {})
    assert problem == "30 ledgers were listed, and 29 accounted for"


def test_many_unread_nodes_are_not_all_named() -> None:
    plan = [LeafParent(f"/{number}", 1) for number in range(5)]
    (problem,) = problems(plan, totals({}), dict.fromkeys((parent.path for parent in plan), 1))
    assert problem == "5 metadata nodes were not read: /0, /1, /2 and 2 more"


def test_both_ends_of_a_range_of_ids_are_read() -> None:
    def ids(first: int, last: int) -> list[int]:
        texts = {METADATA_URI: "zk://zk1/ledgers", FIRST_LEDGER: str(first), LAST_LEDGER: str(last)}
        return [number for number in range(10) if ledger_options(texts).is_wanted(number)]

    assert (ids(3, 5), ids(4, 4)) == ([3, 4, 5], [4])
    with pytest.raises(InvalidOptionError, match="select no ledger"):
        ids(5, 4)
