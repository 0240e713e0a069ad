"""``/api/v1``: operators' reads and changes besides runs: windows, stops, limits, boosts, delay.

Changes that stop or speed up all repairs need the role administer.
The status code of ``ok-to-stop`` is the answer, so a hook does not need to parse JSON: 200 yes, 409 no, and 503 with
``Retry-After`` while the metadata is being read.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from auditor.api.http import upkeep_queries as queries
from auditor.api.http.queries import boolean, json_boolean, json_integer, json_object, refuse_unknown, whole_number
from auditor.api.http.routes import Call, Parameter, Route
from auditor.api.http.schema_parts import LEDGER_ID, WINDOW_TARGET_PATTERN
from auditor.api.http.upkeep_route_parts import (
    API,
    BOOKIES,
    BOOKIES_MAX,
    PAGE_DEFAULT,
    PAGE_MAX,
    PAGING,
    actor_of,
    answer,
    bookies_of_query,
    changing,
    page_of,
    reading,
)
from auditor.api.problems import InvalidRequestError, NotOkToStopError
from auditor.api.upkeep_port import Upkeep
from auditor.operating import boosting, debts, limits, maintenance, switches
from auditor.operating.client import ClusterClient, Document, RefusedError, changes_of
from auditor.operating.stopping import reasons, stop_verdict
from auditor.operating.what_if import TOPICS_DEFAULT, WORST_DEFAULT, bookies_of, what_if
from bookie.metadata.tasks.changes import CHANGES_MAX
from bookie.metadata.tasks.switches import DELAY_S_MAX, AlreadyDisabledError, AlreadyEnabledError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.runtime.access.tokens import Role

_LEDGER: Final = Parameter("ledger_id", "Id of the ledger.", LEDGER_ID, "path", is_required=True)
_TARGET: Final = Parameter(
    "target",
    "A bookie, or rack: and the location of a rack.",
    {"type": "string", "pattern": WINDOW_TARGET_PATTERN},
    is_required=True,
)
_CHANGES_LIMIT: Final = Parameter(
    "limit", "Most rows to list.", {"type": "integer", "minimum": 1, "maximum": CHANGES_MAX, "default": PAGE_DEFAULT}
)
_WHAT_IF: Final = (
    Parameter(
        "target",
        "A bookie, or rack: and the location of a rack; repeated for each.",
        {
            "type": "array",
            "items": {"type": "string", "pattern": WINDOW_TARGET_PATTERN},
            "minItems": 1,
            "maxItems": BOOKIES_MAX,
        },
        is_required=True,
    ),
    *(
        Parameter(name, f"How many {name} are named at most.", {"type": "integer", "minimum": 0, "maximum": PAGE_MAX})
        for name in ("worst", "topics")
    ),
)
_STOP_CHECK_PARAMETERS: Final = (
    Parameter(
        "bookie",
        "Id of a bookie that is to be stopped, repeated for each.",
        BOOKIES,
        is_required=True,
    ),
    Parameter(
        "strict",
        "Leave an ack quorum of copies of every entry, instead of one copy.",
        {"type": "string", "enum": ["true", "false"]},
    ),
)


class UpkeepRoutes:
    """Handlers over ``Upkeep``."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        boosts = f"{API}/boosts"
        return (
            reading(f"{API}/debts", "list_debts", "Ledgers with copies in bad places, by ledger id.", self._debts,
                    "PlacementDebtList", PAGING),
            reading(f"{API}/maintenance", "list_maintenance", "Maintenance windows that are open.", self._windows,
                    "MaintenanceWindowList"),
            changing("PUT", f"{API}/maintenance", "start_maintenance",
                     "Expect the loss of a bookie or a rack for a limited time; replaces the window of this target.",
                     self._start_window, "MaintenanceWindow", body="MaintenanceRequest"),
            changing("DELETE", f"{API}/maintenance", "end_maintenance", "End a maintenance window.", self._end_window,
                     "MaintenanceEnd", parameters=(_TARGET,)),
            reading(f"{API}/ok-to-stop", "get_ok_to_stop",
                    "Whether bookies may be stopped now: 200 yes, 409 no, 503 not known yet: repeat the request.",
                    self._ok_to_stop, "StopVerdict", _STOP_CHECK_PARAMETERS),
            reading(f"{API}/what-if", "get_what_if",
                    "What would be lost if bookies or racks failed now. 503 while the metadata is read: repeat "
                    "the request.",
                    self._what_if, "WhatIf", _WHAT_IF),
            reading(f"{API}/recovery", "get_recovery", "The switch of recovery and the lost-bookie delay.",
                    self._recovery, "RecoveryStatus"),
            changing("PUT", f"{API}/recovery", "set_recovery", "Disable recovery, enable it, set the delay.",
                     self._set_recovery, "RecoveryStatus", body="RecoveryRequest", role=Role.ADMINISTER),
            reading(f"{API}/copy-limits", "get_copy_limits", "Limits on copying of all replicators together.",
                    self._limits, "CopyLimits"),
            changing("PUT", f"{API}/copy-limits", "set_copy_limits", "Set the given limits.",
                     self._set_limits, "CopyLimitsChange", body="CopyLimitsRequest"),
            changing("DELETE", f"{API}/copy-limits", "clear_copy_limits", "Remove all limits.", self._clear_limits,
                     "CopyLimitsChange"),
            reading(boosts, "list_boosts", "Ledgers that are repaired before others.", self._boosts, "BoostList"),
            changing("PUT", f"{boosts}/{{ledger_id}}", "boost_ledger", "Boost a marked ledger.", self._boost, "Boost",
                     segments=(_LEDGER,), body="BoostRequest"),
            changing("DELETE", f"{boosts}/{{ledger_id}}", "end_boost", "End a boost.", self._end_boost, "Boost",
                     segments=(_LEDGER,)),
            reading(f"{API}/progress", "get_progress",
                    "The progress of repairs. 503 with Retry-After while the marks are read: repeat the request.",
                    self._progress, "RepairProgress"),
            reading(f"{API}/cluster", "get_cluster_status",
                    "The state of the cluster in one document. 503 with Retry-After while the marks are read: "
                    "repeat the request.",
                    self._cluster, "ClusterStatus"),
            reading(f"{API}/changes", "list_changes", "What operators changed, by command and by API, newest first.",
                    self._changes, "ChangeList", (_CHANGES_LIMIT,)),
        )  # fmt: skip

    async def _debts(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after"), "parameter")
        limit, after = page_of(query)
        return answer(
            "PlacementDebtList", await self._upkeep.run(lambda client: debts.list_debts(client, limit, after))
        )

    async def _windows(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("MaintenanceWindowList", await self._upkeep.run(maintenance.list_windows))

    async def _start_window(self, call: Call) -> web.Response:
        asked, actor = queries.window_request(await call.body()), actor_of(call)
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

        return answer("MaintenanceWindow", await self._upkeep.run(work))

    async def _end_window(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("target",), "parameter")
        target, actor = queries.window_target_of(query.get("target")), actor_of(call)
        call.trail.detail = target
        return answer(
            "MaintenanceEnd", await self._upkeep.run(lambda client: maintenance.end_window(client, actor, target))
        )

    async def _ok_to_stop(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("bookie", "strict"), "parameter")
        bookies = bookies_of_query(call)
        if not bookies:
            raise InvalidRequestError(f"name 1 to {BOOKIES_MAX} bookies: ?bookie=ID, repeated for each")
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
        return answer("StopVerdict", verdict)

    async def _what_if(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("target", "worst", "topics"), "parameter")
        named = query.getall("target", [])
        if not 1 <= len(named) <= BOOKIES_MAX:
            raise InvalidRequestError(f"name 1 to {BOOKIES_MAX} targets: ?target=BOOKIE or rack:RACK, repeated")
        targets = tuple(dict.fromkeys(map(queries.window_target_of, named)))
        worst = whole_number(query.get("worst", str(WORST_DEFAULT)), "worst", 0, PAGE_MAX)
        topics = whole_number(query.get("topics", str(TOPICS_DEFAULT)), "topics", 0, PAGE_MAX)

        async def work(client: ClusterClient) -> Document:
            topology = client.ports.placement.topology  # of the auditor's topology file, if it has one
            bookies = await bookies_of(client, targets, topology if topology.locations else None)
            return await what_if(client, bookies, worst_max=worst, topics_max=topics)

        return answer("WhatIf", await self._upkeep.run_long(("what-if", targets, worst, topics), work))

    async def _recovery(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("RecoveryStatus", await self._upkeep.run(switches.read_switches))

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
        actor = actor_of(call)

        async def work(client: ClusterClient) -> Document:
            if delay_s is not None:
                await switches.set_delay(client, actor, delay_s)
            if is_on is not None:
                with suppress(AlreadyEnabledError, AlreadyDisabledError):
                    await switches.switch_recovery(client, actor, is_on=is_on)
            return await switches.read_switches(client)

        return answer("RecoveryStatus", await self._upkeep.run(work))

    async def _limits(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("CopyLimits", await self._upkeep.run(limits.read_limits))

    async def _set_limits(self, call: Call) -> web.Response:
        chosen = queries.limits_request(await call.body())
        call.trail.detail = ", ".join(sorted(chosen))
        actor = actor_of(call)
        return answer(
            "CopyLimitsChange", await self._upkeep.run(lambda client: limits.set_limits(client, actor, chosen))
        )

    async def _clear_limits(self, call: Call) -> web.Response:
        actor = actor_of(call)
        return answer("CopyLimitsChange", await self._upkeep.run(lambda client: limits.clear_limits(client, actor)))

    async def _boosts(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("BoostList", await self._upkeep.run(boosting.list_boosts))

    async def _boost(self, call: Call) -> web.Response:
        ledger, actor = _ledger(call), actor_of(call)
        span_s = queries.boost_request(await call.body(), boosting.SPAN_S_MAX)
        call.trail.detail = f"ledger {ledger} for {span_s} s"
        done = await self._upkeep.run(lambda client: boosting.boost_ledgers(client, actor, (ledger,), span_s))
        if done["problem"]:
            raise RefusedError(done["problem"])
        return answer("Boost", done)

    async def _end_boost(self, call: Call) -> web.Response:
        ledger, actor = _ledger(call), actor_of(call)
        call.trail.detail = f"ledger {ledger}"
        return answer("Boost", await self._upkeep.run(lambda client: boosting.end_boosts(client, actor, (ledger,))))

    async def _progress(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("RepairProgress", await self._upkeep.progress())

    async def _cluster(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("ClusterStatus", await self._upkeep.cluster_status())

    async def _changes(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit",), "parameter")
        limit = whole_number(query.get("limit", str(PAGE_DEFAULT)), "limit", 1, CHANGES_MAX)

        async def work(client: ClusterClient) -> Document:
            return {"items": [switches.change_row(change) for change in await changes_of(client).newest(limit)]}

        return answer("ChangeList", await self._upkeep.run(work))


def _ledger(call: Call) -> LedgerId:
    return LedgerId(whole_number(call.request.match_info["ledger_id"], "ledger_id", 0, LEDGER_ID_MAX))
