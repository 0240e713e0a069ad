"""One pass over all ledgers that reads new, open and endangered ledgers, and carries over the others from the image.

The image decides nothing (R100): if it is missing, damaged, old, or of another cluster, the run reads all ledgers. It
does the same after a loss that no audit has handled, because a copy may have been moved to the lost bookie since the
image was written. Metadata that a run read before it ended early is carried over as well, if it was read after the
loss: it is the first part of the same pass (R108).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from bookie.model.ids import BookieId
from spark_jobs.datasource.incremental import ImageSource, IncrementalTasks, LeafWork, work_text
from spark_jobs.datasource.partitions import LEDGERS_PER_PARTITION_MAX, LeafParent
from spark_jobs.datasource.scan import leaf_of
from spark_jobs.image import files
from spark_jobs.image.carried import leaves_of
from spark_jobs.image.folder import ImageFolder, image_folder
from spark_jobs.image.leaves import LeafRecord, newest_record_per_leaf
from spark_jobs.image.manifest import ImageError, Manifest, check_usable
from spark_jobs.image.part import ImageFile
from spark_jobs.report.counts import SnapshotCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.port import Phase
from spark_jobs.runs.reading.completeness import NO_TOTALS, problems
from spark_jobs.runs.reading.image_upkeep import ImageUpkeep
from spark_jobs.runs.reading.incremental_plan import Times, cost_of, groups_of_work, plan_incremental
from spark_jobs.runs.reading.ledger_scan import LEDGERS_PER_TASK, LedgerScan, scan_groups, task_options
from spark_jobs.runs.reading.live_reading import LiveReading
from spark_jobs.runs.slots import session_slots

_log = logging.getLogger(__name__)

_LEAVES_MAX: Final = 100_000
"""Largest number of leaves. Each executor receives the whole plan, about 200 bytes for each leaf. With usual ids, so
many leaves hold a billion ledgers."""
_SKEW_MS: Final = 60_000
"""Largest tolerated difference between the clocks of auditors."""


class IncrementalReading:
    """The scans of one run. Belongs to the run's thread."""

    counts: SnapshotCounts | None = None

    def __init__(self, context: RunContext, image: ImageUpkeep, lost: Mapping[BookieId, int]) -> None:
        """Prepare.

        Args:
            context: the run.
            image: writes the new image.
            lost: the lost bookies that no audit has handled, and the start of each loss, epoch milliseconds.
        """
        self._context = context
        self._image = image
        self._lost = lost
        self._live = LiveReading(context, image)
        self._plan: Sequence[LeafParent] = ()
        self._totals = NO_TOTALS
        self.problem = ""
        """Why all ledgers are read, or more than would be necessary; empty: this is not so."""
        self.carried_from_ms = 0
        """Time at which the oldest carried-over ledger was read, epoch milliseconds; 0: none was carried over."""

    def scan(self, live: AbstractSet[str]) -> LedgerScan:
        """Read every ledger once, or carry it over; see ``scan_ledgers`` for errors."""
        context = self._context
        self._image.abandon()  # `begin` removes the files of an earlier scan, so they must not be sources
        self._plan = context.cluster.leaf_parents()
        attendance = context.cluster.attendance()  # before the comparison, so that no change is missed
        sources = _Sources(context, self._lost)
        works = self._leaf_work(sources)
        if not any(work.record for work in works):
            self.problem = sources.problem or "the image has no ledgers that are new enough"
            self._log_problem("all ledgers are read")
            self._plan = ()
            return self._live.scan(live)
        if sources.problem:
            self.problem = sources.problem
            self._log_problem("all ledgers are read, except those that runs read before they ended early")
        image = self._image.begin(live, attendance)
        with context.tasks(Phase.SCAN):
            scan = self._scan(works, sources, live, image)
        self._totals = scan.totals
        if scan.image.carried_problems:
            self.problem = scan.image.carried_problems[0]
            self._log_problem("some ledgers of the image cannot be used and are read")
        if scan.totals.carried:
            self.carried_from_ms = min(work.record.read_from_ms for work in works if work.record)
        return scan

    def problems(self) -> tuple[str, ...]:
        """Report the missing parts of the last scan, one sentence each."""
        if not self._plan:
            return self._live.problems()
        return problems(self._plan, self._totals, self._context.cluster.count_planned(self._plan, self._totals))

    def _leaf_work(self, sources: _Sources) -> Sequence[LeafWork]:
        context = self._context
        leaves = [leaf_of(context.cluster.cluster, node.path) for node in self._plan]
        now_ms, within_s = context.clock.epoch_ms(), context.settings.reread_within_s
        last = sources.read_from_ms or now_ms
        times = Times(now_ms, last, int(within_s * 1000))
        return plan_incremental(self._plan, leaves, sources.records, times)

    def _scan(
        self, works: Sequence[LeafWork], sources: _Sources, live: AbstractSet[str], image: ImageFolder | None
    ) -> LedgerScan:
        settings, spark, budget = self._context.settings, self._context.spark, self._context.budget
        cost = cost_of(works)
        few = -(-sum(work.parent.planned for work in works) // LEDGERS_PER_PARTITION_MAX)
        slots = session_slots(spark)
        tasks = max(few, slots.tasks(cost, LEDGERS_PER_TASK))
        groups = groups_of_work(works, budget.tasks(settings.num_partitions or tasks))
        options = replace(
            task_options(settings, live, budget.share(len(groups), slots.most)),
            image_dir=None if image is None else image.to_text(),
            image_from_ms=self._image.read_from_ms,
            image_unsettled=self._image.unsettled,
        )
        source = sources.source
        texts = [work_text(group) for group in groups]
        return scan_groups(spark, settings, texts, lambda sent: IncrementalTasks(options, source, sent))

    def _log_problem(self, what: str) -> None:
        _log.warning(
            f"an incremental audit uses no image, or not all of it: {what}",
            extra={"run_id": self._context.run_id, "reason": self.problem},
        )


class _Sources:
    """The image of a cluster, and the parts read by runs that ended early."""

    def __init__(self, context: RunContext, lost: Mapping[BookieId, int]) -> None:
        self._context = context
        self._lost = lost
        self.problem = ""
        self.read_from_ms = 0
        """Time at which the reading of the image, or of the oldest unfinished one, began; 0: there is no image."""
        self._files: dict[str, ImageFile] = {}
        self._folders: dict[str, ImageFolder] = {}
        self._image = image_folder(context.settings.image_place)
        found: list[LeafRecord] = []
        if lost:
            self.problem = "a bookie was lost, and no audit of all ledgers has dealt with it"
        # The last one determines ``read_from_ms``: the image or, without an image, the oldest reading that ended early.
        images = [*reversed(list(self._unfinished())), *(() if lost else self._whole())]
        for folder, manifest in images:
            whole = image_folder(folder.to_text())
            try:
                records = leaves_of(folder, manifest)
            except ImageError as error:
                self.problem = str(error)
                continue
            found += (record for record in records if not lost or record.read_from_ms >= manifest.read_from_ms)
            self.read_from_ms = manifest.read_from_ms
            for file in manifest.files:
                self._files[file.name], self._folders[file.name] = file, whole
        self.records = newest_record_per_leaf(found)
        if len(self.records) > _LEAVES_MAX:
            self.problem = f"the ledger tree has {len(self.records)} nodes with ledgers, more than {_LEAVES_MAX}"
            self.records = {}

    @property
    def source(self) -> ImageSource:
        """The files for the tasks."""
        return ImageSource(
            {name: file for name, file in self._files.items() if file.is_ledgers},
            {name: self._folders[name] for name, file in self._files.items() if file.is_ledgers},
        )

    def _whole(self) -> Iterator[tuple[ImageFolder, Manifest]]:
        try:
            folder, manifest = files.newest(self._image, self._context.cluster.cluster)
            self._check(manifest, is_read=True)
        except ImageError as error:
            self.problem = str(error)
            return
        yield folder, manifest

    def _unfinished(self) -> Iterator[tuple[ImageFolder, Manifest]]:
        for folder in files.unfinished(files.cluster_folder(self._image, self._context.cluster.cluster)):
            try:
                manifest = files.begun(folder)
                self._check(manifest, is_read=False)
                self._check_losses(manifest)
            except ImageError as error:
                _log.warning(
                    "the ledgers that a run read before it ended early are not used",
                    extra={"run_id": self._context.run_id, "reason": str(error)},
                )
                continue
            yield folder, manifest

    def _check(self, manifest: Manifest, *, is_read: bool) -> None:
        context = self._context
        age_max_s = min(context.settings.reread_within_s, context.settings.image_age_max_s)
        check_usable(manifest, context.cluster.cluster, context.clock.epoch_ms(), age_max_s)
        if not context.cluster.has_image_note(manifest.run_id, is_read=is_read):
            raise ImageError("ZooKeeper has no record of it: ZooKeeper was set back, or many other images are newer")
        if reason := context.cluster.who_left(manifest.attendance):
            raise ImageError(reason)

    def _check_losses(self, manifest: Manifest) -> None:
        """Check that each bookie was lost before this metadata was read: later, no copy was moved to the bookie."""
        for bookie, since_ms in self._lost.items():
            if bookie in manifest.bookies or since_ms > manifest.read_from_ms + _SKEW_MS:
                raise ImageError(f"it was read before {bookie} was lost")
