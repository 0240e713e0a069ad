"""Incremental audits on a real ZooKeeper find and mark the same as an audit of all ledgers, with any image."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.layout import cookie_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind
from spark_jobs.image import files
from spark_jobs.image.folder import LocalImageFolder
from spark_jobs.image.manifest import Manifest
from spark_jobs.image.part import image_file, table_content
from spark_jobs.report import writing as report
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.kinds import bookie_run
from spark_jobs.runs.run import AuditResult, run_check
from spark_jobs.runs.spark_failures import MetadataReadAgainError
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, after_listing, closed, joined, opened
from tests.worlds.clocks import ManualClock

pytestmark = [pytest.mark.spark, pytest.mark.integration]

HEALTHY = closed("a:1", "b:1", "c:1")
OPEN = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"))),))
LEDGERS = (
    {leaf * 10_000 + number: HEALTHY for leaf in range(6) for number in range(20)}
    | {5: closed("a:1", "x:1"), 10_005: closed("b:1", "x:1"), 20_005: OPEN, 20_006: OPEN}
    | {1 << 33: HEALTHY}
)
DAY_S = 86_400
CARRIED = len(LEDGERS) - 4
"""The number of ledgers that are closed and do not name x, which is lost."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1", "x:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create(LEDGERS)
        yield place


def audit(spark: SparkSession, place: Place, clock: ManualClock, **settings: Any) -> AuditResult:
    clock.now_s += 60
    chosen = AuditSettings(place.uri, place.report_dir, **{"num_partitions": 2, **settings})
    return run_check(spark, RunKind.BOOKIES, chosen, clock=clock)


def again(spark: SparkSession, place: Place, clock: ManualClock, **settings: Any) -> AuditResult:
    return audit(spark, place, clock, incremental=True, **settings)


def rows(result: AuditResult) -> list[dict[str, Any]]:
    found = pq.read_table(result.summary_path.parent / report.FINDINGS).to_pylist()
    return sorted(({**row, "run_id": ""} for row in found), key=lambda row: (row["ledger_id"], str(row)))


def comparable(summary: RunSummary) -> RunSummary:
    counts = replace(summary.counts, vanished=0)
    return replace(summary, run_id="", started_ms=0, finished_ms=0, image=type(summary.image)(), counts=counts)


def moved(place: Place, ledger_id: int, metadata: LedgerMetadata) -> None:
    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))
    version = place.do(ledgers.read(LedgerId(ledger_id))).version
    place.do(ledgers.write(LedgerId(ledger_id), metadata, version))


def unmark(place: Place) -> None:
    for ledger_id in place.marked():
        place.do(place.store.delete(task_path(place.cluster.root, LedgerId(ledger_id)), ANY_VERSION))


def test_an_incremental_audit_finds_what_an_audit_of_all_ledgers_finds(
    spark: SparkSession, place: Place, clock: ManualClock
) -> None:
    place.unregister("x:1")
    first = again(spark, place, clock)
    assert first.summary.image.carried == 0
    assert "lost" in first.summary.image.carried_problem, "the audit of a loss must read everything"
    assert (set(place.marked()), place.audited()) == ({5, 10_005}, {"x:1"})

    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))
    place.do(ledgers.delete(LedgerId(30_003)))
    place.create({30_050: closed("a:1", "x:1"), 70_001: closed("x:1", "y:1"), 1 << 34: HEALTHY})
    moved(place, 20_005, OPEN.closed(EntryId(3), 30))
    moved(place, 10_005, closed("b:1", "a:1"))
    expected = audit(spark, place, clock, is_dry_run=True)
    result = again(spark, place, clock)
    assert rows(result) == rows(expected) != []
    found = replace(result.summary, is_dry_run=True, published=expected.summary.published)
    assert comparable(found) == comparable(expected.summary)
    assert result.summary.is_complete
    assert set(place.marked()) == {5, 30_050, 70_001}
    assert result.summary.published.withdrawn, "the mark of a repaired ledger was not withdrawn"
    image = result.summary.image
    assert (image.carried, image.carried_problem, image.written_ledgers) == (CARRIED - 1, "", len(LEDGERS) + 2)
    assert 0 < image.carried_from_ms < result.summary.started_ms


