"""The audit: read all ledger metadata, find every fragment that lost a copy, report it, and mark it for repair.

Order is what makes it safe. Metadata is read first and the live bookies after it, so that a bookie which joins
meanwhile is not taken for lost; a bookie which leaves meanwhile makes the scan run again; and just before anything is
reported and published the suspects are compared with a fresh listing (R2). Implausible input publishes nothing (S12),
a scan that did not see every ledger never calls itself complete and only adds (S20), unreadable metadata is a finding.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from bookie.metadata.registration import Bookies
from bookie.metadata.uri import parse_uri
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.logs import setup_logging
from spark_jobs import report, report_sink
from spark_jobs.assemble import Checked, RunName, Scanned, assemble
from spark_jobs.brake import held_because
from spark_jobs.checks.bookie_check import bookie_check
from spark_jobs.checks.lint import unreadable_metadata
from spark_jobs.cluster_view import ClusterView, opened_cluster
from spark_jobs.completeness import problems, short_parents
from spark_jobs.datasource.register import register
from spark_jobs.ledger_scan import LedgerScan, scan_ledgers
from spark_jobs.progress import Phase, Progress, ProgressEvent, spark_tasks
from spark_jobs.publish import BATCH, Marking, Published, PublishOutcome, publish
from spark_jobs.settings import AuditSettings, ExitCode, FailOn
from spark_jobs.summary import ClusterName, FindingSums, RunSummary

__all__ = ["AuditResult", "AuditSettings", "ExitCode", "FailOn", "main", "run_audit"]

SCANS_MAX: Final = 3
"""Scans of one run. Bookies that leave during each of three are an outage; a later run will see how it ended."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A finished run."""

    run_id: str
    summary: RunSummary
    summary_path: Path

    def exit_code(self, fail_on: FailOn = FailOn.NEVER) -> ExitCode:
        """Exit code of a one-shot run."""
        return self.summary.exit_code(fail_on)


