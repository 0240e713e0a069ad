"""The files of an image, in a directory and in stores: with a changed byte it is refused, or has the same ledgers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from bookie.metadata.bookies.attendance import Attendance, ChildCounters
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind
from bookie.model.run import RunKind, started_ms
from spark_jobs import remote_files
from spark_jobs.image import files
from spark_jobs.image import folder as folder_module
from spark_jobs.image import part as part_module
from spark_jobs.image import suspects as suspects_module
from spark_jobs.image.carried import ImageRows, leaves_of
from spark_jobs.image.folder import (
    ImageFolder,
    ImageFolderError,
    LocalImageFolder,
    StoreImageFolder,
    image_folder,
    map_concurrently,
)
from spark_jobs.image.leaves import LeafRecord, LeafSlice, LeafStat
from spark_jobs.image.manifest import ImageError, Manifest, check_usable, manifest_of, parse_part
from spark_jobs.image.part import ImageFile, ImagePart, document_crc32
from spark_jobs.image.suspects import suspects
from spark_jobs.remote_files import SLOW_S, RemoteFiles
from spark_jobs.report.history import reports
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import fetch_missing, note_removed, remove_runs, send_run, stored_runs
from spark_jobs.store_address import parse_address
from tests.loopback_hdfs import hdfs_cluster
from tests.loopback_s3 import CREDENTIALS, KEY_ID, SECRET, s3_server
from tests.worlds.clocks import ManualClock
from tests.worlds.report_tables import HISTORY, write_history
from tests.worlds.s3_objects import S3Objects, s3_objects

CLUSTER = Cluster("/ledgers", LayoutKind.HIERARCHICAL, "1b2c")
NOW_MS = 1_800_000_000_000
NONE: frozenset[str] = frozenset()
Ledger = tuple[int, int, Sequence[str]]
"""Id, write quorum, bookies."""
LEDGERS: list[Ledger] = [
    (1, 3, ("a:1", "b:1", "c:1")),
    (2, 2, ("b:1", "c:1")),
    (3, 3, ("a:1", "b:1", "x:1")),
    (4, 2, ("a:1", "x:1", "a:1", "c:1")),
    (5, 3, ("x:1", "y:1", "a:1")),
    (6, 3, ("x:1", "y:1", "z:1")),
    (1 << 62, 2, ("y:1", "z:1")),
]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Objects]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_objects("images") as objects:
        monkeypatch.setenv("AWS_ENDPOINT_URL", objects.endpoint)
        folder_module._client.cache_clear()
        yield objects
    folder_module._client.cache_clear()


@pytest.fixture(scope="module")
def moto_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("moto") / "requests.log") as endpoint:
        yield endpoint


@pytest.fixture
def moto(moto_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    fs.S3FileSystem(endpoint_override=moto_endpoint, allow_bucket_creation=True).create_dir("images")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    folder_module._client.cache_clear()
    yield f"s3a://images/{tmp_path.name}"
    folder_module._client.cache_clear()


@pytest.fixture(scope="module")
def hdfs_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_cluster(tmp_path_factory.mktemp("cluster") / "hdfs") as address:
        yield address


@pytest.fixture
def hdfs(hdfs_address: str, tmp_path: Path) -> str:
    return f"{hdfs_address}/images/{tmp_path.name}"


_MOTO = (pytest.mark.needs("moto"), pytest.mark.long)
_HDFS = (pytest.mark.needs("hadoop-hdfs"), pytest.mark.long)


@pytest.fixture(
    params=["directory", "s3", pytest.param("moto", marks=_MOTO), pytest.param("hdfs", marks=_HDFS)],
)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> ImageFolder:
    """A directory, and folders in stores: a small S3 server, moto, and Hadoop's own cluster."""
    if request.param == "directory":
        return LocalImageFolder(tmp_path)
    if request.param == "s3":
        request.getfixturevalue("s3")
        return image_folder("s3a://images/bookkeeper")
    return image_folder(request.getfixturevalue(request.param))


def put(place: ImageFolder, name: str, data: bytes) -> None:
    if isinstance(place, LocalImageFolder):
        (place.path / name).write_bytes(data)
    else:
        place.start_write(name, pa.py_buffer(data)).result()


