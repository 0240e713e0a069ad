"""``/api/v1``: operators' reads and changes besides runs: dead letters, drains, stops, limits, boosts, delay.

Changes with a risk of data loss, and changes that stop or speed up all repairs, need the role administer.
The status code of ``ok-to-stop`` is the answer, so a hook does not need to parse JSON: 200 yes, 409 no, and 503 with
``Retry-After`` while the metadata is being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiohttp import web

from auditor.api.http import upkeep_queries as queries
from auditor.api.http.documents import document
from auditor.api.http.queries import boolean, json_boolean, json_integer, json_object, refuse_unknown, whole_number
from auditor.api.http.routes import JSON, Call, Parameter, Route, RouteAnswer, segment
from auditor.api.http.schema_parts import BOOKIE_ID_PATTERN, LEDGER_ID, WINDOW_TARGET_PATTERN
from auditor.api.problems import InvalidRequestError, NotFoundError, NotOkToStopError
from auditor.api.upkeep_port import Upkeep
from auditor.operating import boosting, dead_letters, debts, drain_status, drains, limits, maintenance, switches
from auditor.operating.client import Actor, ClusterClient, Document, RefusedError, changes_of
from auditor.operating.stopping import reasons, stop_verdict
from auditor.operating.what_if import TOPICS_DEFAULT, WORST_DEFAULT, bookies_of, what_if
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.tasks.changes import CHANGES_MAX
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.switches import DELAY_S_MAX, AlreadyDisabledError, AlreadyEnabledError
from bookie.model.ids import LEDGER_ID_MAX, BookieId, LedgerId
from bookie.runtime.access.tokens import Role

_API: Final = "/api/v1"
_PAGE_DEFAULT: Final = 100
_PAGE_MAX: Final = 1_000
_STOP_CHECK_BOOKIES_MAX: Final = 100
"""Bookies in one query."""
_DRAIN: Final = "drain"
"""First part of the keys of work that begins drains; the second part is the tuple of the bookies."""
_DETAIL_MAX: Final = 500


class UpkeepRoutes:
    """Handlers over ``Upkeep``."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._recording = asyncio.Lock()
        """Held on the loop of the work while drains are recorded or stopped, so that none is stopped half-recorded."""
        self._marking: dict[Hashable, set[BookieId]] = {}
        """The bookies that are still drained, by the key of the work that recorded their drains."""

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        letters, boosts = f"{_API}/dead-letters", f"{_API}/boosts"
        return (
            _read(letters, "list_dead_letters", "Tasks that workers have set aside, by ledger id.", self._letters,
                  "DeadLetterList", _DEAD_LETTER_PARAMETERS),
            _change("POST", f"{letters}/retry", "retry_dead_letters", "Let workers try dead letters again.",
                    self._retry, "DeadLetterRetry", body="LedgersRequest"),
            _change("POST", f"{letters}/accept-loss", "accept_loss",
                    "Accept that entries without a live copy are lost, and close the tasks.", self._accept,
                    "DeadLetterDecision", body="AcceptLossRequest", role=Role.ADMINISTER),
            _change("POST", f"{letters}/drop", "drop_dead_letters", "Remove dead letters and their tasks.", self._drop,
                    "DeadLetterDecision", body="DropRequest", role=Role.ADMINISTER),
            _read(f"{_API}/accepted-losses", "list_accepted_losses", "Ledgers whose losses were accepted.",
                  self._accepted, "AcceptedLossList"),
            _read(f"{_API}/debts", "list_debts", "Ledgers with copies in bad places, by ledger id.", self._debts,
                  "PlacementDebtList", _PAGING),
            _read(f"{_API}/drains", "list_drains", "Bookies that are being drained.", self._drains, "DrainList"),
            _read(f"{_API}/drain-status", "get_drain_status",
                  "What is left on drained bookies. 503 with Retry-After while the metadata is read: repeat "
                  "the request.",
                  self._drain_status, "DrainStatus", (_DRAINED,)),
            _change("PUT", f"{_API}/drains/{{bookie_id}}", "start_drain",
                    "Drain a bookie. 503 with Retry-After while the metadata is read: repeat the request.",
                    self._start_drain, "DrainStart", segments=(_BOOKIE,)),
            _change("POST", f"{_API}/drains", "start_drains",
                    "Drain bookies, all or none. 503 with Retry-After while the metadata is read: repeat the request.",
                    self._start_drains, "DrainStart", body="DrainsRequest"),
            _change("DELETE", f"{_API}/drains/{{bookie_id}}", "stop_drain", "Cancel a drain.", self._stop_drain,
                    "DrainStop", segments=(_BOOKIE,)),
            _read(f"{_API}/maintenance", "list_maintenance", "Maintenance windows that are open.", self._windows,
                  "MaintenanceWindowList"),
            _change("PUT", f"{_API}/maintenance", "start_maintenance",
                    "Expect the loss of a bookie or a rack for a limited time; replaces the window of this target.",
                    self._start_window, "MaintenanceWindow", body="MaintenanceRequest"),
            _change("DELETE", f"{_API}/maintenance", "end_maintenance", "End a maintenance window.", self._end_window,
                    "MaintenanceEnd", parameters=(_TARGET,)),
            _read(f"{_API}/ok-to-stop", "get_ok_to_stop",
                  "Whether bookies may be stopped now: 200 yes, 409 no, 503 not known yet: repeat the request.",
                  self._ok_to_stop, "StopVerdict", _STOP_CHECK_PARAMETERS),
            _read(f"{_API}/what-if", "get_what_if",
                  "What would be lost if bookies or racks failed now. 503 while the metadata is read: repeat "
                  "the request.",
                  self._what_if, "WhatIf", _WHAT_IF),
            _read(f"{_API}/recovery", "get_recovery", "The switch of recovery and the lost-bookie delay.",
                  self._recovery, "RecoveryStatus"),
            _change("PUT", f"{_API}/recovery", "set_recovery", "Disable recovery, enable it, set the delay.",
                    self._set_recovery, "RecoveryStatus", body="RecoveryRequest", role=Role.ADMINISTER),
            _read(f"{_API}/copy-limits", "get_copy_limits", "Limits on copying of all replicators together.",
                  self._limits, "CopyLimits"),
            _change("PUT", f"{_API}/copy-limits", "set_copy_limits", "Set the given limits.",
                    self._set_limits, "CopyLimitsChange", body="CopyLimitsRequest"),
            _change("DELETE", f"{_API}/copy-limits", "clear_copy_limits", "Remove all limits.", self._clear_limits,
                    "CopyLimitsChange"),
            _read(boosts, "list_boosts", "Ledgers that are repaired before others.", self._boosts, "BoostList"),
            _change("PUT", f"{boosts}/{{ledger_id}}", "boost_ledger", "Boost a marked ledger.", self._boost, "Boost",
                    segments=(_LEDGER,), body="BoostRequest"),
            _change("DELETE", f"{boosts}/{{ledger_id}}", "end_boost", "End a boost.", self._end_boost, "Boost",
                    segments=(_LEDGER,)),
            _read(f"{_API}/progress", "get_progress",
                  "The progress of repairs. 503 with Retry-After while the marks are read: repeat the request.",
                  self._progress, "RepairProgress"),
            _read(f"{_API}/cluster", "get_cluster_status",
                  "The state of the cluster in one document. 503 with Retry-After while the marks are read: "
                  "repeat the request.",
                  self._cluster, "ClusterStatus"),
            _read(f"{_API}/changes", "list_changes", "What operators changed, by command and by API, newest first.",
                  self._changes, "ChangeList", (_CHANGES_LIMIT,)),
        )  # fmt: skip

    async def _letters(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after", "reason"), "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, _PAGE_MAX)
        after = LedgerId(whole_number(query["after"], "after", 0, LEDGER_ID_MAX)) if "after" in query else None
        reason = queries.park_reason(query["reason"]) if "reason" in query else None

        async def work(client: ClusterClient) -> Document:
            return await dead_letters.list_dead_letters(client, limit, after, reason)

        return _answer("DeadLetterList", await self._upkeep.run(work))

    async def _retry(self, call: Call) -> web.Response:
        ledgers = queries.ledgers_request(await call.body())
        call.trail.detail = _named(ledgers)
        actor = _actor(call)
        return _answer(
            "DeadLetterRetry",
            await self._upkeep.run(lambda client: dead_letters.retry_dead_letters(client, actor, ledgers)),
        )

    async def _accept(self, call: Call) -> web.Response:
        return await self._decide(call, dead_letters.ACCEPT)

    async def _drop(self, call: Call) -> web.Response:
        return await self._decide(call, dead_letters.DROP)

    async def _decide(self, call: Call, verb: str) -> web.Response:
        asked = queries.decision_request(await call.body(), is_reason_required=verb == dead_letters.ACCEPT)
        call.trail.detail = f"{_named(asked.ledgers)}: {asked.reason}"
        actor = _actor(call)

        async def work(client: ClusterClient) -> Document:
            found = await dead_letters.expected_decisions(client, actor, verb, asked.ledgers)
            if not asked.is_dry_run and not dead_letters.is_final(found):
                found = await dead_letters.decide(client, actor, verb, asked.ledgers, asked.reason)
            return dead_letters.decision_document(actor, asked.reason, found, is_dry_run=asked.is_dry_run)

        return _answer("DeadLetterDecision", await self._upkeep.run(work))

    async def _accepted(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("AcceptedLossList", await self._upkeep.run(dead_letters.list_accepted))

    async def _debts(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after"), "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, _PAGE_MAX)
        after = LedgerId(whole_number(query["after"], "after", 0, LEDGER_ID_MAX)) if "after" in query else None
        return _answer(
            "PlacementDebtList", await self._upkeep.run(lambda client: debts.list_debts(client, limit, after))
        )

    async def _drains(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("DrainList", await self._upkeep.run(drains.list_drains))

    async def _drain_status(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, ("bookie",), "parameter")
        bookies = _bookies(call)
        found = await self._upkeep.run_long(
            ("drain status", bookies), lambda client: drain_status.drain_status(client, bookies)
        )
        return _answer("DrainStatus", found)

    async def _start_drain(self, call: Call) -> web.Response:
        return await self._begin(_actor(call), (_bookie(call),))

    async def _start_drains(self, call: Call) -> web.Response:
        bookies = queries.drains_request(await call.body())
        call.trail.detail = ", ".join(bookies)[:_DETAIL_MAX]
        return await self._begin(_actor(call), bookies)

    async def _begin(self, actor: Actor, bookies: tuple[BookieId, ...]) -> web.Response:
        key = (_DRAIN, bookies, actor)

        @asynccontextmanager
        async def recording() -> AsyncIterator[None]:
            async with self._recording:
                yield
                self._marking[key] = set(bookies)

        async def work(client: ClusterClient) -> Document:
            try:
                found = await drains.start_drains(client, actor, bookies, recording)
                drained = self._marking.get(key, set(bookies))
                return {**found, "bookies": [bookie for bookie in bookies if bookie in drained]}
            finally:
                self._marking.pop(key, None)

        async def drained(client: ClusterClient) -> Hashable:
            return frozenset(await Drains(client.store, client.cluster.root).read())

        return _answer("DrainStart", await self._upkeep.run_long(key, work, drained))

    async def _stop_drain(self, call: Call) -> web.Response:
        bookie, actor = _bookie(call), _actor(call)

        def is_meant(key: Hashable) -> bool:
            """Return whether the work begins a drain of this bookie, and all its other drains were stopped."""
            is_of_bookie = isinstance(key, tuple) and key[:1] == (_DRAIN,) and bookie in key[1]
            return is_of_bookie and self._marking.get(key, {bookie}) <= {bookie}

        async def work(client: ClusterClient) -> Document:
            async with self._recording:
                await self._upkeep.cancel_matching(is_meant)
                stopped = await drains.stop_drains(client, actor, (bookie,))
                for left in self._marking.values():
                    left.discard(bookie)
            return stopped

        return _answer("DrainStop", await self._upkeep.run(work))

    async def _windows(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("MaintenanceWindowList", await self._upkeep.run(maintenance.list_windows))

    async def _start_window(self, call: Call) -> web.Response:
        asked, actor = queries.window_request(await call.body()), _actor(call)
        call.trail.detail = f"{asked.target} for {asked.span_s} s"
        if asked.is_critical_held:
            call.who.require(Role.ADMINISTER, "holding back ledgers with one copy left")

        async def work(client: ClusterClient) -> Document:
            topology = client.ports.placement.topology  # of the auditor's topology file, if it has one
            return await maintenance.start_window(
                client,
                actor,
                asked.target,
                asked.span_s,
                is_critical_held=asked.is_critical_held,
                note=asked.note,
                topology=topology if topology.locations else None,
                is_dry_run=asked.is_dry_run,
            )

        return _answer("MaintenanceWindow", await self._upkeep.run(work))

    async def _end_window(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("target",), "parameter")
        target, actor = queries.window_target_of(query.get("target")), _actor(call)
        call.trail.detail = target
        return _answer(
            "MaintenanceEnd", await self._upkeep.run(lambda client: maintenance.end_window(client, actor, target))
        )

    async def _ok_to_stop(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("bookie", "strict"), "parameter")
        bookies = _bookies(call)
        if not bookies:
            raise InvalidRequestError(f"name 1 to {_STOP_CHECK_BOOKIES_MAX} bookies: ?bookie=ID, repeated for each")
        is_strict = boolean(query.get("strict", "false"), "strict")

        async def registered(client: ClusterClient) -> Hashable:
            return (await client.ports.registrations.list()).registered

        verdict = await self._upkeep.run_long(
            ("ok-to-stop", bookies, is_strict),
            lambda client: stop_verdict(client, bookies, is_strict=is_strict),
            registered,
        )
        if not verdict["ok"]:
            raise NotOkToStopError("; ".join(map(str.strip, reasons(verdict))).replace(":; ", ": "), verdict)
        return _answer("StopVerdict", verdict)

    async def _what_if(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("target", "worst", "topics"), "parameter")
        named = query.getall("target", [])
        if not 1 <= len(named) <= _STOP_CHECK_BOOKIES_MAX:
            raise InvalidRequestError(
                f"name 1 to {_STOP_CHECK_BOOKIES_MAX} targets: ?target=BOOKIE or rack:RACK, repeated"
            )
        targets = tuple(dict.fromkeys(map(queries.window_target_of, named)))
        worst = whole_number(query.get("worst", str(WORST_DEFAULT)), "worst", 0, _PAGE_MAX)
        topics = whole_number(query.get("topics", str(TOPICS_DEFAULT)), "topics", 0, _PAGE_MAX)

        async def work(client: ClusterClient) -> Document:
            topology = client.ports.placement.topology  # of the auditor's topology file, if it has one
            bookies = await bookies_of(client, targets, topology if topology.locations else None)
            return await what_if(client, bookies, worst_max=worst, topics_max=topics)

        return _answer("WhatIf", await self._upkeep.run_long(("what-if", targets, worst, topics), work))

    async def _recovery(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("RecoveryStatus", await self._upkeep.run(switches.read_switches))

    async def _set_recovery(self, call: Call) -> web.Response:
        fields = json_object(await call.body())
        refuse_unknown(fields, ("enabled", "lost_bookie_delay_seconds"), "field")
        if not fields:
            raise InvalidRequestError("name enabled, lost_bookie_delay_seconds, or both")
        is_on = json_boolean(fields["enabled"], "enabled") if "enabled" in fields else None
        delay_s = None
        if "lost_bookie_delay_seconds" in fields:
            name = "lost_bookie_delay_seconds"
            delay_s = json_integer(fields[name], name, 0, DELAY_S_MAX)
        call.trail.detail = ", ".join(f"{name}={value}".lower() for name, value in fields.items())
        actor = _actor(call)

        async def work(client: ClusterClient) -> Document:
            if delay_s is not None:
                await switches.set_delay(client, actor, delay_s)
            if is_on is not None:
                with suppress(AlreadyEnabledError, AlreadyDisabledError):
                    await switches.switch_recovery(client, actor, is_on=is_on)
            return await switches.read_switches(client)

        return _answer("RecoveryStatus", await self._upkeep.run(work))

    async def _limits(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("CopyLimits", await self._upkeep.run(limits.read_limits))

    async def _set_limits(self, call: Call) -> web.Response:
        chosen = queries.limits_request(await call.body())
        call.trail.detail = ", ".join(sorted(chosen))
        actor = _actor(call)
        return _answer(
            "CopyLimitsChange", await self._upkeep.run(lambda client: limits.set_limits(client, actor, chosen))
        )

    async def _clear_limits(self, call: Call) -> web.Response:
        actor = _actor(call)
        return _answer("CopyLimitsChange", await self._upkeep.run(lambda client: limits.clear_limits(client, actor)))

    async def _boosts(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("BoostList", await self._upkeep.run(boosting.list_boosts))

    async def _boost(self, call: Call) -> web.Response:
        ledger, actor = _ledger(call), _actor(call)
        span_s = queries.boost_request(await call.body(), boosting.SPAN_S_MAX)
        call.trail.detail = f"ledger {ledger} for {span_s} s"
        done = await self._upkeep.run(lambda client: boosting.boost_ledgers(client, actor, (ledger,), span_s))
        if done["problem"]:
            raise RefusedError(done["problem"])
        return _answer("Boost", done)

    async def _end_boost(self, call: Call) -> web.Response:
        ledger, actor = _ledger(call), _actor(call)
        call.trail.detail = f"ledger {ledger}"
        return _answer("Boost", await self._upkeep.run(lambda client: boosting.end_boosts(client, actor, (ledger,))))

    async def _progress(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("RepairProgress", await self._upkeep.progress())

    async def _cluster(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return _answer("ClusterStatus", await self._upkeep.cluster_status())

    async def _changes(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit",), "parameter")
        limit = whole_number(query.get("limit", str(_PAGE_DEFAULT)), "limit", 1, CHANGES_MAX)

        async def work(client: ClusterClient) -> Document:
            return {"items": [switches.change_row(change) for change in await changes_of(client).newest(limit)]}

        return _answer("ChangeList", await self._upkeep.run(work))


def _answer(kind: str, fields: Document) -> web.Response:
    return web.json_response(document(kind, fields))


def _actor(call: Call) -> Actor:
    return Actor(call.who.name, "http")


def _bookie(call: Call) -> BookieId:
    """Return the bookie named in the path. A text that is not an id, such as another path, is not found."""
    name = call.request.match_info["bookie_id"]
    call.trail.detail = name[:100]
    try:
        return queries.bookie(name)
    except InvalidRequestError as error:
        raise NotFoundError(str(error)) from error


def _bookies(call: Call) -> tuple[BookieId, ...]:
    """Return the bookies named in a query, each once; may be empty.

    Raises:
        InvalidRequestError: a name is not an id, or there are too many.
    """
    named = call.request.query.getall("bookie", [])
    if len(named) > _STOP_CHECK_BOOKIES_MAX:
        raise InvalidRequestError(f"name 1 to {_STOP_CHECK_BOOKIES_MAX} bookies: ?bookie=ID, repeated for each")
    return tuple(dict.fromkeys(map(queries.bookie, named)))


def _ledger(call: Call) -> LedgerId:
    return LedgerId(whole_number(call.request.match_info["ledger_id"], "ledger_id", 0, LEDGER_ID_MAX))


def _named(ledgers: Sequence[LedgerId]) -> str:
    return "ledgers " + ", ".join(map(str, ledgers[:20])) + (" ..." if len(ledgers) > 20 else "")


def _read(
    path: str, operation: str, summary: str, handler: Any, schema: str, parameters: tuple[Parameter, ...] = ()
) -> Route:
    answer = RouteAnswer(200, "The current state.", JSON, schema)
    return Route("GET", path, operation, summary, handler, (answer,), tag="upkeep", parameters=parameters)


def _change(
    method: str,
    path: str,
    operation: str,
    summary: str,
    handler: Any,
    schema: str,
    *,
    role: Role = Role.OPERATE,
    segments: tuple[Parameter, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    body: str = "",
) -> Route:
    answer = RouteAnswer(200, "The result.", JSON, schema)
    return Route(
        method,
        path,
        operation,
        summary,
        handler,
        (answer,),
        role=role,
        tag="upkeep",
        segments=segments,
        parameters=parameters,
        body=body,
        is_changing=True,
    )


_BOOKIE: Final = segment("bookie_id", "Id of the bookie.")
_LEDGER: Final = Parameter("ledger_id", "Id of the ledger.", LEDGER_ID, "path", is_required=True)
_BOOKIES: Final = {
    "type": "array",
    "items": {"type": "string", "pattern": BOOKIE_ID_PATTERN},
    "minItems": 1,
    "maxItems": _STOP_CHECK_BOOKIES_MAX,
}
_DRAINED: Final = Parameter("bookie", "Id of a bookie, repeated for each. Default: every drained one.", _BOOKIES)
_TARGET: Final = Parameter(
    "target",
    "A bookie, or rack: and the location of a rack.",
    {"type": "string", "pattern": WINDOW_TARGET_PATTERN},
    is_required=True,
)
_LIMIT: Final = Parameter(
    "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": _PAGE_MAX, "default": _PAGE_DEFAULT}
)
_CHANGES_LIMIT: Final = Parameter(
    "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": CHANGES_MAX, "default": _PAGE_DEFAULT}
)
_PAGING: Final = (_LIMIT, Parameter("after", "Begin after this ledger.", LEDGER_ID))
_DEAD_LETTER_PARAMETERS: Final = (
    *_PAGING,
    Parameter("reason", "Only those with this reason.", {"type": "string", "enum": [why.value for why in ParkReason]}),
)
_WHAT_IF: Final = (
    Parameter(
        "target",
        "A bookie, or rack: and the location of a rack; repeated for each.",
        {
            "type": "array",
            "items": {"type": "string", "pattern": WINDOW_TARGET_PATTERN},
            "minItems": 1,
            "maxItems": _STOP_CHECK_BOOKIES_MAX,
        },
        is_required=True,
    ),
    *(
        Parameter(name, f"How many {name} are named at most.", {"type": "integer", "minimum": 0, "maximum": _PAGE_MAX})
        for name in ("worst", "topics")
    ),
)
_STOP_CHECK_PARAMETERS: Final = (
    Parameter(
        "bookie",
        "Id of a bookie that is to be stopped, repeated for each.",
        _BOOKIES,
        is_required=True,
    ),
    Parameter(
        "strict",
        "Leave an ack quorum of copies of every entry, instead of one copy.",
        {"type": "string", "enum": ["true", "false"]},
    ),
)
