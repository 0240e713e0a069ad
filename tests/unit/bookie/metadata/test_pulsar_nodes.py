"""The nodes of Pulsar's managed ledgers, cursors and schemas: decoded completely, or refused.

The bytes are built by hand from docs/formats.md#references-of-pulsar.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.port import AccessDeniedError
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from bookie.metadata.pulsar.decoding import (
    CursorReferences,
    EntriesLocation,
    LedgerReference,
    UndecodableNodeError,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from bookie.metadata.pulsar.referrers import COMPACTION, ledger_with_reference, references_of
from bookie.metadata.pulsar.tree import NodeKind, PulsarNode, PulsarTree
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ownership import topic_of_managed_ledger
from tests.deadlines import STATE_S
from tests.worlds.pulsar_nodes import cursor, put_node

# ledger 7 with 5 entries, 100 bytes, ended at 1; ledger 8 without an end.
ONE = b"\x0a\x08\x08\x07\x10\x05\x18\x64\x20\x01"
OPEN = b"\x0a\x02\x08\x08"
REFERENCES = (
    LedgerReference(7, EntriesLocation.BOOKKEEPER, is_empty=False),
    LedgerReference(8, EntriesLocation.BOOKKEEPER, is_empty=False),
)


def headed(kind: int, size: int, payload: bytes) -> bytes:
    """Return a compressed node with this header."""
    head = bytes((0x08, kind, 0x10, size))
    return b"\x47\x78" + len(head).to_bytes(4, "big") + head + payload


def flushed(data: bytes) -> bytes:
    compressor = zlib.compressobj()
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def packed(codec: str, data: bytes) -> bytes:
    return bytes(pa.Codec(codec).compress(data, asbytes=True))


def cut_references(data: bytes) -> tuple[LedgerReference, ...] | None:
    """Return None if the data is refused. The last bytes of a flush contain no data."""
    try:
        return managed_ledger_references(data)
    except UndecodableNodeError:
        return None


def test_a_topic_refers_to_its_ledgers() -> None:
    assert managed_ledger_references(ONE + OPEN) == REFERENCES
    assert managed_ledger_references(b"") == ()


@pytest.mark.parametrize(
    ("offload", "copy"),
    [
        (b"", EntriesLocation.BOOKKEEPER),
        (b"\x18\x01", EntriesLocation.BOTH),
        (b"\x18\x01\x20\x01", EntriesLocation.OFFLOADED),
    ],
)
def test_the_offload_state_determines_where_the_entries_are(offload: bytes, copy: EntriesLocation) -> None:
    ledger = b"\x08\x07\x20\x01\x2a" + bytes((len(offload),)) + offload
    data = b"\x0a" + bytes((len(ledger),)) + ledger
    assert managed_ledger_references(data) == (LedgerReference(7, copy, is_empty=True),)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (0, ONE + OPEN),
        (1, packed("lz4_raw", ONE + OPEN)),
        (2, flushed(ONE + OPEN)),
        (3, packed("zstd", ONE + OPEN)),
        (4, packed("snappy", ONE + OPEN)),
    ],
)
def test_every_compression_is_read(kind: int, payload: bytes) -> None:
    data = headed(kind, len(ONE + OPEN), payload)
    assert managed_ledger_references(data) == REFERENCES
    for end in range(1, len(data)):
        assert cut_references(data[:end]) in (None, REFERENCES)


@pytest.mark.parametrize(
    "data",
    [
        b"\x47\x78\xff\xff\xff\xff",
        headed(5, 1, b"x"),
        headed(2, 12, b"x" * 12),
        headed(3, 12, b"x" * 12),
        headed(0, 11, ONE + OPEN),
        b"\x47\x78\x00\x00\x00\x07\x08\x01\x10\xff\xff\xff\x7f",
        ONE + b"\x22\x00",  # a field of a later release
        b"\x0a\x02\x10\x05",  # no ledger id
        b"\x08\x07",
        ONE[:-1],
    ],
)
def test_data_that_may_hide_a_reference_is_refused(data: bytes) -> None:
    with pytest.raises(UndecodableNodeError):
        managed_ledger_references(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (managed_ledger_references, cursor_references, schema_references):
        try:
            decode(data)
        except UndecodableNodeError:
            continue


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=20))
def test_no_reference_is_lost(ids: list[int]) -> None:
    info = ManagedLedgerInfo(ledgerInfo=[ManagedLedgerInfo.LedgerInfo(ledgerId=number) for number in ids])
    assert [each.ledger_id for each in managed_ledger_references(info.SerializeToString())] == ids


def test_a_subscription_refers_to_its_position_the_compacted_ledger_and_buckets() -> None:
    info = ManagedCursorInfo(cursorsLedgerId=-1)
    info.properties.add(name="CompactedTopicLedger", value=9)
    info.properties.add(name="another", value=10)
    info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value="11")
    info.cursorProperties.add(name="another", value="x")
    assert cursor_references(info.SerializeToString()) == CursorReferences((9, 11), position_in=None)
    assert cursor_references(b"\x08\x05") == CursorReferences((5,), position_in=5)
    assert cursor_references(b"\x08\x00") == CursorReferences((0,), position_in=0)
    info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_3_4", value="x")
    with pytest.raises(UndecodableNodeError):
        cursor_references(info.SerializeToString())


@pytest.mark.parametrize("value", ["", "-1", "+1", "1_0", "\u0661", "9223372036854775808", "9" * 5000])
def test_a_bucket_without_the_id_of_a_ledger_makes_a_cursor_undecodable(value: str) -> None:
    def bucket(text: str) -> bytes:
        info = ManagedCursorInfo(cursorsLedgerId=-1)
        info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=text)
        return info.SerializeToString()

    with pytest.raises(UndecodableNodeError, match="no ledger id"):
        cursor_references(bucket(value))
    assert cursor_references(bucket("9223372036854775807")).ledgers == ((1 << 63) - 1,)


def test_a_compaction_cursor_stored_in_a_ledger_names_only_that_ledger() -> None:
    in_node = (  # cursorsLedgerId -1, and the property CompactedTopicLedger=9
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x2a\x18\x0a\x14CompactedTopicLedger\x10\x09"
    )
    in_ledger = b"\x08\x05"
    assert [each.ledger_id for each in references_of(NodeKind.CURSOR, in_node)] == [9]
    assert ledger_with_reference(COMPACTION, in_node) is None
    assert [each.ledger_id for each in references_of(NodeKind.CURSOR, in_ledger)] == [5]
    assert ledger_with_reference(COMPACTION, in_ledger) == 5
    assert ledger_with_reference("s", in_ledger) is None, "only a compaction cursor refers to a compacted ledger"
    for cut in (in_node[:-1], in_ledger[:-1]):
        with pytest.raises(UndecodableNodeError):
            ledger_with_reference(COMPACTION, cut)


def test_a_schema_refers_to_the_ledger_of_each_version() -> None:
    position = b"\x08\x00\x12\x04\x08\x07\x10\x00\x1a\x00"
    other = position.replace(b"\x07", b"\x08")
    entries = [b"\x0a\x0a" + position, b"\x12\x0a" + position, b"\x12\x0a" + other]
    assert schema_references(b"".join(entries)) == (7, 8)


async def below(tree: PulsarTree, parent: str, share: int = 0, shares: int = 1) -> list[PulsarNode]:
    return [node async for part in tree.nodes(parent, share, shares) for node in part]


async def test_the_tree_is_read_with_old_and_new_names() -> None:
    store = MemoryStore(MemoryCell())
    names = [
        "managed-ledgers/t/n/persistent/a",
        "managed-ledgers/t/n/persistent/a/s",
        "managed-ledgers/t/c/n/persistent/b",
        "managed-ledgers/t/c/n/persistent/b/s",
        "managed-ledgers/t/n/segment/x/0",
        "managed-ledgers/t/n/segment/x/0/s",
        "schemas/t/n/a",
    ]
    for name in names:
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            path = "/p/" + "/".join(parts[:end])
            if await store.stat("/p") is None:
                await store.create("/p")
            if await store.stat(path) is None:
                await store.create(path, name.encode() if end == len(parts) else b"")
    tree = PulsarTree(store, "/p")
    assert await tree.exists()
    assert not await PulsarTree(store, "").exists()
    parents = await tree.parents()
    assert [(parent.path, parent.planned) for parent in parents] == [
        ("managed-ledgers/t/n/persistent", 1),
        ("managed-ledgers/t/n/segment", 1),
        ("managed-ledgers/t/c/n/persistent", 1),
        ("schemas/t/n", 1),
    ]
    found = [node for parent in parents for node in await below(tree, parent.path)]
    shared = [node for parent in parents for share in range(3) for node in await below(tree, parent.path, share, 3)]
    assert sorted(map(repr, shared)) == sorted(map(repr, found))
    assert sorted((node.kind.name, node.name, node.cursor, node.data.decode()) for node in found) == [
        ("CURSOR", "t/c/n/persistent/b", "s", names[3]),
        ("CURSOR", "t/n/persistent/a", "s", names[1]),
        ("CURSOR", "t/n/segment/x/0", "s", names[5]),
        ("MANAGED_LEDGER", "t/c/n/persistent/b", None, names[2]),
        ("MANAGED_LEDGER", "t/n/persistent/a", None, names[0]),
        ("MANAGED_LEDGER", "t/n/segment/x/0", None, names[4]),
        ("SCHEMA", "t/n/a", None, names[6]),
    ]
    for node in found:
        if node.kind is not NodeKind.SCHEMA:
            assert topic_of_managed_ledger(node.name).managed_ledger == node.name


async def test_denied_nodes_are_reported_and_never_left_out() -> None:
    store = MemoryStore(MemoryCell())
    for name in ("a", "b"):
        await put_node(store, f"/p/managed-ledgers/t/n/persistent/{name}", b"x")
        await put_node(store, f"/p/managed-ledgers/t/n/persistent/{name}/s", b"y")
    tree = PulsarTree(store, "/p")
    store.cell.deny("/p/managed-ledgers/t/n/persistent/a")
    found = await below(tree, "managed-ledgers/t/n/persistent")
    assert [(node.name[-1], node.cursor, node.is_denied) for node in found] == [
        ("a", None, True),
        ("b", None, False),
        ("b", "s", False),
    ]
    store.cell.deny("/p/managed-ledgers/t/n/persistent")
    with pytest.raises(AccessDeniedError):
        await below(tree, "managed-ledgers/t/n/persistent")


class SlowStore(MemoryStore):
    """A store that answers the first request for data only after the second was sent."""

    def __init__(self) -> None:
        super().__init__(MemoryCell())
        self.second_sent = asyncio.Event()
        self.sent = 0

    async def get_many_data(self, paths: Sequence[str]) -> list[bytes | None]:
        self.sent += 1
        if self.sent == 1:
            await self.second_sent.wait()
        self.second_sent.set()
        return await super().get_many_data(paths)


async def test_the_next_batch_is_prefetched_and_the_order_is_kept() -> None:
    store = SlowStore()
    for name in ("a", "b"):
        await put_node(store, f"/p/managed-ledgers/t/n/persistent/{name}", b"")
        await put_node(store, f"/p/managed-ledgers/t/n/persistent/{name}/s", b"")
    reading = below(PulsarTree(store, "/p"), "managed-ledgers/t/n/persistent")
    found = await asyncio.wait_for(reading, STATE_S)
    assert [(node.kind.name, node.name[-1]) for node in found] == [
        ("MANAGED_LEDGER", "a"),
        ("MANAGED_LEDGER", "b"),
        ("CURSOR", "a"),
        ("CURSOR", "b"),
    ]
    assert store.sent == 2


def test_a_property_whose_name_is_not_utf_8_makes_a_cursor_undecodable() -> None:
    damaged = cursor(7, bucket=9).replace(b"#pulsar", b"#pul\xffar")
    with pytest.raises(UndecodableNodeError, match="UTF-8"):
        cursor_references(damaged)
