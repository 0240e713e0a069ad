"""What a snapshot alone decides about ledgers, and what is read again from ZooKeeper."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import SHORT_ID_END, LayoutKind
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode, encode
from bookie.metadata.port import Stat
from bookie.model.ids import LEDGER_ID_MAX, BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.datasource.snapshot_ledgers import SettledLedgerFilter, SnapshotTasks, divide_parts
from spark_jobs.runs.reading.snapshot_reading import Division, creates_of, divide
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.index import SnapshotIndex, SnapshotPart, index_snapshot
from tests.unit.spark_jobs.test_audit_columns import BOOKIES, ledger_metadata
from tests.worlds.snapshots import CHILDREN_ZXID, delete, put, snappy, tree_of, written

CLUSTER = Cluster("/ledgers", LayoutKind.HIERARCHICAL, "0b8e")
LIVE = frozenset(map(str, BOOKIES[:4]))


def closed(*members: str, starts: Sequence[int] = (0,)) -> LedgerMetadata:
    fragments = tuple(Fragment(EntryId(start), tuple(map(BookieId, members))) for start in starts)
    return LedgerMetadata(len(members), 2, 2, fragments).closed(EntryId(99), 100)


def opened(*members: str) -> LedgerMetadata:
    return LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), tuple(map(BookieId, members))),))


@given(st.lists(ledger_metadata().map(encode) | st.binary(max_size=40), max_size=6), st.sets(st.sampled_from(BOOKIES)))
def test_only_closed_ledgers_on_live_bookies_need_no_second_check(ledgers: list[bytes], live: set[BookieId]) -> None:
    sieve = SettledLedgerFilter(frozenset(live))
    columns = LedgerColumns(frozenset(live))
    for number, data in enumerate(ledgers):
        try:
            metadata = decode(data)
            is_expected = metadata.is_closed and metadata.members() <= live
        except UnreadableMetadataError:
            is_expected = False
        assert sieve.is_settled(data) is is_expected
        if is_expected:
            columns.add(number, data)
    assert len(columns) == 0
    assert sieve.counts.summary() == columns.counts.summary()


def test_a_name_that_is_not_a_bookie_id_is_not_live() -> None:
    """A registration may have any name. Metadata with such a name is unreadable."""
    sound = encode(closed("ab", "cd"))
    assert SettledLedgerFilter(frozenset({"ab", "cd"})).is_settled(sound)
    assert not SettledLedgerFilter(frozenset({"ab", "c,"})).is_settled(sound.replace(b"cd", b"c,"))


def read_parts(index: SnapshotIndex, cluster: Cluster, count: int = 1) -> tuple[list[int], pa.StructScalar]:
    """Return the ids to read again and the counts, from one task with all groups."""
    groups = divide_parts(index.parts, count)
    tasks = SnapshotTasks(index.file, cluster.kind, cluster.root, LIVE, groups)
    batches = list(tasks(iter([pa.record_batch([pa.array(range(len(groups)))], names=["id"])])))
    named = [ledger_id for batch in batches[:-1] for ledger_id in batch.column(0).to_pylist()]
    return named, batches[-1].column(1)[0]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, snappy], ids=["plain", "gzip", "snappy"])
@pytest.mark.parametrize("kind", [LayoutKind.HIERARCHICAL, LayoutKind.LONG_HIERARCHICAL])
@pytest.mark.parametrize("count", [1, 3])
def test_parts_are_read_completely(
    pack: Callable[[bytes], bytes], kind: LayoutKind, count: int, tmp_path: Path
) -> None:
    cluster = Cluster(CLUSTER.root, kind, CLUSTER.instance_id)
    a, b, c = BOOKIES[:3]
    sound, lost, growing = encode(closed(a, b, c)), encode(closed(a, b, "gone:1")), encode(opened(a, b, c))
    ledgers = {5: sound, 1: lost, 70_000: growing, 70_001: b"damage", SHORT_ID_END - 1: sound, 1 << 40: lost}
    ledgers |= {LEDGER_ID_MAX: sound, 3: encode(closed(a, b, c, starts=(0, 50))), 4: encode(closed(a, "x:1", c))}
    tree = tree_of(cluster, ledgers, {"/ledgers/cookies/a:1": b"", "/managed-ledgers/t/n": b"L0001"})
    file = tmp_path / "snapshot"
    file.write_bytes(pack(written(tree)))
    named, summary = read_parts(index_snapshot(file, cluster), cluster, count)
    assert sorted(named) == [1, 4, 70_000, 70_001, 1 << 40]
    counts = summary.as_py()
    assert (counts["ledgers"], counts["closed"], counts["fragments"]) == (4, 4, 5)
    assert (counts["returned"], counts["skipped"], counts["unreadable"]) == (5, 0, 0)


def test_the_others_are_kept_as_rows_if_requested(tmp_path: Path) -> None:
    a, b, c = BOOKIES[:3]
    several = closed(a, b, c, starts=(0, 50))
    ledgers = {1: encode(closed(a, b, c)), 2: encode(opened(a, b, c)), 3: b"damage", 70_000: encode(several)}
    file = tmp_path / "snapshot"
    file.write_bytes(written(tree_of(CLUSTER, ledgers)))
    index = index_snapshot(file, CLUSTER)
    named, summary = read_parts(index, CLUSTER)
    tasks = SnapshotTasks(index.file, CLUSTER.kind, CLUSTER.root, LIVE, divide_parts(index.parts, 1), keeps_all=True)
    rows = pa.Table.from_batches(tasks(iter([pa.record_batch([pa.array([0])], names=["id"])]))).to_pylist()
    assert [row["named_id"] for row in rows if row["named_id"] is not None] == named == [2, 3]
    assert [row["summary"] for row in rows if row["summary"] is not None] == [summary.as_py()]
    columns = LedgerColumns()
    for number in (1, 70_000):
        columns.add(number, ledgers[number])
    expected = columns.take_batch().to_pylist()
    kept = [row for row in rows if row["ledger_id"] is not None]
    assert [{name: row[name] for name in expected[0]} for row in kept] == expected


def test_nodes_that_are_not_ledgers_are_skipped(tmp_path: Path) -> None:
    tree = tree_of(CLUSTER, {1: encode(closed(*BOOKIES[:3]))})
    for name in ("L00x1", "L", "M0001", "L00001"):
        put(tree, f"/ledgers/00/0000/{name}", b"")
    put(tree, "/ledgers/00/0000/L0001/below", b"")
    put(tree, "/ledgers/21/4748/L3647", encode(closed(*BOOKIES[:3])))  # an id with another path
    file = tmp_path / "snapshot"
    file.write_bytes(written(tree))
    named, summary = read_parts(index_snapshot(file, CLUSTER), CLUSTER)
    assert (named, summary.as_py()["ledgers"], summary.as_py()["skipped"]) == ([], 1, 2)


def test_a_file_that_changed_after_it_was_verified_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    ledgers = {number: encode(closed(*BOOKIES[:3])) for number in range(4)}
    sound = written(tree_of(CLUSTER, ledgers))
    file.write_bytes(sound)
    index = index_snapshot(file, CLUSTER)
    others = [written(tree_of(CLUSTER, ledgers | {2: encode(closed(*BOOKIES[1:4]))})), sound[: len(sound) // 2], b""]
    others += [written(tree_of(CLUSTER, ledgers | {9: b""})), written(tree_of(CLUSTER, ledgers), sessions=())]
    for other in others:
        file.write_bytes(other)
        with pytest.raises(SnapshotError):
            read_parts(index, CLUSTER)
    file.unlink()
    with pytest.raises(SnapshotError):
        read_parts(index, CLUSTER)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 30))
def test_groups_contain_every_part_once_in_order_and_are_about_equal(sizes: list[int], count: int) -> None:
    parts = [SnapshotPart(f"/{number}", 0, 0, 0, size, 0, 0, 0, 0) for number, size in enumerate(sizes)]
    groups = divide_parts(parts, count)
    assert [part for group in groups for part in group] == parts
    assert len(groups) <= count
    assert all(groups)
    fair = -(-sum(size + 1 for size in sizes) // count)
    assert all(sum(part.ledgers + 1 for part in group[:-1]) <= fair for group in groups)


def test_zero_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot divide into 0 groups"):
        divide_parts([], 0)


def stat(creates: int, children: int, czxid: int = 1, zxid: int = CHILDREN_ZXID) -> Stat:
    """A stat as ZooKeeper reports it: the version of the children is the number of creations and deletions."""
    return Stat(0, czxid, 0, 0, 0, children, 2 * creates - children, 0, zxid)


def test_nodes_without_new_ledgers_are_read_from_the_snapshot(tmp_path: Path) -> None:
    tree = tree_of(CLUSTER, dict.fromkeys((*range(4), *range(10000, 10003), 20000, 30000), b""))
    delete(tree, "/ledgers/00/0000/L0003")
    file = tmp_path / "snapshot"
    file.write_bytes(written(tree))
    index = index_snapshot(file, CLUSTER)
    assert [part.creates for part in index.parts] == [4, 3, 1, 1]

    def divided(*nodes: tuple[str, Stat]) -> tuple[list[str], dict[str, int]]:
        division = divide(index, [(f"/ledgers/00/{name}", stat) for name, stat in nodes])
        return [p.parent[-4:] for p in division.parts], {p.path[-4:]: p.planned for p in division.live}

    assert divided(("0000", stat(4, 3)), ("0001", stat(3, 3))) == (["0000", "0001"], {}), "nothing has changed"
    later = CHILDREN_ZXID + 1
    of_deleted = ("0000", stat(4, 1, zxid=later)), ("0001", stat(3, 0, zxid=later))
    assert divided(*of_deleted) == (["0000", "0001"], {}), "ledgers were deleted"
    assert divided(("0000", stat(5, 4)), ("0001", stat(4, 3))) == ([], {"0000": 4, "0001": 3}), "ledgers were created"
    assert divided(("0002", stat(1, 1, czxid=9))) == ([], {"0002": 1}), "the node was deleted and created again"
    for other in (later, CHILDREN_ZXID - 1):
        undone = divided(("0000", stat(4, 3, zxid=other)))
        assert undone == ([], {"0000": 3}), "as many other ledgers were created after a backup was restored"
    assert divided(("0007", stat(1, 1)), ("0008", stat(1, 0))) == ([], {"0007": 1}), "the nodes are new"
    assert divided(("0003", stat(0, 0))) == ([], {}), "the server is older than the snapshot and has no ledgers there"
    assert divided() == ([], {}), "all ledgers were deleted"
    assert divide(index, []) == Division((), ())
    assert creates_of(stat(7, 2)) == 7