def run_audit(
    spark: SparkSession,
    settings: AuditSettings,
    progress: Progress | None = None,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> AuditResult:
    """Run the bookie check once, from scratch. Blocks; not for use in the thread of a running event loop.

    Repeating it is safe at any time, beside another run as well: marking is idempotent.

    Raises:
        StoreUnavailableError: the metadata store did not answer; nothing was published.
        NotAClusterError: there is no cluster at the metadata URI.
        ReportDirError: the report cannot be written.
        ScanFailedError: Spark failed.
    """
    clock = clock or SystemClock()
    progress = progress or _silent
    started_ms = clock.epoch_ms()
    run_id = _run_id(started_ms, rng or random.SystemRandom())
    register(spark)
    with opened_cluster(parse_uri(settings.metadata_uri), clock, settings.connect_timeout_s) as cluster:
        cookies = cluster.bookies_with_cookies()
        directory = report.prepare(settings.report_dir, run_id)
        try:
            scanned, checked, held = _Run(spark, settings, progress, cluster, directory).execute(cookies)
        except BaseException:
            report.abandon(directory)
            raise
        name = ClusterName(settings.metadata_uri, cluster.cluster.instance_id)
    finished = RunName(run_id, name, started_ms, clock.epoch_ms())
    summary = assemble(finished, cookies, scanned, checked, held)
    path = report.finish(settings.report_dir, summary)
    progress(ProgressEvent(Phase.DONE))
    return AuditResult(run_id, summary, path)


class _Run:
    """One run on an open cluster."""

    def __init__(
        self, spark: SparkSession, settings: AuditSettings, progress: Progress, cluster: ClusterView, directory: Path
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._progress = progress
        self._cluster = cluster
        self._directory = directory

    def execute(self, cookies: AbstractSet[str]) -> tuple[Scanned | None, Checked, str | None]:
        """Do everything but the summary; the text says why the brake holds."""
        self._progress(ProgressEvent(Phase.PLAN))
        bookies = self._cluster.bookies()
        limit = self._settings.missing_share_max
        held = held_because(cookies | bookies.registered, bookies.registered, 0, None, limit)
        if held is not None:
            return None, Checked(bookies), held
        scan, scanned = self._scan(bookies)
        try:
            totals = scanned.totals
            known = cookies | scanned.bookies.registered | totals.ledgers_by_bookie.keys()
            earlier = report.earlier_ledgers(self._settings.report_dir, self._cluster.cluster.instance_id)
            listed = totals.ledgers + totals.unreadable
            held = held_because(known, scanned.bookies.registered, listed, earlier, limit)
            checked = self._check(scan, scanned.bookies) if held is None else Checked(scanned.bookies)
        finally:
            scan.release()
        return scanned, checked, held

    def _scan(self, before: Bookies) -> tuple[LedgerScan, Scanned]:
        """Scan until no bookie that some ledger names has left meanwhile: the scan passed over its ledgers."""
        for attempt in range(1, SCANS_MAX + 1):
            plan = self._cluster.leaf_parents()
            with self._tasks(Phase.SCAN):
                scan = scan_ledgers(self._spark, self._settings, plan, before.registered)
            after = self._cluster.bookies()
            gone = (before.registered - after.registered) & scan.totals.ledgers_by_bookie.keys()
            if not gone or attempt == SCANS_MAX:
                break
            scan.release()
            before = after
        recount = self._cluster.count_ledgers([parent.path for parent in short_parents(plan, scan.totals)])
        found = problems(plan, scan.totals, recount)
        if gone:
            found += (f"{', '.join(sorted(gone))} left while ledgers were read; a later audit finds all they held",)
        return scan, Scanned(scan.totals, after, found)

    def _check(self, scan: LedgerScan, bookies: Bookies) -> Checked:
        judged = self._judge(scan.suspects, bookies.registered)
        latest = self._cluster.bookies()
        if latest.registered & judged.sums.by_bookie.keys():
            judged.release()
            judged = self._judge(scan.suspects, bookies.registered | latest.registered)
        try:
            with self._tasks(Phase.REPORT):
                limit = self._settings.worst_ledgers_max if judged.sums.severities else 0
                worst = report_sink.worst_ledgers(judged.ledgers, limit) if limit else ()
                others = unreadable_metadata(scan.suspects)
                report_sink.write_findings(judged.ledgers, others, self._directory)
            published = self._publish(judged)
        finally:
            judged.release()
        return Checked(latest, judged.sums, worst, published)

    def _judge(self, suspects: DataFrame, live: AbstractSet[str]) -> _Judged:
        findings = bookie_check(suspects, sorted(live))
        ledgers = report_sink.ledgers_found(findings).persist(StorageLevel.MEMORY_AND_DISK)
        with self._tasks(Phase.CHECK):
            return _Judged(ledgers, report_sink.sums(ledgers))

    def _publish(self, judged: _Judged) -> Published:
        total = sum(count.ledgers for count in judged.sums.severities)
        if total == 0:
            return Published(PublishOutcome.NOTHING_TO_PUBLISH)
        if self._settings.is_dry_run:
            return Published(PublishOutcome.DRY_RUN)
        return publish(self._counted(report_sink.markings(judged.ledgers), total), self._cluster)

    def _counted(self, markings: Iterable[Marking], total: int) -> Iterator[Marking]:
        for done, marking in enumerate(markings):
            if done % BATCH == 0:
                self._progress(ProgressEvent(Phase.PUBLISH, done, total))
            yield marking

    def _tasks(self, phase: Phase) -> AbstractContextManager[None]:
        return spark_tasks(self._spark, phase, self._directory.name, self._progress)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the check found."""

    ledgers: DataFrame
    """One row per ledger with findings, kept by Spark until released."""
    sums: FindingSums

    def release(self) -> None:
        self.ledgers.unpersist()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one audit from a command line (``spark-submit``, ``python -m spark_jobs.audit``); return its exit code."""
    from spark_jobs.command import run_command  # imports this module

    return run_command(argv)


def _run_id(started_ms: int, rng: random.Random) -> str:
    """Sorts by time; the suffix tells apart runs of one second."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{rng.randrange(1 << 24):06x}"


def _silent(event: ProgressEvent) -> None:
    pass


if __name__ == "__main__":
    setup_logging(logging.WARNING)
    sys.exit(main())
