"""A snapshot is read exactly as written; anything else is refused with a reason."""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind
from bookie.model.exit_codes import ExitCode, audit_exit_code
from spark_jobs.snapshot import format as snapshot_format
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.files import opened, source_of
from spark_jobs.snapshot.format import SnapshotStream
from spark_jobs.snapshot.index import SnapshotIndex, index_snapshot, index_source
from spark_jobs.snapshot.streaming import _Body
from tests.worlds.snapshots import DIGEST, END, LAST_ZXID, Znode, listed, node_at, put, snappy, tree_of, written

CLUSTER = Cluster("/pulsar/ledgers", LayoutKind.HIERARCHICAL, "0b8e")
LEDGERS = {3: b"three", 1: b"one", 10_000: b"", 1 << 40: b"long"}
OTHERS = {"/zookeeper/quota": b"", "/pulsar/ledgers/underreplication/ledgers/0000": b"", "/other/00/0000/L0001": b"no"}
TREE = tree_of(CLUSTER, LEDGERS, OTHERS)
SMALL = written(TREE, trailers=(DIGEST, LAST_ZXID))


class FromBytes:
    """A source in memory, for tests with many examples."""

    is_seekable = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int) -> bytes:
        block = self._data[self._at : self._at + size]
        self._at += len(block)
        return block

    def skip_to(self, offset: int) -> None:
        self._at = offset


