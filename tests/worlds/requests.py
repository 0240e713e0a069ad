"""Requests of every kind, and transports that tests put in place of real ones."""

from __future__ import annotations

from typing_extensions import override

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import AddBatch, AddReply, Reply, Request, Transport
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac


def one_of_each(ledger_id: LedgerId, key: bytes, explicit: bytes, wait_s: float = 0.0) -> list[Request[Reply]]:
    """One request of each kind, and a second read, which fences."""
    first = [EntryId(0)]
    return [
        Read(ledger_id, first),
        Read(ledger_id, first, key),
        ReadLast(ledger_id),
        Fence(ledger_id, key),
        ReadLac(ledger_id),
        WaitLac(ledger_id, EntryId(0), wait_s),
        WriteLac(ledger_id, key, explicit),
        ListEntries(ledger_id),
        Info(),
    ]


class WithoutAdds(Transport):
    """Base of a transport that is only asked."""

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        raise AssertionError("nothing is added here")

    @override
    async def close(self) -> None:
        pass
