"""The image of ledger metadata in whole audit runs: what is marked first, and that no image changes the marks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.layout import task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunKind, RunState
from spark_jobs.image import files
from spark_jobs.image.folder import LocalImageFolder
from spark_jobs.image.manifest import Manifest
from spark_jobs.image.part import ImageFile, ImagePart
from spark_jobs.report.files import TASKS
from spark_jobs.runs.gate import RunGate, Stop
from spark_jobs.runs.port import Phase, ProgressEvent, RunStoppedError
from spark_jobs.runs.run import AuditResult, run_audit, run_check
from spark_jobs.settings import AuditSettings
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

HEALTHY = closed("a:1", "b:1", "c:1")
LEDGERS = {
    1: HEALTHY,
    2: closed("a:1", "x:1"),
    3: closed("a:1", "b:1", "x:1"),
    4: closed("x:1", "b:1"),
    5: closed("a:1", "x:1", last=-1),
    6: closed("a:1", "x:1"),
    7: closed("x:1", "c:1"),
    1 << 33: closed("x:1", "b:1", "c:1"),
    8: closed("x:1", "c:1"),
} | dict.fromkeys(range(100, 140), HEALTHY)
"""The ledgers when the image is written. All bookies are registered then."""
FINAL = {3, 4, 5, 7, 9, 10_001, 1 << 33}
"""The ledgers that lack their copy on x after ``changed``."""
BY_IMAGE = {3, 4, 5, 7, 1 << 33}


def moved(place: Place, ledger_id: int, metadata: LedgerMetadata) -> None:
    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))
    version = place.do(ledgers.read(LedgerId(ledger_id))).version
    place.do(ledgers.write(LedgerId(ledger_id), metadata, version))


def changed(place: Place) -> None:
    """Change the cluster after the image: repair a ledger, delete one, accept the loss of one, and create others."""
    ledgers = LedgerStore(place.store, place.cluster, random.Random(1))
    moved(place, 6, closed("a:1", "c:1"))
    place.do(ledgers.delete(LedgerId(2)))
    place.create({9: closed("b:1", "x:1"), 10_001: closed("a:1", "c:1", "x:1")})
    lost = LostFragment(EntryId(0), EntryId(9), (0,), (BookieId("x:1"),))
    accepted = Decision(LedgerId(8), DecisionKind.LOSS_ACCEPTED, "an operator", 1, "gone", lost=(lost,))

    async def accept() -> None:
        await place.store.multi([await Decisions(place.store, place.cluster.root).writing(accepted)])

    place.do(accept())
    place.unregister("x:1")


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """A cluster with all of its bookies registered."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1", "c:1", "x:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create(LEDGERS)
        yield place


def image_of(place: Place) -> tuple[Path, Manifest]:
    folder, manifest = files.newest(LocalImageFolder(place.report_dir / "image"), place.cluster)
    assert isinstance(folder, LocalImageFolder)
    return folder.path, manifest


def audited(spark: SparkSession, place: Place, **settings: Any) -> tuple[AuditResult, set[int]]:
    """Run an audit, and return it with the marks at the beginning of its pass over all ledgers."""
    first: list[set[int]] = []

    def note(event: ProgressEvent) -> None:
        if event.phase is Phase.SCAN and not first:
            first.append(set(place.marked()))

    result = run_audit(spark, AuditSettings(place.uri, place.report_dir, **settings), note)
    return result, first[0]


def forget(place: Place) -> None:
    """Restore the state before the audit of the loss of x."""
    for ledger_id in place.marked():
        place.do(place.store.delete(task_path(place.cluster.root, LedgerId(ledger_id)), ANY_VERSION))
    down = FirstSeenDown(place.store, place.cluster.root)
    place.do(down.reopen(BookieId("x:1"), place.do(down.read())[BookieId("x:1")].since_ms))


