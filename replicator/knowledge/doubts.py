"""A transport for recoveries: denials count only if their bookie is proven to have all its entries.

The invariant: a recovery sees "no such entry" as LIMBO, which means "unknown" (S6), unless the bookie was found
complete before the recovery and its registration is still the same (R91). Served entries are accepted, because their
digest proves them.

A bookie with empty disks denies every entry, and an Apache bookie has no other answer. For a recovery, enough denials
prove that an entry was never acknowledged, and the ledger is closed before it. But the denials of a bookie prove
nothing if it lacks entries of its write sets that other members have. If they are replaced by LIMBO, too few denials
remain: the recovery stops, and the ledger stays in recovery until another member answers.

The repair (``repair.ledger_repair``) records the doubt in ZooKeeper before it copies to the bookie or begins a
recovery, because after either the bookie has entries again, and its loss is no longer visible. So after a crash at any
point, the next worker reads the record before its own recovery.

When nothing of the ledger is missing, the record is deleted in one transaction with the task and the lock, so a later
record of another worker is never deleted. The record outlives the task if a member of an unclosed ledger is awaited
(not registered, within its lost-bookie delay): that member and the doubted one may be the only ones with some entries.
A record without a task is deleted after the ledger was closed or deleted (``queue.task_queue``).

If a member was not registered when the members were judged, or restarted later, it may answer from empty disks during
the recovery. Its denials count as unknown in this turn, and the next turn judges it.

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
    """The bookies whose denials a recovery accepts."""

    members: frozenset[BookieId]
    """The members of the fragments that the recovery reads."""
    doubted: frozenset[BookieId]
    """The bookies whose loss of entries is recorded."""
    judged: Mapping[BookieId, int]
    """The bookies found to have all their acknowledged entries, each with its registration at that time."""


class DoubtingTransport(Transport):
    """A transport that hides the denials of untrusted bookies, and refuses adds to untrusted members.

    An untrusted member gets no entries before its loss is recorded, because new entries would hide the loss when its
    entries are checked again.
    """

    def __init__(
        self,
        transport: Transport,
        trust: Trust,
        registrations: Callable[[Collection[BookieId]], Awaitable[Mapping[BookieId, int]]],
        clock: Clock,
    ) -> None:
        """Wrap ``transport``; ``registrations`` reads the current registrations of bookies."""
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
        careful = _denials_as_limbo(reply)
        return reply if careful == reply or await self._is_trusted(bookie) else careful

    @override
    async def close(self) -> None:
        await self._transport.close()

    async def _is_trusted(self, bookie: BookieId) -> bool:
        """Whether the bookie still has the registration with which it was judged.

        The caller asks after the bookie has answered, so the bookie also had this registration when it answered.
        """
        judged = self._trust.judged.get(bookie)
        if judged is None:
            return False
        try:
            return (await self._registered.fresh()).get(bookie) == judged
        except StoreUnavailableError:
            return False


def _denials_as_limbo(reply: ReplyT) -> ReplyT:
    """Return the reply with LIMBO in place of each denial of an entry, a last entry, or a last add confirmed."""
    status = Status.LIMBO if reply.status.is_absent else reply.status
    if isinstance(reply, ReadReply):
        results = [replace(each, status=Status.LIMBO) if each.status.is_absent else each for each in reply.results]
        return replace(reply, status=status, results=tuple(results))
    if isinstance(reply, FenceReply) and status is Status.OK and reply.last_entry is None:
        return replace(reply, last_entry=EntryResult(EntryId(NO_ENTRY), Status.LIMBO))
    if isinstance(reply, LacReply):
        return replace(reply, status=status)
    return reply
