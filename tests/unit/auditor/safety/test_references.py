"""Ledgers compared with what refers to them in Pulsar: no verdict without every node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from auditor.operating.references import reference_document, reference_lines
from auditor.safety.references import ReferenceCheck, ReferenceResult
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedCursorInfo, ManagedLedgerInfo, SchemaLocator
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerMetadata
from tests.worlds.cluster import formatted
from tests.worlds.ledgers import make_metadata

ML = "t/n/persistent/orders"
LATER_MS = 1 << 60

Custom = tuple[tuple[str, bytes], ...]


def of_pulsar(component: bytes, **values: str) -> Custom:
    named = tuple((f"pulsar/{key.replace('__', '-')}", value.encode()) for key, value in values.items())
    return (("application", b"pulsar"), ("component", component), *named)


MESSAGES = of_pulsar(b"managed-ledger", managed__ledger=ML)
CURSOR = of_pulsar(b"managed-ledger", managed__ledger=ML, cursor="s%2F1")
SCHEMA = of_pulsar(b"schema", schemaId="t/n/orders")
COMPACTED = of_pulsar(b"compacted-ledger", compactedTopic="persistent://t/n/orders")
DELAYED = of_pulsar(b"delayed-index-bucket", delayedIndexTopic="persistent://t/n/orders", delayedIndexCursor="s%2F1")


def ledger(custom: Custom, *, is_open: bool = False) -> LedgerMetadata:
    made = make_metadata((0, "a b"), quorum=(2, 2), last=None if is_open else 9, length=0 if is_open else 100)
    return replace(made, custom=custom)


def managed(*ledgers: int, offloaded: Sequence[int] = (), empty: Sequence[int] = ()) -> bytes:
    info = ManagedLedgerInfo()
    for number in ledgers:
        one = info.ledgerInfo.add(ledgerId=number, entries=0 if number in empty else 5, timestamp=1)
        if number in offloaded:
            one.offloadContext.complete = True
            one.offloadContext.bookkeeperDeleted = True
    return info.SerializeToString()


def cursor(ledger_id: int = -1, compacted: int | None = None, bucket: int | None = None) -> bytes:
    info = ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if compacted is not None:
        info.properties.add(name="CompactedTopicLedger", value=compacted)
    if bucket is not None:
        info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=str(bucket))
    return info.SerializeToString()


def schema(*ledgers: int) -> bytes:
    entries = [
        SchemaLocator.IndexEntry(version=0, hash=b"", position=SchemaLocator.PositionInfo(ledgerId=number, entryId=0))
        for number in ledgers
    ]
    return SchemaLocator(info=entries[-1], index=entries).SerializeToString()


@dataclass(slots=True)
class Place:
    store: MemoryStore
    cluster: Cluster
    ledgers: LedgerStore

    async def put(self, path: str, data: bytes) -> None:
        parts = path.split("/")[1:]
        for end in range(1, len(parts) + 1):
            part = "/" + "/".join(parts[:end])
            if await self.store.stat(part) is None:
                await self.store.create(part)
        await self.store.set(path, data, -1)

    async def create(self, ledgers: dict[int, LedgerMetadata]) -> None:
        await self.ledgers.create_many([(LedgerId(number), metadata) for number, metadata in ledgers.items()])

    async def check(self, created_before_ms: int = LATER_MS, roots: Sequence[str] = ("",)) -> ReferenceResult:
        check = ReferenceCheck(self.store, self.cluster, self.ledgers, roots, created_before_ms)
        return await check.run(lambda count: None)


@pytest.fixture
async def place() -> Place:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    made = Place(store, cluster, LedgerStore(store, cluster, random.Random(1)))
    await made.put(f"/managed-ledgers/{ML}", b"")
    return made


async def test_every_kind_of_reference_is_found_and_nothing_else_counts(place: Place) -> None:
    kinds = {1: MESSAGES, 2: CURSOR, 3: SCHEMA, 4: COMPACTED, 5: DELAYED}
    await place.create({number + ten: ledger(custom) for number, custom in kinds.items() for ten in (0, 10)})
    await place.put(f"/managed-ledgers/{ML}", managed(1))
    await place.put(f"/managed-ledgers/{ML}/s%2F1", cursor(2, bucket=5))
    await place.put(f"/managed-ledgers/{ML}/__compaction", cursor(compacted=4))
    await place.put("/schemas/t/n/orders", schema(3))
    result = await place.check()
    assert (result.ledgers, result.referenced) == (10, 5)
    assert sorted(result.unreferenced) == [11, 12, 13, 14, 15]
    assert result.namespaces == {"t/n": (5, 1000)}
    assert (result.lost_count, result.undecodable_count, result.not_judged) == (0, 0, {})


async def test_what_has_no_verdict_is_counted_by_reason(place: Place) -> None:
    await place.create(
        {
            1: ledger(()),
            2: ledger(MESSAGES, is_open=True),
            3: ledger(of_pulsar(b"managed-ledger", managed__ledger="t/n/persistent/%zz")),
            4: ledger(of_pulsar(b"delayed-index-bucket", delayedIndexBucketKey="k")),
            5: ledger(MESSAGES),
        }
    )
    await place.store.set(ledger_path(place.cluster.kind, place.cluster.root, LedgerId(5)), b"damage", -1)
    result = await place.check()
    assert not result.unreferenced
    assert result.not_judged == {
        "not of Pulsar": 1,
        "not closed": 1,
        "it names no topic, or no subscription": 2,
        "its metadata cannot be read": 1,
    }


async def test_a_young_ledger_has_no_verdict(place: Place) -> None:
    await place.create({1: ledger(MESSAGES)})
    stat = (await place.store.get(ledger_path(place.cluster.kind, place.cluster.root, LedgerId(1)))).stat
    assert list((await place.check(stat.ctime_ms)).unreferenced) == [1]
    result = await place.check(stat.ctime_ms - 1)
    assert (list(result.unreferenced), result.not_judged) == ([], {"younger than the grace period": 1})


@pytest.mark.parametrize("path", [f"/managed-ledgers/{ML}", f"/managed-ledgers/{ML}/s", "/schemas/t/n/orders"])
async def test_a_node_that_cannot_be_decoded_spares_its_topic_alone(place: Place, path: str) -> None:
    await place.put(path, b"\x47\x78\x00\x00")
    other = of_pulsar(b"managed-ledger", managed__ledger="t/n/persistent/other")
    await place.create({1: ledger(MESSAGES), 2: ledger(SCHEMA), 3: ledger(COMPACTED), 4: ledger(other)})
    result = await place.check()
    assert list(result.unreferenced) == [4]
    assert result.not_judged == {"a node of its topic cannot be decoded": 3}
    assert [path for path, _ in result.undecodable] == [path]


async def test_a_damaged_node_of_an_unknown_topic_spares_everything(place: Place) -> None:
    await place.put("/managed-ledgers/t/n/persistent/%zz", b"\xff")
    await place.create({1: ledger(MESSAGES)})
    assert not (await place.check()).unreferenced


async def test_a_compacted_ledger_may_be_named_in_a_ledger(place: Place) -> None:
    await place.create({1: ledger(COMPACTED), 2: ledger(CURSOR)})
    await place.put(f"/managed-ledgers/{ML}/__compaction", cursor(2))
    result = await place.check()
    assert not result.unreferenced
    assert result.not_judged == {"the reference to the compacted ledger is in a ledger": 1}


async def test_references_to_ledgers_that_do_not_exist_are_lost_data(place: Place) -> None:
    await place.create({1: ledger(MESSAGES)})
    await place.put(f"/managed-ledgers/{ML}", managed(1, 2, 3, 4, offloaded=[3], empty=[4]))
    result = await place.check()
    assert [ledger_id for ledger_id, _ in result.lost] == [2]
    assert (result.lost_count, result.offloaded, result.referenced) == (1, 1, 1)
    document = reference_document(result, 0)
    assert document["lost_ledgers"] == [
        {
            "ledger_id": 2,
            "path": f"/managed-ledgers/{ML}",
            "topic": "persistent://t/n/orders",
            "component": "managed-ledger",
        }
    ]
    assert any("ledger 2: persistent://t/n/orders" in line for line in reference_lines(document))


async def test_a_ledger_of_a_second_pulsar_cluster_is_referenced_there(place: Place) -> None:
    await place.create({1: ledger(MESSAGES)})
    await place.put(f"/second/managed-ledgers/{ML}", managed(1))
    assert list((await place.check()).unreferenced) == [1]
    assert not (await place.check(roots=("", "/second"))).unreferenced


async def test_what_changes_during_the_comparison_is_looked_at_again(place: Place) -> None:
    """The ledger gets its reference, and the reference loses its ledger, after the references were read."""
    await place.create({1: ledger(MESSAGES)})
    await place.put(f"/managed-ledgers/{ML}", managed(2))
    check = ReferenceCheck(place.store, place.cluster, place.ledgers, ("",), LATER_MS)
    look = place.ledgers.leaf_parents

    async def changed() -> list[tuple[str, int]]:
        await place.put(f"/managed-ledgers/{ML}", managed(1))
        return await look()

    place.ledgers.leaf_parents = changed  # type: ignore[method-assign]
    result = await check.run(lambda count: None)
    assert not result.unreferenced
    assert result.lost_count == 0
