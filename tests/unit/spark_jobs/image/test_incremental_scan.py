"""What an incremental run reads and what it takes from the image, on a store in memory, and how leaves are planned."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.core.broadcast import Broadcast

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.bookies.attendance import UNKNOWN_ATTENDANCE
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import SHORT_ID_END, LayoutKind, ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.port import ANY_VERSION, MetadataStore, StoreUnavailableError
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from spark_jobs.datasource import incremental as incremental_module
from spark_jobs.datasource.incremental import (
    ImageSource,
    IncrementalTasks,
    LeafWork,
    incremental,
    work_of,
    work_text,
)
from spark_jobs.datasource.ledgers import leaf_stat
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.datasource.scan import leaf_of, scan
from spark_jobs.image import files
from spark_jobs.image import part as part_module
from spark_jobs.image.carried import ImageRows, leaves_of, tally
from spark_jobs.image.columns import LEDGERS_SCHEMA, ImageColumns, tables_of
from spark_jobs.image.folder import ImageFolder, LocalImageFolder
from spark_jobs.image.leaves import LeafRecord, LeafSlice, LeafStat, leaf_records, leaf_table, newest_record_per_leaf
from spark_jobs.image.manifest import ImageError, Manifest
from spark_jobs.image.part import ImageFile
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.reading.completeness import NO_TOTALS
from spark_jobs.runs.reading.image_upkeep import ImageUpkeep
from spark_jobs.runs.reading.incremental_plan import Times, groups_of_work, plan_incremental
from spark_jobs.runs.reading.incremental_reading import _Sources
from spark_jobs.runs.reading.ledger_scan import ImageParts
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, formatted

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def unpaced(store: MetadataStore) -> PacedStore:
    return PacedStore(store, Pace(SystemClock()), ROOT)


LIVE = "a:1,b:1,c:1"


def path_of(place: ImageFolder) -> Path:
    assert isinstance(place, LocalImageFolder)
    return place.path


def closed(*members: str) -> LedgerMetadata:
    return growing(*members).closed(EntryId(9), 100)


def growing(*members: str) -> LedgerMetadata:
    return LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), tuple(map(BookieId, members))),))


HEALTHY = closed("a:1", "b:1", "c:1")
LEDGERS = dict.fromkeys([*range(40), *range(10_000, 10_040), 20_000, 1 << 33], HEALTHY)


@dataclass
class World:
    """A cluster in memory, and the image that the last run wrote."""

    store: MemoryStore
    cluster: Cluster
    directory: Path
    reads: int = 0
    places: dict[str, ImageFolder] = field(default_factory=dict)
    files: dict[str, ImageFile] = field(default_factory=dict)
    records: Mapping[int, LeafRecord] = field(default_factory=dict)
    now_ms: int = NOW_MS
    last_ms: int = NOW_MS
    writes_to: Path | None = None
    marked: Sequence[int] | None = ()

    @property
    def ledgers(self) -> LedgerStore:
        return LedgerStore(self.store, self.cluster, random.Random(1))

    async def create(self, ledgers: Mapping[int, LedgerMetadata]) -> None:
        await self.ledgers.create_many([(LedgerId(number), metadata) for number, metadata in ledgers.items()])

    async def write(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        version = (await self.ledgers.read(LedgerId(ledger_id))).version
        await self.ledgers.write(LedgerId(ledger_id), metadata, version)

    async def delete(self, *ids: int) -> None:
        for ledger_id in ids:
            await self.ledgers.delete(LedgerId(ledger_id))

    async def plan(self) -> list[LeafParent]:
        nodes = await LedgerTree(self.store, self.cluster).leaf_nodes()
        return [LeafParent(path, stat.children_count, leaf_stat(stat)) for path, stat in nodes if stat.children_count]

    async def whole(self, live: str = LIVE) -> tuple[set[int], Mapping[str, Any]]:
        """Read everything. Return the ids in the returned rows, and the counts."""
        options = self._options(live)
        return self._took(
            options, [batch async for batch in scan(unpaced(self.store), self.cluster, await self.plan(), options)]
        )

    async def again(
        self, live: str = LIVE, after_plan: Callable[[], Awaitable[None]] | None = None
    ) -> tuple[set[int], Mapping[str, Any]]:
        """Read incrementally; ``after_plan`` is called before the first listing."""
        plan, options = await self.plan(), self._options(live)
        if after_plan is not None:
            await after_plan()
        leaves = [leaf_of(self.cluster, parent.path) for parent in plan]
        works = plan_incremental(plan, leaves, self.records, Times(self.now_ms, self.last_ms, 7 * DAY_MS))
        batches = []
        for group in map(work_of, map(work_text, groups_of_work(works, 1))):
            source = ImageSource(self.files, self.places)
            batches += [each async for each in incremental(unpaced(self.store), self.cluster, group, source, options)]
        return self._took(options, batches)

    def _options(self, live: str) -> LedgerOptions:
        self.reads += 1
        directory = self.writes_to or self.directory / str(self.reads)
        if self.writes_to is None:
            directory.mkdir()
        return LedgerOptions(
            parse_uri("zk://unused/ledgers"),
            ZooKeeperAccess(),
            1.0,
            live_bookies=frozenset(live.split(",")),
            is_summarized=True,
            image_dir=str(directory),
            image_from_ms=self.now_ms,
            image_unsettled=self.marked,
        )

    def _took(self, options: LedgerOptions, batches: Sequence[pa.RecordBatch]) -> tuple[set[int], Mapping[str, Any]]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        summary = rows[-1]["summary"]
        listed = sum(parent["listed"] for parent in summary["parents"])
        assert listed == sum(summary[name] for name in ("ledgers", "unreadable", "vanished")), "each is counted once"
        assert options.image_dir is not None
        made = tuple(ImageFile(**file) for file in summary["image"]["files"])
        if not summary["image"]["problem"]:
            directory = Path(options.image_dir)
            kind = self.cluster.kind.value
            manifest = Manifest("a", self.cluster.instance_id, self.cluster.root, kind, self.now_ms, 0, (), made)
            self.records = newest_record_per_leaf(leaves_of(LocalImageFolder(directory), manifest))
            self.files = {file.name: file for file in made}
            self.places = dict.fromkeys(self.files, LocalImageFolder(directory))
            self.last_ms = self.now_ms
            kept = sum(file.rows for file in made if file.is_ledgers)
            assert kept == summary["ledgers"], "the new image contains every ledger"
        return {row["ledger_id"] for row in rows[:-1]}, _plain(summary)


def _plain(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    bookies = {each["bookie_id"]: (each["ledgers"], each["fragments"]) for each in summary["bookies"]}
    listed = {each["path"]: each["listed"] for each in summary["parents"]}
    return {**summary, "bookies": bookies, "parents": listed, "image": summary["image"]["problem"]}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the counts are equal, except for the counts of their origin."""
    return all(one[name] == other[name] for name in one if name not in ("carried", "carried_problem", "vanished"))


