"""The generations of images in a directory: written beside the current one, and put in its place at once.

<image_dir>/<instance id>/<run id>/manifest.json, ledgers-*.parquet, index-*.parquet
<image_dir>/<instance id>/.writing-<run id>/          until it is whole; its parts that are complete can be read
<image_dir>/<instance id>/.writing-<kind>-<run id>/   likewise, of a kind but ``bookies``

Besides its files, an unfinished generation has ``beginning.json``, a manifest without files, and a list of files for
each part (``part-*.json``).

Run ids sort by time, so the newest generation has the last name. Runs of the same kind that mark exclude each other, so
there is one writer for each kind and cluster, and each removes only what an earlier run of its kind did not finish.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.model.run import RunKind
from spark_jobs.image.manifest import ImageError, Manifest, manifest_of, part_of
from spark_jobs.image.part import PART, ImageFile

MANIFEST: Final = "manifest.json"
GENERATIONS: Final = 2
"""A reader of the one before is not disturbed."""
UNFINISHED: Final = 3
"""Generations of runs that ended early, which are kept until one becomes whole."""
BEGINNING: Final = "beginning.json"
_WRITING: Final = ".writing-"
_GENERATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MANIFEST_BYTES_MAX: Final = 64 << 20


def cluster_dir(image_dir: Path, cluster: Cluster) -> Path:
    """The directory of a cluster's images."""
    return image_dir / re.sub(r"[^A-Za-z0-9-]", "_", cluster.instance_id)


def begin(image_dir: Path, cluster: Cluster, run_id: str, kind: RunKind = RunKind.BOOKIES, *, kept: int = 0) -> Path:
    """Make an empty directory for the files of a new generation, and remove what runs of this kind did not finish.

    Args:
        image_dir: of all clusters.
        cluster: the live cluster.
        run_id: of the run.
        kind: of the run.
        kept: how many unfinished generations stay, the newest ones.

    Raises:
        OSError: it cannot be made.
    """
    parent = cluster_dir(image_dir, cluster)
    parent.mkdir(parents=True, exist_ok=True)
    for left in unfinished(parent, kind)[: -kept or None]:
        shutil.rmtree(left, ignore_errors=True)
    writing = parent / f"{_prefix(kind)}{run_id}"
    writing.mkdir()
    return writing


def note_beginning(writing: Path, manifest: Manifest) -> None:
    """Note of what an unfinished generation is.

    Args:
        writing: its directory.
        manifest: without files; its bookies are those that are live when the reading begins.

    Raises:
        OSError: it cannot be written.
    """
    (writing / BEGINNING).write_text(manifest.to_text(), encoding="utf-8")


def commit(writing: Path, manifest: Manifest) -> None:
    """Make a generation whole and current; remove all but the newest ``GENERATIONS``, and what earlier runs of its
    kind did not finish.

    Raises:
        OSError: it cannot be written.
        ImageError: a file is missing, so an executor does not share the directory.
    """
    listed = {file.name: file.bytes for file in manifest.files}
    for name, size in listed.items():
        path = writing / name
        if not path.is_file() or path.stat().st_size != size:
            raise ImageError(f"{path} is missing: all Spark executors must share the directory of the image")
    for path in writing.iterdir():
        if path.name not in listed:  # of a task that Spark repeated
            path.unlink()
    with (writing / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.to_text())
        file.flush()
        os.fsync(file.fileno())
    _fsync_directory(writing)
    writing.rename(writing.parent / manifest.run_id)
    _fsync_directory(writing.parent)
    for old in (*generations(writing.parent)[:-GENERATIONS], *unfinished(writing.parent, _kind_of(writing))):
        shutil.rmtree(old, ignore_errors=True)


def abandon(writing: Path) -> None:
    """Remove a generation that will not become whole."""
    shutil.rmtree(writing, ignore_errors=True)


def generations(parent: Path) -> list[Path]:
    """The generations of a cluster, the oldest first; none if the directory cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in parent.iterdir() if _GENERATION.fullmatch(path.name) and path.is_dir())
    return []


def unfinished(parent: Path, kind: RunKind = RunKind.BOOKIES) -> list[Path]:
    """The unfinished generations by runs of a kind, the oldest first; none if the directory cannot be read."""
    with contextlib.suppress(OSError):
        found = (path for path in parent.glob(f"{_WRITING}*") if path.is_dir())
        return sorted(path for path in found if _kind_of(path) is kind)
    return []


def _prefix(kind: RunKind) -> str:
    return _WRITING if kind is RunKind.BOOKIES else f"{_WRITING}{kind.value}-"


def _kind_of(writing: Path) -> RunKind:
    others = (kind for kind in RunKind if kind is not RunKind.BOOKIES and writing.name.startswith(_prefix(kind)))
    return next(others, RunKind.BOOKIES)


def begun(writing: Path) -> Manifest:
    """An unfinished generation, with the files of its complete parts.

    Raises:
        ImageError: it is damaged or of a newer release. A part whose list is damaged is left out.
    """
    manifest = manifest_of(_text(writing / BEGINNING))
    found: list[ImageFile] = []
    for path in sorted(writing.glob(f"{PART}-*.json")):
        with contextlib.suppress(ImageError):
            found += part_of(_text(path))
    return replace(manifest, files=tuple(found))


def newest(image_dir: Path, cluster: Cluster) -> tuple[Path, Manifest]:
    """The current image of a cluster.

    Raises:
        ImageError: there is none, or it is damaged or of a newer release.
    """
    parent = cluster_dir(image_dir, cluster)
    found = generations(parent)
    if not found:
        raise ImageError(f"there is none in {parent}")
    return found[-1], manifest_of(_text(found[-1] / MANIFEST))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MANIFEST_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise ImageError(f"its manifest cannot be read: {error}") from error


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
