"""The settings that a run passes to Spark's checks, its record of their result, and the session that all runs share."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from auditor.service.fetched_reports import FetchedReports
from auditor.service.main import SPARK_CHECK_INTERVAL_S, SparkWatch
from auditor.service.runs import spark_holder
from auditor.service.runs.manager import RunRequest
from auditor.service.runs.spark_holder import START_FAILURES_MAX, SparkHolder, run_in_daemon_thread
from auditor.service.runs.spark_runner import UnknownOptionError, audit_settings, session_settings
from auditor.service.settings import ServiceSettings
from bookie.model.run import RunCause, RunKind
from bookie.model.spread import PlacementPolicy
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.kept import Kept
from spark_jobs.session import SessionSettings
from tests.worlds.clocks import ManualClock, VirtualClock
from tests.worlds.virtual_time import in_virtual_time

SETTINGS = ServiceSettings(
    metadata_uri="zk://h:1/ledgers",
    missing_share_max=0.25,
    placement=PlacementPolicy(min_racks=3),
    report_dir=Path("r"),
    history_days=1_000,
    history_mib=5,
)


def request(**options: Any) -> RunRequest:
    return RunRequest("r1", RunKind.REPLICAS, RunCause.HTTP, "me", is_dry_run=True, options=options)


def test_a_check_uses_the_settings_of_the_service_and_the_options_of_the_run() -> None:
    made = audit_settings(SETTINGS, request(sample=0.5, ledger_min="7"))
    assert (made.metadata_uri, made.report_dir, made.is_dry_run) == ("zk://h:1/ledgers", Path("r"), True)
    assert (made.missing_share_max, made.placement_policy.min_racks) == (0.25, 3)
    assert (made.sample, made.ledger_min) == (0.5, 7)
    assert made.kept == SETTINGS.kept == Kept(50, 1_000, 5 << 20)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UnknownOptionError, match="missing_share_max"):
        audit_settings(SETTINGS, request(missing_share_max=1.0))
    with pytest.raises(UnknownOptionError, match="another type"):
        audit_settings(SETTINGS, request(ledger_min="many"))
    with pytest.raises(ConfigurationError):
        audit_settings(SETTINGS, request(sample=7))


def test_the_ui_is_enabled_by_its_setting() -> None:
    assert dict(session_settings(SETTINGS).extra) == {"spark.ui.port": "4040"}
    assert not session_settings(ServiceSettings(metadata_uri="zk://h:1/ledgers", ui_enabled=False)).is_ui_enabled


class SlowSpark(SparkHolder):
    """A session that starts once ``may_start`` is set."""

    def __init__(self) -> None:
        super().__init__(SessionSettings())
        self.may_start = threading.Event()
        self.starts = 0
        self.stops = 0

    def _start(self) -> Any:
        self.starts += 1
        assert self.may_start.wait(10)
        return SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=""))

    def _stop(self) -> None:
        self.stops += 1


async def test_one_start_serves_all_callers_and_survives_the_cancellation_of_the_first() -> None:
    holder = SlowSpark()
    assert await holder.is_alive()
    first, second = guarded("first", holder.get()), guarded("second", holder.get())
    await asyncio.sleep(0)
    await cancel(first)
    holder.may_start.set()
    assert await second is await holder.get()
    assert holder.starts == 1
    await holder.stop()
    await holder.stop()
    assert holder.stops == 1


async def test_a_session_that_is_starting_is_stopped_as_well() -> None:
    holder = SlowSpark()
    asking = guarded("asking", holder.get())
    await asyncio.sleep(0)
    stopping = guarded("stopping", holder.stop())
    await asyncio.sleep(0)
    holder.may_start.set()
    await asking
    await stopping
    assert holder.stops == 1


async def test_work_in_a_thread_returns_or_raises_on_the_loop() -> None:
    assert await run_in_daemon_thread("work", threading.current_thread) is not threading.current_thread()

    def fail() -> None:
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        await run_in_daemon_thread("work", fail)


class BrokenSpark(SparkHolder):
    """A session whose first ``failures`` starts fail, and whose process is gone when it is stopped."""

    def __init__(self, failures: int) -> None:
        super().__init__(SessionSettings())
        self.failures = failures

    def _start(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Java gateway process exited before sending its port number")
        return SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl="", _jsc=None))

    def _stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


async def test_a_failed_start_is_retried_and_a_dead_process_is_stopped_without_an_error() -> None:
    holder = BrokenSpark(failures=1)
    with pytest.raises(RuntimeError, match="gateway"):
        await holder.get()
    assert await holder.is_alive(), "the next start may succeed"
    await holder.start_again()
    assert await holder.get() is not None
    assert not await holder.is_alive(), "this session does not answer"
    await holder.stop()


class FailingStarts(SparkHolder):
    """A session for virtual time that starts without threads and always fails."""

    starts = 0

    async def _started(self) -> Any:
        self.starts += 1
        self._start_failures += 1
        raise RuntimeError("no Java")


@in_virtual_time
async def test_a_process_that_cannot_start_spark_ends_so_that_another_one_leads() -> None:
    clock, stop, holder = VirtualClock(), asyncio.Event(), FailingStarts(SessionSettings())
    watch = SparkWatch(holder, stop)
    watching = guarded("watch", watch.run(clock))
    await asyncio.sleep(10 * SPARK_CHECK_INTERVAL_S)
    assert holder.starts == 0, "a follower does not start Spark"
    with pytest.raises(RuntimeError):
        await holder.get()
    async with asyncio.timeout(START_FAILURES_MAX * SPARK_CHECK_INTERVAL_S):
        await stop.wait()
    assert watch.is_gone
    assert holder.starts == START_FAILURES_MAX
    await cancel(watching)


class HungSpark(SparkHolder):
    """A session whose process accepts every request and answers none until it is killed."""

    def __init__(self, hangs: str) -> None:
        super().__init__(SessionSettings())
        self.hangs = hangs
        self.killed = threading.Event()

    def kill(self) -> None:
        self.killed.set()

    def _start(self) -> Any:
        self._do("start")
        return SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=""))

    def _ask(self, spark: Any) -> bool:
        self._do("look")
        return True

    def _stop(self) -> None:
        self._do("stop")

    def _do(self, what: str) -> None:
        if what == self.hangs:
            assert self.killed.wait(10)
            raise ConnectionResetError(104, "Connection reset by peer")


def hung(monkeypatch: pytest.MonkeyPatch, hangs: str) -> HungSpark:
    """Give only the hanging step a short deadline: on a busy machine, the others may take longer."""
    deadline = {"look": "ANSWER_DEADLINE_S", "start": "START_DEADLINE_S", "stop": "STOP_DEADLINE_S"}[hangs]
    monkeypatch.setattr(spark_holder, deadline, 0.02)
    return HungSpark(hangs)


async def test_a_hanging_session_ends_the_process_and_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, holder = asyncio.Event(), hung(monkeypatch, "look")
    await holder.get()
    run = guarded("run", run_in_daemon_thread("run", lambda: holder._do("look")))
    watch = SparkWatch(holder, stop)
    watching = guarded("watch", watch.run(ManualClock(turns=1)))
    async with asyncio.timeout(10):
        await stop.wait()
        with pytest.raises(ConnectionResetError):
            await run
    assert watch.is_gone
    assert watch.fault()
    assert not await holder.is_alive()
    await cancel(watching)


def no_thread_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the start of the first thread fail."""
    start, refused = threading.Thread.start, list[threading.Thread]()

    def refuse_the_first(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_first)