def test_a_ledger_that_was_marked_while_an_image_was_written_is_read_again(
    spark: SparkSession, place: Place, clock: ManualClock
) -> None:
    """The worker of a mark may have chosen a bookie before its loss, and install the copy after the audit of the loss.

    Workers of Apache do not check that the target is still registered.
    """
    audit(spark, place, clock)
    place.unregister("x:1")
    assert place.do(place.tasks.marking.mark_many([(LedgerId(40_001), ())])) == 1
    again(spark, place, clock)
    assert (place.audited(), 40_001 in place.marked()) == ({"x:1"}, True)

    moved(place, 40_001, closed("a:1", "x:1"))
    place.do(place.store.delete(task_path(place.cluster.root, LedgerId(40_001)), ANY_VERSION))
    result = again(spark, place, clock)
    assert (result.summary.image.carried, result.summary.image.carried_problem) == (CARRIED - 1, "")
    assert place.marked()[40_001] == ["x:1"]


def test_an_image_is_not_used_after_zookeeper_was_set_back_behind_it(
    spark: SparkSession, tmp_path: Path, clock: ManualClock
) -> None:
    """Ledgers with the same ids were created since, so ZooKeeper's numbers of creations continue those of the image."""
    directory, backup = tmp_path / "zookeeper", tmp_path / "backup"
    server = asyncio.run(EmbeddedZooKeeper.start(directory, is_durable=False))
    try:
        with opened(server.connect_string, "/t/ledgers", tmp_path) as place:
            place.register("a:1", "b:1", "c:1")
            place.add_cookies("a:1", "b:1", "c:1", "x:1")
            place.create(dict.fromkeys(range(20), HEALTHY))
            audit(spark, place, clock)
            assert place.audited() == {"x:1"}
            server.kill()
            shutil.copytree(directory / "data", backup)
            asyncio.run(server.restart())
            place.create(dict.fromkeys(range(20, 40), HEALTHY))
            image = again(spark, place, clock).summary.image
            assert (image.carried, image.written_ledgers) == (20, 40)

        server.kill()
        shutil.rmtree(directory / "data")
        shutil.copytree(backup, directory / "data")
        asyncio.run(server.restart())
        with joined(server.connect_string, "/t/ledgers", tmp_path) as place:
            for bookie in ("a:1", "b:1", "c:1"):
                place.unregister(bookie)
            place.register("a:1", "b:1", "c:1")
            place.create({number: closed("a:1", "x:1") if number == 25 else HEALTHY for number in range(20, 80)})
            result = again(spark, place, clock)
            assert (set(place.marked()), result.summary.image.carried) == ({25}, 0)
            assert "set back" in result.summary.image.carried_problem
            assert again(spark, place, clock).summary.image.carried == 79
    finally:
        asyncio.run(server.stop())


