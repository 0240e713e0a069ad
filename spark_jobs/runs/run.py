"""One audit run: a check of a whole cluster, its marks for repair, and its report.

The invariant: findings only add marks. A run marks nothing if its input is implausible (S12, ``brake``), and it is not
complete if it may have missed a ledger (S20, ``completeness``). A mark is withdrawn only if its own ledger proves that
nothing is left to do (``withdrawal``). Unreadable metadata is a finding. The ``bookie_run``, ``placement_run``,
``replica_run`` and ``reference_run`` modules contain the checks, and ``everything`` the further checks of a run of
everything besides the bookie check.

The steps are: scan, check, mark, write the report and its summary last, and record the completed check in the cluster.
Marks come before the report, so a full disk of the auditor neither prevents repair nor causes another scan (R52,
``run_report``). A replicas check proceeds in chunks. The check is recorded last, and only after a complete run with all
of its marks, because the record determines the time of the next check.

The marks of a stopped or dead run stay. Marking is idempotent and its order does not matter for safety, so the next run
marks the rest (R21, R22). A directory without a summary is not a report. Without the record, the next check only runs
earlier than needed. A run passes the gate before each phase, chunk and batch of marks. So after the loss of its lock or
leadership it only finishes the current batch, which does no harm, because a mark is a hint (R1).

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
from spark_jobs.report.files import PAGE
from spark_jobs.report.store import ReportStore
from spark_jobs.report.store_runs import RUNS_FETCHED, fetch_missing, opened_store, send_unsent
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.runs.cluster_view import ClusterView, opened_cluster
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds.bookie_run import BookieRun
from spark_jobs.runs.kinds.everything import AllFurtherChecks
from spark_jobs.runs.kinds.placement_run import PlacementRun
from spark_jobs.runs.kinds.reference_run import ReferenceRun
from spark_jobs.runs.kinds.replica_run import ReplicaRun
from spark_jobs.runs.outcome import Outcome, RunName, assemble, is_for_report
from spark_jobs.runs.port import Gate, OpenGate, Phase, Progress, ProgressEvent
from spark_jobs.runs.run_report import RunReport
from spark_jobs.settings import SNAPSHOT_READING_KINDS, AuditSettings, FailOn
from spark_jobs.snapshot.errors import SnapshotError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of a finished run."""

    run_id: str
    summary: RunSummary
    summary_path: Path
    report_problem: str = ""
    """Why there is no report; empty: there is one. All other work of the run is done in both cases."""

    @property
    def page_path(self) -> Path:
        """The page of the report, for people."""
        return self.summary_path.with_name(PAGE)

    def exit_code(self, fail_on: FailOn = FailOn.NEVER) -> ExitCode:
        """Return the exit code of a one-shot run. Problems in the summary take precedence over a missing report."""
        code = self.summary.exit_code(fail_on)
        return ExitCode.CONFIGURATION if self.report_problem and code is ExitCode.OK else code


def run_audit(
    spark: SparkSession | Callable[[], SparkSession],
    settings: AuditSettings,
    progress: Progress | None = None,
) -> AuditResult:
    """Run the bookie check once; see ``run_check``."""
    return run_check(spark, RunKind.BOOKIES, settings, progress)


