"""The tab in the Spark UI: calls from the JVM's threads become calls on the service's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from auditor.api.control import (
    Control,
    NotLeaderError,
    RunBusyError,
    RunEndedError,
    ServiceStatus,
    SeverityBacklog,
    UnknownRunError,
    lost_text,
    why_no_next_run,
    why_not_counted,
)
from auditor.operating.client import RefusedError
from auditor.service.runs.spark_holder import SessionUser, Spark
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.run import RunCause, RunKind, RunRecord
from bookie.model.times import utc_text
from bookie.runtime.clock import Clock
from spark_jobs.ui.port import ActionOutcome, ActionResult, BacklogRow, Fact, KindRow, RunView, TabActions, TabState
from spark_jobs.ui.settings import TabSettings

if TYPE_CHECKING:
    from spark_jobs.ui.tab import AttachedTab

_log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_DEADLINE_S: Final = 10.0
"""Longest time for which a call blocks a thread of the JVM. The tab has its own, shorter deadlines."""
RUNS_SHOWN: Final = 20
_VIA: Final = "spark ui"
"""The way that the record of changes names."""


class SparkTab(SessionUser):
    """Attach the tab to the session once Spark has started (``SessionUser``)."""

    def __init__(self, control: Control, settings: TabSettings, clock: Clock, report_base_url: str) -> None:
        """``report_base_url`` is the prefix of links to reports, before the run id; empty: no links."""
        self._control = control
        self._settings = settings
        self._clock = clock
        self._report_base_url = report_base_url
        self._loop = asyncio.get_running_loop()
        self._tab: AttachedTab | None = None

    @override
    def attach(self, spark: Spark) -> None:
        """Add the tab. It is not an error if Spark's UI has no place for a tab."""
        from spark_jobs.ui.tab import attach_tab

        actions = LoopActions(self._control, self._loop, self._clock, self._report_base_url)
        self._tab = attach_tab(spark, actions, self._settings, clock=self._clock)

    @override
    def detach(self) -> None:
        if self._tab is not None:
            self._tab.detach()