async def world(directory: Path, ledgers: Mapping[int, LedgerMetadata] = LEDGERS) -> World:
    store = MemoryStore(MemoryCell())
    made = World(store, await formatted(store), directory)
    await made.create(ledgers)
    return made


async def test_unchanged_ledgers_are_carried_over(tmp_path: Path) -> None:
    place = await world(tmp_path)
    members = HEALTHY.fragments[0].members
    two = replace(HEALTHY, fragments=(Fragment(EntryId(0), members), Fragment(EntryId(5), members[::-1])))
    await place.create({100: two, 101: growing("a:1", "b:1"), 102: closed("a:1", "x:1")})
    expected, counts = await place.whole()
    found, again = await place.again()
    assert found == expected == {102}
    assert same(again, counts)
    assert (counts["carried"], again["carried"]) == (0, counts["ledgers"] - 2), "only the open ledger and 102 are read"
    found, again = await place.again()
    assert (found, again["carried"]) == (expected, counts["ledgers"] - 2), "its own image is as good"


async def test_new_deleted_open_and_endangered_ledgers_are_read_at_once(tmp_path: Path) -> None:
    place = await world(tmp_path, LEDGERS | {50: growing("a:1", "b:1"), 51: closed("a:1", "c:1")})
    await place.whole()
    await place.create({60: closed("a:1", "x:1"), 30_001: closed("b:1", "y:1"), 1 << 34: HEALTHY})
    await place.delete(3, 10_007, 20_000)
    await place.write(50, growing("a:1", "b:1").closed(EntryId(3), 30))
    found, again = await place.again("a:1,b:1")
    expected, counts = await place.whole("a:1,b:1")
    assert found == expected >= {60, 30_001, 51}
    assert same(again, counts)
    found, again = await place.again()
    assert found == {60, 30_001}
    assert again["carried"] < 10, "a ledger that was at risk when it was last read is read again"
    found, again = await place.again()
    assert again["carried"] == again["ledgers"] - 2


