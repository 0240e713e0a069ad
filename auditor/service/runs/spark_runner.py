"""Runs the checks of ``spark_jobs`` on one Spark session that lives as long as the process.

Spark is started when it is first needed, so a follower costs no Java heap. Each run has a thread of its own, which is
how Spark keeps the jobs of runs side by side apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from auditor.service.runs.manager import CheckRunner, RunRequest
from auditor.service.settings import ServiceSettings
from bookie.model.errors import PermanentError
from bookie.runtime.tasks import guarded
from spark_jobs.report.history import prune
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.gate import RunGate
from spark_jobs.runs.life_cycle import RunOutcome, outcome_of
from spark_jobs.runs.port import ProgressEvent
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

_log = logging.getLogger(__name__)

T = TypeVar("T")
Spark: TypeAlias = Any
"""A ``SparkSession``; its type is not imported, because followers should not pay for that."""

_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "mark_misplaced": bool,
    "ledger_min": int,
    "ledger_max": int,
    "sample": float,
    "sample_seed": int,
}
"""Of a run, which override settings of the check; named as in ``AuditSettings``."""


class UnknownOptionError(PermanentError):
    """A run was asked for with an option that there is not, or a value of another type."""


class SparkFace(Protocol):
    """Something that needs the Spark session: the tab in its UI."""

    def attach(self, spark: Spark) -> None:
        """Called once the session exists, in a thread that may block."""
        ...

    def detach(self) -> None:
        """Called before the session goes, in a thread that may block."""
        ...


START_FAILURES_MAX: Final = 3
"""Consecutive failures after which starting Spark again in this process seems hopeless."""


class SparkHolder:
    """The session: started by the first who asks, stopped by ``stop``. Used on one loop."""

    def __init__(self, settings: SessionSettings, face: SparkFace | None = None) -> None:
        self._settings = settings
        self._face = face
        self._stack = contextlib.ExitStack()
        self._starting: asyncio.Task[Spark] | None = None
        self._spark: Spark = None
        self._start_failures = 0

    async def get(self) -> Spark:
        """Return the session, started if it is not there. One start serves all who ask; cancelling one ends none.

        The next request retries a failed start.

        Raises:
            JavaNotFoundError: there is no Java to run Spark on.
        """
        if self._spark is None:
            if self._starting is None or self._starting.done():
                self._starting = guarded("spark start", self._started())
            return await asyncio.shield(self._starting)
        return self._spark

    async def start_again(self) -> None:
        """Retry a failed start; nothing if none failed.

        Another failure is logged and counted.
        """
        if self._spark is None and self._start_failures:
            with contextlib.suppress(Exception):
                await self.get()

    async def is_alive(self) -> bool:
        """Whether there is a session that answers, or none that could not be had: False means a new process is due."""
        spark = self._spark
        if spark is None:
            return self._start_failures < START_FAILURES_MAX

        def answers() -> bool:
            from spark_jobs.session import is_alive  # imports Spark

            return is_alive(spark)

        return await in_thread("spark look", answers)

    async def stop(self) -> None:
        """Stop the session, also one that is starting; a dead process is no error. Idempotent."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._spark is not None:
            self._spark = None
            try:
                await in_thread("spark stop", self._stop)
            except Exception as error:  # noqa: BLE001  # the boundary to a process that may be gone: it cannot be stopped
                _log.warning("spark was not stopped in order", extra={"reason": f"{type(error).__name__}: {error}"})

    async def _started(self) -> Spark:
        try:
            spark = self._spark = await in_thread("spark start", self._start)
        except Exception as error:
            self._start_failures += 1
            fields = {"failures": self._start_failures, "reason": f"{type(error).__name__}: {error}"}
            _log.error("spark did not start", extra=fields)
            raise
        self._start_failures = 0
        _log.info("spark started", extra={"ui": spark.sparkContext.uiWebUrl or "off"})
        return spark

    def _start(self) -> Spark:
        spark = self._stack.enter_context(spark_session(self._settings))
        if self._face is not None:
            self._face.attach(spark)
        return spark

    def _stop(self) -> None:
        if self._face is not None:
            self._face.detach()
        self._stack.close()


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

        def check() -> RunSummary:
            from spark_jobs.runs.run import run_check

            result = run_check(spark, request.kind, settings, progress, gate=gate, run_id=request.run_id)
            prune(settings.report_dir, self._settings.reports_kept)
            return result.summary

        summary = await in_thread(f"run {request.run_id}", check)
        return outcome_of(summary, self._settings.report_dir / request.run_id / "summary.json")


def audit_settings(settings: ServiceSettings, request: RunRequest) -> AuditSettings:
    """What a run does.

    Raises:
        UnknownOptionError: see there.
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
        is_dry_run=request.is_dry_run,
        missing_share_max=settings.missing_share_max,
        topology_file=settings.topology_file,
        placement_policy=settings.placement,
        security=settings.bookie_security,
        **options,
    )


def session_settings(settings: ServiceSettings) -> SessionSettings:
    """How to start Spark."""
    ui = (("spark.ui.port", str(settings.ui_port)),)
    proxy = (("spark.ui.proxyBase", settings.ui_proxy_base),) if settings.ui_proxy_base else ()
    return SessionSettings(
        master=settings.spark_master or None,
        app_name="bkheal-auditor",
        is_ui_enabled=settings.ui_enabled,
        ui_host=settings.ui_host,
        driver_memory=settings.driver_memory,
        extra=(*ui, *proxy) if settings.ui_enabled else (),
    )


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run blocking ``work`` in a thread of its own, which does not keep the process from ending.

    A cancelled caller does not wait for it; the work continues until its own gate stops it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only if T is

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # the boundary of a thread; it is raised on the loop
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
