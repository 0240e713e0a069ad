"""The writes of a recovery: the entries found are stored again, verbatim and on their whole write sets.

A member that refuses an entry is replaced in memory, from the first entry of the block on. Without a spare, the block
remains incomplete at this position. Every entry must be durable on ``Qa`` members of the ensemble that the closing
change will name for it.

Source: docs/formats.md#recovery steps 5 and 6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from bookie.client.access import LedgerAccess
from bookie.client.errors import RecoveryNotPossibleError, WrongPasswordError
from bookie.client.placement.groups import writable_candidates
from bookie.client.ports import ClientPorts
from bookie.client.recovery.tail import LedgerTail
from bookie.client.recovery.votes import FoundEntry
from bookie.model.ids import BookieId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.human import counted
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, AddBatch, AddReply, Status

_log: Final = logging.getLogger(__name__)


class _Part:
    """The entries of one position in a block; the first ``stored`` packets are durable on its bookie."""

    __slots__ = ("packets", "position", "stored")

    def __init__(self, position: int, packets: list[bytes]) -> None:
        self.position = position
        self.packets = packets
        self.stored = 0

    @property
    def is_stored(self) -> bool:
        return self.stored == len(self.packets)


class RecoveryWriter:
    """Adds the blocks of one recovery, in order."""

    def __init__(self, ports: ClientPorts, tail: LedgerTail, access: LedgerAccess) -> None:
        self.incomplete: set[BookieId] = set()
        """Members that lack an entry placed on them by the tail."""
        self._ports = ports
        self._tail = tail
        self._access = access
        self._ledger_id = tail.began.ledger_id
        self._shape = tail.began.metadata
        self._failed: dict[BookieId, Status] = {}
        """Bookies that failed, and are not asked or chosen again by this recovery."""

    async def store(self, block: Sequence[FoundEntry]) -> None:
        """Make a block of consecutive entries durable on all reachable members.

        Raises:
            RecoveryNotPossibleError: an entry reached fewer than ``Qa`` of its members, and there is no spare.
            WrongPasswordError: a bookie has another master key for the ledger.
            StoreUnavailableError: a member failed, and the spares cannot be looked up.
        """
        parts = [part for part in self._parts(block) if part.packets]
        rounds = self._ports.settings.ensemble_change_attempts_max
        for attempt in range(rounds):
            await self._send([part for part in parts if not part.is_stored])
            unwanted = [part for part in parts if not part.is_stored or (not attempt and _is_needless_replacement())]
            if not unwanted or attempt + 1 == rounds or not await self._replace(block, unwanted):
                break
        self._check(block, parts)
        self.incomplete.update(self._tail.members[part.position] for part in parts if not part.is_stored)

    def _parts(self, block: Sequence[FoundEntry]) -> Iterator[_Part]:
        stripe = self._shape.stripe
        for position in range(stripe.ensemble_size):
            yield _Part(position, [one.packet for one in block if stripe.stores(position, one.entry.entry_id)])

    async def _send(self, parts: Sequence[_Part]) -> None:
        """Send the parts to their bookies concurrently; a part that is not stored afterwards has failed."""
        bookies = self._tail.members
        sending = {
            guarded("recovery add", self._offer(bookies[part.position], part)): bookies[part.position]
            for part in parts
            if bookies[part.position] not in self._failed
        }
        if not sending:
            return
        try:
            done, _ = await asyncio.wait(sending, timeout=self._ports.settings.recovery_add_timeout_s)
            for task, bookie in sending.items():
                status = task.result() if task in done else Status.TIMEOUT
                if status is Status.UNAUTHORIZED:
                    raise WrongPasswordError(f"ledger {self._ledger_id}: bookie {bookie} has it with another password")
                if status is not Status.OK:
                    extra = {"ledger_id": self._ledger_id, "bookie_id": bookie, "status": status.name}
                    _log.info("recovery stops using a bookie", extra=extra)
                    self._failed[bookie] = status
        finally:
            await cancel_all(sending)

    async def _offer(self, bookie: BookieId, part: _Part) -> Status:
        while not part.is_stored:
            count = _batch_size(part)
            packets = part.packets[part.stored : part.stored + count]
            reply = await self._add(bookie, AddBatch(self._ledger_id, self._access.key, packets, is_recovery=True))
            if reply.status is not Status.OK:
                return reply.status
            part.stored += count
        return Status.OK

    async def _add(self, bookie: BookieId, batch: AddBatch) -> AddReply:
        settings = self._ports.settings
        for _ in range(settings.busy_retries_max):
            reply = await self._ports.transport.add(bookie, batch, settings.add_timeout_s)
            if reply.status is not Status.TOO_MANY_REQUESTS:
                break
            await self._ports.clock.sleep(settings.busy_backoff_s)
        return reply

    async def _replace(self, block: Sequence[FoundEntry], parts: Sequence[_Part]) -> bool:
        """Replace the bookies of ``parts`` by spares, for the whole block; return whether there was any spare."""
        bookies = await self._ports.registrations.list()
        placement, members = self._ports.placement, self._tail.members
        chosen = placement.replacements(
            members,
            [part.position for part in parts],
            self._shape.write_quorum,
            writable_candidates(placement, self._ledger_id, self._shape, members, bookies),
            self._failed.keys(),
            self._ports.rng,
        )
        for part in parts:
            if part.position in chosen:
                self._tail.replace_member(block[0].entry.entry_id, part.position, chosen[part.position])
                part.stored = 0
        return bool(chosen)

    def _check(self, block: Sequence[FoundEntry], parts: Sequence[_Part]) -> None:
        durable = dict.fromkeys((one.packet for one in block), 0)
        for part in parts:
            for packet in part.packets[: part.stored]:
                durable[packet] += 1
        for one in block:
            if durable[one.packet] < self._shape.ack_quorum:
                quorum = counted(self._shape.ack_quorum, "bookie")
                why = f"entry {one.entry.entry_id} reached {durable[one.packet]} of {quorum}"
                raise RecoveryNotPossibleError(self._ledger_id, why, self._failed)


def _is_needless_replacement() -> bool:
    return fault_point("recovery.replace_member")


def _batch_size(part: _Part) -> int:
    """Return the number of remaining packets that fit into one batch."""
    if fault_point("recovery.tiny_batch"):
        return 1
    count = size = 0
    for packet in part.packets[part.stored : part.stored + BATCH_ENTRIES_MAX]:
        count += 1
        size += len(packet)
        if size >= BATCH_BYTES_MAX:
            break
    return count