def written(
    image: ImageFolder, ledgers: Sequence[Ledger] = LEDGERS, run_id: str = "20270115T080000Z-000000", **values: Any
) -> tuple[ImageFolder, Manifest]:
    """Write a current generation."""
    writing = files.begin(image, CLUSTER, run_id)
    part = ImagePart(image_folder(writing.to_text()))  # as an executor does
    for ledger_id, write_quorum, bookies in ledgers:
        part.add(ledger_id, 3, len(bookies), write_quorum, write_quorum, bookies)
    made = part.finish()
    assert made["problem"] == ""
    listed = tuple(ImageFile(**file) for file in made["files"])
    bookies = tuple(sorted({bookie for _, _, those in ledgers for bookie in those}))
    manifest = Manifest(run_id, CLUSTER.instance_id, "/ledgers", "hierarchical", NOW_MS, len(ledgers), bookies, listed)
    manifest = replace(manifest, **values)
    files.commit(writing, manifest, started_ms(run_id) or NOW_MS)
    return files.newest(image, CLUSTER)


def named(
    place: ImageFolder, manifest: Manifest, *lost: str, due: Sequence[str] = (), critical: Sequence[str] = ()
) -> Any:
    found = suspects(place, manifest, frozenset(lost), frozenset(due or lost), frozenset(critical))
    return found.ids.to_pylist()


def test_ledgers_of_lost_bookies_are_listed_with_the_fewest_copies_first(image: ImageFolder) -> None:
    current = written(image)
    assert named(*current, "x:1") == [4, 3, 5, 6]
    assert named(*current, "x:1", "y:1") == [4, 5, 6, 1 << 62, 3]
    assert named(*current, "x:1", "y:1", "z:1") == [6, 1 << 62, 4, 5, 3]
    assert named(*current, "new:1") == named(*written(image, (), "20280115T080000Z-000000"), "x:1") == []


def test_if_a_bookie_is_due_for_critical_ledgers_only_those_are_listed(image: ImageFolder) -> None:
    current = written(image)
    found = suspects(*current, frozenset({"x:1", "y:1"}), NONE, frozenset({"x:1"}))
    assert found.ids.to_pylist() == [4, 5, 6]
    found = suspects(*current, frozenset({"x:1", "y:1"}), frozenset({"y:1"}), frozenset({"x:1"}))
    assert found.ids.to_pylist() == [4, 5, 6, 1 << 62]


def test_a_ledger_whose_last_copies_are_on_one_bookie_is_critical(image: ImageFolder) -> None:
    """A bookie that an ensemble contains twice counts as one copy."""
    twice: Ledger = (8, 3, ("a:1", "a:1", "x:1"))
    current = written(image, [*LEDGERS, twice])
    found = suspects(*current, frozenset({"x:1"}), NONE, frozenset({"x:1"}))
    assert 8 in found.ids.to_pylist()


def test_both_tables_have_every_ledger(image: ImageFolder) -> None:
    directory, manifest = written(image)
    (ledgers,) = (
        pq.read_table(directory.opened(file.name, file.bytes)).to_pylist() for file in manifest.files if file.is_ledgers
    )
    assert [row["ledger_id"] for row in ledgers] == [ledger_id for ledger_id, _, _ in LEDGERS]
    assert ledgers[3]["bookies"] == ["a:1", "x:1", "a:1", "c:1"]
    assert (ledgers[0]["state"], ledgers[0]["write_quorum"]) == ("CLOSED", 3)
    index = [pq.read_table(directory.opened(file.name, file.bytes)).to_pylist() for file in manifest.index]
    pairs = {(row["bookie_id"], row["ledger_id"]) for rows in index for row in rows}
    assert pairs == {(bookie, ledger_id) for ledger_id, _, bookies in LEDGERS for bookie in bookies}


def test_only_the_row_groups_of_the_lost_bookie_are_read(image: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "ROW_GROUP", 100)
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 1_000)
    rng = random.Random(1)
    bookies = [f"b{number}:1" for number in range(20)]
    ledgers = [(number, 3, rng.sample(bookies, 3)) for number in range(2_500)]
    directory, manifest = written(image, ledgers)
    assert len(manifest.index) == 3
    found = suspects(directory, manifest, frozenset({"b7:1"}), frozenset({"b7:1"}), NONE)
    assert found.ids.to_pylist() == [ledger_id for ledger_id, _, those in ledgers if "b7:1" in those]
    assert (found.row_groups, found.row_groups_read < 12) == (75, True)
    assert [len(batch) for batch in found.batches(50, 200)] == [50, 200, len(found) - 250]
    for bookie in ("b0:1", "b9:1"):  # the first and the last bookie of each file
        assert named(directory, manifest, bookie) == [ledger_id for ledger_id, _, those in ledgers if bookie in those]