class EndedSpark(SparkHolder):
    """A session whose process has ended."""

    def _start(self) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=""))

    def _ask(self, spark: Any) -> bool:
        return False


async def test_the_watch_on_spark_survives_a_shortage_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, holder = asyncio.Event(), EndedSpark(SessionSettings())
    await holder.get()
    no_thread_at_first(monkeypatch)
    watch = SparkWatch(holder, stop)
    watching = guarded("watch", watch.run(ManualClock(turns=1)))
    async with asyncio.timeout(10):
        await stop.wait()
    assert watch.is_gone
    await cancel(watching)


async def test_reports_are_fetched_after_a_shortage_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = FetchedReports("file:///r", Path("r"), Kept(2, None, None), ManualClock(turns=1))
    loop, has_fetched = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(fetched, "_fetch", lambda: loop.call_soon_threadsafe(has_fetched.set))
    no_thread_at_first(monkeypatch)
    await fetched.start()
    async with asyncio.timeout(10):
        await has_fetched.wait()
    await fetched.stop()


@pytest.mark.parametrize("hangs", ["start", "stop"])
async def test_a_start_or_stop_that_hangs_is_detected_too(monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    holder = hung(monkeypatch, hangs)
    if hangs == "start":
        with pytest.raises(TimeoutError):
            await holder.get()
    else:
        await holder.get()
        await holder.stop()
    assert not await holder.is_alive()
    holder.kill()


async def test_a_session_stopped_during_a_liveness_check_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = hung(monkeypatch, "look")
    await holder.get()
    asking = guarded("asking", holder.is_alive())
    await asyncio.sleep(0)
    await holder.stop()
    assert await asking
    assert await holder.is_alive()
    holder.kill()


async def test_a_stopped_session_is_started_again_after_the_stop() -> None:
    holder = SlowSpark()
    holder.may_start.set()
    first = await holder.get()
    stopping = guarded("stopping", holder.stop())
    await asyncio.sleep(0)
    assert await holder.get() is not first
    assert (holder.starts, holder.stops, stopping.done()) == (2, 1, True)
