"""A transport that accepts denials only from bookies that have their entries.

The invariant: "no such entry" reaches a recovery as LIMBO, which means "unknown" (S6), unless the bookie was judged
before the recovery and is still registered as it was then (R91). Entries that a bookie serves are accepted: their
digest proves them.

A bookie that returned with empty disks denies everything, and an Apache bookie cannot answer otherwise. A recovery
takes enough denials as proof that an entry was never acknowledged, and closes the ledger before it. From a bookie that
lacks entries which other members of its write sets have, a denial proves nothing. With LIMBO in its place the denials
are too few: the recovery stops, and the ledger stays in recovery until another member answers.

The repair (``repair.ledger_repair``) records the doubt in ZooKeeper first, and only then copies to the bookie or begins
a recovery: after either, the bookie has entries again, and its loss cannot be seen any more. So a crash at any point
leaves a record that the next worker reads before its own recovery. When nothing of the ledger is missing, the record is
deleted in one transaction with the task and the lock, so that it cannot be one that another worker wrote later.
If a member of an unclosed ledger is awaited (not registered, within its lost-bookie delay), the record stays when the
task goes: that member may have entries that only it and a doubted member had. A record without a task is deleted once
the ledger is closed or deleted (``queue.task_queue``).

A member that is not registered when the members are judged, or restarts later, may answer from empty disks in the
middle of the recovery. Its denials are unknown in this turn, and the next turn judges it.

S rules are defined in docs/invariants.md, R rules in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from typing_extensions import override

from bookie.metadata.port import StoreUnavailableError
from bookie.model.ids import NO_ENTRY, BookieId, EntryId
from bookie.runtime.clock import Clock
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
from replicator.knowledge.recent import Shared


@dataclass(frozen=True, slots=True)
class Trust:
    """What a recovery may believe of whom."""

    members: frozenset[BookieId]
    """Members of the fragments that the recovery reads."""
    doubted: frozenset[BookieId]
    """Bookies whose loss is recorded."""
    judged: Mapping[BookieId, int]
    """Bookies proven to have all they acknowledged, each with its registration at the time of the proof."""


class DoubtingTransport(Transport):
    """Another transport, without denials from untrusted bookies and without adds to untrusted members.

    An untrusted member gets no entries before its loss is recorded: they would hide the loss from the next
    judgement.
    """

    def __init__(
        self,
        transport: Transport,
        trust: Trust,
        registrations: Callable[[Collection[BookieId]], Awaitable[Mapping[BookieId, int]]],
        clock: Clock,
    ) -> None:
        """Wrap ``transport``; ``registrations`` reads those of bookies, no older than its call."""
        self._transport = transport
        self._trust = trust
        self._registered = Shared(lambda: registrations(trust.judged.keys()), clock, 0.0)

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        is_safe = bookie not in self._trust.members or bookie in self._trust.doubted or await self._is_trusted(bookie)
        if not is_safe:
            return AddReply(Status.UNRESOLVED, "it was not registered when the members were judged, or not since")
        return await self._transport.add(bookie, batch, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._transport.ask(bookie, request, timeout_s)
        careful = _without_denials(reply)
        return reply if careful == reply or await self._is_trusted(bookie) else careful

    @override
    async def close(self) -> None:
        await self._transport.close()

    async def _is_trusted(self, bookie: BookieId) -> bool:
        """Whether it is still registered as it was when it was judged. Read after its answer, so it was so then."""
        judged = self._trust.judged.get(bookie)
        if judged is None:
            return False
        try:
            return (await self._registered.fresh()).get(bookie) == judged
        except StoreUnavailableError:
            return False


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
