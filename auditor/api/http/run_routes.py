"""``/api/v1/runs`` and ``/api/v1/schedules``: list, start, show, pause, resume and cancel runs; pause schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from auditor.api.control import Control
from auditor.api.http.documents import document, run_document, run_list, schedule_document
from auditor.api.http.queries import StartRequest, refuse_unknown, run_kind, run_request, whole_number
from auditor.api.http.routes import JSON, RUN_ID, Call, Parameter, Route, RouteAnswer, segment
from auditor.api.idempotency import KEY_PATTERN, IdempotentRuns
from auditor.api.problems import InvalidRequestError
from auditor.api.upkeep_port import Upkeep
from auditor.operating.client import Actor
from auditor.operating.runs import PAUSE_S_MIN, SPAN_S_MAX, list_schedules, pause_schedule
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.runtime.access.tokens import Role

RUNS: Final = "/api/v1/runs"
SCHEDULES: Final = "/api/v1/schedules"
RUNS_MAX: Final = 200
_RUNS_DEFAULT: Final = 50
_KEY: Final = "Idempotency-Key"
KEY_SCHEMA: Final = {"type": "string", "pattern": f"^{KEY_PATTERN}$"}
_REPLAYED: Final = "Idempotent-Replayed"
_VIA: Final = "http"
_TARGETS: Final = (RunState.PAUSED, RunState.RUNNING, RunState.CANCELLED)
_SCHEDULE_TARGETS: Final = (RunState.PAUSED.value, RunState.RUNNING.value)


class RunRoutes:
    """Handlers over ``Control``."""

    def __init__(self, control: Control, intents: IdempotentRuns, upkeep: Upkeep) -> None:
        self._control = control
        self._upkeep = upkeep
        self._intents = intents

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        one = (RUN_ID,)
        changed = (RouteAnswer(200, "The run as it is now.", JSON, "Run"),)
        paused = (RouteAnswer(200, "The schedule as it is now.", JSON, "Schedule"),)
        schedule = (_KIND, segment("state", "The new state.", enum=list(_SCHEDULE_TARGETS)))
        target = (*one, segment("state", "The new state.", enum=[state.value for state in _TARGETS]))
        key = Parameter(
            _KEY, "A repeated request with the same key and body begins nothing a second time.", KEY_SCHEMA, "header"
        )
        return (
            Route("GET", RUNS, "list_runs", "The newest runs of all processes, running ones included.", self._list,
                  (RouteAnswer(200, "Runs.", JSON, "RunList"),), parameters=_LIST_PARAMETERS),
            Route("POST", RUNS, "start_run", "Begin a run, which continues after the response.", self._start, _STARTED,
                  role=Role.OPERATE, body="RunRequest", parameters=(key,), is_changing=True),
            Route("GET", RUNS + "/{run_id}", "get_run", "One run.", self._get,
                  (RouteAnswer(200, "The run.", JSON, "Run"),), segments=one),
            Route("PUT", RUNS + "/{run_id}/state/{state}", "change_run", "Pause, resume or cancel a run.",
                  self._change, changed, role=Role.OPERATE, segments=target, is_changing=True),
            Route("POST", RUNS + "/{run_id}/state/{state}", "change_run_post",
                  "As PUT, for clients that cannot send PUT.",
                  self._change, changed, role=Role.OPERATE, segments=target, is_changing=True),
            Route("PUT", SCHEDULES + "/{kind}/state/{state}", "change_schedule", "Pause or resume a schedule.",
                  self._change_schedule, paused, role=Role.OPERATE, segments=schedule,
                  parameters=(_PAUSE_SECONDS_PARAMETER,), is_changing=True),
            Route("GET", SCHEDULES, "list_schedules", "The pauses of the schedules, with their ends.", self._schedules,
                  (RouteAnswer(200, "One for each kind of check.", JSON, "ScheduleList"),)),
        )  # fmt: skip

    async def _list(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "kind"), "parameter")
        limit = whole_number(query.get("limit", str(_RUNS_DEFAULT)), "limit", 1, RUNS_MAX)
        kind = run_kind(query["kind"]) if "kind" in query else None
        found = await self._control.runs(limit if kind is None else RUNS_MAX)
        return web.json_response(run_list([run for run in found if kind in (None, run.kind)][:limit]))

    async def _get(self, call: Call) -> web.Response:
        return web.json_response(run_document(await self._control.run(call.request.match_info["run_id"])))

    async def _start(self, call: Call) -> web.Response:
        if call.request.content_type != JSON:
            raise InvalidRequestError(f"the body must be JSON: send it as Content-Type: {JSON}")
        asked = run_request(await call.body())
        call.trail.check = asked.kind.value
        call.trail.detail = str(asked).removeprefix(asked.kind.value).strip()
        key = call.request.headers.get(_KEY)
        if key is None:
            return self._started(call, await self._begin(call, asked))

        begun: list[RunRecord] = []

        async def begin() -> str:
            begun.append(await self._begin(call, asked))
            return begun[0].run_id

        run_id, is_replayed = await self._intents.once(call.who.client, key, str(asked), begin)
        if not is_replayed:
            return self._started(call, begun[0])
        call.trail.detail = "sent again"
        response = self._started(call, await self._control.run(run_id))
        response.headers[_REPLAYED] = "true"
        return response

    async def _begin(self, call: Call, asked: StartRequest) -> RunRecord:
        return await self._control.start_run(
            asked.kind, cause=RunCause.HTTP, owner=call.who.name, is_dry_run=asked.is_dry_run, options=asked.options
        )

    def _started(self, call: Call, run: RunRecord) -> web.Response:
        call.trail.run_id = run.run_id
        return web.json_response(run_document(run), status=202, headers={"Location": f"{RUNS}/{run.run_id}"})

    async def _change(self, call: Call) -> web.Response:
        run_id, name = call.request.match_info["run_id"], call.request.match_info["state"]
        call.trail.run_id, call.trail.detail = run_id[:100], name[:20]
        owner = call.who.name
        match name:
            case RunState.PAUSED.value:
                run = await self._control.pause_run(run_id, owner=owner, via=_VIA)
            case RunState.RUNNING.value:
                run = await self._control.resume_run(run_id, owner=owner, via=_VIA)
            case RunState.CANCELLED.value:
                run = await self._control.cancel_run(run_id, owner=owner, via=_VIA)
            case _:
                wanted = ", ".join(state.value for state in _TARGETS)
                raise InvalidRequestError(f"a run can be brought into the states {wanted}, not {name[:40]!r}")
        call.trail.check = run.kind.value
        return web.json_response(run_document(run))

    async def _schedules(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return web.json_response(document("ScheduleList", await self._upkeep.run(list_schedules)))

    async def _change_schedule(self, call: Call) -> web.Response:
        kind, name = run_kind(call.request.match_info["kind"]), call.request.match_info["state"]
        call.trail.check, call.trail.detail = kind.value, name[:20]
        query, actor = call.request.query, Actor(call.who.name, _VIA)
        refuse_unknown(query, ("seconds",), "parameter")
        span_s = whole_number(query["seconds"], "seconds", PAUSE_S_MIN, SPAN_S_MAX) if "seconds" in query else None
        match name:
            case RunState.PAUSED.value if span_s is not None:
                done = await self._upkeep.run(lambda client: pause_schedule(client, actor, kind, span_s))
                return web.json_response(document("Schedule", done))
            case RunState.PAUSED.value:
                pause = await self._control.pause_kind(kind, owner=call.who.name, via=_VIA)
                return web.json_response(schedule_document(kind, pause))
            case RunState.RUNNING.value:
                await self._control.resume_kind(kind, owner=call.who.name, via=_VIA)
                return web.json_response(schedule_document(kind, None))
            case _:
                raise InvalidRequestError(f"a schedule can be paused or running, not {name[:40]!r}")


_KIND: Final = segment("kind", "The kind of check.", enum=[kind.value for kind in RunKind])
_PAUSE_SECONDS_PARAMETER: Final = Parameter(
    "seconds",
    "How long a pause lasts. Absent: the auditor's option `pause_s`.",
    {"type": "integer", "minimum": PAUSE_S_MIN, "maximum": SPAN_S_MAX},
)
_LIST_PARAMETERS: Final = (
    Parameter(
        "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": RUNS_MAX, "default": _RUNS_DEFAULT}
    ),
    Parameter("kind", "Only runs of this kind.", {"type": "string", "enum": [kind.value for kind in RunKind]}),
)
_STARTED: Final = (
    RouteAnswer(
        202,
        "The run has begun.",
        JSON,
        "Run",
        {"Location": "Path of the run.", _REPLAYED: "true: an earlier request with this key began it."},
    ),
)
