"""The generations of images in a folder: a new one is written next to the current one, and replaces it in one step.

The layout in a directory:

<image_dir>/<instance id>/<run id>/manifest.json, ledgers-*.parquet, index-*.parquet
<image_dir>/<instance id>/.writing-<run id>/          until it is complete; complete parts are readable
<image_dir>/<instance id>/.writing-<kind>-<run id>/   the same, of a kind other than ``bookies``

A store has no rename. A generation is complete there if its folder has a manifest, which is written last:

<address>/<instance id>/<run id>/
<address>/<instance id>/<run id>.<kind>/              of a kind other than ``bookies``

An unfinished generation also has ``beginning.json``, which is a manifest without files, and a list of files for each
complete part (``part-*.json``).

Run ids sort by time, so the newest generation has the last name in alphabetical order. Marking runs of the same kind
exclude each other, so there is one writer for each kind and cluster, and each removes only the unfinished generations
of earlier runs of its kind. If two of them run at the same time nevertheless, each has its own folder and file names. A
manifest lists the size and the checksum of each file, so neither run can use a wrong file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from bookie.metadata.cluster import Cluster
from bookie.model.run import RunKind, started_ms
from bookie.model.times import CLOCK_SKEW_MS_MAX
from spark_jobs.image.folder import ImageFolder, map_concurrently
from spark_jobs.image.manifest import ImageError, Manifest, Part, manifest_of, parse_part
from spark_jobs.image.part import PART, ImageFile

MANIFEST: Final = "manifest.json"
GENERATIONS_KEPT: Final = 2
"""Number of generations that are kept, so that a process can still read the previous one."""
UNFINISHED_GENERATIONS_KEPT: Final = 3
"""Number of generations of runs that ended early which are kept until one becomes complete."""
BEGINNING_FILE: Final = "beginning.json"
_UNFINISHED_PREFIX: Final = ".writing-"
_GENERATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MANIFEST_BYTES_MAX: Final = 64 << 20
_REMOVED_MAX: Final = 8
"""Largest number of generations removed at a time, the oldest first. It is one, unless earlier removals failed."""


def cluster_folder(image: ImageFolder, cluster: Cluster) -> ImageFolder:
    """Return the folder of a cluster's images."""
    return image.child(re.sub(r"[^A-Za-z0-9-]", "_", cluster.instance_id))


def begin(
    image: ImageFolder, cluster: Cluster, run_id: str, kind: RunKind = RunKind.BOOKIES, *, kept: int = 0
) -> ImageFolder:
    """Make an empty folder for the files of a new generation, and remove unfinished ones by runs of this kind.

    Args:
        image: the folder of all clusters.
        cluster: the live cluster.
        run_id: id of the run.
        kind: kind of the run.
        kept: number of unfinished generations that are kept, the newest ones.

    Raises:
        OSError: the folder cannot be made.
    """
    parent = cluster_folder(image, cluster)
    _remove(_unfinished(parent, kind)[: -kept or None])
    writing = parent.child(_name(parent, kind, run_id))
    writing.make()
    return writing


def note_beginning(writing: ImageFolder, manifest: Manifest) -> None:
    """Record the beginning of an unfinished generation.

    Args:
        writing: the folder of the generation.
        manifest: has no files yet; its bookies are those that are live when the reading begins.

    Raises:
        OSError: it cannot be written.
    """
    writing.start_write(BEGINNING_FILE, _content(manifest)).result()


def commit(writing: ImageFolder, manifest: Manifest, now_ms: int) -> None:
    """Make a generation whole and current, and remove older ones.

    The newest ``GENERATIONS_KEPT`` stay. The unfinished generations of earlier runs of the same kind are removed. So is
    a generation dated in the future: it was written with a wrong clock, is not used, and would stay the newest.

    Args:
        writing: what ``begin`` returned.
        manifest: the manifest of the generation.
        now_ms: the current time, epoch milliseconds.

    Raises:
        OSError: it cannot be written.
        ImageError: a file is missing: an executor does not share the directory, or another run removed it.
    """
    there = writing.files()
    for file in manifest.files:
        if there.get(file.name) != file.bytes:
            raise ImageError(
                f"{writing}/{file.name} is missing: all Spark executors must share the directory or store of the image"
            )
    writing.publish(manifest.run_id, {file.name for file in manifest.files}, (MANIFEST, _content(manifest)))
    found = generations(writing.parent)
    misdated = [each for each in found if (started_ms(each.name) or 0) > now_ms + CLOCK_SKEW_MS_MAX]
    _remove(misdated)
    _remove([each for each in found if each not in misdated][:-GENERATIONS_KEPT])
    _remove(unfinished(writing.parent, _kind_of(writing)))


