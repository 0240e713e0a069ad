"""Requests of every kind, and replacements for real transports."""

from __future__ import annotations

from typing_extensions import override

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.wire.port import AddBatch, AddReply, Reply, Request, Transport
from bookie.wire.requests import Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac


def one_of_each(
    ledger_id: LedgerId, key: bytes, explicit: bytes, wait_s: float = 0.0, *, is_apache: bool = False
) -> list[Request[Reply]]:
    """Return one request of each kind (of Apache's protocol), and a second read, which fences."""
    copies: list[Request[Reply]] = [Copy(ledger_id, [EntryId(0)], BookieId("another"), key, DigestType.CRC32C)]
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
        *(() if is_apache else copies),
        Info(),
    ]


class WithoutAdds(Transport):
    """Base of a transport for requests other than adds."""

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        raise AssertionError("this transport accepts no adds")

    @override
    async def close(self) -> None:
        pass