def test_an_audit_that_marks_writes_an_image(spark: SparkSession, place: Place) -> None:
    assert place.audit(spark, is_dry_run=True).summary.image.written_ledgers == 0
    assert place.audit(spark, with_image=False).summary.image.written_ledgers == 0
    assert not (place.report_dir / "image").exists()

    place.damage(139)
    place.unregister("c:1")  # ledgers with a lost bookie are in the image as well
    result = place.audit(spark, num_partitions=3)
    directory, manifest = image_of(place)
    written = result.summary.image
    assert (written.written_ledgers, written.written_bytes, written.write_problem) == (48, manifest.bytes, "")
    assert (manifest.run_id, manifest.bookies) == (result.run_id, ("a:1", "b:1", "c:1", "x:1"))
    rows = [
        row for file in manifest.files if file.is_ledgers for row in pq.read_table(directory / file.name).to_pylist()
    ]
    assert {row["ledger_id"]: set(row["bookies"]) for row in rows} == {
        ledger_id: set(metadata.members()) for ledger_id, metadata in LEDGERS.items() if ledger_id != 139
    }


def test_after_a_loss_ledgers_are_marked_from_the_image_first_and_then_by_the_full_run(
    spark: SparkSession, place: Place
) -> None:
    place.audit(spark)
    read_from_ms = image_of(place)[1].read_from_ms
    changed(place)
    result, first = audited(spark, place)
    image = result.summary.image
    assert first == BY_IMAGE, "2 is deleted, 6 is repaired, the loss of 8 is accepted: none may be marked"
    assert (image.read_from_ms, image.suspects, image.marked, image.problem) == (read_from_ms, 8, 5, "")
    assert result.summary.started_ms <= image.first_mark_ms <= image.last_mark_ms <= result.summary.finished_ms
    tasks = pq.read_table(result.summary_path.parent / TASKS).to_pylist()
    early = {row["ledger_id"] for row in tasks if row["marked_at"].timestamp() * 1000 <= image.last_mark_ms}
    assert (early, {row["ledger_id"] for row in tasks}) == (BY_IMAGE, FINAL)
    assert set(place.marked()) == FINAL
    assert (result.summary.published.ledgers, result.summary.published.tasks_changed) == (7, 7)
    assert place.audited() == {"x:1"}

    again, first = audited(spark, place)
    assert (first, again.summary.image.suspects) == (FINAL, 0), "an audited loss must not be read again"


@pytest.mark.long
def test_a_ledger_that_is_repaired_during_the_full_pass_is_not_marked_again(spark: SparkSession, place: Place) -> None:
    place.audit(spark)
    changed(place)

    def repair(event: ProgressEvent) -> None:
        if event.phase is Phase.SCAN and 7 in place.marked():  # no task of Spark has read a ledger yet
            moved(place, 7, closed("b:1", "c:1"))
            place.do(place.store.delete(task_path(place.cluster.root, LedgerId(7)), ANY_VERSION))
        if event.phase is Phase.CHECK and 3 in place.marked():  # by now the pass has read all ledgers
            moved(place, 3, closed("a:1", "b:1", "c:1"))
            for ledger_id in (3, 4):  # the mark of 4 is deleted without a repair
                place.do(place.store.delete(task_path(place.cluster.root, LedgerId(ledger_id)), ANY_VERSION))

    result = run_audit(spark, AuditSettings(place.uri, place.report_dir), repair)
    assert set(place.marked()) == FINAL - {3, 7}
    published = result.summary.published
    assert (published.ledgers, published.tasks_changed, published.repaired_early) == (6, 8, 1)
    assert place.audited() == {"x:1"}