def read(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return every node of an intact snapshot."""
    stream = SnapshotStream(FromBytes(data), "it")
    stream.begin()
    nodes = list(stream.nodes())
    stream.finish()
    return nodes


def index_of(data: bytes, tmp_path: Path, cluster: Cluster = CLUSTER) -> SnapshotIndex:
    file = tmp_path / "snapshot.5"
    file.write_bytes(data)
    return index_snapshot(file, cluster)


def refusal(data: bytes, tmp_path: Path, cluster: Cluster = CLUSTER) -> str:
    with pytest.raises(SnapshotError) as refused:
        index_of(data, tmp_path, cluster)
    assert audit_exit_code(refused.value) is ExitCode.CONFIGURATION
    return str(refused.value)


def names() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=5)


@st.composite
def trees(draw: st.DrawFn) -> Znode:
    root = Znode(draw(st.none() | st.binary(max_size=5)))
    for parts in draw(st.lists(st.lists(names(), min_size=1, max_size=4), max_size=8)):
        put(root, "/" + "/".join(parts), draw(st.none() | st.binary(max_size=300)))
    return root


@given(
    trees(),
    st.lists(st.tuples(st.integers(-5, 1 << 60), st.integers(0, 1 << 30)), max_size=3),
    st.dictionaries(
        st.integers(0, 9), st.none() | st.lists(st.tuples(st.integers(0, 31), names(), names()), max_size=2), max_size=3
    ),
    st.sampled_from([(), (DIGEST,), (LAST_ZXID,), (DIGEST, LAST_ZXID)]),
    st.sampled_from([1, 3, 16, 1 << 20]),
)
def test_every_node_is_read_as_written_with_blocks_of_any_size(
    root: Znode,
    sessions: list[tuple[int, int]],
    acls: dict[int, list[tuple[int, str, str]] | None],
    trailers: tuple[bytes, ...],
    block: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_format, "_BLOCK", block)
        assert read(written(root, sessions=sessions, acls=acls, trailers=trailers)) == listed(root)


def test_a_snapshot_truncated_at_any_byte_is_refused() -> None:
    # If it is cut right after a checksum, it is a complete snapshot of an older release.
    whole = {len(SMALL), len(SMALL) - len(LAST_ZXID) - 13, len(SMALL) - len(LAST_ZXID) - len(DIGEST) - 26}
    for end in range(len(SMALL)):
        if end in whole:
            assert read(SMALL[:end]) == listed(TREE)
        else:
            with pytest.raises(SnapshotError):
                read(SMALL[:end])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_bit_in_any_byte_is_refused(flip: int) -> None:
    for at in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[at] ^= flip
        with pytest.raises(SnapshotError):
            read(bytes(damaged))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    for start in (b"", SMALL[:16], SMALL[:60]):
        with pytest.raises(SnapshotError):
            read(start + data)


def test_bytes_after_the_end_are_refused() -> None:
    for more in (b"\x00", SMALL, LAST_ZXID):
        with pytest.raises(SnapshotError, match="lacks the end mark of a snapshot"):
            read(SMALL + more)


@pytest.mark.parametrize("packed", [lambda data: data, gzip.compress, snappy], ids=["plain", "gzip", "snappy"])
def test_the_index_contains_the_positions_of_the_ledgers(packed: object, tmp_path: Path) -> None:
    assert callable(packed)
    node_at(TREE, "/pulsar/ledgers/00/0000").czxid = 42
    data = written(TREE, trailers=(DIGEST, LAST_ZXID))
    index = index_of(packed(data), tmp_path)
    assert [(part.parent, part.ledgers, part.creates) for part in index.parts] == [
        ("/pulsar/ledgers/00/0000", 2, 2),
        ("/pulsar/ledgers/00/0001", 1, 1),
        ("/pulsar/ledgers/000/0001/0995/1162", 1, 1),
    ]
    assert (index.ledgers, index.nodes, index.bytes_read) == (4, len(listed(TREE)), len(data))
    assert index.parts[0].czxid == 42
    for part in index.parts:
        assert zlib.adler32(data[part.offset : part.offset + part.length]) == part.checksum
        assert data[part.offset + 4 :].startswith(part.parent.encode())
    node_at(TREE, "/pulsar/ledgers/00/0000").czxid = 1


@pytest.mark.parametrize("pack", [gzip.compress, snappy], ids=["gzip", "snappy"])
def test_a_compressed_snapshot_truncated_at_any_byte_is_refused(pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    packed = pack(written(tree_of(CLUSTER, {1: b"1"})))
    for end in range(len(packed)):
        refusal(packed[:end], tmp_path)


def test_a_damaged_compressed_snapshot_is_refused_or_unchanged(tmp_path: Path) -> None:
    sound = written(tree_of(CLUSTER, {1: b"1"}))
    for packed in (gzip.compress(sound, mtime=0), snappy(sound)):
        expected = index_of(packed, tmp_path)
        for at in range(len(packed)):
            damaged = bytearray(packed)
            damaged[at] ^= 0x10
            with contextlib.suppress(SnapshotError):
                assert index_of(bytes(damaged), tmp_path) == expected, "the byte has no effect, as in a time"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 something else entirely", "is not a snapshot of ZooKeeper"),
        (b"ZKLG\x00\x00\x00\x02" + bytes(16), "is a transaction log"),
        (b"\x28\xb5\x2f\xfd" + bytes(16), "Zstandard: unpack it"),
        (written(TREE, header=b"ZKSN\x00\x00\x00\x03" + bytes(8)), "version 3"),
        (SMALL[:-20], "damaged or cut off"),
        (SMALL[: len(SMALL) // 2], "it ends after"),
        (SMALL[:16] + struct.pack(">i", -7), "it has -7 sessions"),
        (gzip.compress(SMALL)[:-4], "cannot be unpacked"),
        (snappy(SMALL)[:-4], "cannot be unpacked: it ends 4 bytes before the end"),
        (SMALL.replace(END, b"\x00\x00\x00\x01x"), "damaged or cut off"),
        (snappy(SMALL)[:16] + struct.pack(">i", (1 << 26) + 1), "it has a block of 67108865 bytes"),
        (snappy(SMALL)[:16] + struct.pack(">i", 5) + b"\x80\x80\x80\x40\x00", "it has a block of 134217728 bytes"),
    ],
)
def test_an_unusable_file_is_refused_with_a_message_of_one_line(data: bytes, reason: str, tmp_path: Path) -> None:
    text = refusal(data, tmp_path)
    assert reason in text
    assert str(tmp_path) in text
    assert "\n" not in text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(SnapshotError, match=r"cannot be opened: No such file"),
        opened(tmp_path / "snapshot.9"),
    ):
        raise AssertionError("the file was opened")


def test_a_snapshot_of_another_cluster_is_refused(tmp_path: Path) -> None:
    foreign = Cluster(CLUSTER.root, CLUSTER.kind, "another")
    assert "is of another cluster" in refusal(written(tree_of(foreign, LEDGERS)), tmp_path)
    elsewhere = Cluster("/ledgers", CLUSTER.kind, CLUSTER.instance_id)
    assert "has no cluster at /pulsar/ledgers" in refusal(written(tree_of(elsewhere, LEDGERS)), tmp_path)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_instance_id_of_a_nested_cluster_is_ignored(is_first: bool, tmp_path: Path) -> None:
    """ZooKeeper may write the children of a node in any order."""
    tree, below = tree_of(CLUSTER, LEDGERS), tree_of(CLUSTER, {}, {"/pulsar/ledgers/z/INSTANCEID": b"other"})
    children, more = node_at(tree, CLUSTER.root).children, {"z": node_at(below, f"{CLUSTER.root}/z")}
    ordered = more | children if is_first else children | more
    children.clear()
    children.update(ordered)
    assert index_of(written(tree), tmp_path).ledgers == len(LEDGERS)


def test_the_flat_layout_is_refused(tmp_path: Path) -> None:
    flat = Cluster(CLUSTER.root, LayoutKind.FLAT, CLUSTER.instance_id)
    assert "flat layout" in refusal(written(tree_of(flat, LEDGERS)), tmp_path, flat)


def test_an_error_of_the_caller_between_two_blocks_ends_the_pass(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.5"
    file.write_bytes(SMALL)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        index_snapshot(file, CLUSTER, stop)


def test_the_caller_can_stop_the_pass_before_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_format, "_BLOCK", 100)
    file = tmp_path / "snapshot.5"
    file.write_bytes(SMALL)
    seen = 0

    def look() -> None:
        nonlocal seen
        seen += 1

    index_snapshot(file, CLUSTER, look)
    assert seen >= len(SMALL) // 100


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, snappy], ids=["plain", "gzip", "snappy"])
def test_a_snapshot_that_arrives_in_small_pieces_is_the_same(pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    pieces = (bytes([byte]) for byte in pack(SMALL))
    taken = bytearray()
    source = source_of(_Body(pieces, taken.extend), "it", is_seekable=False)
    assert index_source(source, tmp_path, "it", CLUSTER).parts == index_of(SMALL, tmp_path).parts
    assert taken == pack(SMALL)
