"""The Spark session of an auditor: started if it is needed, checked, and stopped after the auditor's term.

The invariant: an auditor whose Spark cannot run anything does not continue to lead. Every call to the Java process has
a deadline here. A session that does not answer, start or stop in time counts as hung, and ``is_alive`` is false from
then on; the owner then stops the process and kills Java. A thread that is blocked in a call to Java does not keep this
process from ending, and ends with the Java process.

Stopping the session leaves the Java process running: executors are released, and a later start takes only seconds.
A follower that never led has no Java process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from bookie.runtime.tasks import guarded
from bookie.runtime.waiting import within_running_time
from spark_jobs.session import SessionSettings, is_alive, kill_driver, spark_session

_log = logging.getLogger(__name__)

T = TypeVar("T")
Spark: TypeAlias = Any
"""A ``SparkSession``. Its type is not imported, because followers do not need Spark."""

START_FAILURES_MAX: Final = 3
"""Consecutive failures after which this process does not try to start Spark again."""
ANSWER_DEADLINE_S: Final = 15.0
"""Deadline of one check of the Java process. A check takes milliseconds; a garbage collection is shorter than this."""
ANSWERS_MISSED_MAX: Final = 2
"""Consecutive unanswered checks after which Spark hangs. One is not enough: if this process was suspended, the deadline
has passed before it could read the answer."""
START_DEADLINE_S: Final = 300.0
"""Deadline of the start of a session. The start does not wait for executors."""
STOP_DEADLINE_S: Final = 60.0


class SessionUser(Protocol):
    """A user of the Spark session: the tab in its UI."""

    def attach(self, spark: Spark) -> None:
        """Called in a thread after the session has started; may block."""
        ...

    def detach(self) -> None:
        """Called in a thread before the session ends; may block."""
        ...


class SparkHolder:
    """The session: started by the first ``get``, and by the first one after ``stop``. Used on one loop."""

    def __init__(self, settings: SessionSettings, user: SessionUser | None = None) -> None:
        self._settings = settings
        self._user = user
        self._stack = contextlib.ExitStack()
        self._starting: asyncio.Task[Spark] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._spark: Spark = None
        self._start_failures = 0
        self._hung_because = ""

    async def get(self) -> Spark:
        """Return the session, and start it if necessary. All callers share one start. A cancelled caller ends none.

        After a failed start, the next call tries again. If the session is being stopped, a new one is started after
        that.

        Raises:
            JavaNotFoundError: there is no Java for Spark.
            TimeoutError: Spark did not start in time.
        """
        while self._stopping is not None and not self._stopping.done():
            await asyncio.shield(self._stopping)
        if self._spark is None:
            if self._starting is None or self._starting.done():
                self._starting = guarded("spark start", self._started())
            return await asyncio.shield(self._starting)
        return self._spark

    async def start_again(self) -> None:
        """Retry a failed start; do nothing if no start has failed.

        Another failure is logged and counted.
        """
        if self._spark is None and self._start_failures:
            with contextlib.suppress(Exception):
                await self.get()

    async def is_alive(self) -> bool:
        """Whether the session answers in time, or has not been needed yet.

        If False, a new process is needed.
        """
        spark = self._spark
        if self._hung_because:
            return False
        if spark is None:
            return self._start_failures < START_FAILURES_MAX
        if await self._answers(spark):
            return True
        return self._spark is not spark and not self._hung_because  # the session was stopped during the check

    async def stop(self) -> None:
        """Stop the session, even during its start; a dead process is not an error. Idempotent. ``get`` restarts it.

        A cancelled caller does not end the stop.
        """
        if self._stopping is None or self._stopping.done():
            self._stopping = guarded("spark stop", self._stopped())
        await asyncio.shield(self._stopping)

    def kill(self) -> None:
        """Kill the Java process, if this process started it. Every blocked call to it fails then."""
        if kill_driver():
            _log.error("the Java process of Spark was killed", extra={"reason": self._hung_because or "it failed"})

    async def _answers(self, spark: Spark) -> bool:
        for _ in range(ANSWERS_MISSED_MAX):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_DEADLINE_S):
                    return await run_in_daemon_thread("Spark check", lambda: self._ask(spark))
        if self._spark is spark:
            self._record_hang(f"it did not answer for {ANSWERS_MISSED_MAX * ANSWER_DEADLINE_S:.0f} s")
        return False

    def _record_hang(self, reason: str) -> None:
        self._hung_because = self._hung_because or reason
        _log.error("Spark hangs", extra={"reason": reason})

    async def _started(self) -> Spark:
        try:
            spark = self._spark = await within_running_time(
                START_DEADLINE_S, run_in_daemon_thread("spark start", self._start)
            )
        except Exception as error:
            self._start_failures += 1
            fields = {"failures": self._start_failures, "reason": f"{type(error).__name__}: {error}"}
            _log.error("spark did not start", extra=fields)
            if isinstance(error, TimeoutError):  # a second start would wait for the one that hangs
                self._record_hang(f"it did not start in {START_DEADLINE_S:.0f} s")
            raise
        self._start_failures = 0
        _log.info("spark started", extra={"ui": spark.sparkContext.uiWebUrl or "off"})
        return spark

    async def _stopped(self) -> None:
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._spark is None:
            return
        self._spark = None
        try:
            await within_running_time(STOP_DEADLINE_S, run_in_daemon_thread("spark stop", self._stop))
        except TimeoutError:
            self._record_hang(f"it did not stop in {STOP_DEADLINE_S:.0f} s")
        except Exception as error:  # noqa: BLE001  # the boundary to a process, perhaps ended: it cannot be stopped
            _log.warning("spark was not stopped cleanly", extra={"reason": f"{type(error).__name__}: {error}"})

    def _start(self) -> Spark:
        spark = self._stack.enter_context(spark_session(self._settings))
        if self._user is not None:
            self._user.attach(spark)
        return spark

    def _stop(self) -> None:
        if self._user is not None:
            self._user.detach()
        self._stack.close()

    def _ask(self, spark: Spark) -> bool:
        return is_alive(spark)


async def run_in_daemon_thread(name: str, work: Callable[[], T]) -> T:
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
