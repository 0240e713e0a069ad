"""Which members lack something of a ledger that is about to be closed: one listing a bookie.

No entry is read, but for a small ledger at bookies that cannot list. A large one would be read through before it is
closed: its members there count as not known, and the worker that takes the mark reads in its own time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie.client.held_entries import HeldEntries
from bookie.client.ports import ClientPorts
from bookie.model.holdings import holds_all, placed_entries
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import Status

_AT_A_TIME: Final = 32
"""Listings under way: a ledger that outlived many bookies names many."""
_READ_BYTES_MAX: Final = 8 << 20
_READ_ENTRIES_MAX: Final = 4096
"""A ledger up to this size is read where it is not listed, a second or so a bookie."""


async def incomplete_members(ports: ClientPorts, ledger_id: LedgerId, sealed: LedgerMetadata) -> set[BookieId]:
    """Bookies that are not known to hold all that the closed metadata ``sealed`` places on them.

    Silence counts as not known: a mark is a hint, and whoever acts on it asks again.
    """
    slots = asyncio.Semaphore(_AT_A_TIME)
    asking = HeldEntries(ports.transport, ports.clock, ports.settings.read_timeout_s)
    is_small = _is_small(sealed)

    async def lacks(bookie: BookieId) -> bool:
        async with slots:
            reply = await asking.listed(bookie, ledger_id)
            if reply.status is Status.UNSUPPORTED and is_small:
                reply = await asking.probed(bookie, ledger_id, placed_entries(sealed, bookie))
        is_answered = reply.status is Status.OK or reply.status.is_absent
        return not is_answered or not holds_all(sealed, bookie, reply.entries)

    members = sorted(sealed.members())
    verdicts = await asyncio.gather(*(lacks(bookie) for bookie in members))
    return {bookie for bookie, is_short in zip(members, verdicts, strict=True) if is_short}


def _is_small(sealed: LedgerMetadata) -> bool:
    last, length = sealed.last_entry_id, sealed.length
    return last is not None and length is not None and last < _READ_ENTRIES_MAX and length <= _READ_BYTES_MAX
