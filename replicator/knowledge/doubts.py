"""A transport that does not accept the denials of bookies that have lost entries.

The invariant: "no such entry" from a doubted bookie reaches a recovery as LIMBO, which means "unknown" (S6). Entries
that the bookie serves are accepted: their digest proves them.

A bookie that returned with empty disks denies everything, and an Apache bookie cannot answer otherwise. A recovery
takes enough denials as proof that an entry was never acknowledged, and closes the ledger before it. From a bookie that
lacks entries which other members of its write sets have, a denial proves nothing. With LIMBO in its place the denials
are too few: the recovery stops, and the ledger stays in recovery until another member answers.

The repair (``repair.ledger_repair``) records the doubt in ZooKeeper first, and only then copies to the bookie or begins
a recovery: after either, the bookie has entries again, and its loss cannot be seen any more. So a crash at any point
leaves a record that the next worker reads before its own recovery. The record is deleted when nothing of the ledger is
missing, after the task; if a crash prevents this, a listing of the tasks deletes it (``queue.task_queue``).

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from bookie.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from bookie.wire.port import EntryResult, FenceReply, LacReply, ReadReply, Status, Transport


class DoubtingTransport:
    """``Transport``, but for the denials of ``doubted``."""

    def __init__(self, transport: Transport, doubted: Collection[BookieId]) -> None:
        self._transport = transport
        self._doubted = frozenset(doubted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def read(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        entry_ids: Sequence[EntryId],
        timeout_s: float,
        *,
        fence_key: bytes | None = None,
    ) -> ReadReply:
        """Read entries; denials of a doubted bookie become LIMBO."""
        reply = await self._transport.read(bookie, ledger_id, entry_ids, timeout_s, fence_key=fence_key)
        return self._read(bookie, reply)

    async def read_last(self, bookie: BookieId, ledger_id: LedgerId, timeout_s: float) -> ReadReply:
        """Read the last entry; a denial of a doubted bookie becomes LIMBO."""
        return self._read(bookie, await self._transport.read_last(bookie, ledger_id, timeout_s))

    async def fence(self, bookie: BookieId, ledger_id: LedgerId, master_key: bytes, timeout_s: float) -> FenceReply:
        """Fence a ledger; a denial of a doubted bookie becomes LIMBO."""
        reply = await self._transport.fence(bookie, ledger_id, master_key, timeout_s)
        if bookie in self._doubted and reply.status is Status.OK and reply.last_entry is None:
            return replace(reply, last_entry=EntryResult(EntryId(NO_ENTRY), Status.LIMBO))
        return reply

    async def read_lac(self, bookie: BookieId, ledger_id: LedgerId, timeout_s: float) -> LacReply:
        """Read the last add confirmed; a denial of a doubted bookie becomes LIMBO."""
        reply = await self._transport.read_lac(bookie, ledger_id, timeout_s)
        if bookie in self._doubted and reply.status.is_absent:
            return replace(reply, status=Status.LIMBO)
        return reply

    def _read(self, bookie: BookieId, reply: ReadReply) -> ReadReply:
        if bookie not in self._doubted:
            return reply
        results = [replace(each, status=Status.LIMBO) if each.status.is_absent else each for each in reply.results]
        status = Status.LIMBO if reply.status.is_absent else reply.status
        return replace(reply, status=status, results=tuple(results))
