"""A transport that does not accept the denials of bookies that have lost entries.

The invariant: "no such entry" from a doubted bookie reaches a recovery as LIMBO, which means "unknown" (S6). Entries
that the bookie serves are accepted: their digest proves them.

A bookie that returned with empty disks denies everything, and an Apache bookie cannot answer otherwise. A recovery
takes enough denials as proof that an entry was never acknowledged, and closes the ledger before it. From a bookie that
lacks entries which other members of its write sets have, a denial proves nothing. With LIMBO in its place the denials
are too few: the recovery stops, and the ledger stays in recovery until another member answers.

The repair (``repair.ledger_repair``) records the doubt in ZooKeeper first, and only then copies to the bookie or begins
a recovery: after either, the bookie has entries again, and its loss cannot be seen any more. So a crash at any point
leaves a record that the next worker reads before its own recovery. When nothing of the ledger is missing, the record is
deleted in one transaction with the task and the lock, so that it cannot be one that another worker wrote meanwhile.
If a member of an unclosed ledger is awaited (not registered, within its lost-bookie delay), the record stays when the
task goes: that member may have entries that only it and a doubted member had. A record without a task is deleted once
the ledger is closed or deleted (``queue.task_queue``).

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typing_extensions import override

from bookie.model.ids import NO_ENTRY, BookieId, EntryId
from bookie.wire.port import (
    AddBatch,
    AddReply,
    EntryResult,
    FenceReply,
    LacReply,
    ReadReply,
    ReplyT,
    Request,
    Status,
    Transport,
)


class DoubtingTransport(Transport):
    """Another transport, but for the denials of ``doubted``."""

    def __init__(self, transport: Transport, doubted: Collection[BookieId]) -> None:
        self._transport = transport
        self._doubted = frozenset(doubted)

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._transport.add(bookie, batch, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._transport.ask(bookie, request, timeout_s)
        return _without_denials(reply) if bookie in self._doubted else reply

    @override
    async def close(self) -> None:
        await self._transport.close()


def _without_denials(reply: ReplyT) -> ReplyT:
    """Return the reply with LIMBO for each denial: of an entry, of a last entry, or of what is confirmed."""
    status = Status.LIMBO if reply.status.is_absent else reply.status
    if isinstance(reply, ReadReply):
        results = [replace(each, status=Status.LIMBO) if each.status.is_absent else each for each in reply.results]
        return replace(reply, status=status, results=tuple(results))
    if isinstance(reply, FenceReply) and status is Status.OK and reply.last_entry is None:
        return replace(reply, last_entry=EntryResult(EntryId(NO_ENTRY), Status.LIMBO))
    if isinstance(reply, LacReply):
        return replace(reply, status=status)
    return reply
