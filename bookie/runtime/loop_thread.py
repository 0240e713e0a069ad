"""An event loop in its own thread, and iterators over its asynchronous work: the base of the synchronous client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

Started = concurrent.futures.Future
"""Work in the loop's thread; ``result`` waits for it."""

_ITEMS_AHEAD_MAX: Final = 512
"""Maximum number of items fetched ahead of the consumer."""
_BYTES_AHEAD_MAX: Final = 8 << 20
"""No further item is fetched while the items ahead of the consumer have this many bytes or more."""


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # reentrant: an iterator dropped during a call takes it in the same thread
        self._ending = threading.RLock()  # reentrant: a signal handler may call ``end`` during a call of it
        self._is_stopping = False
        """Whether new work is refused. Earlier work is cancelled when the loop ends, so no caller waits forever."""
        self._thread = threading.Thread(target=self._run, name="bkheal-client", daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        """True if the loop is closed and runs nothing."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the thread, wait for it and return its result. Ctrl-C during the wait cancels it.

        Raises:
            RuntimeError: the client was closed.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Started[T]:
        """Start ``work`` in the thread without waiting for it. The calls of one thread are started in their order.

        Raises:
            RuntimeError: the client was closed.
        """
        with self._lock:
            if self._is_stopping:
                work.close()
                raise RuntimeError("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, source: AsyncGenerator[T, None], bytes_of: Callable[[T], int] = lambda _: 0) -> Iterator[T]:
        """Yield the items of ``source``, fetching some ahead. Leaving the iteration early closes the source.

        Args:
            source: the items, to be fetched in the thread.
            bytes_of: the size of an item; 0 for items of a bounded size.
        """
        pump: _Pump[T] = self.run(_start(source, bytes_of))
        try:
            while batch := self.run(pump.take()):
                yield from batch
        finally:
            with self._lock:
                if not self._is_stopping:  # do not wait here: the iterator may be dropped in any thread
                    self._loop.call_soon_threadsafe(pump.stop)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``last`` in the thread and wait for it, then end the thread as ``stop`` does.

        Idempotent: every call returns after the end of the thread, and only the first one runs ``last``.
        """
        with self._ending:
            if self.is_stopped:
                return
            try:
                self.run(last())
            finally:
                self.stop()

    def stop(self) -> None:
        """End the thread; pending calls of other threads are cancelled. Idempotent."""
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_others())
        self._loop.close()


class _Pump(Generic[T]):
    """A task to move items from an asynchronous iterator into a bounded queue."""

    def __init__(self, source: AsyncGenerator[T, None], bytes_of: Callable[[T], int]) -> None:
        self._source = source
        self._bytes_of = bytes_of
        self._ready: list[T] = []
        self._ready_bytes = 0
        self._error: BaseException | None = None
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._move())

    async def take(self) -> list[T]:
        """Return all items fetched so far, at least one, or none at the end. Raises the error of the source."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready or self._task.done() or self._error is not None)
            batch, self._ready, self._ready_bytes = self._ready, [], 0
            self._changed.notify_all()
        if not batch and self._error is not None and not isinstance(self._error, StopAsyncIteration):
            raise self._error
        return batch

    def stop(self) -> None:
        """End the source."""
        self._task.cancel()

    async def _move(self) -> None:
        error: BaseException = StopAsyncIteration()
        try:
            async with aclosing(self._source):  # needed if this task is cancelled while it waits for room
                async for item in self._source:
                    async with self._changed:
                        await self._changed.wait_for(self._has_room)
                        self._ready.append(item)
                        self._ready_bytes += self._bytes_of(item)
                        self._changed.notify_all()
        except Exception as caught:  # noqa: BLE001 (raised in the consumer)
            error = caught
        async with self._changed:
            self._error = error
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._ready) < _ITEMS_AHEAD_MAX and self._ready_bytes < _BYTES_AHEAD_MAX


async def _start(source: AsyncGenerator[T, None], bytes_of: Callable[[T], int]) -> _Pump[T]:
    return _Pump(source, bytes_of)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
