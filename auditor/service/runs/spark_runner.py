"""Runs the checks of ``spark_jobs`` on the Spark session of the process (``spark_holder``).

Each run has a thread of its own, because Spark groups concurrent jobs by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from auditor.service.runs.manager import CheckRunner, RunRequest
from auditor.service.runs.spark_holder import SparkHolder, run_in_daemon_thread
from auditor.service.settings import ServiceSettings
from bookie.model.errors import PermanentError
from spark_jobs.runs.gate import RunGate
from spark_jobs.runs.life_cycle import RunOutcome, outcome_of
from spark_jobs.runs.port import ProgressEvent
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from spark_jobs.runs.run import AuditResult

_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "mark_misplaced": bool,
    "ledger_min": int,
    "ledger_max": int,
    "sample": float,
    "sample_seed": int,
}
"""Options of a run that override settings of the check; named as in ``AuditSettings``."""


class UnknownOptionError(PermanentError):
    """A run was requested with an unknown option, or with a value of another type."""


class SparkRunner(CheckRunner):
    """Runs checks in the Spark session (``CheckRunner``)."""

    def __init__(self, holder: SparkHolder, settings: ServiceSettings) -> None:
        self._holder = holder
        self._settings = settings

    @override
    async def run(self, request: RunRequest, gate: RunGate, progress: Callable[[ProgressEvent], None]) -> RunOutcome:
        settings = audit_settings(self._settings, request)
        spark = await self._holder.get()
        gate.check()

        def check() -> AuditResult:
            from spark_jobs.runs.run import run_check

            return run_check(spark, request.kind, settings, progress, gate=gate, run_id=request.run_id)

        result = await run_in_daemon_thread(f"run {request.run_id}", check)
        limit = settings.namespaces_in_metrics
        return outcome_of(result.summary, result.summary_path, result.report_problem, namespaces_max=limit)


def audit_settings(settings: ServiceSettings, request: RunRequest) -> AuditSettings:
    """Return the settings of a run.

    Raises:
        UnknownOptionError: an option is unknown, or its value has the wrong type.
        ConfigurationError: an option is out of range.
    """
    unknown = sorted(request.options.keys() - _OPTIONS.keys())
    if unknown:
        raise UnknownOptionError(f"unknown options {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))}")
    try:
        options = {name: _OPTIONS[name](value) for name, value in request.options.items()}
    except (TypeError, ValueError) as error:
        raise UnknownOptionError(f"an option of the run has a value of another type: {error}") from error
    return AuditSettings(
        metadata_uri=settings.metadata_uri,
        report_dir=settings.report_dir,
        report_store=settings.report_store,
        findings_dir=settings.findings_dir,
        reports_kept=settings.reports_kept,
        is_dry_run=request.is_dry_run,
        missing_share_max=settings.missing_share_max,
        critical_delay_s=settings.critical_delay_s,
        marks_max=settings.marks_max,
        mark_bytes_max=settings.mark_bytes_max,
        rack_outage_delay_s=settings.rack_outage_delay_s,
        flapping_delay_s=settings.flapping_delay_s,
        topology_file=settings.topology_file,
        placement_policy=settings.placement,
        namespaces_in_metrics=settings.namespaces_in_metrics,
        pulsar_roots=settings.pulsar_roots,
        reference_grace_s=settings.reference_grace_s,
        recovery_age_max_s=settings.recovery_age_max_s,
        with_inventory=settings.with_inventory,
        inventory_grace_s=settings.inventory_grace_s,
        inventory_token_file=settings.inventory_token_file,
        security=settings.bookie_security,
        history_days=settings.history_days,
        history_mib=settings.history_mib,
        metadata_rate=settings.metadata_rate,
        metadata_bytes_rate=settings.metadata_bytes_rate,
        metadata_connections=settings.metadata_connections,
        metadata_latency_factor=settings.metadata_latency_factor,
        metadata_observers=settings.metadata_observers,
        with_image=settings.with_image,
        image_dir=settings.image_dir,
        image_age_max_s=settings.image_age_max_s,
        incremental=settings.incremental,
        reread_within_s=settings.reread_within_s,
        **options,
    )


def session_settings(settings: ServiceSettings) -> SessionSettings:
    """Return the settings with which Spark is started."""
    ui = (("spark.ui.port", str(settings.ui_port)),)
    proxy = (("spark.ui.proxyBase", settings.ui_proxy_base),) if settings.ui_proxy_base else ()
    return SessionSettings(
        master=settings.spark_master or None,
        app_name="bkheal-auditor",
        is_ui_enabled=settings.ui_enabled,
        ui_host=settings.ui_host,
        driver_memory=settings.driver_memory,
        nice=settings.spark_nice,
        extra=(*ui, *proxy) if settings.ui_enabled else (),
    )