def test_a_scan_repeated_after_the_loss_of_an_executor_takes_as_much_from_the_image(
    spark: SparkSession, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(spark, place, clock)
    check, calls = bookie_run.BookieRun._check, itertools.count(1)

    def losing(self: bookie_run.BookieRun, *found: Any) -> Any:
        if next(calls) == 1:
            raise MetadataReadAgainError("the executor with the metadata is gone")
        return check(self, *found)

    monkeypatch.setattr(bookie_run.BookieRun, "_check", losing)
    image = again(spark, place, clock).summary.image
    assert next(calls) == 3
    assert (image.carried, image.carried_problem, image.written_ledgers) == (CARRIED + 2, "", len(LEDGERS))


@pytest.mark.long
def test_a_dry_run_uses_the_image_and_writes_none(spark: SparkSession, place: Place, clock: ManualClock) -> None:
    place.unregister("x:1")
    audit(spark, place, clock)
    found = again(spark, place, clock, is_dry_run=True)
    expected = audit(spark, place, clock, is_dry_run=True)
    assert rows(found) == rows(expected) != []
    assert comparable(found.summary) == comparable(expected.summary)
    assert (found.summary.image.carried, found.summary.image.written_ledgers) == (CARRIED, 0)


@pytest.mark.parametrize("option", ["image_age_max_s", "reread_within_s"])
def test_an_image_older_than_either_limit_is_not_used(
    spark: SparkSession, place: Place, clock: ManualClock, option: str
) -> None:
    audit(spark, place, clock)
    clock.now_s += 3600
    result = again(spark, place, clock, **{option: 3600.0})
    assert result.summary.is_complete
    assert (result.summary.image.carried, result.summary.counts.ledgers) == (0, len(LEDGERS))
    assert "3660 s old, more than 3600 s" in result.summary.image.carried_problem


@pytest.mark.long
def test_a_bookie_that_leaves_during_an_incremental_scan_makes_it_read_everything(
    spark: SparkSession, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(spark, place, clock)
    moved(place, 40_001, closed("a:1", "x:1"))
    moved(place, 40_002, closed("a:1", "b:1"))
    after_listing(monkeypatch, 1, lambda: place.unregister("x:1"))
    result = again(spark, place, clock)
    assert result.summary.is_complete
    assert set(place.marked()) == {5, 10_005, 40_001}
    assert (result.summary.image.carried, place.audited()) == (0, {"x:1"})


@pytest.mark.long
def test_a_bookie_that_joined_and_left_since_the_image_makes_a_run_read_everything(
    spark: SparkSession, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.unregister("x:1")
    audit(spark, place, clock)
    place.register("x:1")
    moved(place, 40_001, closed("a:1", "x:1"))
    place.unregister("x:1")
    result = again(spark, place, clock)
    assert (result.summary.image.carried, place.audited()) == (0, {"x:1"})
    assert "joined and left" in result.summary.image.carried_problem
    assert 40_001 in place.marked()

    place.register("w:1")
    place.do(place.store.create(cookie_path(place.cluster.root, BookieId("w:1"))))
    moved(place, 40_002, closed("a:1", "w:1"))
    after_listing(monkeypatch, 1, lambda: place.unregister("w:1"))
    result = again(spark, place, clock)
    assert (result.summary.image.carried, place.audited()) == (0, {"x:1", "w:1"})
    assert 40_002 in place.marked()


@pytest.mark.long
def test_a_bookie_whose_drain_ended_and_began_again_makes_a_run_read_everything(
    spark: SparkSession, place: Place, clock: ManualClock
) -> None:
    drains, drain = Drains(place.store, place.cluster.root), Drain(BookieId("x:1"), "test", 1)
    place.do(drains.start(drain))
    audit(spark, place, clock)
    assert again(spark, place, clock).summary.image.carried == CARRIED
    place.do(drains.stop(drain.bookie))
    moved(place, 30_003, closed("a:1", "x:1"))
    place.do(drains.start(drain))
    result = again(spark, place, clock)
    assert (result.summary.image.carried, set(place.marked())) == (0, {5, 10_005, 30_003})
    assert "x:1 is drained since" in result.summary.image.carried_problem


@pytest.mark.long
@pytest.mark.parametrize("names", [("nothing", "flipped", "wrong"), ("empty", "old", "foreign", "cut")])
def test_incremental_audits_with_any_image_end_with_the_same_marks(
    spark: SparkSession, place: Place, clock: ManualClock, tmp_path: Path, names: Sequence[str]
) -> None:
    place.unregister("x:1")
    audit(spark, place, clock)
    place.create({60_001: closed("a:1", "x:1")})
    folder, manifest = files.newest(LocalImageFolder(place.report_dir / "image"), place.cluster)
    assert isinstance(folder, LocalImageFolder)
    directory = folder.path
    kept = Path(shutil.copytree(directory, tmp_path / "kept"))
    start_s = clock.now_s

    def put(other: Manifest) -> None:
        shutil.copytree(kept, directory)
        (directory / files.MANIFEST).write_text(other.to_text())

    def nothing() -> None:
        pass

    def empty() -> None:
        put(replace(manifest, files=(), ledgers=0))

    def old() -> None:
        put(replace(manifest, read_from_ms=1))

    def foreign() -> None:
        put(replace(manifest, instance_id="another"))

    def flipped() -> None:
        put(manifest)
        for file in manifest.files:
            if file.is_ledgers:
                data = bytearray((directory / file.name).read_bytes())
                data[len(data) // 4] ^= 1
                (directory / file.name).write_bytes(data)

    def cut() -> None:
        put(manifest)
        path = directory / manifest.leaves[0].name
        path.write_bytes(path.read_bytes()[:-20])

    def wrong() -> None:
        """Write valid files, in which every ledger is healthy."""
        put(manifest)
        made = []
        for file in manifest.files:
            if file.is_ledgers:
                table = pq.read_table(directory / file.name)
                for name, value in (("settled", True), ("state", "CLOSED")):
                    column = pa.array([value] * len(table), table.schema.field(name).type)
                    table = table.set_column(table.schema.get_field_index(name), name, column)
                lists = pa.array([["a:1", "b:1", "c:1"]] * len(table), table.schema.field("bookies").type)
                table = table.set_column(table.schema.get_field_index("bookies"), "bookies", lists)
                table = table.cast(pq.read_schema(directory / file.name))
                content = table_content(table)
                (directory / file.name).write_bytes(content)
                file = image_file(file.name, table, content)
            made.append(file)
        (directory / files.MANIFEST).write_text(replace(manifest, files=tuple(made)).to_text())

    makes: list[Callable[[], None]] = [nothing, empty, old, foreign, flipped, cut, wrong]
    for make in (make for make in makes if make.__name__ in names):
        shutil.rmtree(directory.parent)
        unmark(place)
        make()
        clock.now_s = start_s
        result = again(spark, place, clock)
        assert result.summary.is_complete
        if make is wrong:
            assert (set(place.marked()), result.summary.image.carried) == ({60_001}, len(LEDGERS))
            clock.now_s = start_s + 7 * DAY_S
            result = again(spark, place, clock)
        assert (make.__name__, set(place.marked())) == (make.__name__, {5, 10_005, 60_001})
        assert (result.summary.image.carried > 0) is (make is flipped), (
            "only an image with one damaged row group is used"
        )
        assert bool(result.summary.image.carried_problem)


@pytest.mark.long
def test_a_killed_run_is_continued_where_it_is_safe(
    spark: SparkSession, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(spark, place, clock)

    class DiedError(Exception):
        pass

    def die(*_: object) -> None:
        raise DiedError

    place.unregister("x:1")
    with monkeypatch.context() as patch:
        patch.setattr(bookie_run.BookieRun, "_check", die)
        with pytest.raises(DiedError):
            again(spark, place, clock)
    parent = files.cluster_folder(LocalImageFolder(place.report_dir / "image"), place.cluster)
    (left,) = files.unfinished(parent)
    assert isinstance(left, LocalImageFolder)
    (part, *others) = sorted(left.path.glob("part-*.json"))
    assert others
    part.unlink()  # as if the run had died before this part was complete
    clock.now_s += 3600
    result = again(spark, place, clock)
    image = result.summary.image
    assert 0 < image.carried < CARRIED
    assert "lost" in image.carried_problem, "the rest was taken from the image"
    assert (set(place.marked()), place.audited()) == ({5, 10_005}, {"x:1"})
    assert image.written_ledgers == len(LEDGERS)
    assert files.unfinished(parent) == []

    with monkeypatch.context() as patch:
        patch.setattr(bookie_run.BookieRun, "_check", die)
        with pytest.raises(DiedError):
            again(spark, place, clock)
    moved(place, 40_001, closed("a:1", "c:1"))
    clock.now_s += 3600
    place.unregister("c:1")
    result = again(spark, place, clock, missing_share_max=0.9)
    assert result.summary.image.carried == 0, "reads from before the loss of a bookie were used"
    assert {40_001, 40_002} <= set(place.marked())


@pytest.mark.long
def test_two_concurrent_runs_that_mark_find_the_same_and_leave_a_complete_image(
    spark: SparkSession, place: Place
) -> None:
    place.unregister("x:1")
    settings = AuditSettings(place.uri, place.report_dir)
    kinds = (RunKind.BOOKIES, RunKind.EVERYTHING)
    with ThreadPoolExecutor(len(kinds)) as threads:
        twice = threads.map(lambda kind: [run_check(spark, kind, settings).summary for _ in range(2)], kinds)
        runs = list(itertools.chain.from_iterable(twice))  # runs of one kind exclude each other
    assert place.marked() == {5: ["x:1"], 10_005: ["x:1"]}
    assert {(run.counts.ledgers, run.is_read, run.image.write_problem) for run in runs} == {(len(LEDGERS), True, "")}
    assert len({tuple(run.severities) for run in runs}) == 1
    assert sum(run.published.tasks_changed for run in runs) >= 2
    # If the image is from the run of everything, the first incremental run reads all ledgers once.
    first, second = (place.audit(spark, incremental=True).summary for _ in range(2))
    assert (first.image.carried_problem, second.image.carried_problem) == ("", "")
    assert (first.image.carried in (0, CARRIED), second.image.carried) == (True, CARRIED)
    assert place.marked() == {5: ["x:1"], 10_005: ["x:1"]}
