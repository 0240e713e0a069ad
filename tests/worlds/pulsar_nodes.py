"""Nodes of Pulsar's topics, subscriptions and schemas, and ledgers in Pulsar's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bookie.metadata.port import MetadataStore
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedCursorInfo, ManagedLedgerInfo, SchemaLocator
from bookie.model.metadata import LedgerMetadata
from tests.worlds.ledgers import make_metadata

ML = "t/n/persistent/orders"

Custom = tuple[tuple[str, bytes], ...]


def of_pulsar(component: bytes, **values: str) -> Custom:
    """Return custom metadata. ``__`` in a name stands for a hyphen."""
    named = tuple((f"pulsar/{key.replace('__', '-')}", value.encode()) for key, value in values.items())
    return (("application", b"pulsar"), ("component", component), *named)


MESSAGES = of_pulsar(b"managed-ledger", managed__ledger=ML)
OTHER = of_pulsar(b"managed-ledger", managed__ledger="t/m/persistent/other")
CURSOR = of_pulsar(b"managed-ledger", managed__ledger=ML, cursor="s%2F1")
SCHEMA = of_pulsar(b"schema", schemaId="t/n/orders")
COMPACTED = of_pulsar(b"compacted-ledger", compactedTopic="persistent://t/n/orders")
DELAYED = of_pulsar(b"delayed-index-bucket", delayedIndexTopic="persistent://t/n/orders", delayedIndexCursor="s%2F1")
KINDS = (MESSAGES, CURSOR, SCHEMA, COMPACTED, DELAYED)


def ledger(custom: Custom, *, is_open: bool = False) -> LedgerMetadata:
    """Return a ledger of ten entries on two bookies, 200 bytes in all."""
    made = make_metadata((0, "a:1 b:1"), quorum=(2, 2), last=None if is_open else 9, length=0 if is_open else 100)
    return replace(made, custom=custom)


def managed(
    *ledgers: int,
    offloaded: Sequence[int] = (),
    copied: Sequence[int] = (),
    empty: Sequence[int] = (),
    shadow_of: str | None = None,
) -> bytes:
    """Return the node of a topic."""
    info = ManagedLedgerInfo()
    if shadow_of is not None:
        info.properties.add(key="PULSAR.SHADOW_SOURCE", value=shadow_of)
    for number in ledgers:
        one = info.ledgerInfo.add(ledgerId=number, entries=0 if number in empty else 5, timestamp=1)
        if number in offloaded or number in copied:
            one.offloadContext.complete = True
            one.offloadContext.bookkeeperDeleted = number in offloaded
    return info.SerializeToString()


def cursor(ledger_id: int = -1, compacted: int | None = None, bucket: int | None = None) -> bytes:
    """Return the node of a subscription."""
    info = ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if compacted is not None:
        info.properties.add(name="CompactedTopicLedger", value=compacted)
    if bucket is not None:
        info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=str(bucket))
    return info.SerializeToString()


def partitioned(shadow_of: str | None = None) -> bytes:
    """Return the node of a partitioned topic, as Pulsar writes it."""
    if shadow_of is None:
        return b'{"partitions":2,"deleted":false}'
    return b'{"partitions":2,"deleted":false,"properties":{"PULSAR.SHADOW_SOURCE":"%s"}}' % shadow_of.encode()


def schema(*ledgers: int) -> bytes:
    """Return the node of a schema."""
    entries = [
        SchemaLocator.IndexEntry(version=0, hash=b"", position=SchemaLocator.PositionInfo(ledgerId=number, entryId=0))
        for number in ledgers
    ]
    return SchemaLocator(info=entries[-1], index=entries).SerializeToString()


async def put_node(store: MetadataStore, path: str, data: bytes) -> None:
    """Write a node, and create its ancestors."""
    parts = path.split("/")[1:]
    for end in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:end])
        if await store.stat(part) is None:
            await store.create(part)
    await store.set(path, data, -1)