class LoopActions(TabActions):
    """The tab's actions (``TabActions``). Each call blocks the JVM's thread until the loop has answered."""

    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop, clock: Clock, report_base_url: str) -> None:
        self._control = control
        self._loop = loop
        self._clock = clock
        self._report_base_url = report_base_url

    @override
    def snapshot(self) -> TabState:
        return self._call(self._snapshot())

    @override
    def run(self, kind: str, user: str, address: str) -> ActionResult:
        if kind not in {known.value for known in RunKind}:
            return ActionResult(ActionOutcome.UNKNOWN, f"There is no kind of audit named {kind!r}.")
        return self._act(
            self._control.start_run(RunKind(kind), cause=RunCause.SPARK_UI, owner=_owner(user, address)), "started"
        )

    @override
    def cancel(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._act(self._control.cancel_run(run_id, owner=_owner(user, address), via=_VIA), "is being cancelled")

    @override
    def pause(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._act(self._control.pause_run(run_id, owner=_owner(user, address), via=_VIA), "paused")

    @override
    def resume(self, run_id: str, user: str, address: str) -> ActionResult:
        return self._act(self._control.resume_run(run_id, owner=_owner(user, address), via=_VIA), "continues")

    def _act(self, action: Coroutine[Any, Any, RunRecord], done: str) -> ActionResult:
        try:
            record = self._call(action)
        except RunBusyError as error:
            return ActionResult(ActionOutcome.BUSY, _sentence(error), error.run_id)
        except (NotLeaderError, RefusedError, RunEndedError) as error:
            return ActionResult(ActionOutcome.REFUSED, _sentence(error))
        except UnknownRunError as error:
            return ActionResult(ActionOutcome.UNKNOWN, _sentence(error))
        except (TransientError, OutcomeUnknownError, TimeoutError) as error:
            return ActionResult(ActionOutcome.UNAVAILABLE, _sentence(error) or "The auditor gave no answer in time.")
        return ActionResult(ActionOutcome.ACCEPTED, f"Run {record.run_id} {done}.", record.run_id)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_DEADLINE_S)
        except TimeoutError:
            future.cancel()
            raise

    async def _snapshot(self) -> TabState:
        status = self._control.status()
        try:
            runs: Sequence[RunRecord] = await self._control.runs(RUNS_SHOWN)
        except (TransientError, OutcomeUnknownError) as error:
            _log.info("the list of runs is not available now", extra={"reason": str(error)})
            runs = status.running
        reasons = await asyncio.gather(*(self._refusal_reason(kind) for kind in RunKind))
        now_ms = self._clock.epoch_ms()
        return TabState(
            taken_ms=now_ms,
            facts=_facts(status, now_ms),
            kinds=[_kind_row(status, kind, why) for kind, why in zip(RunKind, reasons, strict=True)],
            backlog=_backlog_rows(status),
            runs=[RunView(record, self._report_url(record)) for record in runs],
            why_not_counted=why_not_counted(status),
            in_progress=status.backlog.locked,
            parked={reason.value: count for reason, count in status.backlog.parked.items()},
        )

    async def _refusal_reason(self, kind: RunKind) -> str:
        try:
            return await self._control.refusal_reason(kind)
        except (TransientError, OutcomeUnknownError):
            return ""  # unknown: a run that lacks something ends with that reason

    def _report_url(self, record: RunRecord) -> str:
        return f"{self._report_base_url}/{record.run_id}/" if self._report_base_url and record.report else ""


def _facts(status: ServiceStatus, now_ms: int) -> list[Fact]:
    leader = f"{status.leader} (this auditor)" if status.is_leader else status.leader
    bookies = f"{len(status.writable)} writable, {len(status.read_only)} read-only, {len(status.lost)} lost"
    facts = [
        Fact("Cluster", status.metadata_uri),
        Fact("Leader", leader or "none", is_bad=not leader),
        Fact("ZooKeeper", "connected" if status.is_store_connected else "not connected", not status.is_store_connected),
        Fact("Recovery", "enabled" if status.is_recovery_enabled else "disabled", not status.is_recovery_enabled),
        Fact("Lost-bookie delay", f"{status.lost_bookie_delay_s} s"),
        Fact("Bookies", bookies),
    ]
    facts += [Fact("Lost bookie", lost_text(bookie, now_ms), is_bad=True) for bookie in status.lost]
    for kind, pause in status.paused_kinds.items():
        until = utc_text(pause.until_ms) or "not known"
        facts.append(Fact(f"Schedule of {kind.value}", f"paused by {pause.owner} until {until}", is_bad=True))
    for window in status.windows:
        until = utc_text(window.until_ms) or "not known"
        facts.append(Fact(f"Maintenance of {window.target}", f"by {window.by} until {until}"))
    return facts + ([Fact("Brake", status.held_because, is_bad=True)] if status.held_because else [])


def _kind_row(status: ServiceStatus, kind: RunKind, refusal_reason: str) -> KindRow:
    running = next((record for record in status.running if record.kind is kind and not record.is_dry_run), None)
    why_not = refusal_reason
    if not status.is_leader:
        why_not = f"the leader is {status.leader or 'unknown'}"
    if running is not None:
        why_not = f"run {running.run_id} is under way"
    next_ms = status.next_run_ms.get(kind, 0)
    why_no_next = "" if next_ms else why_no_next_run(status, kind)
    return KindRow(
        kind.value, not why_not, why_not, next_ms, status.last_success_ms.get(kind, 0), why_no_next=why_no_next
    )


def _backlog_rows(status: ServiceStatus) -> list[BacklogRow]:
    backlog = status.backlog
    parts: list[tuple[str, SeverityBacklog]] = [
        (severity.label, part) for severity, part in sorted(backlog.severities.items())
    ]
    if backlog.healthy.ledgers:
        parts.append(("healthy", backlog.healthy))
    if backlog.unreadable:
        parts.append(("unreadable", SeverityBacklog(backlog.unreadable)))
    return [BacklogRow(name, part.ledgers, part.bytes_estimate, part.oldest_ms) for name, part in parts]


def _owner(user: str, address: str) -> str:
    return f"{user or 'anonymous'} from {address}"


def _sentence(error: BaseException) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
