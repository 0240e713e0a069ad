"""Write a new generation of the image while a run reads all ledgers. After a failure, the run continues without it."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

import pyarrow as pa

from bookie.metadata.bookies.attendance import UNKNOWN_ATTENDANCE, Attendance
from bookie.metadata.port import AccessDeniedError
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from bookie.runtime.human import counted
from spark_jobs.image import files
from spark_jobs.image.folder import ImageFolder, image_folder
from spark_jobs.image.manifest import ImageError, Manifest
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.runs.reading.ledger_scan import ImageParts

_log = logging.getLogger(__name__)

_SHOWN_MAX: Final = 3
_UNSETTLED_MAX: Final = 1_000_000
"""Largest number of marked ledgers that a task receives, 8 bytes each. If there are more, no ledger counts as settled,
and the next run reads all ledgers."""


class ImageUpkeep:
    """Writes the image of one run, from the beginning for each of its scans. Belongs to the run's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._writing: ImageFolder | None = None
        self._attendance = UNKNOWN_ATTENDANCE
        self.read_from_ms = 0
        """When the reading for the latest generation began, epoch milliseconds."""
        self.unsettled: Sequence[int] | None = ()
        """Ledgers that the latest generation must not call settled, because they were marked when its reading began;
        None: all ledgers.

        A worker may have chosen a bookie as a target before its loss, and install the copy after this run has read the
        ledger, for example if the worker or its connection was suspended. Until then the ledger is marked (R108).
        """
        self.written: Manifest | None = None
        self.problem = ""
        """Why no image was written."""

    def begin(self, live: AbstractSet[str], attendance: Attendance | None = None) -> ImageFolder | None:
        """Begin a generation before a scan, and discard an earlier one; return the folder for the parts, or None.

        Args:
            live: the bookies that count as live in the scan.
            attendance: the registrations before any metadata for the image was read or compared; None: neither has
                begun.
        """
        context, settings = self._context, self._context.settings
        self.abandon()
        if not settings.image_place or settings.is_dry_run:
            return None
        image = image_folder(settings.image_place)
        self.read_from_ms = context.clock.epoch_ms()
        self._attendance = context.cluster.attendance() if attendance is None else attendance
        self.unsettled = self._marked()
        if context.is_incremental and not self._is_noted(is_read=False):  # others leave no parts
            return None
        try:
            kept = files.UNFINISHED_GENERATIONS_KEPT if context.is_incremental else 0
            self._writing = files.begin(image, context.cluster.cluster, context.run_id, context.kind, kept=kept)
            files.note_beginning(self._writing, replace(self._manifest(), bookies=tuple(sorted(live))))
        except OSError as error:
            self._failed(f"cannot write to {image}: {error}")
            self.abandon()
        return self._writing

    def commit(self, parts: ImageParts, totals: ScanTotals) -> None:
        """Make this generation the current one, after a complete scan."""
        writing = self._writing
        if writing is None:
            return
        manifest = replace(
            self._manifest(),
            ledgers=totals.ledgers,
            bookies=tuple(sorted(totals.ledgers_by_bookie)),
            files=parts.files,
        )
        try:
            if parts.problems:
                raise ImageError("; ".join(parts.problems[:_SHOWN_MAX]))
            rows = sum(file.rows for file in parts.files if file.is_ledgers)
            if rows != totals.ledgers:
                raise ImageError(f"its files have {rows} of {counted(totals.ledgers, 'ledger')}")
            if not self._is_noted(is_read=True):
                self.abandon()
                return
            files.commit(writing, manifest, self._context.clock.epoch_ms())
        except (ImageError, OSError, pa.ArrowException) as error:
            self._failed(str(error))
            self.abandon()
            return
        self._writing, self.written = None, manifest

    def abandon(self) -> None:
        """Remove an incomplete generation."""
        writing, self._writing = self._writing, None
        if writing is not None:
            files.abandon(writing)

    def leave(self) -> None:
        """End without an image. An incremental run leaves the written parts for the next run."""
        if self._context.is_incremental:
            self._writing = None
        self.abandon()

    def _is_noted(self, *, is_read: bool) -> bool:
        """Record the image in ZooKeeper, so that a later run notices if ZooKeeper was set back to a time before it."""
        try:
            self._context.cluster.note_image(self._context.run_id, is_read=is_read)
        except (TransientError, ConflictError, OutcomeUnknownError, AccessDeniedError) as error:
            self._failed(f"it cannot be recorded in the metadata store: {error}")
            return False
        return True

    def _marked(self) -> Sequence[int] | None:
        try:
            ids = self._context.cluster.marked_ledgers(_UNSETTLED_MAX + 1)
        except AccessDeniedError:
            return None
        return array("q", ids) if len(ids) <= _UNSETTLED_MAX else None

    def _manifest(self) -> Manifest:
        cluster = self._context.cluster.cluster
        return Manifest(
            run_id=self._context.run_id,
            instance_id=cluster.instance_id,
            root=cluster.root,
            layout=cluster.kind.value,
            read_from_ms=self.read_from_ms,
            ledgers=0,
            bookies=(),
            files=(),
            attendance=self._attendance,
        )

    def _failed(self, reason: str) -> None:
        self.problem = reason
        _log.warning(
            "no image of ledger metadata was written", extra={"run_id": self._context.run_id, "reason": reason}
        )