def test_only_the_ids_of_ledgers_stay_in_memory(image: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of many bookies may concern most ledgers, so memory must not depend on the rows of the index."""
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 100)
    bookies = [f"{'long-name-of-a-host.' * 5}{number}:1" for number in range(4)]
    ledgers = [(number, 3, (bookies[number % 4], *bookies[:3])) for number in range(400)]
    directory, manifest = written(image, ledgers)
    kept: list[int] = []

    def measured(function: Callable[[ImageFile], Any], some: Iterable[ImageFile]) -> Iterator[Any]:
        for result in map_concurrently(function, some):
            kept.append(result[0].nbytes)
            yield result

    monkeypatch.setattr(suspects_module, "map_concurrently", measured)
    lost = frozenset(bookies)
    assert len(suspects(directory, manifest, lost, lost, NONE)) == 400
    assert len(kept) == 4
    assert sum(kept) < 20 * 400


def test_a_changed_byte_is_refused_or_changes_no_result(image: ImageFolder) -> None:
    directory, manifest = written(image)
    sound = named(directory, manifest, "x:1")
    refused = 0
    step = 3 if isinstance(image, LocalImageFolder) else 201
    for name in (manifest.index[0].name, files.MANIFEST):
        data = directory.read(name, 1 << 20)
        for position in range(0, len(data), step):
            changed = data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
            put(directory, name, changed)
            try:
                assert named(*files.newest(image, CLUSTER), "x:1") == sound
            except ImageError:
                refused += 1
        put(directory, name, data)
    assert refused > 1500 // step
    for cut in (0, 1, 100, len(data) - 2):
        put(directory, name, data[:cut])
        with pytest.raises(ImageError, match="damaged"):
            files.newest(image, CLUSTER)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"instance_id": "other"}, "of the cluster other at /ledgers"),
        ({"root": "/other"}, "at /other, this one is 1b2c at /ledgers"),
        ({"layout": "flat"}, "it has the layout flat"),
        ({"read_from_ms": NOW_MS - 101_000}, "101 s old, more than 100 s"),
        ({"read_from_ms": NOW_MS + 61_000}, "from the future"),
    ],
)
def test_the_image_of_another_cluster_or_time_is_not_used(
    image: ImageFolder, values: dict[str, Any], reason: str
) -> None:
    _, manifest = written(image, **values)
    with pytest.raises(ImageError, match=reason):
        check_usable(manifest, CLUSTER, NOW_MS, 100)


def test_a_manifest_of_a_newer_release_or_of_another_kind_is_refused(image: ImageFolder) -> None:
    _, manifest = written(image)
    check_usable(manifest, CLUSTER, NOW_MS + 100_000, 100)
    with pytest.raises(ImageError, match="it has version 3, and this release reads version 2"):
        manifest_of(manifest.to_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(ImageError, match="it has version 1, and this release reads version 2"):
        manifest_of(manifest.to_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(ImageError, match="not a manifest"):
        manifest_of(manifest.to_text().replace("LedgerImage", "AuditReport"))
    for text in ("", "[]", "{}", "null", "7"):
        with pytest.raises(ImageError, match="damaged"):
            manifest_of(text)


def test_a_manifest_comes_back_as_it_was_written(image: ImageFolder) -> None:
    then = Attendance(ChildCounters(1, 2, 3), ChildCounters(4, 5, 6), ("a:1", "b:1"), ("b:1",), 7)
    assert written(image, attendance=then)[1].attendance == then
    text = written(image, run_id="20280115T080000Z-000000", attendance=then)[1].to_text()
    document = json.loads(text)
    del document["crc32"], document["attendance"]["drains_zxid"]
    earlier = json.dumps(document | {"crc32": document_crc32(document)})
    assert manifest_of(earlier).attendance == replace(then, drains_zxid=0)


def test_a_part_whose_file_list_was_changed_is_refused(image: ImageFolder) -> None:
    writing = files.begin(image, CLUSTER, "20280115T080000Z-000000")
    part_of_a_run(writing, NOW_MS)
    (name,) = (name for name in writing.files() if name.endswith(".json"))
    text = writing.read(name, 1 << 20).decode()
    assert parse_part(text).read_from_ms == NOW_MS
    with pytest.raises(ImageError, match="damaged"):
        parse_part(text.replace(str(NOW_MS), str(NOW_MS + 1)))


def test_only_a_file_in_the_folder_with_the_recorded_size_is_opened(image: ImageFolder) -> None:
    directory, manifest = written(image)
    file = manifest.index[0]
    directory.opened(file.name, file.bytes).close()
    for name, size in ((file.name, file.bytes - 1), (file.name, file.bytes + 1)):
        with pytest.raises(ValueError, match="does not have the size"):
            directory.opened(name, size)
    with pytest.raises(ValueError, match=r"file of an image|does not have the size"):
        directory.opened(f"../{directory.name}/{file.name}", file.bytes)


def test_out_of_range_values_list_no_ledger(image: ImageFolder) -> None:
    current = written(image, [(-1, 3, ("x:1",))])
    with pytest.raises(ImageError, match="ledger_id is out of range"):
        named(*current, "x:1")


def test_a_new_generation_replaces_the_current_one_and_two_are_kept(image: ImageFolder) -> None:
    ids = [f"20270115T08000{number}Z-000000" for number in range(4)]
    for run_id in ids:
        written(image, run_id=run_id)
    parent = files.cluster_folder(image, CLUSTER)
    assert sorted(parent.folders()) == ids[2:]
    assert files.newest(image, CLUSTER)[1].run_id == ids[3]

    manifest = files.newest(image, CLUSTER)[1]
    unfinished = files.begin(image, CLUSTER, "20270115T080009Z-000000")
    files.note_beginning(unfinished, manifest)
    assert files.newest(image, CLUSTER)[1].run_id == ids[3]
    assert files.begun(*files.unfinished(parent)).run_id == ids[3]
    of_another_kind = files.begin(image, CLUSTER, "20270115T080010Z-000000", RunKind.EVERYTHING)
    files.note_beginning(of_another_kind, manifest)
    next_one = files.begin(image, CLUSTER, "20270115T080011Z-000000")
    files.note_beginning(next_one, manifest)
    assert files.unfinished(parent) == [next_one]
    assert files.unfinished(parent, RunKind.EVERYTHING) == [of_another_kind]
    assert sorted(parent.folders()) == sorted([*ids[2:], of_another_kind.name, next_one.name])


@pytest.mark.parametrize("day", ["20280115T0800", "20270115T0820"])
def test_generations_with_future_timestamps_do_not_stay_the_newest(image: ImageFolder, day: str) -> None:
    for run_id in (f"{day}00Z-000000", f"{day}01Z-000000"):
        written(image, run_id=run_id)
    written(image, run_id="20270115T080000Z-000000")
    assert files.newest(image, CLUSTER)[1].run_id == "20270115T080000Z-000000"
    written(image, run_id="20270115T080010Z-000000")
    assert sorted(files.cluster_folder(image, CLUSTER).folders()) == [
        "20270115T080000Z-000000",
        "20270115T080010Z-000000",
    ]


def test_an_image_with_a_missing_file_does_not_become_current(image: ImageFolder) -> None:
    _, manifest = written(image)
    writing = files.begin(image, CLUSTER, "20280115T080000Z-000000")
    with pytest.raises(ImageError, match="all Spark executors must share"):
        files.commit(writing, manifest, NOW_MS)
    files.abandon(writing)
    assert files.newest(image, CLUSTER)[1] == manifest


def test_files_of_a_task_that_spark_repeated_are_removed(image: ImageFolder) -> None:
    writing = files.begin(image, CLUSTER, "20280115T080000Z-000000")
    for _ in range(2):
        part = ImagePart(writing)
        part.add(1, 3, 1, 1, 1, ("a:1",))
        made = tuple(ImageFile(**file) for file in part.finish()["files"])
    run_id = "20280115T080000Z-000000"
    manifest = Manifest(run_id, "1b2c", "/ledgers", "hierarchical", 0, 1, ("a:1",), made)
    files.commit(writing, manifest, started_ms(run_id) or 0)
    directory, manifest = files.newest(image, CLUSTER)
    assert manifest.files == made
    there = directory.files()
    assert there.keys() >= {files.MANIFEST, *(file.name for file in manifest.files)}
    assert directory.has_rename is (len(there) == 3), (
        "a directory must have no further files; a store removes them with the generation"
    )


def test_an_unwritable_directory_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    part = ImagePart(LocalImageFolder(tmp_path / "missing"))
    part.add(1, 3, 1, 1, 1, ("a:1",))
    made = part.finish()
    assert made["files"] == []
    assert "cannot write to" in made["problem"]


def test_a_missing_image_is_reported_with_a_reason(image: ImageFolder) -> None:
    with pytest.raises(ImageError, match="there is none in"):
        files.newest(image, CLUSTER)
    if isinstance(image, LocalImageFolder):
        files.cluster_folder(image, CLUSTER).child("20280115T080000Z-000000").make()
        with pytest.raises(ImageError, match="its manifest cannot be read"):
            files.newest(image, CLUSTER)


def part_of_a_run(writing: ImageFolder, read_from_ms: int, ledger_id: int = 1) -> None:
    """Write the file that a task leaves in the folder of a run."""
    part = ImagePart(image_folder(writing.to_text()), read_from_ms)
    part.add(ledger_id, 3, 1, 1, 1, ("a:1",))
    part.listed(0, LeafStat(1, 2, 3, 1), 1)
    assert part.finish()["problem"] == ""


def test_results_of_an_interrupted_run_are_used_only_if_they_are_of_the_same_scan(image: ImageFolder) -> None:
    manifest = Manifest("20280115T080000Z-000000", "1b2c", "/ledgers", "hierarchical", NOW_MS, 0, (), ())
    writing = files.begin(image, CLUSTER, manifest.run_id)
    files.note_beginning(writing, manifest)
    part_of_a_run(writing, NOW_MS)
    part_of_a_run(writing, NOW_MS - 1, 2)  # written by a late task of the previous reading
    put(writing, "part-0.json", b'{"files": [], "read_from_ms"')  # truncated
    (left,) = files.unfinished(files.cluster_folder(image, CLUSTER))
    found = files.begun(left)
    assert len(found.leaves) == 1
    assert [record.read_from_ms for record in leaves_of(left, found)] == [NOW_MS]


def test_the_folder_of_a_cluster_is_inside_the_folder_of_all_clusters(image: ImageFolder) -> None:
    assert files.cluster_folder(image, replace(CLUSTER, instance_id="../a/b-1")).parent == image


def test_two_concurrent_runs_do_not_mix_their_files(image: ImageFolder) -> None:
    """The lock of their kind did not exclude them, so the second run removes the files of the first one."""
    ids = ("20280115T080000Z-000000", "20280115T080001Z-000000")
    first = files.begin(image, CLUSTER, ids[0])
    part_of_a_run(first, NOW_MS)
    second = files.begin(image, CLUSTER, ids[1])
    manifest = Manifest(ids[0], "1b2c", "/ledgers", "hierarchical", NOW_MS, 1, ("a:1",), ())
    lost = ImageFile("ledgers-1.parquet", 1, 2, 3)
    with pytest.raises((ImageError, OSError)):
        files.commit(first, replace(manifest, files=(lost,)), NOW_MS)
    files.abandon(first)
    part_of_a_run(second, NOW_MS)
    files.commit(second, replace(manifest, run_id=ids[1]), started_ms(ids[1]) or 0)
    assert files.newest(image, CLUSTER)[1].run_id == ids[1]
    files.abandon(first)
    assert sorted(files.cluster_folder(image, CLUSTER).folders()) == [ids[1]]


def test_a_partly_removed_generation_is_not_used(image: ImageFolder) -> None:
    written(image)
    place, manifest = written(image, run_id="20280115T080000Z-000000")
    if isinstance(place, LocalImageFolder):
        (place.path / manifest.index[0].name).unlink()
    else:
        remove_file(place, manifest.index[0].name)
    with pytest.raises(ImageError, match="cannot be read"):
        named(*files.newest(image, CLUSTER), "x:1")
    if not isinstance(place, LocalImageFolder):
        remove_file(place, files.MANIFEST)
        assert files.newest(image, CLUSTER)[1].run_id < manifest.run_id
        with pytest.raises(ImageError):
            files.begun(*files.unfinished(files.cluster_folder(image, CLUSTER)))


def remove_file(place: ImageFolder, name: str) -> None:
    assert isinstance(place, StoreImageFolder)
    system, base = place._client._system()
    system.delete_file(f"{base}/{place._path}/{name}")


def test_a_denied_bucket_is_reported_in_one_line_without_credentials(s3: S3Objects) -> None:
    image = image_folder("s3a://images/bookkeeper")
    current = written(image)
    s3.is_denied = True
    with pytest.raises(ImageError, match=r"s3a://images \(bookkeeper.*ACCESS_DENIED") as unread:
        files.newest(image, CLUSTER)
    with pytest.raises(ImageError, match=r"s3a://images \(bookkeeper.*ACCESS_DENIED") as unnamed:
        named(*current, "x:1")
    with pytest.raises(OSError, match=r"s3a://images \(bookkeeper.*ACCESS_DENIED") as unwritten:
        files.begin(image, CLUSTER, "20280115T080000Z-000000")
    part = ImagePart(image.child("run"))
    part.add(1, 3, 1, 1, 1, ("a:1",))
    problem = part.finish()["problem"]
    assert "ACCESS_DENIED" in problem
    for text in (str(unread.value), str(unnamed.value), str(unwritten.value), problem, repr(image)):
        assert "\n" not in text
        assert SECRET not in text
        assert KEY_ID not in text


def test_a_store_that_does_not_answer_is_not_contacted_by_each_task(s3: S3Objects) -> None:
    clock = ManualClock()
    client = RemoteFiles(parse_address("s3://images/a"), ImageFolderError, call_s=0.0, rest_s=120, clock=clock)
    s3.answers.clear()
    pending = client.start_write("b", pa.py_buffer(b""))
    clock.now_s += SLOW_S + 1
    with pytest.raises(ImageFolderError, match="no answer within"):
        pending.result()
    s3.answers.set()
    clock.now_s += 60
    with pytest.raises(ImageFolderError, match="not tried again yet"):
        client.list()
    clock.now_s += 61
    relaxed = RemoteFiles(parse_address("s3://images/a"), ImageFolderError, rest_s=120, clock=clock)
    relaxed.start_write("c", pa.py_buffer(b"1")).result()
    s3.answers.clear()  # otherwise the answer may come before the deadline of zero seconds
    with pytest.raises(ImageFolderError, match="no answer within"):
        client.start_write("d", pa.py_buffer(b"")).result()
    s3.answers.set()


def test_every_error_of_the_store_library_is_reported_as_a_failed_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError('InvalidArgument("No fs.defaultFS setting found")')

    monkeypatch.setattr(remote_files, "_open", refuse)
    folder_module._client.cache_clear()
    with pytest.raises(ImageError, match=r"No fs\.defaultFS"):
        files.newest(image_folder("hdfs:///images"), CLUSTER)
    folder_module._client.cache_clear()


def test_an_unreadable_file_is_requested_once_for_all_its_leaves(s3: S3Objects) -> None:
    current, manifest = written(image_folder("s3a://images/bookkeeper"))
    (ledgers,) = (file for file in manifest.files if file.is_ledgers)
    records = [LeafRecord(leaf, LeafStat(1, 2, 3, 1), 1, NOW_MS, (LeafSlice(ledgers.name, 0, 1),)) for leaf in range(9)]
    s3.is_denied = True
    s3.requests.clear()
    with ImageRows({ledgers.name: ledgers}, {ledgers.name: current}) as rows:
        for record in records:
            with pytest.raises(ImageError, match="ACCESS_DENIED"):
                rows.of(record)
    assert len(s3.requests) < len(records)


def test_a_store_slower_than_the_scan_ends_the_image_but_not_the_scan(
    s3: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 1)
    monkeypatch.setattr(part_module, "_ROOM_S", 0.0)
    s3.answers.clear()
    part = ImagePart(image_folder("s3a://images/bookkeeper"))
    for ledger_id in range(100):
        part.add(ledger_id, 3, 1, 1, 1, ("a:1",))
    assert "cannot be written as fast as metadata is read" in part.finish()["problem"]


@pytest.mark.long
@pytest.mark.needs("hadoop-hdfs")
def test_reports_and_images_are_kept_in_hdfs(hdfs: str, tmp_path: Path) -> None:
    store = ReportStore(parse_address(f"{hdfs}/reports"))
    write_history(tmp_path / "here")
    run_id = HISTORY[0][0].run_id
    assert stored_runs(store) == []
    send_run(store, tmp_path / "here", run_id)
    send_run(store, tmp_path / "here", run_id)  # a repetition changes nothing
    assert stored_runs(store) == [run_id]
    assert fetch_missing(store, tmp_path / "there") == [run_id]
    assert list(reports(tmp_path / "there")) == list(reports(tmp_path / "here"))[-1:]
    note_removed(tmp_path, [run_id])
    remove_runs(store, tmp_path)
    assert stored_runs(store) == []
