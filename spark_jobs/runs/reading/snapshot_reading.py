"""One pass over all ledgers in which a snapshot of ZooKeeper replaces most requests.

A snapshot is older than the cluster. So it decides only about ledgers that need no second look: readable, closed, and
on only live bookies. All other ledgers are read again from ZooKeeper. So are all ledgers under a node if a ledger was
created there since then, or if the snapshot does not contain the node. Nothing is reported or marked unless ZooKeeper
confirms it (R99).

One case remains: a copy of a closed ledger was moved after the snapshot to a bookie that was lost later. Only an audit
without a snapshot finds it. So a run from a snapshot does not count as the audit of a loss.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame

from bookie.metadata.port import Stat
from bookie.runtime.human import agreeing, counted
from spark_jobs.datasource.ledgers import leaf_stat
from spark_jobs.datasource.partitions import LEDGERS_PER_PARTITION_MAX, LeafParent
from spark_jobs.datasource.snapshot_ledgers import NAMED_DDL, SETTLED_DDL, SnapshotTasks, divide_parts
from spark_jobs.image import leaves
from spark_jobs.report.counts import SnapshotCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.port import Phase
from spark_jobs.runs.reading.completeness import NO_TOTALS, ScanTotals, problems
from spark_jobs.runs.reading.ledger_scan import LedgerScan, collected, scan_ledgers
from spark_jobs.runs.reading.reread_rows import reread_rows
from spark_jobs.runs.reading.streamed_snapshot import StreamedSnapshot
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.slots import Slots, session_slots
from spark_jobs.snapshot.index import SnapshotIndex, SnapshotPart, index_snapshot


@dataclass(frozen=True, slots=True)
class Division:
    """The source of each ledger: the snapshot or ZooKeeper."""

    parts: tuple[SnapshotPart, ...]
    """Parts of the snapshot to read."""
    live: tuple[LeafParent, ...]
    """Nodes to read from ZooKeeper."""


def divide(index: SnapshotIndex, nodes: Sequence[tuple[str, Stat]]) -> Division:
    """Decide which ledgers are read from the snapshot. Pure.

    A node of the snapshot is usable if it is still the same node and no ledger was created under it since then:
    ZooKeeper counts creations in the version of the node's children. Deletions do no harm. A deleted node has no
    ledgers.

    Args:
        index: the snapshot.
        nodes: the nodes that have ledgers now, and their stats.
    """
    known = {part.parent: part for part in index.parts}
    served, live = set(), []
    for path, stat in nodes:
        part = known.get(path)
        if part is not None and _has_no_new_ledger(part, stat):
            served.add(path)
        elif stat.children_count:
            live.append(LeafParent(path, stat.children_count, leaf_stat(stat)))
    return Division(tuple(part for part in index.parts if part.parent in served and part.ledgers), tuple(live))


def _has_no_new_ledger(part: SnapshotPart, stat: Stat) -> bool:
    """Return whether no child was created since the snapshot. Only deletions explain a later change of the children.

    Without a deletion, ZooKeeper was set back to an earlier state and has another history since then.
    """
    if (part.czxid, part.creates) != (stat.czxid, creates_of(stat)):
        return False
    has_deletions = part.children_zxid < stat.children_zxid and stat.children_count < part.children
    return part.children_zxid == stat.children_zxid or has_deletions


def creates_of(stat: Stat) -> int:
    """Return the number of children ever created. ZooKeeper only reports creations and deletions together."""
    return leaves.creates_of(stat.children_version, stat.children_count)


@dataclass(frozen=True, slots=True)
class _Read:
    """The counts of a scan by source; a ledger counts once."""

    division: Division = Division((), ())
    counted: ScanTotals = NO_TOTALS
    """Counts of the snapshot; those in ``returned`` were read again."""
    again: ScanTotals = NO_TOTALS
    live: ScanTotals = NO_TOTALS


class SnapshotReading:
    """The scans of one run from one snapshot. The snapshot is verified once."""

    def __init__(self, context: RunContext, snapshot: Path | StreamedSnapshot, *, keeps_all: bool = False) -> None:
        """Prepare.

        With ``keeps_all``, a scan returns every ledger; those that the snapshot decides are in ``settled``.
        """
        self._context = context
        self._keeps_all = keeps_all
        self._settings = context.settings
        self._snapshot = snapshot
        self._name = str(snapshot.resolve()) if isinstance(snapshot, Path) else context.settings.snapshot_url
        self._index: SnapshotIndex | None = None
        self._read = _Read()

    def scan(self, live: AbstractSet[str]) -> LedgerScan:
        """Read every ledger once, as ``scan_ledgers`` does.

        Raises:
            SnapshotError: the snapshot cannot be used.
            StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
        """
        context, settings = self._context, self._settings
        if self._index is None:
            self._index = self._verified()
        division = divide(self._index, context.cluster.leaf_nodes())
        kept = None if self._keeps_all else live
        with ExitStack() as unused, context.tasks(Phase.SCAN):
            read, counted = self._read_from_snapshot(self._index, division.parts, live)
            unused.callback(unpersist, read)
            ids = read.where("named_id IS NOT NULL").selectExpr("named_id AS ledger_id") if self._keeps_all else read
            again = reread_rows(context, ids.where("ledger_id IS NOT NULL"), counted.returned, kept)
            unused.callback(again.release)
            if not self._keeps_all:
                unpersist(read)
            scans = [again]
            if division.live:
                scans.append(scan_ledgers(context.spark, settings, division.live, kept, budget=context.budget))
            unused.pop_all()
        self._read = _Read(division, counted, scans[0].totals, scans[-1].totals if division.live else NO_TOTALS)
        totals = functools.reduce(ScanTotals.plus, (scan.totals for scan in scans), replace(counted, returned=0))
        suspects = functools.reduce(DataFrame.unionByName, (scan.suspects for scan in scans))
        cached = tuple(frame for scan in scans for frame in scan.cached)
        sent = tuple(each for scan in scans for each in scan.sent)
        if not self._keeps_all:
            return LedgerScan(suspects, totals, cached, sent=sent)
        settled = read.where("ledger_id IS NOT NULL").drop("named_id", "summary")
        return LedgerScan(suspects, totals, (*cached, read), settled=settled, sent=sent)

    def _verified(self) -> SnapshotIndex:
        if isinstance(self._snapshot, StreamedSnapshot):
            return self._snapshot.index()
        return index_snapshot(self._snapshot.resolve(), self._context.cluster.cluster, self._context.gate.pass_through)

    def problems(self) -> tuple[str, ...]:
        """Report the missing parts of the last scan, one sentence each."""
        read = self._read
        recount = self._context.cluster.count_planned(read.division.live, read.live)
        found = problems(read.division.live, read.live, recount)
        planned = sum(part.ledgers for part in read.division.parts)
        seen = read.counted.ledgers + read.counted.skipped + read.counted.returned
        again = read.again.ledgers + read.again.unreadable + read.again.vanished
        if (planned, read.counted.returned) != (seen, again):
            were = agreeing(seen, "was", "were")
            found += (
                f"the snapshot has {counted(planned, 'ledger')}: {seen} {were} seen, and {again} of them read again",
            )
        return found

    @property
    def counts(self) -> SnapshotCounts:
        """The counts of the last scan, by source."""
        read = self._read
        size = 0 if self._index is None else self._index.bytes_read
        live = read.live.ledgers + read.live.unreadable
        return SnapshotCounts(self._name, size, read.counted.ledgers, read.counted.returned, live)

    def _read_from_snapshot(
        self, index: SnapshotIndex, parts: Sequence[SnapshotPart], live: AbstractSet[str]
    ) -> tuple[DataFrame, ScanTotals]:
        """Return the ids of ledgers to read again, and the counts of the others, with ``keeps_all`` also their rows.

        If Spark loses rows with an executor, it reads the same rows again from the file.
        """
        spark, cluster = self._context.spark, self._context.cluster.cluster
        groups = divide_parts(parts, self._settings.num_partitions or _tasks_max(index, session_slots(spark)))
        tasks = SnapshotTasks(
            index.file, cluster.kind, cluster.root, frozenset(live), groups, keeps_all=self._keeps_all
        )
        numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
        read = collected(numbers.mapInArrow(tasks, SETTLED_DDL if self._keeps_all else NAMED_DDL), self._settings)
        return read.cached, read.totals


def _tasks_max(index: SnapshotIndex, slots: Slots) -> int:
    """Return the largest number of tasks for the reading."""
    if not index.is_seekable:
        # Each task has to decompress the file from its beginning.
        return slots.most or slots.now
    return max(slots.tasks(index.ledgers, LEDGERS_PER_PARTITION_MAX), -(-index.ledgers // LEDGERS_PER_PARTITION_MAX))
