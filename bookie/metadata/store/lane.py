"""Waiting requests of one kind, sent as one: a group commit for the metadata store.

The invariant: a request that is sent together with others has the same result as if it were sent separately. If the
joint request is refused, nothing was done, and the requests are sent again (separately, in the tasks of their callers).
If the outcome of the joint request is unknown, it is unknown for each of them, and none is sent again.

A request waits for the end of the event loop's current step, which takes no time, and for a place: at most
``BATCHES_MAX`` requests of the lane are in flight. So a single request is sent at once, and batches grow with the load.
A request is only sent in the session in which it was made (S14). A request whose caller was cancelled while it waited
is not sent; if all callers of a batch are cancelled, so is the batch. Each request to the store has the store's
deadline, so a caller waits at most for its own request and the batches before it.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import abc
import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from bookie.metadata.port import Session, SessionState, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.model.errors import BkhealError
from bookie.runtime.tasks import guarded

BATCHES_MAX: Final = 2
"""Requests of a lane in flight at most: the server works on one while the answer to the other is in transit."""
WAITING_MAX: Final = 1000
"""Maximum number of requests waiting in a lane. Further ones are sent separately; the store bounds their number."""

W = TypeVar("W")
R = TypeVar("R")


class NotJoined(enum.Enum):
    """The answer to a request that was not sent with others."""

    ALONE = enum.auto()
    """Nothing was done: the caller sends the request separately."""


class QueuedRequest(Generic[W, R]):
    """One request, from its arrival to the caller's answer."""

    __slots__ = ("answer", "batch", "made_in", "work")

    def __init__(self, work: W, made_in: Session, answer: asyncio.Future[R | NotJoined]) -> None:
        self.work = work
        self.made_in = made_in
        self.answer = answer
        self.batch: _Batch | None = None

    def complete(self, answer: R | NotJoined) -> None:
        """Give the answer to the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: BkhealError) -> None:
        """Raise ``error`` in the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


class _Batch:
    """Requests that share a place in flight."""

    __slots__ = ("callers", "has_place", "task")

    def __init__(self, callers: int) -> None:
        self.callers = callers
        self.has_place = True
        self.task: asyncio.Task[None] | None = None
        """None for a single request, which its caller sends."""


class RequestLane(abc.ABC, Generic[W, R]):
    """The requests of one kind. For one event loop."""

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session
        self._queue: deque[QueuedRequest[W, R]] = deque()
        self._in_flight = 0
        self._is_begun_soon = False

    async def run(self, work: W, alone: Callable[[], Awaitable[R]]) -> R:
        """Return the result of ``work``, sent with others or by ``alone``.

        Raises:
            BkhealError: the same as from ``alone``.
        """
        made_in = self._session()
        if not made_in.is_connected or len(self._queue) >= WAITING_MAX:
            return await alone()
        waiting: QueuedRequest[W, R] = QueuedRequest(work, made_in, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._begin_soon()
        try:
            answer = await waiting.answer
            if not isinstance(answer, NotJoined):
                return answer
            self.ensure_session(made_in)
            return await alone()
        finally:
            self._left(waiting)

    @abc.abstractmethod
    def _take(self, queue: deque[QueuedRequest[W, R]]) -> list[QueuedRequest[W, R]]:
        """Remove and return the first requests that may be sent together, in their order; at least one."""

    @abc.abstractmethod
    async def _send(self, batch: Sequence[QueuedRequest[W, R]]) -> None:
        """Send the requests as one, and complete each of them.

        Raises:
            BkhealError: the error of each uncompleted request, if no answer came. Other errors mean that nothing was
                done.
        """

    def ensure_session(self, made_in: Session) -> None:
        """Check that the session of a request still lives.

        Raises:
            StoreUnavailableError: it was lost; nothing was sent.
        """
        session = self._session()
        if session.epoch != made_in.epoch or session.state is SessionState.LOST:
            raise StoreUnavailableError(
                f"session {made_in.session_id:#x} (epoch {made_in.epoch}) was lost before the request was sent"
            )

    def _begin_soon(self) -> None:
        if not self._is_begun_soon and self._in_flight < BATCHES_MAX:
            self._is_begun_soon = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_begun_soon = False
        while self._queue and self._in_flight < BATCHES_MAX:
            if self._queue[0].answer.done():  # its caller was cancelled
                self._queue.popleft()
                continue
            session = self._session()
            if not session.is_connected or session.epoch != self._queue[0].made_in.epoch:
                self._queue.popleft().complete(NotJoined.ALONE)
                continue
            batch = [waiting for waiting in self._take(self._queue) if not waiting.answer.done()]
            place = _Batch(len(batch))
            self._in_flight += 1
            for waiting in batch:
                waiting.batch = place
            if len(batch) == 1:
                batch[0].complete(NotJoined.ALONE)
            else:
                place.task = guarded("combined request", self._exchange(batch, place))

    async def _exchange(self, batch: Sequence[QueuedRequest[W, R]], place: _Batch) -> None:
        try:
            await self._send(batch)
        except (StoreUnavailableError, WriteOutcomeUnknownError) as error:
            for waiting in batch:
                waiting.fail(type(error)(str(error)))
        except BkhealError:
            for waiting in batch:
                waiting.complete(NotJoined.ALONE)
        finally:
            for waiting in batch:
                waiting.answer.cancel()  # has an effect only if this task was cancelled or has a defect
            self._leave(place)

    def _left(self, waiting: QueuedRequest[W, R]) -> None:
        place = waiting.batch
        if place is None:
            return
        place.callers -= 1
        if place.task is None:
            self._leave(place)
        elif not place.callers and not place.task.done():
            place.task.cancel()

    def _leave(self, place: _Batch) -> None:
        if place.has_place:
            place.has_place = False
            self._in_flight -= 1
            if self._queue:
                self._begin_soon()