def run_check(
    spark: SparkSession | Callable[[], SparkSession],
    kind: RunKind,
    settings: AuditSettings,
    progress: Progress | None = None,
    *,
    gate: Gate | None = None,
    run_id: str | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> AuditResult:
    """Run one check once. It blocks, so it must not be called in the thread of a running event loop.

    It is safe to repeat at any time, even during another run: marking is idempotent. Runs of different kinds may use
    one session at the same time, each in its own thread.

    Args:
        spark: the session, or a function that waits for its start. With a function, work that needs no Spark is done
            first.
        kind: which check.
        settings: the settings of the check.
        progress: receives the phases and their progress; see ``Progress``.
        gate: passed before each phase, chunk and batch of marking; None for an open gate.
        run_id: id of the run; None: a new one is made.
        clock: None for the machine's.
        rng: for a new run id and the sample; None for the machine's.

    Raises:
        RunStoppedError: from ``gate``. Existing marks stay; there is no summary.
        StoreUnavailableError: the metadata store did not answer; existing marks stay.
        NotAClusterError: there is no cluster at the metadata URI.
        NoTopologyError, InvalidTopologyError: a placement check found no readable topology.
        NoPulsarError, ExportError: a references check found no managed ledgers, or cannot write the file of ids.
        ReportDirError: the directory of the report cannot be made, and the report is the purpose of the run. In every
            other case, the result contains the problem with the report.
        SparkStartError: Spark did not start; marks that the driver made stay.
        ScanFailedError: Spark failed.
        SnapshotError: the snapshot cannot be used, or a run of this kind reads no snapshot.
    """
    if settings.is_from_snapshot and kind not in SNAPSHOT_READING_KINDS:
        raise SnapshotError(f"a run of kind {kind.value} reads no snapshot; those of bookies and of everything do")
    clock, rng = clock or SystemClock(), rng or random.SystemRandom()
    progress, gate = progress or _ignore, gate or OpenGate()
    gate.pass_through()
    started_ms = clock.epoch_ms()
    run_id = run_id or new_run_id(started_ms, rng)
    budget = replace(settings.budget, run_id=run_id)
    with opened_cluster(parse_uri(settings.metadata_uri), clock, budget, settings.connect_timeout_s) as cluster:
        cookies = cluster.bookies_with_cookies()
        is_report_needed = is_for_report(kind, is_dry_run=settings.is_dry_run)
        store = opened_store(settings.report_store)
        exchange = None if store is None else _begin_exchange(store, settings)
        report = RunReport(
            settings.report_dir,
            run_id,
            is_needed=is_report_needed,
            store=store,
            findings_dir=settings.findings_dir,
        )
        session = spark if callable(spark) else lambda: spark
        context = RunContext(
            kind=kind,
            run_id=run_id,
            session=session,
            is_spark_starting=callable(spark),
            settings=settings,
            cluster=cluster,
            report=report,
            clock=clock,
            gate=gate,
            progress=progress,
        )
        try:
            execute, completed = _check_and_completion(context, rng)
            outcome = execute(cookies)
        except BaseException:
            report.abandon()
            raise
        cluster_name = ClusterName(settings.metadata_uri, cluster.cluster.instance_id)
        if exchange is not None:
            exchange.join()  # every call to the store has a deadline
        name = RunName(run_id, cluster_name, started_ms, clock.epoch_ms(), kind, settings.is_dry_run)
        summary = replace(assemble(name, cookies, outcome), impact=report.impact())
        path = report.finish(summary, _topology(cluster, settings), settings.kept)
        if _may_record_completion(summary) and not (is_report_needed and report.problem):
            try:
                completed(summary)
            except (TransientError, ConflictError, OutcomeUnknownError) as error:
                # The findings are reported and marked. Without the record, the next check only runs earlier than
                # needed.
                _log.warning(
                    "the completion of the run was not recorded", extra={"run_id": run_id, "reason": str(error)}
                )
    progress(ProgressEvent(Phase.DONE))
    return AuditResult(run_id, summary, path, str(report.problem or ""))


_Execute = Callable[[AbstractSet[BookieId]], Outcome]
_Completed = Callable[[RunSummary], None]


def _check_and_completion(context: RunContext, rng: random.Random) -> tuple[_Execute, _Completed]:
    """Return the check, and the function that records its completion in the cluster.

    Apache's auditor computes the time of its next check of a kind from the time of the last one. So a time is written
    only if our check covers all that Apache's check covers. The replicas check does, because it asks for the lists of
    every closed ledger, and so does the placement check. Apache's all-ledgers check has no counterpart here: it also
    reads entries and examines the last fragments of open ledgers. So its time is never written. Apache records no time
    for the bookie check. A run from a snapshot records nothing: it does not see copies moved after the snapshot (R99).
    """
    cluster = context.cluster
    match context.kind:
        case RunKind.BOOKIES:
            run = BookieRun(context)
            if context.settings.is_from_snapshot:
                return run.execute, lambda summary: None
            return run.execute, lambda summary: _record_losses_audited(cluster, run, summary.finished_ms)
        case RunKind.PLACEMENT:
            return (
                PlacementRun(context).execute,
                lambda summary: cluster.write_check_time(CheckKind.PLACEMENT, summary.finished_ms),
            )
        case RunKind.REPLICAS:
            return ReplicaRun(context, rng).execute, lambda summary: _record_replicas_completed(context, summary)
        case RunKind.REFERENCES:
            return ReferenceRun(context).execute, lambda summary: None
        case RunKind.EVERYTHING:
            everything = BookieRun(context, AllFurtherChecks(context))
            return everything.execute, lambda summary: _record_everything_completed(context, everything, summary)


def _record_everything_completed(context: RunContext, run: BookieRun, summary: RunSummary) -> None:
    """Record each complete check as if it were a run of its own. The placement check counts only with its report."""
    if context.settings.is_from_snapshot:
        return
    _record_losses_audited(context.cluster, run, summary.finished_ms)
    if RunKind.PLACEMENT in summary.kinds_done and context.report.problem is None:
        context.cluster.write_check_time(CheckKind.PLACEMENT, summary.finished_ms)


def _record_losses_audited(cluster: ClusterView, run: BookieRun, finished_ms: int) -> None:
    cluster.note_audited(run.audited, finished_ms)
    cluster.note_critical_audited(run.critical_audited, finished_ms)


def _topology(cluster: ClusterView, settings: AuditSettings) -> Topology | None:
    """Return the locations of bookies for the report's page, which also works without them."""
    try:
        return cluster.topology(settings.topology_file)[0]
    except (PermanentError, TransientError) as error:
        _log.warning("topology cannot be read, the report shows no racks", extra={"reason": str(error)})
        return None


def _record_replicas_completed(context: RunContext, summary: RunSummary) -> None:
    if summary.is_every_ledger:
        context.cluster.write_check_time(CheckKind.REPLICAS, summary.finished_ms)


def _may_record_completion(summary: RunSummary) -> bool:
    """Return whether completion may be recorded. A dry run changes nothing in the cluster, not even a time."""
    return (
        (summary.is_read if summary.parts else summary.is_complete)
        and summary.held_because is None
        and not summary.is_dry_run
        and summary.published.outcome.is_all
        and not summary.published.is_limited
    )


def _begin_exchange(store: ReportStore, settings: AuditSettings) -> threading.Thread:
    """Exchange reports beside the run, because a hanging store must not delay marks; return the thread."""
    thread = threading.Thread(target=_exchange, args=(store, settings), name="fetched reports", daemon=True)
    thread.start()
    return thread


def _exchange(store: ReportStore, settings: AuditSettings) -> None:
    """Send unsent reports of earlier runs, and fetch those of other machines, so that trends continue. Best effort.

    A store that cannot be written may still be read.
    """
    most = settings.reports_kept
    exchanges: tuple[Callable[[], object], ...] = (
        lambda: send_unsent(store, settings.report_dir),
        lambda: fetch_missing(store, settings.report_dir, most or RUNS_FETCHED, kept_max=most),
    )
    for exchange in exchanges:
        try:
            exchange()
        except PermanentError as error:
            _log.warning(
                "reports were not exchanged with the store", extra={"store": str(store.address), "reason": str(error)}
            )


def _ignore(event: ProgressEvent) -> None:
    pass
