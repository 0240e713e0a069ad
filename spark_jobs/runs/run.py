"""Audit runs: one check over a whole cluster, its marks for repair, and its report.

The invariant: what a run finds only adds marks. It marks nothing if its input is implausible (S12, ``brake``), and does
not call itself complete if it may not have seen every ledger (S20, ``completeness``). A mark is withdrawn only if its
own ledger proves that nothing is left to do (``withdrawal``). Unreadable metadata is a finding. The ``bookie_run``,
``placement_run``, ``replica_run`` and ``reference_run`` modules contain the checks, and ``everything`` those that a run
of everything does beside the bookie check.

The steps are: scan, check, mark, write the report and its summary last, and record the completed check in the cluster.
Marks come before the report, so a full disk of the auditor prevents no repair and repeats no scan (R52,
``run_report``). A replicas check proceeds in chunks. The record comes last, and only for a complete run that marked all
it found, because the next check is scheduled from it.

A run that is stopped or dies leaves the marks that it made. Marking is idempotent and its order does not matter for
safety, so the next run marks the rest (R21, R22). A directory without a summary is not a report. Without the record the
next check runs earlier than needed. The gate is passed before each phase, chunk and batch of marks, so a run whose lock
or leadership was lost marks at most the batch that it has begun; this does no harm, because a mark is a hint (R1).

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from bookie.metadata.runs.check_times import CheckKind
from bookie.metadata.uri import parse_uri
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.run import RunKind, new_run_id
from bookie.model.topology import Topology
from bookie.runtime.clock import Clock, SystemClock
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import RUNS_FETCHED, fetch_missing, opened_store, send_unsent
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.runs.bookie_run import BookieRun
from spark_jobs.runs.cluster_view import ClusterView, opened_cluster
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.everything import EverythingBeside
from spark_jobs.runs.outcome import Outcome, RunName, assemble, is_for_report
from spark_jobs.runs.placement_run import PlacementRun
from spark_jobs.runs.port import Gate, OpenGate, Phase, Progress, ProgressEvent
from spark_jobs.runs.reference_run import ReferenceRun
from spark_jobs.runs.replica_run import ReplicaRun
from spark_jobs.runs.run_report import RunReport
from spark_jobs.settings import FROM_SNAPSHOT, AuditSettings, FailOn
from spark_jobs.snapshot.errors import SnapshotError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A finished run."""

    run_id: str
    summary: RunSummary
    summary_path: Path
    report_problem: str = ""
    """Why there is no report; empty: there is one. Everything else was done."""

    def exit_code(self, fail_on: FailOn = FailOn.NEVER) -> ExitCode:
        """Exit code of a one-shot run. A missing report counts after everything that the summary reports."""
        code = self.summary.exit_code(fail_on)
        return ExitCode.CONFIGURATION if self.report_problem and code is ExitCode.OK else code


