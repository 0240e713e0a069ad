"""Paths of Apache BookKeeper's admin server, for existing scripts. Answers have Apache's shapes.

Differences: errors are problem documents with fitting codes (Apache answers most errors with 404 or 500), and a boolean
parameter other than true or false is refused instead of counting as false. A list of marked ledgers has at most
``LISTED_MAX`` ids. If there are more, the header ``Link`` names the next page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from auditor.api.control import Control, RunBusyError
from auditor.api.http.queries import BOOLEAN_PATTERN, boolean, delay_request, whole_number
from auditor.api.http.routes import JSON, TEXT, Call, Handler, Parameter, Route, RouteAnswer
from auditor.api.http.schema_parts import LEDGER_ID
from auditor.api.operations_port import MarkFilter, Operations
from auditor.api.problems import InvalidRequestError, NotFoundError
from auditor.api.upkeep_port import Upkeep
from auditor.operating.client import Actor
from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.tasks.locks import Task
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.model.run import RunCause, RunKind
from bookie.runtime.access.tokens import Role

_AUTORECOVERY: Final = "/api/v1/autorecovery"
_BOOKIE: Final = "/api/v1/bookie"
LISTED_MAX: Final = 10_000
"""Marked ledgers in one answer. The bound is needed because the answer is built on the event loop of the leader."""
_FLAG: Final = {"type": "string", "pattern": BOOLEAN_PATTERN}
_TYPES: Final = {"rw": BookieState.WRITABLE, "ro": BookieState.READ_ONLY}


class ApacheRoutes:
    """Handlers over ``Control`` and ``Operations``; ``Upkeep`` records changes."""

    def __init__(self, control: Control, operations: Operations, upkeep: Upkeep) -> None:
        self._control = control
        self._upkeep = upkeep
        self._operations = operations

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        return (
            _read(f"{_AUTORECOVERY}/status", "apache_recovery_status", "Whether recovery is enabled.", self._status,
                  RouteAnswer(200, "The switch.", JSON, "RecoverySwitch")),
            _change(f"{_AUTORECOVERY}/status", "apache_set_recovery",
                    "Enable recovery; to disable it, the role administer is needed.", self._switch,
                    RouteAnswer(200, "The switch as it is now.", JSON, "RecoverySwitch"), (_ENABLED,)),
            _read(f"{_AUTORECOVERY}/list_under_replicated_ledger", "apache_list_under_replicated",
                  "Ids of ledgers marked for repair; 404 if there are none.", self._list,
                  RouteAnswer(200, "Ledgers.", JSON, "LedgerIds", {"Link": "The next page, if there are more."}),
                  _FILTERS),
            _read(f"{_AUTORECOVERY}/who_is_auditor", "apache_who_is_auditor", "The leader; 404 if there is none.",
                  self._auditor, RouteAnswer(200, "`Auditor: ID`", TEXT)),
            _change(f"{_AUTORECOVERY}/trigger_audit", "apache_trigger_audit", "Begin a bookies run.", self._trigger,
                    RouteAnswer(200, "It has begun, or one is under way.", TEXT)),
            _read(f"{_AUTORECOVERY}/lost_bookie_recovery_delay", "apache_get_delay", "The lost-bookie delay.",
                  self._get_delay, RouteAnswer(200, "`lostBookieRecoveryDelay value: SECONDS`", TEXT)),
            _change(f"{_AUTORECOVERY}/lost_bookie_recovery_delay", "apache_set_delay", "Set the lost-bookie delay.",
                    self._set_delay, RouteAnswer(200, "It is set.", TEXT), body="DelayRequest", role=Role.ADMINISTER),
            _read(f"{_BOOKIE}/cluster_info", "apache_cluster_info", "The cluster in numbers.", self._cluster,
                  RouteAnswer(200, "Numbers.", JSON, "ClusterInfo")),
            _read(f"{_BOOKIE}/list_bookies", "apache_list_bookies", "Writable or read-only bookies.", self._bookies,
                  RouteAnswer(200, "Bookies.", JSON, "BookieNames"), _BOOKIE_FILTERS),
        )  # fmt: skip

    async def _status(self, call: Call) -> web.Response:
        return web.json_response({"enabled": await self._operations.is_recovery_enabled()})

    async def _switch(self, call: Call) -> web.Response:
        if "enabled" not in call.request.query:
            raise InvalidRequestError("the parameter enabled is missing: true or false")
        is_on = boolean(call.request.query["enabled"], "enabled")
        call.trail.detail = f"enabled={is_on}".lower()
        if not is_on:
            call.who.require(Role.ADMINISTER, "disabling recovery")
        await self._record(call, f"recovery {'enable' if is_on else 'disable'}")
        await self._operations.set_recovery(is_on=is_on)
        return await self._status(call)

    async def _list(self, call: Call) -> web.Response:
        query = call.request.query
        wanted = MarkFilter(query.get("missingreplica", ""), query.get("excludingmissingreplica", ""))
        limit = whole_number(query.get("limit", str(LISTED_MAX)), "limit", 1, LISTED_MAX)
        after = LedgerId(whole_number(query["after"], "after", 0, LEDGER_ID_MAX)) if "after" in query else None
        page = await self._operations.list_marks(limit, after, wanted)
        if not page.tasks and page.next_after is None:
            raise NotFoundError("No under replicated ledgers found")
        headers = {} if page.next_after is None else {"Link": f'<{_next(call.request, page.next_after)}>; rel="next"'}
        if "printmissingreplica" in query:
            found = {str(task.ledger_id): list(task.missing) if isinstance(task, Task) else [] for task in page.tasks}
            return web.json_response(found, headers=headers)
        return web.json_response([task.ledger_id for task in page.tasks], headers=headers)

    async def _auditor(self, call: Call) -> web.Response:
        leader = self._control.status().leader
        if not leader:
            raise NotFoundError("No auditor elected")
        return web.Response(text=f"Auditor: {leader}")

    async def _trigger(self, call: Call) -> web.Response:
        call.trail.check = RunKind.BOOKIES.value
        try:
            run = await self._control.start_run(RunKind.BOOKIES, cause=RunCause.HTTP, owner=call.who.name)
        except RunBusyError as busy:
            call.trail.run_id, call.trail.detail = busy.run_id, "under way already"
        else:
            call.trail.run_id = run.run_id
        return web.Response(text="Success trigger audit.")

    async def _get_delay(self, call: Call) -> web.Response:
        return web.Response(text=f"lostBookieRecoveryDelay value: {await self._operations.lost_bookie_delay_s()}")

    async def _set_delay(self, call: Call) -> web.Response:
        seconds = delay_request(await call.body())
        call.trail.detail = f"delay_seconds={seconds}"
        await self._record(call, "recovery delay", f"{seconds} s")
        await self._operations.set_lost_bookie_delay_s(seconds)
        return web.Response(text=f"Success set lostBookieRecoveryDelay to {seconds}")

    async def _record(self, call: Call, action: str, detail: str = "") -> None:
        actor = Actor(call.who.name, "http")
        await self._upkeep.run(lambda client: actor.record(client, action, detail))

    async def _cluster(self, call: Call) -> web.Response:
        status = self._control.status()
        bookies = await self._operations.bookies()
        states = [bookie.state for bookie in bookies]
        return web.json_response(
            {
                "auditorElected": bool(status.leader),
                "auditorId": status.leader,
                "clusterUnderReplicated": await self._operations.is_any_marked(),
                "ledgerReplicationEnabled": await self._operations.is_recovery_enabled(),
                "totalBookiesCount": len(states),
                "writableBookiesCount": states.count(BookieState.WRITABLE),
                "readonlyBookiesCount": states.count(BookieState.READ_ONLY),
                "unavailableBookiesCount": states.count(BookieState.UNREGISTERED),
            }
        )

    async def _bookies(self, call: Call) -> web.Response:
        query = call.request.query
        wanted = _TYPES.get(query.get("type", "rw"))
        if wanted is None:
            raise InvalidRequestError(f"type must be rw or ro, not {query['type'][:40]!r}")
        with_hosts = boolean(query.get("print_hostnames", "false"), "print_hostnames")
        found = [bookie for bookie in await self._operations.bookies() if bookie.state is wanted]
        return web.json_response({bookie.bookie_id: bookie.host if with_hosts else None for bookie in found})


def _next(request: web.Request, after: LedgerId) -> str:
    """Return the path of the next page, on this server."""
    return str(request.rel_url.update_query(after=str(after)))


def _read(
    path: str,
    operation: str,
    summary: str,
    handler: Handler,
    answer: RouteAnswer,
    parameters: tuple[Parameter, ...] = (),
) -> Route:
    return Route(
        "GET",
        path,
        operation,
        summary,
        handler,
        (answer,),
        tag="apache",
        parameters=parameters,
        is_slash_optional=True,
    )


def _change(
    path: str,
    operation: str,
    summary: str,
    handler: Handler,
    answer: RouteAnswer,
    parameters: tuple[Parameter, ...] = (),
    *,
    body: str = "",
    role: Role = Role.OPERATE,
) -> Route:
    return Route(
        "PUT",
        path,
        operation,
        summary,
        handler,
        (answer,),
        role=role,
        tag="apache",
        parameters=parameters,
        body=body,
        is_slash_optional=True,
        is_changing=True,
    )


_ENABLED: Final = Parameter("enabled", "Whether to enable it.", _FLAG, is_required=True)
_FILTERS: Final = (
    Parameter("missingreplica", "Only ledgers that lack a copy on this bookie.", {"type": "string"}),
    Parameter("excludingmissingreplica", "Only ledgers that miss none on this bookie.", {"type": "string"}),
    Parameter("printmissingreplica", "With the missing bookies of each. Its value has no effect.", {"type": "string"}),
    Parameter(
        "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": LISTED_MAX, "default": LISTED_MAX}
    ),
    Parameter("after", "Begin after this ledger.", LEDGER_ID),
)
_BOOKIE_FILTERS: Final = (
    Parameter("type", "rw, the default, or ro.", {"type": "string", "enum": list(_TYPES)}),
    Parameter("print_hostnames", "With host names.", _FLAG),
)
