"""Operators' work for the API, on a thread, a loop and a session of its own.

The leader's loop must not wait for a listing of all marks or a reading of all metadata, which take seconds: its session
would end, and its leadership with it. So this work has another loop, on which short work runs concurrently. Requests
with the same key share long work. Long work continues even if no request waits for it, and its result is kept for a
short time for a repeated request.

If the session fails, the next request opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from typing_extensions import override

from auditor.api.problems import OverloadedError
from auditor.api.upkeep_port import StillWorkingError, Upkeep, Work, WorkCancelledError
from auditor.operating.client import ClusterClient, Document
from auditor.service.watch.cluster_status import cluster_status
from auditor.service.watch.progress import make_repair_watch, progress_document
from auditor.service.watch.repairs import Rate, RateMeter, RepairObservation, RepairWatch, pause_s
from bookie.metadata.port import StoreUnavailableError
from bookie.runtime.clock import Clock

T = TypeVar("T")

LONG_WORKS_MAX: Final = 4
"""Pieces of long work at a time, because each of them reads all metadata."""
LONG_WORK_WAIT_S_MAX: Final = 20.0
"""How long a request waits for long work; shorter than the deadline of a request."""
KEPT_S: Final = 30.0
"""How long a result is kept for a repeated request, from the end of the work."""
CHECK_INTERVAL_S: Final = 5.0
"""Shortest time between two observations of the repairs; requests before that receive the last observation."""

OpenClient = Callable[[AsyncExitStack], Awaitable[ClusterClient]]
"""Opens a client; the stack closes it. Raises StoreUnavailableError."""


_Result = tuple[Document, Hashable]
"""What the work returned, and the circumstances at its end."""


@dataclass(slots=True)
class _LongWorkEntry:
    task: asyncio.Task[_Result]
    ended_s: float | None = None

    @property
    def has_result(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


async def _no_circumstances() -> Hashable:
    return None


async def _done(
    work: Callable[[], Coroutine[Any, Any, Document]], circumstances: Callable[[], Coroutine[Any, Any, Hashable]]
) -> _Result:
    return await work(), await circumstances()


class SharedLongWork:
    """Work of any length on one loop, shared by key."""

    def __init__(self, clock: Clock, patience_s: float = LONG_WORK_WAIT_S_MAX) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._entries: dict[Hashable, _LongWorkEntry] = {}

    async def result(
        self,
        key: Hashable,
        begin: Callable[[], Coroutine[Any, Any, Document]],
        circumstances: Callable[[], Coroutine[Any, Any, Hashable]] = _no_circumstances,
    ) -> Document:
        """Return the result of the work with this key. Begin the work if it is not under way and no result is kept.

        A kept result is returned only if ``circumstances`` returns the same value as at the end of the work.

        Raises:
            StillWorkingError: the work is not done yet, and continues.
            WorkCancelledError: another request ended the work.
            OverloadedError: too much other work is under way.
            Exception: any error that the work raises.
        """
        self._forget_old()
        work = self._entries.get(key)
        if work is not None and work.has_result and work.task.result()[1] != await circumstances():
            self._forget(key, work)
            work = self._entries.get(key)
        if work is None:
            if sum(each.ended_s is None for each in self._entries.values()) >= LONG_WORKS_MAX:
                raise OverloadedError(f"{LONG_WORKS_MAX} such requests are under way, and each reads all metadata")
            work = self._entries[key] = _LongWorkEntry(asyncio.ensure_future(_done(begin, circumstances)))
            work.task.add_done_callback(lambda _: self._note_end(key))
        try:
            async with asyncio.timeout(self._patience_s):
                found, _ = await asyncio.shield(work.task)
        except asyncio.CancelledError:
            if work.task.cancelled():
                raise WorkCancelledError("another request has cancelled this one") from None
            raise
        except TimeoutError:
            if not work.task.done():
                raise StillWorkingError("the metadata is being read; ask again for the result") from None
            raise
        finally:
            if work.task.done():
                self._forget(key, work)  # a later request needs the state at its own time
        return found

    async def cancel_matching(self, is_meant: Callable[[Hashable], bool]) -> None:
        """End the work with matching keys, and forget its results."""
        meant = {key: work for key, work in self._entries.items() if is_meant(key)}
        for key, work in meant.items():
            self._forget(key, work)
            work.task.cancel()
        await asyncio.gather(*(work.task for work in meant.values()), return_exceptions=True)

    async def close(self) -> None:
        """End all work."""
        await self.cancel_matching(lambda _: True)

    def _forget(self, key: Hashable, work: _LongWorkEntry) -> None:
        if self._entries.get(key) is work:
            del self._entries[key]

    def _note_end(self, key: Hashable) -> None:
        work = self._entries.get(key)
        if work is not None and work.task.done():
            work.ended_s = self._clock.monotonic_s()
            if not work.task.cancelled():
                work.task.exception()  # retrieved, so that asyncio does not warn if no request asks again

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for key, work in list(self._entries.items()):
            if work.ended_s is not None and now_s - work.ended_s > KEPT_S:
                del self._entries[key]


class CachedRepairProgress:
    """Reads the repairs of one cluster, at most once in ``CHECK_INTERVAL_S`` and at most for ``POLL_SHARE`` of time.

    An observation reads every mark, so with a large backlog it takes minutes. Requests before the next observation
    receive the last.
    """

    def __init__(self, watch: RepairWatch, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._meter = RateMeter()
        self._one = asyncio.Lock()
        self._last: tuple[RepairObservation, Rate] | None = None
        self._next_s = 0.0

    async def observe(self) -> tuple[RepairObservation, Rate]:
        """Return the last observation, or a new one. Raises StoreUnavailableError."""
        async with self._one:
            begun_s = self._clock.monotonic_s()
            if self._last is None or begun_s >= self._next_s:
                observation = await self._watch.observe()
                now_s = self._clock.monotonic_s()
                self._last = observation, self._meter.add(observation)
                self._next_s = now_s + pause_s(observation, now_s - begun_s, CHECK_INTERVAL_S)
            return self._last


def _started() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Return a loop that runs in a thread of its own. Raises RuntimeError and leaves no loop if no thread can start."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="upkeep", daemon=True)
    try:
        thread.start()
    except BaseException:
        loop.close()
        raise
    return loop, thread


class ThreadedUpkeep(Upkeep):
    """``Upkeep`` on a thread of its own. Callers must ``close`` it."""

    def __init__(self, open_client: OpenClient, clock: Clock) -> None:
        """Store the arguments; the first request starts the thread."""
        self._open = open_client
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._client: ClusterClient | None = None
        self._progress: CachedRepairProgress | None = None
        self._long = SharedLongWork(clock)
        self._is_closed = False

    @override
    async def run(self, work: Work[T]) -> T:
        return await self._run_on_own_thread(self._asked(work))

    @override
    async def run_long(
        self, key: Hashable, work: Work[Document], circumstances: Work[Hashable] | None = None
    ) -> Document:
        circumstances_work = _no_circumstances if circumstances is None else partial(self._asked, circumstances)
        return await self._run_on_own_thread(self._long.result(key, lambda: self._asked(work), circumstances_work))

    @override
    async def cancel_matching(self, is_meant: Callable[[Hashable], bool]) -> None:
        await self._run_on_own_thread(self._long.cancel_matching(is_meant))

    @override
    async def progress(self) -> Document:
        return await self.run_long("progress", self._progressed)

    @override
    async def cluster_status(self) -> Document:
        return await self.run_long("cluster status", self._status)

    async def close(self) -> None:
        """End the work, the session and the thread. Idempotent."""
        self._is_closed = True
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ended(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _run_on_own_thread(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise StoreUnavailableError("this process is stopping")
        if self._loop is None:
            try:
                self._loop, self._thread = _started()
            except BaseException:
                work.close()
                raise
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _asked(self, work: Work[T]) -> T:
        """Do work in the present session.

        The session is closed if it has failed. It is also closed if it may still have a lock that no work uses: the
        answer to the release was lost, or the work was cancelled. Such a lock would keep all workers from its ledger.
        """
        client = await self._open_client()
        has_failed = False
        try:
            return await work(client)
        except StoreUnavailableError:
            has_failed = True
            raise
        finally:
            if has_failed or client.ports.tasks.locks.may_remain:
                await self._drop(client)

    async def _progressed(self, client: ClusterClient) -> Document:
        return progress_document(*await self._observe(client))

    async def _status(self, client: ClusterClient) -> Document:
        return await cluster_status(client, *await self._observe(client))

    async def _observe(self, client: ClusterClient) -> tuple[RepairObservation, Rate]:
        if self._progress is None:
            self._progress = CachedRepairProgress(make_repair_watch(client), self._clock)
        return await self._progress.observe()

    async def _open_client(self) -> ClusterClient:
        async with self._opening:
            if self._client is None:
                stack = AsyncExitStack()
                try:
                    self._client = await self._open(stack)
                except BaseException:
                    await stack.aclose()
                    raise
                self._stack = stack
            return self._client

    async def _drop(self, client: ClusterClient) -> None:
        async with self._opening:
            if self._client is not client:
                return
            stack, self._stack, self._client, self._progress = self._stack, None, None, None
        if stack is not None:
            await stack.aclose()

    async def _ended(self) -> None:
        await self._long.close()
        if self._client is not None:
            with contextlib.suppress(StoreUnavailableError):
                await self._drop(self._client)
