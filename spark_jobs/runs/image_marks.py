"""The first reaction to a lost bookie: mark its ledgers named by an image, before all ledgers are read.

The invariant (R100): the image decides nothing. It only names ledgers. The run reads each of them again from ZooKeeper,
then lists the registered bookies (R2), and decides about the mark by the same rules as in the pass over all ledgers.
The pass over all ledgers follows in any case, withdraws marks and concludes the run, and only it counts as the audit of
a loss. So a missing, damaged or old image, or one of another cluster, costs time and changes no mark.

With a limit on the marks of one run, the image is not used: a run would then spend its limit on the ledgers named by
the image, and not on the worst.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.image.files import newest
from spark_jobs.image.folder import image_folder
from spark_jobs.image.manifest import ImageError, Manifest, check_usable
from spark_jobs.image.suspects import Suspects, suspects
from spark_jobs.report.counts import ImageCounts
from spark_jobs.run_limits import RunLimits
from spark_jobs.runs.brake import held_because
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.fresh_verdict import FreshVerdict, fresh_verdict
from spark_jobs.runs.held_back import DueOnly
from spark_jobs.runs.lost_bookies import LostBookies
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.publish import publish

_log = logging.getLogger(__name__)

FIRST_BATCH: Final = 250
"""Ledgers read before the first mark: a smaller batch gives an earlier first mark."""
BATCH: Final = 4_000
"""Ledgers read at a time: some megabytes."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The losses not handled by any audit yet."""

    due: AbstractSet[BookieId]
    critical: AbstractSet[BookieId]


@dataclass(slots=True)
class _Read:
    """One batch of ledgers, with their current metadata."""

    verdicts: list[FreshVerdict] = field(default_factory=list)
    members: set[BookieId] = field(default_factory=set)


class ImageMarks:
    """The marks of one run for ledgers named by an image. Belongs to the run's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self.counts = ImageCounts()
        self.tasks_changed = 0
        self._registered: AbstractSet[BookieId] = frozenset()
        """As of the last batch."""

    def mark(self, cookies: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        """Mark the ledgers named by the image, if it is usable. Any failure is logged, and the run continues.

        Args:
            cookies: every bookie with a cookie.
            before: the first listing of bookies in this run.
            lost: the lost bookies, with their marking rules.

        Raises:
            RunStoppedError: from the gate.
        """
        wanted = _wanted(lost)
        if not (wanted.due or wanted.critical):
            return
        if self._context.settings.run_limits != RunLimits():
            self._not_used("the run has a limit on its marks")
            return
        try:
            manifest, found = self._suspects(lost, wanted)
        except ImageError as error:
            self._not_used(str(error))
            return
        self.counts = replace(self.counts, read_from_ms=manifest.read_from_ms, suspects=len(found))
        try:
            self._mark(found, cookies | before.registered | set(map(BookieId, manifest.bookies)), before, lost)
        except (TransientError, OutcomeUnknownError) as error:
            self._stopped(str(error))
        fields = {"suspects": len(found), "marked": self.counts.marked, "run_id": self._context.run_id}
        _log.info("ledgers of lost bookies were marked by the image, all ledgers are read now", extra=fields)

    def _suspects(self, lost: LostBookies, wanted: _Wanted) -> tuple[Manifest, Suspects]:
        context = self._context
        image = context.settings.image_place
        if not image:
            raise ImageError("this run has no image")
        folder, manifest = newest(image_folder(image), context.cluster.cluster)
        check_usable(manifest, context.cluster.cluster, context.clock.epoch_ms(), context.settings.image_age_max_s)
        return manifest, suspects(folder, manifest, lost.noted.keys(), wanted.due, wanted.critical)

    def _mark(self, found: Suspects, known: AbstractSet[BookieId], before: Bookies, lost: LostBookies) -> None:
        context, total, done = self._context, len(found), 0
        # The pass over all ledgers judges the losses accepted by an operator.
        decided = {decision.ledger_id for decision in self._cluster.accepted_losses()}
        for batch in found.batches(FIRST_BATCH, BATCH):
            context.gate.pass_through()
            context.progress(ProgressEvent(Phase.IMAGE, done, total))
            done += len(batch)
            read = self._read([ledger_id for ledger_id in batch if ledger_id not in decided], before)
            limit = context.settings.missing_share_max
            held = held_because(known | read.members, self._registered, len(batch), None, limit)
            if held is not None:
                self._stopped(held)
                return
            if not self._publish(read.verdicts, lost):
                return

    def _read(self, ids: Sequence[LedgerId], before: Bookies) -> _Read:
        """Read ledgers, then the bookies. Deleted and unreadable ledgers are left to the pass over all ledgers."""
        readable = list(_readable(ids, self._cluster.ledger_data(ids)))
        self._registered = self._cluster.bookies().registered
        # A bookie missing only since the start of the run has no delay yet, so it counts as live, as in the full pass.
        live = before.registered | self._registered
        read = _Read()
        for ledger_id, data in readable:
            try:
                metadata = decode(data)
            except UnreadableMetadataError:
                continue
            read.members |= metadata.members()
            if (verdict := fresh_verdict(ledger_id, metadata, live)) is not None:
                read.verdicts.append(verdict)
        return read

    def _publish(self, verdicts: list[FreshVerdict], lost: LostBookies) -> bool:
        """Mark the due ledgers, worst first; False: nothing more can be marked."""
        verdicts.sort(key=lambda verdict: (verdict.severity, verdict.ledger.ledger_id))
        due = DueOnly(lost.held).of(verdict.ledger for verdict in verdicts)
        markings = [marking for marking, _ in due]
        published = publish(markings, self._cluster, gate=self._context.gate, note=self._context.note_marks)
        self.tasks_changed += published.tasks_changed
        if published.ledgers:
            now_ms, counts = self._context.clock.epoch_ms(), self.counts
            self.counts = replace(
                counts,
                marked=counts.marked + published.ledgers,
                first_mark_ms=counts.first_mark_ms or now_ms,
                last_mark_ms=now_ms,
            )
        if not published.outcome.is_all:
            self._stopped(f"marking was {published.outcome.value}")
        return published.outcome.is_all

    def _not_used(self, reason: str) -> None:
        self._problem("the image of ledger metadata is not used, all ledgers are read first", reason)

    def _stopped(self, reason: str) -> None:
        self._problem("the ledgers that the image names were not all read, all ledgers are read now", reason)

    def _problem(self, text: str, reason: str) -> None:
        self.counts = replace(self.counts, problem=reason)
        _log.warning(text, extra={"run_id": self._context.run_id, "reason": reason})


def _wanted(lost: LostBookies) -> _Wanted:
    return _Wanted(
        frozenset(bookie for bookie, down in lost.due.items() if not down.audited_ms),
        frozenset(bookie for bookie, down in lost.critical_due.items() if not down.critical_audited_ms),
    )


def _readable(ids: Sequence[LedgerId], found: Sequence[bytes | str | None]) -> Iterator[tuple[LedgerId, bytes]]:
    for ledger_id, data in zip(ids, found, strict=True):
        if isinstance(data, bytes):
            yield ledger_id, data
