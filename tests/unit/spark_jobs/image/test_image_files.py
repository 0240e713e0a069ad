"""The files of an image: what goes in comes out by bookie, and what was changed in any byte names no ledger."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind
from spark_jobs.image import files
from spark_jobs.image import part as part_module
from spark_jobs.image.manifest import ImageError, Manifest, check_usable, manifest_of
from spark_jobs.image.part import ImageFile, ImagePart
from spark_jobs.image.suspects import suspects

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


def written(
    image_dir: Path, ledgers: Sequence[Ledger] = LEDGERS, run_id: str = "20270115T080000Z-000000", **values: Any
) -> tuple[Path, Manifest]:
    """A generation that is current."""
    writing = files.begin(image_dir, CLUSTER, run_id)
    part = ImagePart(writing)
    for ledger_id, write_quorum, bookies in ledgers:
        part.add(ledger_id, 3, len(bookies), write_quorum, write_quorum, bookies)
    made = part.finish()
    assert made["problem"] == ""
    listed = tuple(ImageFile(**file) for file in made["files"])
    bookies = tuple(sorted({bookie for _, _, those in ledgers for bookie in those}))
    manifest = Manifest(run_id, CLUSTER.instance_id, "/ledgers", "hierarchical", NOW_MS, len(ledgers), bookies, listed)
    manifest = replace(manifest, **values)
    files.commit(writing, manifest)
    return files.newest(image_dir, CLUSTER)


def named(
    directory: Path, manifest: Manifest, *lost: str, due: Sequence[str] = (), critical: Sequence[str] = ()
) -> Any:
    found = suspects(directory, manifest, frozenset(lost), frozenset(due or lost), frozenset(critical))
    return found.ids.to_pylist()


def test_the_ledgers_of_lost_bookies_come_with_the_fewest_copies_first(tmp_path: Path) -> None:
    image = written(tmp_path)
    assert named(*image, "x:1") == [4, 3, 5, 6]
    assert named(*image, "x:1", "y:1") == [4, 5, 6, 1 << 62, 3]
    assert named(*image, "x:1", "y:1", "z:1") == [6, 1 << 62, 4, 5, 3]
    assert named(*image, "new:1") == named(*written(tmp_path, (), "20280115T080000Z-000000"), "x:1") == []


def test_of_a_bookie_that_is_due_for_critical_ledgers_only_those_are_named(tmp_path: Path) -> None:
    image = written(tmp_path)
    found = suspects(*image, frozenset({"x:1", "y:1"}), NONE, frozenset({"x:1"}))
    assert found.ids.to_pylist() == [4, 5, 6]
    found = suspects(*image, frozenset({"x:1", "y:1"}), frozenset({"y:1"}), frozenset({"x:1"}))
    assert found.ids.to_pylist() == [4, 5, 6, 1 << 62]


def test_both_tables_have_every_ledger(tmp_path: Path) -> None:
    directory, manifest = written(tmp_path)
    (ledgers,) = (pq.read_table(directory / file.name).to_pylist() for file in manifest.files if file.is_ledgers)
    assert [row["ledger_id"] for row in ledgers] == [ledger_id for ledger_id, _, _ in LEDGERS]
    assert ledgers[3]["bookies"] == ["a:1", "x:1", "a:1", "c:1"]
    assert (ledgers[0]["state"], ledgers[0]["write_quorum"]) == ("CLOSED", 3)
    index = [pq.read_table(directory / file.name).to_pylist() for file in manifest.index]
    pairs = {(row["bookie_id"], row["ledger_id"]) for rows in index for row in rows}
    assert pairs == {(bookie, ledger_id) for ledger_id, _, bookies in LEDGERS for bookie in bookies}


def test_only_the_row_groups_of_the_lost_bookie_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "ROW_GROUP", 100)
    monkeypatch.setattr(part_module, "LEDGERS_MAX", 1_000)
    rng = random.Random(1)
    bookies = [f"b{number}:1" for number in range(20)]
    ledgers = [(number, 3, rng.sample(bookies, 3)) for number in range(2_500)]
    directory, manifest = written(tmp_path, ledgers)
    assert len(manifest.index) == 3
    found = suspects(directory, manifest, frozenset({"b7:1"}), frozenset({"b7:1"}), NONE)
    assert found.ids.to_pylist() == [ledger_id for ledger_id, _, those in ledgers if "b7:1" in those]
    assert (found.row_groups, found.row_groups_read < 12) == (75, True)
    assert [len(batch) for batch in found.batches(50, 200)] == [50, 200, len(found) - 250]


def test_a_changed_byte_names_no_ledger_or_the_same_ones(tmp_path: Path) -> None:
    directory, manifest = written(tmp_path)
    sound = named(directory, manifest, "x:1")
    refused = 0
    for name in (manifest.index[0].name, files.MANIFEST):
        path = directory / name
        data = path.read_bytes()
        for position in range(0, len(data), 3):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
            try:
                assert named(*files.newest(tmp_path, CLUSTER), "x:1") == sound
            except ImageError:
                refused += 1
        path.write_bytes(data)
    assert refused > 500
    for cut in (0, 1, 100, len(data) - 2):
        path.write_bytes(data[:cut])
        with pytest.raises(ImageError, match="damaged"):
            files.newest(tmp_path, CLUSTER)


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
def test_the_image_of_another_cluster_or_time_is_not_used(tmp_path: Path, values: dict[str, Any], reason: str) -> None:
    _, manifest = written(tmp_path, **values)
    with pytest.raises(ImageError, match=reason):
        check_usable(manifest, CLUSTER, NOW_MS, 100)


def test_a_manifest_of_a_newer_release_or_another_document_is_not_read(tmp_path: Path) -> None:
    _, manifest = written(tmp_path)
    check_usable(manifest, CLUSTER, NOW_MS + 100_000, 100)
    with pytest.raises(ImageError, match="it has version 3, and this release reads version 2"):
        manifest_of(manifest.to_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(ImageError, match="another document"):
        manifest_of(manifest.to_text().replace("LedgerImage", "AuditReport"))
    for text in ("", "[]", "{}", "null", "7"):
        with pytest.raises(ImageError, match="damaged"):
            manifest_of(text)


def test_values_that_are_out_of_range_name_no_ledger(tmp_path: Path) -> None:
    image = written(tmp_path, [(-1, 3, ("x:1",))])
    with pytest.raises(ImageError, match="ledger_id is out of range"):
        named(*image, "x:1")


def test_a_new_generation_replaces_the_current_one_and_two_stay(tmp_path: Path) -> None:
    ids = [f"20270115T08000{number}Z-000000" for number in range(4)]
    for run_id in ids:
        written(tmp_path, run_id=run_id)
    parent = files.cluster_dir(tmp_path, CLUSTER)
    assert [path.name for path in sorted(parent.iterdir())] == ids[2:]
    assert files.newest(tmp_path, CLUSTER)[1].run_id == ids[3]

    unfinished = files.begin(tmp_path, CLUSTER, "20270115T080009Z-000000")
    assert files.newest(tmp_path, CLUSTER)[1].run_id == ids[3]
    files.begin(tmp_path, CLUSTER, "20270115T080010Z-000000")
    assert not unfinished.exists()


def test_an_image_with_a_missing_file_does_not_become_current(tmp_path: Path) -> None:
    _, manifest = written(tmp_path)
    writing = files.begin(tmp_path, CLUSTER, "20280115T080000Z-000000")
    with pytest.raises(ImageError, match="all Spark executors must share"):
        files.commit(writing, manifest)
    files.abandon(writing)
    assert files.newest(tmp_path, CLUSTER)[1] == manifest


def test_files_of_a_task_that_spark_repeated_are_removed(tmp_path: Path) -> None:
    writing = files.begin(tmp_path, CLUSTER, "20280115T080000Z-000000")
    for _ in range(2):
        part = ImagePart(writing)
        part.add(1, 3, 1, 1, 1, ("a:1",))
        made = tuple(ImageFile(**file) for file in part.finish()["files"])
    files.commit(writing, Manifest("20280115T080000Z-000000", "1b2c", "/ledgers", "hierarchical", 0, 1, ("a:1",), made))
    directory, manifest = files.newest(tmp_path, CLUSTER)
    assert {path.name for path in directory.iterdir()} == {files.MANIFEST, *(file.name for file in manifest.files)}


def test_a_directory_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    part = ImagePart(tmp_path / "missing")
    part.add(1, 3, 1, 1, 1, ("a:1",))
    made = part.finish()
    assert made["files"] == []
    assert "cannot write to" in made["problem"]


def test_without_an_image_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is none in"):
        files.newest(tmp_path, CLUSTER)
    files.cluster_dir(tmp_path, CLUSTER).joinpath("20280115T080000Z-000000").mkdir(parents=True)
    with pytest.raises(ImageError, match="its manifest cannot be read"):
        files.newest(tmp_path, CLUSTER)
