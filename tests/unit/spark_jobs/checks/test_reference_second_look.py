"""The second check of references: possible findings are read again, and unknown is never treated as absent."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import LedgerId
from spark_jobs.checks.references.comparison import NODES_MAX, NotJudged, ReferenceVerdict
from spark_jobs.checks.references.second_look import SecondLookSettings, check_again
from tests.worlds.cluster import formatted
from tests.worlds.pulsar_nodes import (
    COMPACTED,
    KINDS,
    MESSAGES,
    ML,
    Custom,
    cursor,
    ledger,
    managed,
    of_pulsar,
    partitioned,
    put_node,
    schema,
)

LATER_MS = 1 << 60
SETTINGS = SecondLookSettings("zk://h:1/ledgers", 1, ("", "/second"), LATER_MS)


@dataclass(slots=True)
class Place:
    cell: MemoryCell
    store: MemoryStore
    cluster: Cluster

    async def create(self, *ids: int, custom: Custom = MESSAGES, is_open: bool = False) -> None:
        ledgers = LedgerStore(self.store, self.cluster, random.Random(1))
        await ledgers.create_many([(LedgerId(number), ledger(custom, is_open=is_open)) for number in ids])

    async def check(self, row: dict[str, Any], settings: SecondLookSettings = SETTINGS) -> tuple[str, str | None]:
        (seen,) = await check_again(self.store, self.cluster, settings, [row])
        assert seen["ledger_id"] == row["ledger_id"]
        return seen["verdict"], seen["reason"]


@pytest.fixture
async def place() -> Place:
    cell = MemoryCell()
    store = MemoryStore(cell)
    return Place(cell, store, await formatted(store))


def unreferenced(ledger_id: int) -> dict[str, Any]:
    return {"ledger_id": ledger_id, "verdict": "UNREFERENCED", "by": None}


def lost(ledger_id: int, at: str | None = None, names: Sequence[str] = (ML,)) -> dict[str, Any]:
    kind = "managed-ledger" if at is None else "cursor"
    by = [{"root": "/second", "kind": kind, "name": name, "cursor": at} for name in names]
    return {"ledger_id": ledger_id, "verdict": "LOST", "by": by}


async def test_a_ledger_that_may_not_be_read_does_not_prevent_verdicts_on_others(place: Place) -> None:
    """It could be read at the first look."""
    await place.create(1, 2)
    await put_node(place.store, "/managed-ledgers/public/default/persistent/t", managed())
    place.cell.deny(ledger_path(place.cluster.kind, place.cluster.root, 1))
    rows = [unreferenced(1), unreferenced(2)]
    first, second = await check_again(place.store, place.cluster, SETTINGS, rows)
    assert (first["verdict"], first["reason"]) == ("NOT_JUDGED", NotJudged.UNREADABLE.value)
    assert (second["ledger_id"], second["verdict"]) == (2, (await place.check(unreferenced(2)))[0])
    lost_one = await place.check(lost(1))
    assert lost_one == ("CHANGED", None), "a denied node exists, so the ledger is not lost"


@pytest.mark.parametrize("custom", KINDS)
async def test_a_verdict_needs_a_second_read_of_every_node(place: Place, custom: Custom) -> None:
    await place.create(1, custom=custom)
    row = unreferenced(1)
    assert await place.check(row) == (ReferenceVerdict.UNREFERENCED, None)
    nodes = {
        f"/second/managed-ledgers/{ML}": managed(1),
        f"/second/managed-ledgers/{ML}/s%2F1": cursor(1, bucket=1),
        f"/second/managed-ledgers/{ML}/__compaction": cursor(compacted=1),
        "/second/schemas/t/n/orders": schema(1),
    }
    for path, data in nodes.items():
        await put_node(place.store, path, data)
    assert await place.check(row) == (ReferenceVerdict.CHANGED, None)
    for path in nodes:
        await place.store.set(path, b"\xff", -1)
    assert await place.check(row) == (ReferenceVerdict.NOT_JUDGED, NotJudged.UNDECODABLE)


async def test_a_compacted_ledger_has_no_verdict_once_its_reference_is_in_a_ledger(place: Place) -> None:
    earlier = of_pulsar(b"managed-ledger", managed__ledger=ML, cursor="__compaction")
    await place.create(1, custom=COMPACTED)
    await place.create(2, custom=earlier)
    path = f"/second/managed-ledgers/{ML}/__compaction"
    await put_node(place.store, path, cursor())
    assert await place.check(unreferenced(1)) == (ReferenceVerdict.UNREFERENCED, None)
    await place.store.set(path, b"\x08\x05", -1)  # by now, the position is in ledger 5
    assert await place.check(unreferenced(1)) == (ReferenceVerdict.NOT_JUDGED, NotJudged.IN_LEDGER)
    assert await place.check(unreferenced(2)) == (ReferenceVerdict.UNREFERENCED, None)
    await place.store.set(path, b"\x08\x02", -1)
    assert await place.check(unreferenced(2)) == (ReferenceVerdict.CHANGED, None)


async def test_a_ledger_that_is_deleted_young_or_unnamed_is_not_reported(place: Place) -> None:
    assert await place.check(unreferenced(1)) == (ReferenceVerdict.CHANGED, None)
    await place.create(1)
    path = ledger_path(place.cluster.kind, place.cluster.root, LedgerId(1))
    created_ms = (await place.store.get(path)).stat.ctime_ms
    at_once = replace(SETTINGS, created_before_ms=created_ms)
    assert await place.check(unreferenced(1), at_once) == (ReferenceVerdict.UNREFERENCED, None)
    young = replace(SETTINGS, created_before_ms=created_ms - 1)
    assert await place.check(unreferenced(1), young) == (ReferenceVerdict.NOT_JUDGED, NotJudged.YOUNG)


async def test_the_age_of_a_ledger_counts_from_its_creation() -> None:
    """The metadata of a ledger changes when it is closed and whenever a copy is moved."""
    times_ms = itertools.count(1_000)
    cell = MemoryCell(lambda: next(times_ms))
    store = MemoryStore(cell)
    place = Place(cell, store, await formatted(store))
    await place.create(1)
    path = ledger_path(place.cluster.kind, place.cluster.root, LedgerId(1))
    created = await store.get(path)
    await store.set(path, created.data, -1)
    assert (await store.get(path)).stat.mtime_ms > created.stat.ctime_ms
    old = replace(SETTINGS, created_before_ms=created.stat.ctime_ms)
    assert await place.check(unreferenced(1), old) == (ReferenceVerdict.UNREFERENCED, None)


@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_ledger_that_is_deleted_during_the_second_check_is_not_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    await place.create(1, is_open=is_settled)
    read = place.store.get_many_data

    async def then_deleted(paths: Sequence[str]) -> Sequence[bytes | None]:
        found = await read(paths)
        await LedgerStore(place.store, place.cluster, random.Random(1)).delete(LedgerId(1))
        return found

    monkeypatch.setattr(place.store, "get_many_data", then_deleted)
    assert await place.check(unreferenced(1)) == (ReferenceVerdict.CHANGED, None)


async def test_the_current_metadata_is_used(place: Place) -> None:
    """The first check does not read names, and the ledger may have changed since."""
    unnamed = of_pulsar(b"delayed-index-bucket", delayedIndexTopic="persistent://t/n/orders")
    for number, custom in enumerate((unnamed, (), MESSAGES), 1):
        await place.create(number, custom=custom)
    await place.create(4, is_open=True)
    await place.store.set(ledger_path(place.cluster.kind, place.cluster.root, LedgerId(3)), b"?", -1)
    reasons = (NotJudged.UNNAMED, NotJudged.FOREIGN, NotJudged.UNREADABLE, NotJudged.OPEN)
    for number, reason in enumerate(reasons, 1):
        assert await place.check(unreferenced(number)) == (ReferenceVerdict.NOT_JUDGED, reason)


async def test_if_a_node_may_belong_to_any_topic_no_ledger_is_judged_and_each_is_listed(place: Place) -> None:
    await place.create(1)
    unsure = replace(SETTINGS, is_unsure=True)
    assert await place.check(unreferenced(2), unsure) == (ReferenceVerdict.CHANGED, None)
    (seen,) = await check_again(place.store, place.cluster, unsure, [unreferenced(1)])
    assert (seen["verdict"], seen["reason"]) == (ReferenceVerdict.NOT_JUDGED, NotJudged.UNDECODABLE)
    assert (seen["topic"], seen["component"]) == ("persistent://t/n/orders", "managed-ledger")


async def test_bytes_include_all_copies_and_a_damaged_length_does_not_fail_the_run(place: Place) -> None:
    await place.create(1)
    long = replace(ledger(MESSAGES), length=(1 << 63) - 1)
    await LedgerStore(place.store, place.cluster, random.Random(1)).create_many([(LedgerId(2), long)])
    wide = replace(ledger(MESSAGES), ack_quorum=1)
    await LedgerStore(place.store, place.cluster, random.Random(1)).create_many([(LedgerId(3), wide)])
    seen = await check_again(place.store, place.cluster, SETTINGS, [unreferenced(1), unreferenced(2), unreferenced(3)])
    assert [each["stored_bytes"] for each in seen] == [200, (1 << 63) - 1, 200]


async def test_a_reference_is_dangling_only_if_it_still_exists_and_its_ledger_does_not(place: Place) -> None:
    path = f"/second/managed-ledgers/{ML}"
    assert await place.check(lost(1)) == (ReferenceVerdict.CHANGED, None)
    await put_node(place.store, path, managed(1))
    assert await place.check(lost(1)) == (ReferenceVerdict.LOST, None)
    await put_node(place.store, f"{path}/s%2F1", cursor(2))
    (seen,) = await check_again(place.store, place.cluster, SETTINGS, [lost(2, "s%2F1")])
    assert (seen["path"], seen["topic"], seen["subscription"]) == (f"{path}/s%2F1", "persistent://t/n/orders", "s/1")
    await place.create(1)
    assert await place.check(lost(1)) == (ReferenceVerdict.CHANGED, None)
    await place.store.set(path, b"\xff", -1)
    assert await place.check(lost(3)) == (ReferenceVerdict.CHANGED, None)


async def test_a_ledger_that_was_offloaded_or_emptied_since_the_first_check_is_not_lost(place: Place) -> None:
    path = f"/second/managed-ledgers/{ML}"
    await put_node(place.store, path, managed(1))
    assert await place.check(lost(1)) == (ReferenceVerdict.LOST, None)
    for data in (managed(1, offloaded=[1]), managed(1, copied=[1]), managed(1, empty=[1])):
        await place.store.set(path, data, -1)
        assert await place.check(lost(1)) == (ReferenceVerdict.CHANGED, None)
    await place.store.set(path, managed(1, 2, offloaded=[2]), -1)
    assert await place.check(lost(1)) == (ReferenceVerdict.LOST, None), "only another ledger of the topic was offloaded"


async def test_a_shadow_topic_has_no_losses_and_a_possible_one_has_no_verdict(place: Place) -> None:
    shadow = "t/n/persistent/a-partition-0"
    node, topic = f"/second/managed-ledgers/{shadow}", "/second/admin/partitioned-topics/t/n/persistent/a"
    by_shadow, by_both = lost(1, names=[shadow]), lost(1, names=[shadow, ML])
    unknown = (ReferenceVerdict.NOT_JUDGED, NotJudged.MAYBE_SHADOW)
    await put_node(place.store, node, managed(1))
    assert await place.check(by_shadow) == unknown, "the node may be in another metadata store"
    await put_node(place.store, "/second/admin/policies/t/n", b"{}")
    assert await place.check(by_shadow) == (ReferenceVerdict.LOST, None), "the topic has no partitioned topic"
    for data, verdict in (
        (partitioned(), (ReferenceVerdict.LOST, None)),
        (partitioned(shadow_of="persistent://t/n/orders"), (ReferenceVerdict.CHANGED, None)),
        (b'{"properties":5}', unknown),
        (b"\xff", unknown),
        (b"[", unknown),
        (b"[]", unknown),
    ):
        await put_node(place.store, topic, data)
        assert await place.check(by_shadow) == verdict, data
    assert await place.check(by_both) == unknown, "the source topic does not refer to it"
    await put_node(place.store, f"/second/managed-ledgers/{ML}", managed(1))
    (seen,) = await check_again(place.store, place.cluster, SETTINGS, [by_both])
    assert (seen["verdict"], seen["topic"]) == (ReferenceVerdict.LOST, "persistent://t/n/orders")
    await put_node(place.store, topic, partitioned(shadow_of="persistent://t/n/orders"))
    assert await place.check(lost(1, names=[shadow] * NODES_MAX)) == unknown, "other nodes may refer to it"
    await put_node(place.store, node, managed(1, shadow_of="persistent://t/n/orders"))
    assert await place.check(by_shadow) == (ReferenceVerdict.CHANGED, None)
    await place.create(1)
    assert await place.check(by_both) == (ReferenceVerdict.CHANGED, None)
    assert await place.check(lost(1, names=[shadow] * NODES_MAX)) == (ReferenceVerdict.CHANGED, None), (
        "the ledger exists by now"
    )


async def test_a_ledger_referenced_by_its_own_topic_is_referenced_even_if_that_is_a_shadow_topic(place: Place) -> None:
    await place.create(1)
    await put_node(place.store, f"/second/managed-ledgers/{ML}", managed(1, shadow_of="persistent://t/n/other"))
    assert await place.check(unreferenced(1)) == (ReferenceVerdict.CHANGED, None)
