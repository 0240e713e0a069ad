"""Explicit LAC: send the last add confirmed to bookies if no entry carries it.

A hint for readers that tail an open ledger; no decision depends on it, so failures are only logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bookie.client.ports import ClientPorts
from bookie.client.writer.pipeline import Pipeline
from bookie.model.digest import Digest
from bookie.model.ids import NO_ENTRY, EntryId
from bookie.model.packet import pack_lac
from bookie.model.schedule import Stripe
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.port import Status
from bookie.wire.requests import WriteLac

_log: Final = logging.getLogger(__name__)


class ExplicitLac:
    """Checks in each interval whether the last add confirmed was sent with an entry; runs until stopped."""

    def __init__(self, ports: ClientPorts, pipeline: Pipeline, digest: Digest, key: bytes, interval_s: float) -> None:
        self._ports = ports
        self._pipeline = pipeline
        self._digest = digest
        self._key = key
        self._interval_s = interval_s
        self._sent = NO_ENTRY
        """The greatest last add confirmed that was certainly sent to bookies."""
        self._task = guarded("explicit LAC", self._run())

    async def stop(self) -> None:
        """Stop sending. Idempotent."""
        await cancel(self._task)

    async def _run(self) -> None:
        state = self._pipeline.state
        confirmed, admitted = state.last_add_confirmed, state.next_entry_id
        while self._pipeline.error is None:
            await self._ports.clock.sleep(self._interval_s)
            last, end = state.last_add_confirmed, state.next_entry_id
            if end != admitted:
                self._sent = max(self._sent, confirmed)  # each entry admitted since then carries it or a greater one
            is_idle = last == confirmed or fault_point("writer.explicit_lac_now")
            if last > self._sent and is_idle and await self._send(last):
                self._sent = last
            confirmed, admitted = last, end

    async def _send(self, last_add_confirmed: EntryId) -> bool:
        """Send it to the write set of its entry; return whether at least ``Qa`` members accepted it."""
        ledger = self._pipeline.ledger
        packet = pack_lac(self._digest, ledger.ledger_id, last_add_confirmed)
        hint = WriteLac(ledger.ledger_id, self._key, packet)
        deadline_s, lanes = self._ports.settings.add_timeout_s, self._pipeline.state.lanes
        positions = Stripe(len(lanes), ledger.metadata.write_quorum).write_set(last_add_confirmed)
        replies = await asyncio.gather(
            *(self._ports.transport.ask(lanes[p].bookie, hint, deadline_s) for p in positions if not lanes[p].is_failed)
        )
        refusals = [reply.status.name for reply in replies if reply.status is not Status.OK]
        if refusals:
            _log.info("explicit LAC refused", extra={"ledger_id": ledger.ledger_id, "statuses": sorted(refusals)})
        return len(replies) - len(refusals) >= ledger.metadata.ack_quorum
