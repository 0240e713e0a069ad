"""``/api/v1``: dead letters: reading, retrying and dropping them, and accepting losses.

Changes with a risk of data loss need the role administer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from auditor.api.http import upkeep_queries as queries
from auditor.api.http.queries import refuse_unknown
from auditor.api.http.routes import Call, Parameter, Route
from auditor.api.http.upkeep_route_parts import API, PAGING, actor_of, answer, changing, page_of, reading
from auditor.api.upkeep_port import Upkeep
from auditor.operating import dead_letters
from auditor.operating.client import ClusterClient, Document
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from bookie.runtime.access.tokens import Role

_NAMED_MAX: Final = 20
"""Ledgers of a request that the log names."""
_DEAD_LETTER_PARAMETERS: Final = (
    *PAGING,
    Parameter("reason", "Only those with this reason.", {"type": "string", "enum": [why.value for why in ParkReason]}),
)


class DeadLetterRoutes:
    """Handlers over ``Upkeep``."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep

    def routes(self) -> Sequence[Route]:
        """Return the routes with their descriptions."""
        letters = f"{API}/dead-letters"
        return (
            reading(letters, "list_dead_letters", "Tasks that workers have set aside, by ledger id.", self._letters,
                    "DeadLetterList", _DEAD_LETTER_PARAMETERS),
            changing("POST", f"{letters}/retry", "retry_dead_letters", "Let workers try dead letters again.",
                     self._retry, "DeadLetterRetry", body="LedgersRequest"),
            changing("POST", f"{letters}/accept-loss", "accept_loss",
                     "Accept that entries without a live copy are lost, and close the tasks.", self._accept,
                     "DeadLetterDecision", body="AcceptLossRequest", role=Role.ADMINISTER),
            changing("POST", f"{letters}/drop", "drop_dead_letters", "Remove dead letters and their tasks.", self._drop,
                     "DeadLetterDecision", body="DropRequest", role=Role.ADMINISTER),
            reading(f"{API}/accepted-losses", "list_accepted_losses", "Ledgers whose losses were accepted.",
                    self._accepted, "AcceptedLossList"),
        )  # fmt: skip

    async def _letters(self, call: Call) -> web.Response:
        query = call.request.query
        refuse_unknown(query, ("limit", "after", "reason"), "parameter")
        limit, after = page_of(query)
        reason = queries.park_reason(query["reason"]) if "reason" in query else None

        async def work(client: ClusterClient) -> Document:
            return await dead_letters.list_dead_letters(client, limit, after, reason)

        return answer("DeadLetterList", await self._upkeep.run(work))

    async def _retry(self, call: Call) -> web.Response:
        ledgers = queries.ledgers_request(await call.body())
        call.trail.detail = _named(ledgers)
        actor = actor_of(call)
        return answer(
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
        actor = actor_of(call)

        async def work(client: ClusterClient) -> Document:
            found = await dead_letters.expected_decisions(client, actor, verb, asked.ledgers)
            if not asked.is_dry_run and not dead_letters.is_final(found):
                found = await dead_letters.decide(client, actor, verb, asked.ledgers, asked.reason)
            return dead_letters.decision_document(actor, asked.reason, found, is_dry_run=asked.is_dry_run)

        return answer("DeadLetterDecision", await self._upkeep.run(work))

    async def _accepted(self, call: Call) -> web.Response:
        refuse_unknown(call.request.query, (), "parameter")
        return answer("AcceptedLossList", await self._upkeep.run(dead_letters.list_accepted))


def _named(ledgers: Sequence[LedgerId]) -> str:
    return "ledgers " + ", ".join(map(str, ledgers[:_NAMED_MAX])) + (" ..." if len(ledgers) > _NAMED_MAX else "")