async def test_a_change_of_a_closed_ledger_is_found_within_the_reread_period(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole("a:1,b:1,c:1,d:1")
    await place.write(7, closed("a:1", "b:1", "d:1"))
    assert (await place.again())[0] == set(), "neither the list nor the image shows the move to a lost bookie"
    seen_ms, unread_ms = 0, {leaf: record.read_from_ms for leaf, record in place.records.items()}
    for _ in range(14):
        place.now_ms += DAY_MS
        found, _ = await place.again()
        seen_ms = seen_ms or (place.now_ms if found else 0)
        for leaf, record in place.records.items():
            assert place.now_ms - record.read_from_ms <= 7 * DAY_MS
            unread_ms[leaf] = max(unread_ms[leaf], record.read_from_ms)
    assert 0 < seen_ms <= NOW_MS + 7 * DAY_MS
    assert min(unread_ms.values()) > NOW_MS


async def test_a_ledger_marked_when_a_reading_began_is_read_by_the_next_one(tmp_path: Path) -> None:
    place = await world(tmp_path)
    place.marked = (7, 8, 10_001)
    await place.whole()
    await place.write(7, closed("a:1", "x:1"))
    place.marked = (10_002,)
    found, again = await place.again()
    assert (found, again["carried"]) == ({7}, len(LEDGERS) - 3)
    await place.write(10_002, closed("a:1", "x:1"))
    place.marked = None
    found, again = await place.again()
    assert (found, again["carried"]) == ({7, 10_002}, len(LEDGERS) - 2), "a row that was carried over is marked as well"
    place.marked = ()
    found, again = await place.again()
    assert (found, again["carried"]) == ({7, 10_002}, 0), "with too many marks, every ledger is read"
    assert (await place.again())[1]["carried"] == len(LEDGERS) - 2


async def test_carried_over_rows_keep_the_time_at_which_they_were_read(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole()
    read_ms = {leaf: record.read_from_ms for leaf, record in place.records.items()}
    place.now_ms += 1000
    await place.create({30_001: HEALTHY})
    _, counts = await place.again()
    assert counts["carried"] == len(LEDGERS)
    assert {leaf: record.read_from_ms for leaf, record in place.records.items()} == read_ms | {3: place.now_ms}


async def test_an_id_that_was_deleted_and_created_again_is_read(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole()
    await place.delete(7)
    await place.create({7: closed("a:1", "x:1")})
    await place.delete(8)
    found, again = await place.again()
    assert found == {7}
    assert again["parents"]["/ledgers/00/0000"] == 39
    await place.delete(10_001)
    await place.create({10_001: closed("a:1", "x:1"), 10_900: HEALTHY})
    assert (await place.again())[0] == {7, 10_001}


async def test_an_id_that_is_deleted_and_created_again_after_the_plan_is_read(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole()
    await place.create({60: HEALTHY})

    async def replaced() -> None:
        await place.delete(7)
        await place.create({7: closed("a:1", "x:1")})

    assert (await place.again(after_plan=replaced))[0] == {7}


async def test_an_unreadable_ledger_is_not_mistaken_for_one_that_was_created_again(tmp_path: Path) -> None:
    place = await world(tmp_path)
    path = ledger_path(place.cluster.kind, place.cluster.root, 8)
    await place.store.set(path, b"damage", ANY_VERSION)
    await place.whole()
    await place.delete(7)
    await place.create({7: closed("a:1", "x:1")})
    assert (await place.again())[0] == {7, 8}


async def test_a_deleted_ledger_is_not_read_again(tmp_path: Path) -> None:
    place = await world(tmp_path, LEDGERS | {50: growing("a:1", "b:1"), 51: growing("a:1", "b:1")})
    await place.whole()
    await place.delete(50)
    _, counts = await place.again()
    assert (counts["vanished"], counts["open"]) == (0, 1)


async def test_unreadable_ledgers_are_read_again(tmp_path: Path) -> None:
    place = await world(tmp_path)
    path = ledger_path(place.cluster.kind, place.cluster.root, 7)
    sound = (await place.store.get(path)).data
    await place.store.set(path, b"damage", ANY_VERSION)
    place.store.cell.deny(ledger_path(place.cluster.kind, place.cluster.root, 8))
    assert (await place.whole())[0] == {7, 8}
    found, again = await place.again()
    assert (found, again["carried"]) == ({7, 8}, len(LEDGERS) - 2)
    await place.store.set(path, sound, ANY_VERSION)
    await place.create({70: closed("a:1", "x:1")})
    found, again = await place.again()
    assert (found, again["carried"], again["unreadable"]) == ({8, 70}, len(LEDGERS) - 2, 1)
    assert (await place.again())[0] == {8, 70}


async def test_a_ledger_without_any_metadata_is_unreadable_and_not_deleted(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.store.set(ledger_path(place.cluster.kind, place.cluster.root, 7), b"", ANY_VERSION)
    for reading in (place.whole, place.again):
        found, counts = await reading()
        assert (found, counts["unreadable"], counts["vanished"]) == ({7}, 1, 0)


async def test_a_leaf_that_was_created_again_is_read_completely(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole()
    await place.delete(20_000)
    assert await place.store.stat("/ledgers/00/0002") is None
    await place.create({20_000: closed("a:1", "x:1")})
    assert (await place.again())[0] == {20_000}


@pytest.mark.parametrize("zxids", [100, -1])
async def test_a_store_restored_from_a_backup_gives_no_stale_rows(zxids: int, tmp_path: Path) -> None:
    """Its list of children does not continue the one in the image.

    A restored backup has older transaction ids, or, after as many creations as before, newer ones.
    """
    place = await world(tmp_path)
    await place.whole()
    record = place.records[0]
    other = replace(record.stat, children_zxid=record.stat.children_zxid + zxids)
    place.records = {**place.records, 0: replace(record, stat=other)}
    await place.write(7, closed("a:1", "x:1"))
    assert (await place.again())[0] == {7}


async def test_a_changed_byte_of_the_image_causes_reads_and_changes_no_finding(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.create({100: closed("a:1", "x:1"), 10_100: growing("a:1", "b:1")})
    expected, counts = await place.whole()
    files, places, records, last = place.files, place.places, place.records, place.last_ms
    ledgers = next(file for file in files.values() if file.is_ledgers)
    path = path_of(places[ledgers.name]) / ledgers.name
    data = path.read_bytes()
    refused = 0
    for position in range(0, len(data), 211):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        place.files, place.places, place.records, place.last_ms = files, places, records, last
        found, again = await place.again()
        assert found == expected
        assert same(again, counts)
        refused += bool(again["carried_problem"])
    assert refused > 10
    path.unlink()
    place.files, place.places, place.records, place.last_ms = files, places, records, last
    found, again = await place.again()
    assert (found, again["carried"]) == (expected, 0)
    assert "cannot" in again["carried_problem"] or "damaged" in again["carried_problem"]


async def test_a_damaged_list_of_leaves_is_refused(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.whole()
    leaves = next(file for file in place.files.values() if file.is_leaves)
    directory = path_of(place.places[leaves.name])
    data = (directory / leaves.name).read_bytes()
    manifest = Manifest("a", "b", "/ledgers", "hierarchical", NOW_MS, 0, (), tuple(place.files.values()))
    sound = leaves_of(LocalImageFolder(directory), manifest)
    refused = 0
    for position in range(0, len(data), 43):
        changed = data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
        (directory / leaves.name).write_bytes(changed)
        try:
            assert leaves_of(LocalImageFolder(directory), manifest) == sound
        except ImageError:
            refused += 1
    assert refused > 10
    (directory / leaves.name).write_bytes(data[:-9])
    with pytest.raises(ImageError, match="cannot be read"):
        leaves_of(LocalImageFolder(directory), manifest)


async def test_a_full_disk_while_the_image_is_written_changes_no_finding(tmp_path: Path) -> None:
    place = await world(tmp_path)
    await place.create({100: closed("a:1", "x:1")})
    expected, counts = await place.whole()
    place.writes_to = tmp_path / "missing"
    found, again = await place.again()
    assert found == expected
    assert same(again, {**counts, "image": again["image"]})
    assert "cannot write to" in again["image"]


async def test_rows_of_several_files_and_row_groups_are_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "ROW_GROUP", 7)
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 25)
    place = await world(tmp_path)
    expected, counts = await place.whole()
    for _ in range(3):
        found, again = await place.again()
        assert (found, again["carried"]) == (expected, len(LEDGERS))
        assert same(again, counts)
    await place.delete(0, 39)
    await place.create({41: closed("a:1", "x:1")})
    assert (await place.again())[0] == {41}
    found, again = await place.again()
    assert (found, again["carried"], again["ledgers"]) == ({41}, len(LEDGERS) - 2, len(LEDGERS) - 1)


async def test_a_file_has_fewer_ledgers_if_they_have_many_fragments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a task that writes an image depends on the number of members, not of ledgers."""
    monkeypatch.setattr(part_module, "MEMBERS_MAX", 100)
    members = HEALTHY.fragments[0].members
    many = replace(HEALTHY, fragments=tuple(Fragment(EntryId(first), members) for first in range(10)))
    place = await world(tmp_path, {leaf * 10_000 + number: many for leaf in range(5) for number in range(8)})
    await place.whole()
    assert {file.rows for file in place.files.values() if file.is_ledgers} == {4}
    _, counts = await place.again()
    assert counts["carried"] == 40
    assert {file.rows for file in place.files.values() if file.is_ledgers} == {8}, "those of a leaf stay together"


async def test_an_image_of_more_files_than_are_open_at_a_time_is_carried_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 5)
    place = await world(tmp_path)
    _, counts = await place.whole()
    assert sum(file.is_ledgers for file in place.files.values()) > 12
    found, again = await place.again()
    assert (found, again["carried"], again["carried_problem"]) == (set(), len(LEDGERS), "")
    assert same(again, counts)


def row(ledger_id: int, **values: Any) -> dict[str, Any]:
    usual = {"state": "CLOSED", "ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "bookies": ["a:1", "b:1"]}
    return {"ledger_id": ledger_id, **usual, "settled": True, **values}


@pytest.mark.parametrize(
    ("rows", "is_refused"),
    [
        ([row(10_000), row(10_001), row(19_999)], False),
        ([row(10_000), row(10_001)], True),  # fewer rows than the leaf has
        ([row(10_000), row(10_001), row(20_000)], True),  # a row of the next leaf
        ([row(9_999), row(10_000), row(10_001)], True),
        ([row(20_000), row(20_001), row(20_002)], True),
        ([row(10_000), row(10_001), row(10_001)], True),
        ([row(10_000), row(10_001), row(10_002, ensemble_size=0)], True),
        ([row(10_000), row(10_001), row(10_002, bookies=[])], True),
        ([row(10_000), row(10_001), row(10_002, settled=None)], True),
    ],
)
def test_rows_that_cannot_be_those_of_a_leaf_are_refused(
    rows: list[dict[str, Any]], is_refused: bool, tmp_path: Path
) -> None:
    """The checksums are right, so the rows were written like this."""
    place, name = LocalImageFolder(tmp_path), "ledgers-0.parquet"
    table = pa.Table.from_pylist(rows, LEDGERS_SCHEMA)
    content = part_module.table_content(table)
    place.start_write(name, content).result()
    file = part_module.image_file(name, table, content)
    record = LeafRecord(1, LeafStat(1, 1, 3, 3), 3, NOW_MS, (LeafSlice(name, 0, 3),))
    with ImageRows({name: file}, {name: place}) as image:
        if is_refused:
            with pytest.raises(ImageError, match=r"it has|it does not have"):
                image.of(record)
        else:
            assert image.of(record).to_pylist() == rows


def test_a_task_decodes_only_its_own_group_of_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse tree has so many leaves that all groups together would take seconds for each task."""
    stat = LeafStat(1, 2, 3, 4)
    slices = (LeafSlice("ledgers-0.parquet", 5, 6), LeafSlice("ledgers-1.parquet", 0, 7))
    known = LeafWork(LeafParent("/ledgers/00/0001", 4, stat), LeafRecord(1, LeafStat(1, 1, 1, 1), 13, NOW_MS, slices))
    group = (known, LeafWork(LeafParent("/ledgers/00/0002", 4, stat), None), LeafWork(LeafParent("/ledgers", 9), None))
    read: list[object] = []

    async def rows(*given: object) -> AsyncGenerator[pa.RecordBatch, None]:
        read.append(given[-1])
        nothing: tuple[pa.RecordBatch, ...] = ()
        for batch in nothing:
            yield batch

    monkeypatch.setattr(incremental_module, "_rows", rows)
    groups = cast("Broadcast[Sequence[str]]", SimpleNamespace(value=("another group", work_text(group), "a third one")))
    options = LedgerOptions(parse_uri("zk://unused/ledgers"), ZooKeeperAccess(), 1.0)
    tasks = IncrementalTasks(options, ImageSource({}, {}), groups)
    assert list(tasks(iter([pa.record_batch({"id": [1]})]))) == []
    assert read == [group]


async def test_the_flat_layout_has_no_leaves(tmp_path: Path) -> None:
    store = MemoryStore(MemoryCell())
    place = World(store, await formatted(store, kind=LayoutKind.FLAT), tmp_path)
    await store.create(ledger_path(LayoutKind.FLAT, "/ledgers", 1), encode(HEALTHY))
    options = place._options(LIVE)
    batches = [each async for each in scan(unpaced(store), place.cluster, [LeafParent("/ledgers", 1)], options)]
    place._took(options, batches)
    assert place.records == {}


STAT = LeafStat(5, 50, 12, 10)
RECORD = LeafRecord(1, STAT, 10, NOW_MS - DAY_MS, (LeafSlice("ledgers-0", 0, 10),))


@pytest.mark.parametrize(
    ("stat", "is_same", "may_serve"),
    [
        (STAT, True, True),
        (replace(STAT, children_version=13, children=9, children_zxid=60), False, True),
        (replace(STAT, czxid=6), False, False),
        (replace(STAT, children_zxid=49), False, False),
        (replace(STAT, children_version=8, children=8, children_zxid=51), False, False),
    ],
)
def test_a_stat_shows_whether_a_leaf_is_unchanged(stat: LeafStat, *, is_same: bool, may_serve: bool) -> None:
    assert (RECORD.is_same(stat), RECORD.may_serve(stat)) == (is_same, may_serve)
    assert not replace(RECORD, listed=11).is_same(replace(stat, children=11))
    assert not replace(RECORD, listed=9).may_serve(stat), "the image has rows of ledgers that were not listed"
    more = replace(RECORD, listed=11, slices=(LeafSlice("ledgers-0", 0, 11),))
    assert not more.is_same(stat), "a ledger was created after the stat, and ZooKeeper was then restored from a backup"


@pytest.mark.parametrize("hours", [5, 24, 80])
def test_every_leaf_is_read_again_within_the_period(hours: int) -> None:
    period, step, now, leaves = 7 * DAY_MS, hours * 3_600_000, NOW_MS, range(0, 150, 3)
    records = {leaf: replace(RECORD, leaf=leaf, read_from_ms=now) for leaf in leaves}
    nodes = [LeafParent(str(leaf), 10, STAT) for leaf in leaves]
    read: list[int] = []
    for _ in range(4 * period // step):
        last, now = now, now + step
        works = plan_incremental(nodes, leaves, records, Times(now, last, period))
        whole = [leaf for leaf, work in zip(leaves, works, strict=True) if work.record is None]
        read.append(len(whole))
        records |= {leaf: replace(RECORD, leaf=leaf, read_from_ms=now) for leaf in whole}
        assert all(now + step - record.read_from_ms <= period for record in records.values()), "at the next run too"
    if hours <= 24:
        assert max(read) <= len(leaves) * step * 2 // period + 2, "no run reads much more than its share"
        assert sum(read) <= 6 * len(leaves)


def test_leaves_that_are_too_old_or_from_the_future_are_read() -> None:
    def is_read(now_ms: int, last_ms: int) -> bool:
        (work,) = plan_incremental([LeafParent("1", 10, STAT)], [1], {1: RECORD}, Times(now_ms, last_ms, 70 * DAY_MS))
        return work.record is None

    read_ms = RECORD.read_from_ms
    assert not is_read(read_ms + 1, read_ms)
    assert is_read(read_ms + 71 * DAY_MS, read_ms + 71 * DAY_MS)
    assert is_read(read_ms + 40 * DAY_MS, read_ms), "the next run would read it 80 days after this one"
    assert not is_read(read_ms - 30_000, read_ms - 30_000)
    assert is_read(read_ms - 61_000, read_ms - 61_000)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10_000)), max_size=40), st.integers(1, 10))
def test_groups_contain_every_leaf_once(leaves: list[tuple[bool, int]], count: int) -> None:
    records = {
        number: replace(RECORD, leaf=number, slices=(LeafSlice(f"ledgers-{number % 3}", number, 10),))
        for number, (is_known, _) in enumerate(leaves)
        if is_known
    }
    nodes = [LeafParent(str(number), planned, STAT) for number, (_, planned) in enumerate(leaves)]
    works = plan_incremental(nodes, list(range(len(leaves))), records, Times(NOW_MS, NOW_MS, 70 * DAY_MS))
    groups = groups_of_work(works, count)
    assert len(groups) <= count
    assert all(groups)
    assert sorted(work.parent.path for group in groups for work in group) == sorted(node.path for node in nodes)


@given(st.lists(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True), min_size=1, max_size=3)))
def test_the_tables_of_carried_rows_equal_those_of_read_ones(ledgers: list[list[list[int]]]) -> None:
    columns = ImageColumns()
    for number, ensembles in enumerate(ledgers):
        members = [f"b{bookie}:1" for ensemble in ensembles for bookie in ensemble]
        columns.add(number, 3, 2, 2, 1, members, is_live=True)
    read = columns.take()
    carried = tables_of(read.ledgers)
    assert carried.index.to_pylist() == read.index.to_pylist()
    counted = tally(read.ledgers)
    assert counted.ledgers == len(ledgers)
    assert counted.fragments == sum(map(len, ledgers))
    for number in range(6):
        held = [sum(number in ensemble for ensemble in ensembles) for ensembles in ledgers]
        assert counted.fragments_by_bookie.get(f"b{number}:1", 0) == sum(held)
        assert counted.ledgers_by_bookie.get(f"b{number}:1", 0) == sum(1 for count in held if count)


def test_a_ledger_is_settled_only_if_no_fragment_names_a_bookie_twice() -> None:
    columns = ImageColumns()
    columns.add(1, 3, 3, 2, 2, ("a:1", "b:1", "c:1", "c:1", "b:1", "a:1"), is_live=True)
    columns.add(2, 3, 3, 2, 2, ("a:1", "b:1", "c:1", "c:1", "b:1", "b:1"), is_live=True)
    ledgers, index = columns.take()
    assert ledgers["settled"].to_pylist() == [True, False]
    quorums = {(each["ledger_id"], each["write_quorum"]) for each in index.to_pylist()}
    assert quorums == {(1, 2), (2, 1)}, "one bookie has two copies of some entries"


def test_leaves_are_read_back_as_written(tmp_path: Path) -> None:
    records = [
        RECORD,
        replace(RECORD, leaf=2, slices=(*RECORD.slices, LeafSlice("ledgers-1", 3, 4))),
        replace(RECORD, leaf=3, slices=()),
    ]
    pq.write_table(leaf_table(records), tmp_path / "leaves")
    assert list(leaf_records(pq.read_table(tmp_path / "leaves"))) == records
    assert newest_record_per_leaf([*records, replace(RECORD, read_from_ms=NOW_MS)])[1].read_from_ms == NOW_MS
    assert list(leaf_records(leaf_table([]))) == []
    with pytest.raises(ValueError, match="missing or negative"):
        list(leaf_records(leaf_table([replace(RECORD, leaf=-1)])))


@pytest.mark.parametrize("has_image", [False, True])
async def test_the_last_read_is_that_of_the_image_or_else_of_the_oldest_unfinished_run(
    tmp_path: Path, has_image: bool
) -> None:
    """The interval to the next run is estimated from it.

    If it is too short, ledgers are not read within their period.
    """
    made, clock = await world(tmp_path / "world"), ManualClock()
    place, kind, now_ms = LocalImageFolder(tmp_path / "image"), made.cluster.kind.value, clock.epoch_ms()

    def manifest(run_id: str, read_from_ms: int) -> Manifest:
        return Manifest(run_id, made.cluster.instance_id, made.cluster.root, kind, read_from_ms, 0, (), ())

    if has_image:
        files.commit(files.begin(place, made.cluster, "20270115-0"), manifest("20270115-0", now_ms - DAY_MS), now_ms)
    for minutes in (30, 20, 10):
        run_id = f"20270115-{60 - minutes}"
        writing = files.begin(place, made.cluster, run_id, kept=files.UNFINISHED_GENERATIONS_KEPT)
        files.note_beginning(writing, manifest(run_id, now_ms - minutes * 60_000))
    week_s = 7 * 86_400
    settings = SimpleNamespace(image_place=str(tmp_path / "image"), reread_within_s=week_s, image_age_max_s=week_s)
    cluster = SimpleNamespace(cluster=made.cluster, who_left=lambda _: "", has_image_note=lambda *_, **__: True)
    context = SimpleNamespace(settings=settings, cluster=cluster, clock=clock, run_id="now")
    sources = _Sources(cast(RunContext, context), {})
    assert sources.read_from_ms == now_ms - (DAY_MS if has_image else 30 * 60_000)


async def test_an_unreadable_ledger_is_found_where_the_two_trees_of_the_default_layout_meet(tmp_path: Path) -> None:
    """The last leaf of the short tree and a leaf of the long tree have ids with the same first digits."""
    end = SHORT_ID_END
    place = await world(tmp_path, dict.fromkeys([end - 3, end - 2, end - 1, end], HEALTHY))
    path = ledger_path(place.cluster.kind, place.cluster.root, end - 2)
    await place.store.set(path, b"damage", ANY_VERSION)
    assert (await place.whole())[0] == {end - 2}
    found, again = await place.again()
    assert (found, again["ledgers"], again["unreadable"]) == ({end - 2}, 3, 1)


@pytest.mark.parametrize("is_read", [False, True], ids=["at the beginning", "at the end"])
async def test_an_image_that_cannot_be_recorded_is_not_written(tmp_path: Path, is_read: bool) -> None:
    made = await world(tmp_path / "world")
    noted: list[bool] = []

    def note(run_id: str, *, is_read: bool) -> None:
        noted.append(is_read)
        if is_read is fails:
            raise StoreUnavailableError("no answer")

    cluster = SimpleNamespace(
        cluster=made.cluster, attendance=lambda: UNKNOWN_ATTENDANCE, marked_ledgers=range, note_image=note
    )
    settings = SimpleNamespace(image_place=str(tmp_path / "image"), is_dry_run=False)
    fields = {"settings": settings, "cluster": cluster, "clock": ManualClock(), "run_id": "20270115-0"}
    context = SimpleNamespace(**fields, is_incremental=True, kind=RunKind.BOOKIES)
    upkeep = ImageUpkeep(cast(RunContext, context))
    fails: bool | None = is_read
    assert (upkeep.begin(frozenset()) is not None) is is_read
    assert upkeep.unsettled is None, "there are too many marks for a list"
    upkeep.commit(ImageParts(), NO_TOTALS)
    assert (upkeep.written, upkeep.problem, noted[-1]) == (
        None,
        "it cannot be recorded in the metadata store: no answer",
        is_read,
    )
    assert files.generations(files.cluster_folder(LocalImageFolder(tmp_path / "image"), made.cluster)) == []

    fails = None
    assert upkeep.begin(frozenset()) is not None
    upkeep.commit(ImageParts(), NO_TOTALS)
    assert upkeep.written is not None