def run_audit(
    spark: SparkSession,
    settings: AuditSettings,
    progress: Progress | None = None,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> AuditResult:
    """Run the bookie check once, from scratch; see ``run_check``."""
    return run_check(spark, RunKind.BOOKIES, settings, progress, clock=clock, rng=rng)


def run_check(
    spark: SparkSession,
    kind: RunKind,
    settings: AuditSettings,
    progress: Progress | None = None,
    *,
    gate: Gate | None = None,
    run_id: str | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> AuditResult:
    """Run one check once, from scratch. Blocks; not for use in the thread of a running event loop.

    Repeating it is safe at any time, beside another run as well: marking is idempotent. Runs of different kinds may go
    on side by side, each in a thread of its own, in one session.

    Args:
        spark: the session.
        kind: which check.
        settings: what it does.
        progress: receives the phases and their progress; see ``Progress``.
        gate: passed before each phase, chunk and batch of marking; None for one that is always open.
        run_id: None for a new one.
        clock: None for the machine's.
        rng: for a new id and sample; None for the machine's.

    Raises:
        RunStoppedError: from ``gate``. What was marked stays; there is no summary.
        StoreUnavailableError: the metadata store did not answer; what was marked before stays.
        NotAClusterError: there is no cluster at the metadata URI.
        NoTopologyError, InvalidTopologyError: a placement check without a topology that can be read.
        NoPulsarError, ExportError: a references check without managed ledgers, or without a place for the ids.
        ReportDirError: there is no directory for the report, and the report is what the run is for. In every other case
            a report that cannot be written is part of the result.
        ScanFailedError: Spark failed.
        SnapshotError: the snapshot cannot be used, or the check is another one than that of bookies or of everything.
    """
    if settings.is_from_snapshot and kind not in FROM_SNAPSHOT:
        raise SnapshotError(f"a run of kind {kind.value} reads no snapshot; those of bookies and of everything do")
    clock, rng = clock or SystemClock(), rng or random.SystemRandom()
    progress, gate = progress or _silent, gate or OpenGate()
    gate.pass_through()
    started_ms = clock.epoch_ms()
    run_id = run_id or new_run_id(started_ms, rng)
    budget = replace(settings.budget, run_id=run_id)
    with opened_cluster(parse_uri(settings.metadata_uri), clock, budget, settings.connect_timeout_s) as cluster:
        cookies = cluster.bookies_with_cookies()
        is_report_needed = is_for_report(kind, is_dry_run=settings.is_dry_run)
        store = opened_store(settings.report_store)
        fetching = None
        if store is not None:
            # Beside the run: a store that hangs must not delay marks.
            fetching = threading.Thread(target=_exchange, args=(store, settings), name="fetched reports", daemon=True)
            fetching.start()
        report = RunReport(
            settings.report_dir,
            run_id,
            is_needed=is_report_needed,
            store=store,
            findings_dir=settings.findings_dir,
        )
        context = RunContext(kind, run_id, spark, settings, cluster, report, clock, gate, progress)
        try:
            execute, completed = _parts(context, rng)
            outcome = execute(cookies)
        except BaseException:
            report.abandon()
            raise
        cluster_name = ClusterName(settings.metadata_uri, cluster.cluster.instance_id)
        if fetching is not None:
            fetching.join()  # every call to the store has a deadline
        name = RunName(run_id, cluster_name, started_ms, clock.epoch_ms(), kind, settings.is_dry_run)
        summary = replace(assemble(name, cookies, outcome), impact=report.impact())
        path = report.finish(summary, _topology(cluster, settings), settings.kept)
        if _did_everything(summary) and not (is_report_needed and report.problem):
            try:
                completed(summary)
            except (TransientError, ConflictError, OutcomeUnknownError) as error:
                # The findings are reported and marked: without the record, the next check runs earlier than needed.
                _log.warning("completion was not noted", extra={"run_id": run_id, "reason": str(error)})
    progress(ProgressEvent(Phase.DONE))
    return AuditResult(run_id, summary, path, str(report.problem or ""))


_Execute = Callable[[AbstractSet[BookieId]], Outcome]


_Completed = Callable[[RunSummary], None]


def _parts(context: RunContext, rng: random.Random) -> tuple[_Execute, _Completed]:
    """The run, and what to note in the cluster once it did everything it should.

    Apache's auditor computes its next check of a kind from the time of the last one, so a time is written only if our
    check does all of Apache's. The replicas check does (its lists are asked of every closed ledger), and so does the
    placement check. The all-ledgers check has no counterpart here: it also reads entries back and looks into the last
    fragments of open ledgers, so its time is never written. The bookie check has no time of Apache's. What is
    from a snapshot counts for nothing: it does not see a copy that was moved after the snapshot (R99).
    """
    cluster = context.cluster
    match context.kind:
        case RunKind.BOOKIES:
            run = BookieRun(context)
            if context.settings.is_from_snapshot:
                return run.execute, lambda summary: None
            return run.execute, lambda summary: _losses_audited(cluster, run, summary.finished_ms)
        case RunKind.PLACEMENT:
            return (
                PlacementRun(context).execute,
                lambda summary: cluster.write_check_time(CheckKind.PLACEMENT, summary.finished_ms),
            )
        case RunKind.REPLICAS:
            return ReplicaRun(context, rng).execute, lambda summary: _replicas_completed(context, summary)
        case RunKind.REFERENCES:
            return ReferenceRun(context).execute, lambda summary: None
        case RunKind.EVERYTHING:
            everything = BookieRun(context, EverythingBeside(context))
            return everything.execute, lambda summary: _everything_completed(context, everything, summary)


def _everything_completed(context: RunContext, run: BookieRun, summary: RunSummary) -> None:
    """Each check that is complete counts as if it had run alone; a placement check is its report."""
    if context.settings.is_from_snapshot:
        return
    _losses_audited(context.cluster, run, summary.finished_ms)
    if RunKind.PLACEMENT in summary.kinds_done and context.report.problem is None:
        context.cluster.write_check_time(CheckKind.PLACEMENT, summary.finished_ms)


def _losses_audited(cluster: ClusterView, run: BookieRun, finished_ms: int) -> None:
    cluster.note_audited(run.audited, finished_ms)
    cluster.note_critical_audited(run.critical_audited, finished_ms)


def _topology(cluster: ClusterView, settings: AuditSettings) -> Topology | None:
    """The locations of bookies, for the report's page only: it works without."""
    try:
        return cluster.topology(settings.topology_file)[0]
    except (PermanentError, TransientError) as error:
        _log.warning("topology cannot be read, the report shows no racks", extra={"reason": str(error)})
        return None


def _replicas_completed(context: RunContext, summary: RunSummary) -> None:
    if context.settings.is_every_ledger:
        context.cluster.write_check_time(CheckKind.REPLICAS, summary.finished_ms)


def _did_everything(summary: RunSummary) -> bool:
    """A dry run changes nothing in the cluster, not even a time."""
    return (
        (summary.is_read if summary.parts else summary.is_complete)
        and summary.held_because is None
        and not summary.is_dry_run
        and summary.published.outcome.is_all
        and not summary.published.is_limited
    )


def _exchange(store: ReportStore, settings: AuditSettings) -> None:
    """Send what an earlier run could not send, and fetch what other machines wrote, so that trends and states continue.

    A run does not depend on it.
    """
    try:
        send_unsent(store, settings.report_dir)
        fetch_missing(store, settings.report_dir, settings.reports_kept or RUNS_FETCHED)
    except PermanentError as error:
        _log.warning(
            "reports were not exchanged with the store", extra={"store": str(store.address), "reason": str(error)}
        )


def _silent(event: ProgressEvent) -> None:
    pass
