"""Copies that the metadata does not name: read again, judged, and unknown rather than superfluous in case of doubt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import lock_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import AccessDeniedError, Node
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.tasks.reservations import Reservations
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from spark_jobs.checks.inventory.second_look import check_again
from spark_jobs.checks.inventory.verdict import (
    Copy,
    CopyNotJudged,
    CopyVerdict,
    Deleted,
    Grace,
    Present,
    is_placed,
    judged,
)
from tests.worlds.cluster import formatted

NONE = Grace(1 << 60, None)
"""Without a grace period."""


def fragments(*parts: tuple[int, str]) -> tuple[Fragment, ...]:
    return tuple(Fragment(EntryId(first), tuple(map(BookieId, members))) for first, members in parts)


MOVED = LedgerMetadata(2, 2, 2, fragments((0, "ab"), (10, "ac"))).closed(EntryId(19), 2000)


@pytest.mark.parametrize(
    ("bookie", "first", "last", "placed"),
    [
        ("a", 0, 19, True),
        ("b", 0, 9, True),
        ("b", 9, 12, True),
        ("b", 10, 12, False),
        ("c", 0, 9, False),
        ("c", 0, 10, True),
        ("c", 25, 30, True),
        ("d", 0, 19, False),
    ],
)
def test_a_copy_belongs_to_a_fragment_that_may_contain_its_entries(
    bookie: str, first: int, last: int, placed: bool
) -> None:
    assert is_placed(MOVED, Copy(BookieId(bookie), first, last)) is placed


OF_D = (Copy(BookieId("d"), 0, 19),)


@pytest.mark.parametrize(
    ("ledger", "grace", "expected"),
    [
        (Present(MOVED, 100, is_in_repair=False), NONE, (CopyVerdict.OVER_REPLICATED, None)),
        (Present(MOVED, 100, is_in_repair=False), Grace(100, 0), (CopyVerdict.OVER_REPLICATED, None)),
        (Present(MOVED, 101, is_in_repair=False), Grace(100, 0), (CopyVerdict.NOT_JUDGED, CopyNotJudged.CHANGED)),
        (Present(MOVED, 100, is_in_repair=True), NONE, (CopyVerdict.NOT_JUDGED, CopyNotJudged.REPAIR)),
        (
            Present(LedgerMetadata(2, 2, 2, MOVED.fragments), 100, is_in_repair=False),
            NONE,
            (CopyVerdict.NOT_JUDGED, CopyNotJudged.OPEN),
        ),
        (Present(None, 100, is_in_repair=False), NONE, (CopyVerdict.NOT_JUDGED, CopyNotJudged.UNREADABLE)),
        (Deleted(7), NONE, (CopyVerdict.UNOWNED, None)),
        (Deleted(7), Grace(0, 7), (CopyVerdict.UNOWNED, None)),
        (Deleted(7), Grace(0, 6), (CopyVerdict.NOT_JUDGED, CopyNotJudged.DELETED)),
    ],
)
def test_an_uncertain_copy_has_no_verdict(
    ledger: Present | Deleted, grace: Grace, expected: tuple[CopyVerdict, CopyNotJudged | None]
) -> None:
    assert [(*verdict, tuple(found)) for *verdict, found in judged(ledger, OF_D, grace)] == [(*expected, OF_D)]


def test_each_copy_of_a_ledger_has_its_own_verdict() -> None:
    here = Copy(BookieId("a"), 0, 5)
    found = list(judged(Present(MOVED, 0, is_in_repair=False), (here, *OF_D), NONE))
    assert found == [(CopyVerdict.PLACED, None, [here]), (CopyVerdict.OVER_REPLICATED, None, list(OF_D))]


@dataclass(slots=True)
class Place:
    store: MemoryStore
    cluster: Cluster

    async def create(self, ledgers: dict[int, LedgerMetadata]) -> None:
        store = LedgerStore(self.store, self.cluster, random.Random(1))
        await store.create_many([(LedgerId(number), metadata) for number, metadata in ledgers.items()])

    async def delete(self, ledger_id: int) -> None:
        await LedgerStore(self.store, self.cluster, random.Random(1)).delete(LedgerId(ledger_id))

    async def check(self, *ids: int, grace: Grace = NONE) -> dict[int, tuple[str, str | None, list[str]]]:
        copies = [{"bookie_id": "d", "first_entry_id": 0, "last_entry_id": 3}]
        rows: list[dict[str, Any]] = [{"ledger_id": number, "copies": copies} for number in ids]
        seen = await check_again(self.store, self.cluster, rows, grace)
        return {row["ledger_id"]: (row["verdict"], row["reason"], row["bookies"]) for row in seen}


@pytest.fixture
async def place() -> Place:
    store = MemoryStore(MemoryCell())
    return Place(store, await formatted(store))


async def test_a_mark_a_lock_or_a_reservation_means_a_repair(place: Place) -> None:
    await place.create(dict.fromkeys(range(1, 5), MOVED))
    root = place.cluster.root
    await create_with_parents(place.store, task_path(root, 1), b"replica: 'x'", root)
    await create_with_parents(place.store, lock_path(root, 2), b"", root)
    await create_with_parents(place.store, Reservations(place.store, root).path(LedgerId(3)), b"", "/")
    repaired = (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.REPAIR.value, ["d"])
    assert await place.check(1, 2, 3, 4) == {
        **dict.fromkeys((1, 2, 3), repaired),
        4: (CopyVerdict.OVER_REPLICATED.value, None, ["d"]),
    }


async def test_a_ledger_that_exists_again_or_is_unreadable_is_not_unowned(place: Place) -> None:
    placed = replace(MOVED, fragments=fragments((0, "ad"), (10, "ac")))
    await place.create({1: placed, 2: MOVED})
    store = LedgerStore(place.store, place.cluster, random.Random(1))
    await place.store.set(store.path(LedgerId(2)), b"damage", -1)
    assert await place.check(1, 2, 3) == {
        1: (CopyVerdict.PLACED.value, None, ["d"]),
        2: (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.UNREADABLE.value, ["d"]),
        3: (CopyVerdict.UNOWNED.value, None, ["d"]),
    }


async def test_a_deletion_is_as_old_as_the_last_change_of_its_parent(place: Place) -> None:
    """Ledger 2 shares its parent node with ledger 1; the parent of ledger 20,001 was deleted; 30,001 never had one."""
    await place.create({1: MOVED, 2: MOVED, 20_001: MOVED})
    leaf = "/ledgers/00/0000"
    made = await place.store.stat(leaf)
    assert made is not None
    await place.delete(2)
    await place.delete(20_001)
    path = LedgerStore(place.store, place.cluster, random.Random(1)).path(LedgerId(40_000))
    await create_with_parents(place.store, path, b"", place.cluster.root)
    last = await place.store.stat(path)
    assert last is not None
    before, after = Grace(0, made.children_zxid), Grace(0, last.czxid)
    waiting, unowned = (
        (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.DELETED.value, ["d"]),
        (CopyVerdict.UNOWNED.value, None, ["d"]),
    )
    assert await place.check(2, 20_001, 30_001, grace=before) == dict.fromkeys((2, 20_001, 30_001), waiting)
    assert await place.check(2, 20_001, 30_001, grace=after) == dict.fromkeys((2, 20_001, 30_001), unowned)


async def test_denied_metadata_is_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.create({1: MOVED, 2: MOVED})
    secret = LedgerStore(place.store, place.cluster, random.Random(1)).path(LedgerId(1))
    many, one = place.store.get_many, place.store.get

    async def get_many(paths: list[str]) -> list[Node | None]:
        if secret in paths:
            raise AccessDeniedError(secret)
        return await many(paths)

    async def get(path: str) -> Node:
        if path == secret:
            raise AccessDeniedError(path)
        return await one(path)

    monkeypatch.setattr(place.store, "get_many", get_many)
    monkeypatch.setattr(place.store, "get", get)
    found = await place.check(1, 2)
    assert found[1] == (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.UNREADABLE.value, ["d"])
    assert found[2] == (CopyVerdict.OVER_REPLICATED.value, None, ["d"])


async def test_a_deletion_under_a_denied_parent_is_not_old(place: Place) -> None:
    await place.create({1: MOVED, 2: MOVED})
    await place.delete(2)
    any_time = Grace(1 << 60, 1 << 60)
    assert await place.check(2, grace=any_time) == {2: (CopyVerdict.UNOWNED.value, None, ["d"])}
    place.store.cell.deny("/ledgers/00/0000")
    assert await place.check(2, grace=any_time) == {
        2: (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.DELETED.value, ["d"])
    }


async def test_a_denied_lock_counts_as_a_repair(place: Place) -> None:
    await place.create({1: MOVED, 2: MOVED})
    root = place.cluster.root
    await create_with_parents(place.store, lock_path(root, 1), b"", root)
    place.store.cell.deny(lock_path(root, 1))
    repaired, over = (
        (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.REPAIR.value),
        (CopyVerdict.OVER_REPLICATED.value, None),
    )
    assert await place.check(1, 2) == {1: (*repaired, ["d"]), 2: (*over, ["d"])}


async def test_the_age_of_a_change_counts_from_the_last_write_of_the_metadata() -> None:
    times_ms = itertools.count(1_000)
    store = MemoryStore(MemoryCell(lambda: next(times_ms)))
    place = Place(store, await formatted(store))
    await place.create({1: MOVED})
    path = LedgerStore(store, place.cluster, random.Random(1)).path(LedgerId(1))
    created = await store.get(path)
    grace = Grace(created.stat.ctime_ms, None)
    assert await place.check(1, grace=grace) == {1: (CopyVerdict.OVER_REPLICATED.value, None, ["d"])}
    await store.set(path, created.data, -1)
    assert await place.check(1, grace=grace) == {1: (CopyVerdict.NOT_JUDGED.value, CopyNotJudged.CHANGED.value, ["d"])}


async def test_a_repair_that_ends_during_the_check_is_detected_in_the_metadata(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is removed after the ledger was read; by then, the bookie is a member of the ledger."""
    await place.create({1: MOVED})
    root, ledgers = place.cluster.root, LedgerStore(place.store, place.cluster, random.Random(1))
    await create_with_parents(place.store, task_path(root, 1), b"replica: 'x'", root)
    read = place.store.get_many

    async def then_repaired(paths: Sequence[str]) -> list[Node | None]:
        found = await read(paths)
        if await place.store.stat(task_path(root, 1)) is not None:
            placed = replace(MOVED, fragments=fragments((0, "ad"), (10, "ac")))
            await ledgers.write(LedgerId(1), placed, 0)
            await place.store.delete(task_path(root, 1), -1)
        return found

    monkeypatch.setattr(place.store, "get_many", then_repaired)
    (verdict, _, _) = (await place.check(1))[1]
    assert verdict == CopyVerdict.PLACED.value


async def test_a_stale_server_does_not_make_a_copy_superfluous(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookies were asked a moment ago, and a server of ZooKeeper may not know the ledger yet."""
    await place.create({1: replace(MOVED, fragments=fragments((0, "ad"), (10, "ac")))})
    path = LedgerStore(place.store, place.cluster, random.Random(1)).path(LedgerId(1))
    read, sync, is_behind = place.store.get_many, place.store.sync, [True]

    async def behind(paths: Sequence[str]) -> list[Node | None]:
        return [
            None if each == path and is_behind[0] else node for each, node in zip(paths, await read(paths), strict=True)
        ]

    async def caught_up(root: str) -> None:
        await sync(root)
        is_behind[0] = False

    monkeypatch.setattr(place.store, "get_many", behind)
    monkeypatch.setattr(place.store, "sync", caught_up)
    assert await place.check(1) == {1: (CopyVerdict.PLACED.value, None, ["d"])}
