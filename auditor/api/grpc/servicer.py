"""The control service's methods: they check access, call ``Control``, and turn errors into status codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NoReturn, TypeVar

import grpc
import grpc.aio

from auditor.api import control_pb2 as pb
from auditor.api import control_pb2_grpc as rpc
from auditor.api.control import Control
from auditor.api.grpc.messages import kind_of, options_of, run_message, status_message
from auditor.api.http.queries import StartRequest, run_options
from auditor.api.http.run_routes import RUNS_MAX
from auditor.api.idempotency import IdempotentRuns
from auditor.api.problems import InvalidRequestError, OverloadedError, Problem, problem_of
from auditor.api.settings import ApiSettings
from bookie.model.run import RunCause, RunRecord
from bookie.runtime.access.access import Access, Principal, metadata_token, peer_address
from bookie.runtime.access.tokens import Role
from bookie.runtime.access.trail import RequestTrail
from bookie.runtime.human import agreeing, counted

_log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[object, object]

_RUNS_DEFAULT: Final = 50
_CODES: Final = {
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "too-many-requests": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "run-busy": grpc.StatusCode.ALREADY_EXISTS,
    "not-leader": grpc.StatusCode.FAILED_PRECONDITION,
    "refused": grpc.StatusCode.FAILED_PRECONDITION,
    "run-over": grpc.StatusCode.FAILED_PRECONDITION,
    "key-reused": grpc.StatusCode.INVALID_ARGUMENT,
    "contradiction": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid-request": grpc.StatusCode.INVALID_ARGUMENT,
    "not-found": grpc.StatusCode.NOT_FOUND,
    "store-unavailable": grpc.StatusCode.UNAVAILABLE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "outcome-unknown": grpc.StatusCode.ABORTED,
    "conflict": grpc.StatusCode.ABORTED,
}
"""Status codes by the name of the problem; for any other it is INTERNAL."""


class ControlServicer(rpc.AuditorServiceServicer):
    """The service of ``control.proto``."""

    def __init__(self, control: Control, access: Access, intents: IdempotentRuns, settings: ApiSettings) -> None:
        self._control = control
        self._access = access
        self._intents = intents
        self._settings = settings
        self._watchers = 0

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.Status:  # noqa: N802 (gRPC's name)
        """Return the status. The ``.proto`` file documents all methods."""

        async def work() -> pb.Status:
            return status_message(self._control.status())

        return await self._reading(context, work)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:  # noqa: N802
        """List runs."""

        async def work() -> pb.ListRunsResponse:
            limit = request.limit or _RUNS_DEFAULT
            if limit > RUNS_MAX:
                raise InvalidRequestError(f"limit must be 1 to {RUNS_MAX}, not {limit}")
            return pb.ListRunsResponse(runs=map(run_message, await self._control.runs(limit)))

        return await self._reading(context, work)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.Run:  # noqa: N802
        """Return one run."""

        async def work() -> pb.Run:
            return run_message(await self._control.run(request.run_id))

        return await self._reading(context, work)

    async def StartRun(self, request: pb.StartRunRequest, context: Context) -> pb.Run:  # noqa: N802
        """Begin a run, once for each key."""

        async def work(who: Principal, trail: RequestTrail) -> RunRecord:
            kind = kind_of(request.kind)
            wanted = StartRequest(kind, request.is_dry_run, run_options(kind, options_of(request.options)))
            trail.check, trail.detail = kind.value, str(wanted).removeprefix(kind.value).strip()

            async def begin() -> str:
                run = await self._control.start_run(
                    kind,
                    cause=RunCause.GRPC,
                    owner=who.name,
                    is_dry_run=request.is_dry_run,
                    options=wanted.options,
                )
                return run.run_id

            if not request.idempotency_key:
                return await self._control.run(await begin())
            run_id, _ = await self._intents.once(who.client, request.idempotency_key, str(wanted), begin)
            return await self._control.run(run_id)

        return await self._changing(context, "start_run", work)

    async def CancelRun(self, request: pb.ChangeRunRequest, context: Context) -> pb.Run:  # noqa: N802
        """Ask a run to end."""
        return await self._change(context, "cancel_run", request.run_id, self._control.cancel_run)

    async def PauseRun(self, request: pb.ChangeRunRequest, context: Context) -> pb.Run:  # noqa: N802
        """Pause a run."""
        return await self._change(context, "pause_run", request.run_id, self._control.pause_run)

    async def ResumeRun(self, request: pb.ChangeRunRequest, context: Context) -> pb.Run:  # noqa: N802
        """Let a paused run continue."""
        return await self._change(context, "resume_run", request.run_id, self._control.resume_run)

    async def WatchRun(self, request: pb.GetRunRequest, context: Context) -> AsyncIterator[pb.Run]:  # noqa: N802
        """Stream a run until its end.

        Only the client's deadline applies; the number of streams is bounded.
        """

        async def first() -> RunRecord:
            if self._watchers >= self._settings.watchers_max:
                streams = f"{counted(self._watchers, 'stream')} {agreeing(self._watchers, 'is', 'are')} open already"
                raise OverloadedError(f"{streams}: poll with GetRun")
            return await self._control.run(request.run_id)

        record = await self._reading(context, first)
        self._watchers += 1
        try:
            yield run_message(record)
            while not record.state.is_final:
                record = await self._control.wait_changed(request.run_id, record)
                yield run_message(record)
        except Exception as error:  # noqa: BLE001  # a request's boundary
            await _refuse(context, _problem_for("watch_run", error))
        finally:
            self._watchers -= 1

    async def _change(
        self, context: Context, action: str, run_id: str, change: Callable[..., Awaitable[RunRecord]]
    ) -> pb.Run:
        async def work(who: Principal, trail: RequestTrail) -> RunRecord:
            trail.run_id = run_id[:100]
            return await change(run_id, owner=who.name, via="grpc")

        return await self._changing(context, action, work)

    async def _reading(self, context: Context, work: Callable[[], Awaitable[T]]) -> T:
        try:
            self._access.admit(
                peer_address(context.peer()), metadata_token(context.invocation_metadata() or ()), Role.READ
            )
            async with asyncio.timeout(self._settings.request_deadline_s):
                return await work()
        except Exception as error:  # noqa: BLE001  # a request's boundary
            await _refuse(context, _problem_for("read", error))

    async def _changing(
        self, context: Context, action: str, work: Callable[[Principal, RequestTrail], Awaitable[RunRecord]]
    ) -> pb.Run:
        trail = RequestTrail("grpc", action, peer_address(context.peer()))
        try:
            who = self._access.admit(trail.address, metadata_token(context.invocation_metadata() or ()), Role.OPERATE)
            trail.who = who.name
            async with asyncio.timeout(self._settings.request_deadline_s):
                record = await work(who, trail)
        except Exception as error:  # noqa: BLE001  # a request's boundary
            problem = _problem_for(action, error)
            if problem.name != "too-many-requests":
                trail.record(problem.name, is_refused=True)
            await _refuse(context, problem)
        trail.check, trail.run_id = record.kind.value, record.run_id
        trail.record("ok", is_refused=False)
        return run_message(record)


def _problem_for(action: str, error: Exception) -> Problem:
    if isinstance(error, TimeoutError):
        return Problem(
            504,
            "deadline",
            "The deadline passed",
            "the request took too long and may have taken effect: check before you try again",
        )
    problem = problem_of(error)
    if problem.status == 500:
        _log.error("request failed", extra={"operation": action}, exc_info=error)
    return problem


async def _refuse(context: Context, problem: Problem) -> NoReturn:
    code = grpc.StatusCode.DEADLINE_EXCEEDED if problem.name == "deadline" else _CODES.get(problem.name)
    trailing = [(name.replace("_", "-"), str(value)) for name, value in problem.members.items() if value]
    trailing += [(name.lower(), value) for name, value in problem.headers.items() if name == "Retry-After"]
    await context.abort(code or grpc.StatusCode.INTERNAL, problem.detail or problem.title, tuple(trailing))
    raise AssertionError("abort raises")