def abandon(writing: ImageFolder) -> None:
    """Remove a generation that will not become whole."""
    _remove([writing])


def generations(parent: ImageFolder) -> list[ImageFolder]:
    """Return the generations of a cluster, the oldest first; none if the folder cannot be read."""
    with contextlib.suppress(OSError):
        return _generations(parent)
    return []


def unfinished(parent: ImageFolder, kind: RunKind = RunKind.BOOKIES) -> list[ImageFolder]:
    """Return the unfinished generations of runs of a kind, the oldest first; none if the folder cannot be read."""
    with contextlib.suppress(OSError):
        return _unfinished(parent, kind)
    return []


def begun(writing: ImageFolder) -> Manifest:
    """Return the manifest of an unfinished generation, with the files of its complete parts.

    A part with a damaged list, or written by an earlier reading, is left out.

    Raises:
        ImageError: it is damaged or of a newer release.
    """
    manifest = _manifest(writing, BEGINNING_FILE)
    try:
        names = sorted(name for name in writing.files() if name.startswith(f"{PART}-") and name.endswith(".json"))
    except OSError as error:
        raise ImageError(f"its files cannot be listed: {error}") from error
    found: list[ImageFile] = []
    for part in map_concurrently(lambda name: _part(writing, name), names):
        if part is not None and part.read_from_ms == manifest.read_from_ms:
            found += part.files
    return replace(manifest, files=tuple(found))


def newest(image: ImageFolder, cluster: Cluster) -> tuple[ImageFolder, Manifest]:
    """Return the folder and the manifest of the current image of a cluster.

    Raises:
        ImageError: there is none, or it is damaged or of a newer release.
    """
    parent = cluster_folder(image, cluster)
    try:
        found = _generations(parent)
    except OSError as error:
        raise ImageError(f"it cannot be read: {error}") from error
    if not found:
        raise ImageError(f"there is none in {parent}")
    return found[-1], _manifest(found[-1], MANIFEST)


def _generations(parent: ImageFolder) -> list[ImageFolder]:
    found = parent.folders().items()
    return [
        parent.child(name)
        for name, files in sorted(found)
        if _GENERATION.fullmatch(name if parent.has_rename else name.partition(".")[0])
        and (parent.has_rename or MANIFEST in files)
    ]


def _unfinished(parent: ImageFolder, kind: RunKind) -> list[ImageFolder]:
    found = (
        parent.child(name)
        for name, files in sorted(parent.folders().items())
        if (name.startswith(_UNFINISHED_PREFIX) if parent.has_rename else MANIFEST not in files)
    )
    return [folder for folder in found if _kind_of(folder) is kind]


def _name(parent: ImageFolder, kind: RunKind, run_id: str) -> str:
    if parent.has_rename:
        return f"{_prefix(kind)}{run_id}"
    return run_id if kind is RunKind.BOOKIES else f"{run_id}.{kind.value}"


def _prefix(kind: RunKind) -> str:
    return _UNFINISHED_PREFIX if kind is RunKind.BOOKIES else f"{_UNFINISHED_PREFIX}{kind.value}-"


def _kind_of(writing: ImageFolder) -> RunKind:
    name = writing.name
    others = (
        kind
        for kind in RunKind
        if kind is not RunKind.BOOKIES and (name.startswith(_prefix(kind)) or name.endswith(f".{kind.value}"))
    )
    return next(others, RunKind.BOOKIES)


def _remove(folders: Sequence[ImageFolder]) -> None:
    """Remove generations. If this fails, the rest counts neither as a whole generation nor as an unfinished one."""
    for folder in folders[:_REMOVED_MAX]:
        folder.remove((BEGINNING_FILE, MANIFEST))


def _content(manifest: Manifest) -> pa.Buffer:
    return pa.py_buffer(manifest.to_text().encode())


def _manifest(folder: ImageFolder, name: str) -> Manifest:
    try:
        return manifest_of(_text(folder, name))
    except OSError as error:
        raise ImageError(f"its manifest cannot be read: {error}") from error


def _part(writing: ImageFolder, name: str) -> Part | None:
    with contextlib.suppress(OSError, ImageError):
        return parse_part(_text(writing, name))
    return None


def _text(folder: ImageFolder, name: str) -> str:
    return folder.read(name, _MANIFEST_BYTES_MAX).decode(errors="replace")
