"""The tab's calls from other threads, which are answered on the service's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from auditor.api.control import (
    Backlog,
    LostBookie,
    NotLeaderError,
    RunBusyError,
    RunEndedError,
    ServiceStatus,
    SeverityBacklog,
    UnknownRunError,
)
from auditor.operating.client import RefusedError
from auditor.service.spark_tab import LoopActions
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.severity import Severity
from bookie.model.times import utc_text
from bookie.runtime.clock import SystemClock
from spark_jobs.ui.port import ActionOutcome, BacklogRow, KindRow, RunView

T = TypeVar("T")

RECORD = RunRecord("r1", RunKind.BOOKIES, RunCause.SPARK_UI, "", "h:1", RunState.RUNNING, report="x/summary.json")
STATUS = ServiceStatus(
    version="1",
    process="h:1",
    is_leader=True,
    leader="h:8080",
    is_store_connected=True,
    metadata_uri="zk://h/ledgers",
    instance_id="i",
    is_recovery_enabled=True,
    lost_bookie_delay_s=60,
    lost=[LostBookie("bk1:1", 5, 6)],
    backlog=Backlog(
        severities={Severity.CRITICAL: SeverityBacklog(2, 10, 3)},
        unreadable=1,
        parked={ParkReason.OPEN_LEDGER: 1},
        locked=1,
        counted_ms=9,
    ),
    running=[RECORD],
    next_run_ms={RunKind.REPLICAS: 77},
)


class FakeControl:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.now = STATUS
        self.refusal_reasons: dict[RunKind, str] = {}
        self.loop = asyncio.get_running_loop()

    def status(self) -> ServiceStatus:
        assert asyncio.get_running_loop() is self.loop
        return self.now

    async def runs(self, limit: int = 50) -> Sequence[RunRecord]:
        if self.error is not None:
            raise self.error
        return [RECORD]

    async def refusal_reason(self, kind: RunKind) -> str:
        if self.error is not None:
            raise self.error
        return self.refusal_reasons.get(kind, "")

    async def run(self, run_id: str) -> RunRecord:
        return self._answer("run", run_id)

    async def start_run(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any] = {}
    ) -> RunRecord:
        return self._answer("start", kind, cause, owner)

    async def cancel_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return self._answer("cancel", run_id, owner)

    async def pause_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return self._answer("pause", run_id, owner)

    async def pause_kind(self, kind: RunKind, *, owner: str, via: str) -> KindPause:
        raise AssertionError

    async def resume_kind(self, kind: RunKind, *, owner: str, via: str) -> None:
        raise AssertionError

    async def resume_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return self._answer("resume", run_id, owner)

    async def wait_changed(self, run_id: str, seen: RunRecord) -> RunRecord:
        return self._answer("wait", run_id)

    def _answer(self, *asked: Any) -> RunRecord:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return RECORD


def actions(control: FakeControl) -> LoopActions:
    return LoopActions(control, asyncio.get_running_loop(), SystemClock(), "http://h/reports")


async def elsewhere(call: Callable[[], T]) -> T:
    """Call from another thread, as the JVM does."""
    return await asyncio.to_thread(call)


async def test_user_actions_reach_the_service_with_the_user_and_address() -> None:
    control = FakeControl()
    tab = actions(control)
    started = await elsewhere(lambda: tab.run("bookies", "ann", "10.0.0.1"))
    assert (started.outcome, started.run_id) == (ActionOutcome.ACCEPTED, "r1")
    for press in (tab.cancel, tab.pause, tab.resume):
        answer = await elsewhere(lambda press=press: press("r1", "", "10.0.0.1"))  # type: ignore[misc]
        assert answer.outcome is ActionOutcome.ACCEPTED
    assert control.asked == [
        ("start", RunKind.BOOKIES, RunCause.SPARK_UI, "ann from 10.0.0.1"),
        ("cancel", "r1", "anonymous from 10.0.0.1"),
        ("pause", "r1", "anonymous from 10.0.0.1"),
        ("resume", "r1", "anonymous from 10.0.0.1"),
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RunBusyError(RunKind.BOOKIES, "r0", "h:2"), ActionOutcome.BUSY),
        (NotLeaderError("h:8080"), ActionOutcome.REFUSED),
        (RefusedError("there is no topology"), ActionOutcome.REFUSED),
        (RunEndedError("run r1 is over"), ActionOutcome.REFUSED),
        (UnknownRunError("there is no run r1"), ActionOutcome.UNKNOWN),
        (StoreUnavailableError("no answer"), ActionOutcome.UNAVAILABLE),
    ],
)
async def test_refusals_are_returned_as_answers(error: Exception, outcome: ActionOutcome) -> None:
    control = FakeControl()
    control.error = error
    tab = actions(control)
    answer = await elsewhere(lambda: tab.run("bookies", "", "h"))
    assert answer.outcome is outcome
    assert answer.text


async def test_an_unknown_kind_is_not_sent_to_the_service() -> None:
    control = FakeControl()
    tab = actions(control)
    assert (await elsewhere(lambda: tab.run("nonsense", "", "h"))).outcome is ActionOutcome.UNKNOWN
    assert control.asked == []


async def test_the_page_shows_the_service_even_while_the_store_is_unreachable() -> None:
    control = FakeControl()
    tab = actions(control)
    for error in (None, StoreUnavailableError("no answer")):
        control.error = error
        state = await elsewhere(tab.snapshot)
        assert state.runs == [RunView(RECORD, "http://h/reports/r1/")]
        assert state.backlog == [BacklogRow("critical", 2, 10, 3), BacklogRow("unreadable", 1)]
        assert (state.in_progress, state.parked) == (1, {"open_ledger": 1})
        assert KindRow("bookies", False, "run r1 is under way") in state.kinds
        assert KindRow("replicas", True, "", 77, why_no_next="") in state.kinds
        assert [fact.value.split()[0] for fact in state.facts if fact.is_bad] == ["bk1:1"]


@pytest.mark.parametrize("kind", [RunKind.PLACEMENT, RunKind.REFERENCES])
async def test_an_audit_that_could_only_fail_is_not_offered_and_the_reason_is_shown(kind: RunKind) -> None:
    control = FakeControl()
    control.refusal_reasons[kind] = "there is nothing to compare with"
    rows = {row.kind: row for row in (await elsewhere(actions(control).snapshot)).kinds}
    assert (rows[kind.value].is_startable, rows[kind.value].why_not) == (False, "there is nothing to compare with")
    assert rows["replicas"].is_startable
    control.error = StoreUnavailableError("no answer")
    rows = {row.kind: row for row in (await elsewhere(actions(control).snapshot)).kinds}
    assert rows[kind.value].is_startable, "not known: the run reports it"


async def test_marks_are_not_called_absent_before_the_leader_has_counted_them() -> None:
    control = FakeControl()
    assert not (await elsewhere(actions(control).snapshot)).why_not_counted
    control.now = replace(STATUS, backlog=Backlog())
    assert "not been counted yet" in (await elsewhere(actions(control).snapshot)).why_not_counted


async def test_pauses_and_maintenance_windows_are_shown_with_their_ends() -> None:
    control = FakeControl()
    window = MaintenanceWindow("rack:/r1", (BookieId("bk1:1"),), "ann", 1_000, 61_000, False, "")
    control.now = replace(STATUS, windows=(window,), paused_kinds={RunKind.REPLICAS: KindPause("ben", 61_000)})
    facts = {fact.label: fact.value for fact in (await elsewhere(actions(control).snapshot)).facts}
    until = utc_text(61_000)
    assert facts["Maintenance of rack:/r1"] == f"by ann until {until}"
    assert facts["Schedule of replicas"] == f"paused by ben until {until}"


async def test_a_follower_shows_schedules_without_times() -> None:
    control = FakeControl()
    control.now = replace(STATUS, is_leader=False, next_run_ms={}, schedules={RunKind.REPLICAS: "7d"})
    rows = {row.kind: row for row in (await elsewhere(actions(control).snapshot)).kinds}
    assert (rows["replicas"].next_ms, rows["replicas"].why_no_next) == (0, "7d on the leader, next time unknown here")
    assert rows["placement"].why_no_next == "not scheduled"