@pytest.mark.long
def test_the_brake_does_not_count_a_bookie_in_the_image_whose_copies_were_all_accepted_as_lost(
    spark: SparkSession, place: Place
) -> None:
    gone = {number: [f"gone-{number}:1", f"gone-{number}:2"] for number in (20, 21, 22)}
    place.create({number: closed(*bookies) for number, bookies in gone.items()})
    decisions = Decisions(place.store, place.cluster.root)

    async def accept(number: int, bookies: list[str]) -> None:
        lost = LostFragment(EntryId(0), EntryId(9), (0, 1), tuple(map(BookieId, bookies)))
        decision = Decision(LedgerId(number), DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", lost=(lost,))
        await place.store.multi([await decisions.writing(decision)])

    for number, bookies in gone.items():
        place.do(accept(number, bookies))
    place.audit(spark)
    assert set(gone[20]) <= set(image_of(place)[1].bookies)
    place.unregister("x:1")
    result, first = audited(spark, place)
    assert first == set(place.marked())
    assert first >= {2, 3, 4, 5, 6, 7, 8}
    assert result.summary.image.problem == ""


def test_a_dry_run_after_a_loss_marks_nothing_from_the_image(spark: SparkSession, place: Place) -> None:
    place.audit(spark)
    place.unregister("x:1")
    result, first = audited(spark, place, is_dry_run=True)
    assert (first, place.marked(), place.audited()) == (set(), {}, set())
    assert result.summary.image.marked == 0


@pytest.mark.long
def test_reasons_to_hold_back_marks_apply_to_the_image_too(spark: SparkSession, place: Place) -> None:
    members = tuple(map(BookieId, ("a:1", "b:1", "x:1")))
    place.create({10: LedgerMetadata(3, 3, 2, (Fragment(EntryId(0), members),)).closed(EntryId(9), 100)})
    place.audit(spark)
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    place.unregister("x:1")
    critical = {2, 3, 4, 6, 7, 8, 1 << 33}
    result, first = audited(spark, place, critical_delay_s=0)
    assert (first, set(place.marked())) == (critical, critical), (
        "5 has no entries on x, 10 has two other copies: not critical"
    )
    assert result.summary.image.suspects == 8
    forget(place)

    result, first = audited(spark, place, critical_delay_s=3600)
    assert (first, place.marked(), result.summary.image.suspects) == (set(), {}, 0)
    place.do(place.tasks.switches.set_lost_bookie_delay_s(0))
    result, first = audited(spark, place, marks_max=2)
    assert (first, len(place.marked())) == (set(), 2)
    assert "limit" in result.summary.image.problem
    forget(place)
    place.do(place.tasks.switches.disable())
    result, first = audited(spark, place)
    assert (first, place.marked()) == (set(), {})
    assert "disabled" in result.summary.image.problem


def test_a_stopped_run_marks_nothing_more_from_the_image(spark: SparkSession, place: Place) -> None:
    place.audit(spark)
    place.unregister("x:1")
    gate = RunGate()

    def stop(event: ProgressEvent) -> None:
        if event.phase is Phase.IMAGE and event.total is not None:
            gate.stop(Stop("an operator stopped it", RunState.CANCELLED))

    with pytest.raises(RunStoppedError, match="an operator stopped it"):
        run_check(spark, RunKind.BOOKIES, AuditSettings(place.uri, place.report_dir), stop, gate=gate)
    assert place.marked() == {}


@pytest.mark.parametrize(
    "names",
    [
        ("nothing", "flipped", "wrong"),
        pytest.param(("nothing", "empty", "old", "foreign", "cut"), marks=pytest.mark.long),
    ],
)
def test_marking_with_any_image_ends_with_the_same_marks(
    spark: SparkSession, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, names: Sequence[str]
) -> None:
    place.audit(spark)
    directory, manifest = image_of(place)
    kept = Path(shutil.copytree(directory, tmp_path / "kept"))
    changed(place)

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
        path = directory / manifest.index[0].name
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 1
        path.write_bytes(data)

    def cut() -> None:
        put(manifest)
        path = directory / manifest.index[0].name
        path.write_bytes(path.read_bytes()[:-20])

    def wrong() -> None:
        """Write valid files with ledgers on live bookies, and ledgers that never existed."""
        put(manifest)
        part = ImagePart(LocalImageFolder(directory))
        for ledger_id in (1, 3, 6, 77, 10_000_000, 1 << 40):
            part.add(ledger_id, 3, 2, 2, 2, ("x:1", "a:1"))
        made = tuple(ImageFile(**file) for file in part.finish()["files"])
        (directory / files.MANIFEST).write_text(replace(manifest, files=made).to_text())

    wanted: dict[int, list[str]] | None = None
    makes: list[Callable[[], None]] = [nothing, empty, old, foreign, flipped, cut, wrong]
    for make in (make for make in makes if make.__name__ in names):
        shutil.rmtree(directory.parent)
        make()
        caplog.clear()
        result, first = audited(spark, place)
        marked = place.marked()
        wanted = wanted or marked
        assert (make.__name__, marked) == (make.__name__, wanted)
        assert first == ({3} if make is wrong else set())
        is_usable = make in (empty, wrong)
        assert bool(result.summary.image.problem) is not is_usable
        lines = [
            record for record in caplog.records if record.message.startswith("the image of ledger metadata is not")
        ]
        assert len(lines) == (0 if is_usable else 1)
        assert place.audited() == {"x:1"}
        forget(place)
    assert wanted is not None
    assert set(wanted) == FINAL
