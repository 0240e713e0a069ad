"""Which members lack something of a ledger that is about to be closed: one listing a bookie, no entry is read."""

from __future__ import annotations

import asyncio
from typing import Final

from bookie.client.ports import ClientPorts
from bookie.model.holdings import holds_all
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import Status

_AT_A_TIME: Final = 32
"""Listings under way: a ledger that outlived many bookies names many."""


async def incomplete_members(ports: ClientPorts, ledger_id: LedgerId, sealed: LedgerMetadata) -> set[BookieId]:
    """Bookies that are not known to hold all that the closed metadata ``sealed`` places on them.

    Silence counts as not known: a mark is a hint, and whoever acts on it asks again.
    """
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def lacks(bookie: BookieId) -> bool:
        async with slots:
            reply = await ports.transport.list_entries(bookie, ledger_id, ports.settings.read_timeout_s)
        is_answered = reply.status is Status.OK or reply.status.is_absent
        return not is_answered or not holds_all(sealed, bookie, reply.entries)

    members = sorted(sealed.members())
    verdicts = await asyncio.gather(*(lacks(bookie) for bookie in members))
    return {bookie for bookie, is_short in zip(members, verdicts, strict=True) if is_short}
