"""The manifest of an image: its files, its cluster, and when the metadata was read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from bookie.metadata.bookies.attendance import UNKNOWN_ATTENDANCE, Attendance, ChildCounters
from bookie.metadata.cluster import Cluster
from bookie.model.errors import PermanentError
from bookie.model.times import CLOCK_SKEW_MS_MAX
from spark_jobs.image.part import ImageFile, document_crc32

VERSION: Final = 2
_API_VERSION: Final = "bkheal/v1"
_KIND: Final = "LedgerImage"


class ImageError(PermanentError):
    """There is no usable image; the text has the reason. The caller continues without an image."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation of an image."""

    run_id: str
    """Id of the run that wrote the image."""
    instance_id: str
    root: str
    """Path of the ledgers in ZooKeeper."""
    layout: str
    read_from_ms: int
    """When its reading began, epoch milliseconds. Rows carried over from the previous image are older: each leaf has
    its own time.
    """
    ledgers: int
    bookies: tuple[str, ...]
    """All bookies named in metadata."""
    files: tuple[ImageFile, ...]
    attendance: Attendance = UNKNOWN_ATTENDANCE
    """The registrations before its reading began; empty in an image of an earlier release."""

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def leaves(self) -> Sequence[ImageFile]:
        """The files of the leaves of the ledger tree."""
        return [file for file in self.files if file.is_leaves]

    @property
    def index(self) -> Sequence[ImageFile]:
        """The files of the index."""
        return [file for file in self.files if file.is_index]

    def to_text(self) -> str:
        """Return the content of the manifest's file, with a checksum."""
        document = {"apiVersion": _API_VERSION, "kind": _KIND, "version": VERSION, **asdict(self)}
        return json.dumps(document | {"crc32": document_crc32(document)}, indent=1) + "\n"

    def age_ms(self, now_ms: int) -> int:
        """Return the age of the image, at least 0."""
        return max(0, now_ms - self.read_from_ms)


def manifest_of(text: str) -> Manifest:
    """Read the content of a manifest.

    Raises:
        ImageError: it is damaged, not a manifest, or of a newer release.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document["kind"] != _KIND:
            raise ImageError("its manifest is not a manifest of an image")
        if document["version"] != VERSION:
            raise ImageError(f"it has version {document['version']}, and this release reads version {VERSION}")
        if document.pop("crc32") != document_crc32(document):
            raise ImageError("its manifest is damaged")
        attendance = _attendance(document.get("attendance", {}))
        names = (field.name for field in fields(Manifest) if field.name != "attendance")
        values = {name: document[name] for name in names}
        files = tuple(ImageFile(**file) for file in values.pop("files"))
        return Manifest(**values | {"files": files, "bookies": tuple(values["bookies"]), "attendance": attendance})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ImageError(f"its manifest is damaged: {error}") from error


def _attendance(document: Mapping[str, Any]) -> Attendance:
    if not document:
        return UNKNOWN_ATTENDANCE
    return Attendance(
        ChildCounters(**document["writable"]),
        ChildCounters(**document["read_only"]),
        tuple(document["bookies"]),
        tuple(document["draining"]),
        document.get("drains_zxid", 0),  # absent in the images of earlier releases
    )


@dataclass(frozen=True, slots=True)
class Part:
    """The files written by one reading of one partition."""

    files: tuple[ImageFile, ...]
    read_from_ms: int
    """When the reading of all partitions began, epoch milliseconds."""


def parse_part(text: str) -> Part:
    """Read the list of a complete part (``part.ImagePart``).

    Raises:
        ImageError: it is damaged, or of an earlier release.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document.pop("crc32") != document_crc32(document):
            raise ImageError("the list of its files is damaged")
        return Part(tuple(ImageFile(**file) for file in document["files"]), int(document["read_from_ms"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ImageError(f"the list of its files is damaged: {error}") from error


def check_usable(manifest: Manifest, cluster: Cluster, now_ms: int, age_max_s: float) -> None:
    """Check that an image is of this cluster, and not too old.

    Args:
        manifest: the manifest of the image.
        cluster: the live cluster.
        now_ms: the current time, epoch milliseconds.
        age_max_s: largest age since the reading of the image began, seconds.

    Raises:
        ImageError: it is of another cluster, too old, or dated in the future.
    """
    found, wanted = (manifest.instance_id, manifest.root), (cluster.instance_id, cluster.root)
    if found != wanted:
        raise ImageError(f"it is of the cluster {found[0]} at {found[1]}, this one is {wanted[0]} at {wanted[1]}")
    if manifest.layout != cluster.kind.value:
        raise ImageError(f"it has the layout {manifest.layout}, the cluster has {cluster.kind.value}")
    if manifest.read_from_ms > now_ms + CLOCK_SKEW_MS_MAX:
        raise ImageError("it is from the future, so a clock was wrong")
    if manifest.age_ms(now_ms) > age_max_s * 1000:
        raise ImageError(f"it is {manifest.age_ms(now_ms) // 1000} s old, more than {age_max_s:g} s")
