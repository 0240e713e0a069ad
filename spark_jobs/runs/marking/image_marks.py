"""The first reaction to a lost bookie: mark its ledgers named by an image, before all ledgers are read.

The invariant (R100): the image decides nothing. It only names ledgers, which are read again and marked by the rules of
``early_marking``. So an image that is missing, damaged, old or of another cluster costs time, but changes no mark.

With a limit on the marks of one run, the image is not used: a run would then spend its limit on the ledgers named by
the image, and not on the worst.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from spark_jobs.image.files import newest
from spark_jobs.image.folder import ImageFolder, image_folder
from spark_jobs.image.manifest import ImageError, Manifest, check_usable
from spark_jobs.image.suspects import Suspects, suspects
from spark_jobs.options.marking import RunLimits
from spark_jobs.report.counts import ImageCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.marking.accepted import given_up
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.early_marking import EarlyMarking, NewLosses
from spark_jobs.runs.marking.lost_bookies import LostBookies
from spark_jobs.runs.port import Phase, ProgressEvent

_log = logging.getLogger(__name__)

FIRST_BATCH: Final = 250
"""Number of ledgers read before the first mark. A smaller batch makes the first mark earlier."""
BATCH: Final = 4_000
"""Number of ledgers read at a time: a few megabytes."""


class ImageMarks:
    """The marks of one run for ledgers named by an image. Belongs to the run's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self.marking = EarlyMarking(context)
        """The marks so far."""
        self._counts = ImageCounts()

    @property
    def is_used(self) -> bool:
        """Whether an image named the ledgers to mark."""
        return self._counts.read_from_ms > 0

    @property
    def counts(self) -> ImageCounts:
        """How the image was used so far."""
        return self.marking.counted(self._counts)

    def mark(self, cookies: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        """Mark the ledgers named by the image, if it is usable. Any failure is logged, and the run continues.

        Args:
            cookies: every bookie with a cookie.
            before: the first listing of bookies in this run.
            lost: the lost bookies, with their marking rules.

        Raises:
            RunStoppedError: from the gate.
        """
        wanted = NewLosses.of(lost)
        if not wanted:
            return
        if self._context.settings.run_limits != RunLimits():
            self._report_image_unused("the run has a limit on its marks")
            return
        try:
            folder, manifest = self._image()
            found = suspects(folder, manifest, lost.noted.keys(), wanted.due, wanted.critical)
            known = self._known(folder, manifest, cookies | before.registered, before.registered)
        except ImageError as error:
            self._report_image_unused(str(error))
            return
        self._counts = replace(self._counts, read_from_ms=manifest.read_from_ms, suspects=len(found))
        try:
            self._mark(found, known, before, lost)
        except (TransientError, OutcomeUnknownError) as error:
            self._stopped(str(error))
        fields = {"suspects": len(found), "marked": self.marking.marked, "run_id": self._context.run_id}
        _log.info("ledgers of lost bookies were marked by the image, all ledgers are read now", extra=fields)

    def _image(self) -> tuple[ImageFolder, Manifest]:
        context = self._context
        image = context.settings.image_place
        if not image:
            raise ImageError("this run has no image")
        folder, manifest = newest(image_folder(image), context.cluster.cluster)
        check_usable(manifest, context.cluster.cluster, context.clock.epoch_ms(), context.settings.image_age_max_s)
        return folder, manifest

    def _known(
        self, folder: ImageFolder, manifest: Manifest, present: AbstractSet[BookieId], registered: AbstractSet[BookieId]
    ) -> AbstractSet[BookieId]:
        """Return the bookies that count for the brake: those that are present, and those that the image names.

        As in the pass over all ledgers, a bookie without a cookie does not count if every copy on it was accepted as
        lost. If the brake does not hold with all bookies, or if one of their ledgers has no accepted loss, all count.

        Raises:
            ImageError: a file of the index is missing or damaged.
        """
        named = frozenset(map(BookieId, manifest.bookies))
        known, gone = present | named, named - present
        if not gone or held_because(known, registered, 1, None, self._context.settings.missing_share_max) is None:
            return known
        decisions = [
            decision
            for decision in self._cluster.accepted_losses()
            if decision.is_valid(registered) and not gone.isdisjoint(decision.bookies)
        ]
        accepted = {decision.ledger_id for decision in decisions}
        on_gone = suspects(folder, manifest, gone, gone, frozenset())
        if len(on_gone) > len(accepted) or not accepted.issuperset(on_gone.ids.to_pylist()):
            return known
        return known - (gone & given_up(decisions, self._cluster.ledger_data([each.ledger_id for each in decisions])))

    def _mark(self, found: Suspects, known: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        context, total, done = self._context, len(found), 0
        decided = self.marking.decided()
        for batch in found.batches(FIRST_BATCH, BATCH):
            context.gate.pass_through()
            context.progress(ProgressEvent(Phase.IMAGE, done, total))
            done += len(batch)
            read = self.marking.read([ledger_id for ledger_id in batch if ledger_id not in decided], before)
            problem = self.marking.publish(read.verdicts, lost, known | read.members, len(batch))
            if problem:
                self._stopped(problem)
                return

    def _report_image_unused(self, reason: str) -> None:
        self._problem("the image of ledger metadata is not used, all ledgers are read first", reason)

    def _stopped(self, reason: str) -> None:
        self._problem("the ledgers that the image names were not all read, all ledgers are read now", reason)

    def _problem(self, text: str, reason: str) -> None:
        self._counts = replace(self._counts, problem=reason)
        _log.warning(text, extra={"run_id": self._context.run_id, "reason": reason})
