"""Several concurrent requests about different ledgers of one bookie in one call.

A call costs both sides more than the list or the few entries of a small ledger. So requests that wait at the same time
are sent as one call, and a single request is sent alone. Each reply is the same as alone: the bookie produces it after
the request, a request is complete as soon as its own pieces are complete, and a broken call fails only the requests
without a complete answer. A bookie of an earlier version does not support the call; then every request is sent alone.

A request waits for the end of the event loop's current step, and for a place: at most ``CALLS_MAX`` calls have one. A
call loses its place after ``PLACE_TIMEOUT_S``: it is then about a large ledger, and requests for small ones must not
wait for it.
"""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from bookie.model.ids import LedgerId
from bookie.runtime.tasks import guarded
from bookie.wire.grpc.channel import MESSAGE_BYTES_MAX
from bookie.wire.grpc.codec import MalformedAnswerError
from bookie.wire.port import JOINT_LEDGERS_MAX, READ_BYTES_MAX

CALLS_MAX: Final = 2
"""Maximum number of calls with a place: the bookie works on one while the answer of the other is under way."""
PLACE_TIMEOUT_S: Final = 0.05
TRUNCATED_ANSWER_DETAIL: Final = "the answer was cut short"

ANSWER_BYTES_MAX: Final = READ_BYTES_MAX + 2 * MESSAGE_BYTES_MAX
"""Limit of the answer to one call: more than a bookie sends for one read. Beyond it, requests are sent alone."""

MessageT = TypeVar("MessageT", bound=Message)


class Joint:
    """One request, from its arrival until its caller has the answer."""

    __slots__ = ("answer", "call", "ledger_id", "timeout_s")

    def __init__(self, ledger_id: LedgerId, timeout_s: float) -> None:
        self.ledger_id = ledger_id
        self.timeout_s = timeout_s
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True after the last piece of the answer; False if the caller must send the request alone."""
        self.call: _Call | None = None

    def complete(self, *, is_answered: bool) -> None:
        """Complete the caller's wait, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(is_answered)


JointT = TypeVar("JointT", bound=Joint)


class _Call:
    """Requests sent together."""

    __slots__ = ("callers", "has_place", "task")

    def __init__(self, callers: int) -> None:
        self.callers = callers
        self.has_place = True
        self.task: asyncio.Task[None] | None = None
        """None for a single request, which its caller sends."""


class JointCalls(abc.ABC, Generic[JointT, MessageT]):
    """The requests of one kind over one connection."""

    def __init__(self) -> None:
        self._waiting: deque[JointT] = deque()
        self._with_place = 0
        self._is_begun_soon = False
        self._is_supported = True

    @abc.abstractmethod
    def _open(self, requests: Mapping[LedgerId, JointT], timeout_s: float) -> grpc.aio.UnaryStreamCall[Any, MessageT]:
        """Begin a call for several requests."""

    @abc.abstractmethod
    def _distribute(self, message: MessageT, requests: Mapping[LedgerId, JointT]) -> None:
        """Give each request its part of a message, and complete the requests whose answer is complete.

        Raises:
            MalformedAnswerError: a part is for none of ``requests``, or for one whose answer is already complete.
        """

    async def _joined(self, request: JointT) -> bool:
        """Send a request with others and wait for its end; False if the caller must send it alone.

        Raises:
            grpc.aio.AioRpcError: gRPC ended the call.
            MalformedAnswerError: the answer does not match the requests.
        """
        if not self._is_supported:
            return False
        self._waiting.append(request)
        self._begin_soon()
        try:
            return await request.answer
        finally:
            self._left(request)

    def _begin_soon(self) -> None:
        if not self._is_begun_soon and self._with_place < CALLS_MAX:
            self._is_begun_soon = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_begun_soon = False
        while self._waiting and self._with_place < CALLS_MAX:
            requests = self._take()
            if not requests:
                return
            call = _Call(len(requests))
            self._with_place += 1
            for request in requests.values():
                request.call = call
            if len(requests) == 1 or not self._is_supported:
                for request in requests.values():
                    request.complete(is_answered=False)
            else:
                call.task = guarded("joint call", self._exchange(requests))
            asyncio.get_running_loop().call_later(PLACE_TIMEOUT_S, self._leave, call)

    def _take(self) -> dict[LedgerId, JointT]:
        """Remove and return the first requests that may be sent together: at most one for each ledger."""
        taken: dict[LedgerId, JointT] = {}
        while self._waiting and len(taken) < JOINT_LEDGERS_MAX and self._waiting[0].ledger_id not in taken:
            request = self._waiting.popleft()
            if not request.answer.done():  # else its caller was cancelled
                taken[request.ledger_id] = request
        return taken

    async def _exchange(self, requests: Mapping[LedgerId, JointT]) -> None:
        call: grpc.aio.UnaryStreamCall[Any, MessageT] | None = None
        size = 0
        try:
            call = self._open(requests, max(request.timeout_s for request in requests.values()))
            while size <= ANSWER_BYTES_MAX and isinstance(message := await call.read(), Message):
                self._distribute(cast(MessageT, message), requests)
                size += message.ByteSize()
            for request in requests.values():
                request.complete(is_answered=size <= ANSWER_BYTES_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._is_supported = False
                for request in requests.values():
                    request.complete(is_answered=False)
            _fail(requests, error)
        except (MalformedAnswerError, grpc.aio.UsageError) as error:  # UsageError: the channel was closed before
            _fail(requests, error)
        finally:
            if call is not None:
                call.cancel()
            for request in requests.values():
                request.answer.cancel()  # only if this task or its channel was closed, or has a defect

    def _left(self, request: JointT) -> None:
        call = request.call
        if call is None:
            return
        call.callers -= 1
        if not call.callers:
            if call.task is not None:
                call.task.cancel()
            self._leave(call)

    def _leave(self, call: _Call) -> None:
        if call.has_place:
            call.has_place = False
            self._with_place -= 1
            if self._waiting:
                self._begin_soon()


def _fail(requests: Mapping[LedgerId, JointT], error: Exception) -> None:
    for request in requests.values():
        if not request.answer.done():
            request.answer.set_exception(error)
