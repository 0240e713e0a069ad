"""Store copies on their new bookie: in full batches, within the limits, and with retries while the bookie is busy.

The wait for a busy bookie is bounded, but long, because with another bookie the whole position would have to be copied
again (R44). During this wait one lane retries, and the other lanes wait.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.runtime.clock import Clock
from bookie.wire.batching import batches
from bookie.wire.port import AddBatch, AddReply, CopyReply, ReplyT, Status, Transport
from bookie.wire.requests import Copy
from replicator.copying.pace import CopyPace
from replicator.knowledge.evidence import BookieAnswer
from replicator.knowledge.refusals import fenced

ADD_TIMEOUT_S: Final = 15.0
PULL_TIMEOUT_S: Final = 20.0
"""The deadline of a pull: that of an add, and 5 s in which the target waits for memory and for the source."""
BUSY_S_MAX: Final = 60.0
"""The longest time for which a target may answer only "busy". It is long, because a copy to another target starts
again."""
LONG_S: Final = 1.0
"""After a longer wait for the rate, check again whether the copy is still needed."""
_BROKEN_ATTEMPTS_MAX: Final = 3
"""The most attempts at an unresponsive target: enough to reconnect, too few to wait for the restart of a bookie."""
_BROKEN: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
_BACKOFF_S: Final = 0.1
_BACKOFF_S_MAX: Final = 2.0
_BUSY_PAUSE_S_MAX: Final = 5.0
"""The longest pause before the next request to a busy target."""
_NOT_SENT: Final = "not sent: the copy must end"


@dataclass(frozen=True, slots=True)
class LedgerDigest:
    """The digest type and key for verifying the entries of a ledger."""

    type: DigestType
    key: bytes = field(repr=False)


async def _always() -> bool:
    return True


class Target:
    """One bookie as the target of copies of one ledger. Shared by the lanes of a copy."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        pace: CopyPace,
        bookie: BookieId,
        ledger: Versioned,
        incarnation: str = "",
        rank: int = 0,
        may_continue: Callable[[], Awaitable[bool]] = _always,
    ) -> None:
        """Prepare a target. The bookie refuses requests if its disks are not those of ``incarnation`` (R30).

        ``may_continue`` is called before each retry at a busy target, and before a request that waited for the rate for
        longer than ``LONG_S``. If it returns False, nothing is sent (R94).
        """
        self._rank = rank
        self._may_continue = may_continue
        self._transport = transport
        self._clock = clock
        self._pace = pace
        self._bookie = bookie
        self._incarnation = incarnation
        self._ledger_id = ledger.ledger_id
        self._master_key = master_key(ledger.metadata.password or b"")
        self.entries = 0
        """The number of entries that the bookie acknowledged, which are thus durable there (S11)."""
        self.bytes = 0
        self._busy_since_s: float | None = None
        """When the current series of "busy" answers started; None if the last answer was a different one."""
        self._waiting = asyncio.Lock()
        """Held by the lane that retries at a busy target. Other lanes with a refused batch wait, so few batches are
        refused."""

    async def store(self, packets: Sequence[bytes]) -> BookieAnswer | None:
        """Store copies unchanged and with the recovery flag (S3, S10); return the refusal, if any."""
        for batch in batches(packets):
            size = sum(map(len, batch))
            reply = await self._add(batch, size)
            if reply.status is Status.FENCED:
                return fenced(self._bookie, reply.detail)
            if reply.status is not Status.OK:
                return BookieAnswer(self._bookie, reply.status, reply.detail)
            self.entries += len(batch)
            self.bytes += size
        return None

    async def pull(
        self, source: BookieId, entry_ids: Sequence[EntryId], digest: LedgerDigest, expected_bytes: int
    ) -> CopyReply:
        """Let the target read entries from ``source`` by itself and store them; retry while it is busy.

        The target verifies and stores the entries as if this process had sent them (S3, S10, S11). The request waits
        for the limits of both bookies.
        """
        copy = Copy(self._ledger_id, entry_ids, source, self._master_key, digest.type, digest.key, self._incarnation)
        reply = await self._retry_while_busy(lambda: self._offer_copy(copy, expected_bytes))
        self.entries += reply.stored_count
        self.bytes += reply.stored_bytes
        return reply

    async def _add(self, packets: Sequence[bytes], size_bytes: int) -> AddReply:
        batch = AddBatch(self._ledger_id, self._master_key, packets, is_recovery=True, incarnation=self._incarnation)
        return await self._retry_while_busy(lambda: self._offer(batch, size_bytes))

    async def _retry_while_busy(self, offer: Callable[[], Awaitable[ReplyT]]) -> ReplyT:
        reply = await offer()
        if reply.status is not Status.TOO_MANY_REQUESTS:
            self._busy_since_s = None
            return reply
        async with self._waiting:
            for attempt in itertools.count(1):
                now_s = self._clock.monotonic_s()
                if self._busy_since_s is None:
                    self._busy_since_s = now_s
                if now_s - self._busy_since_s >= BUSY_S_MAX or not await self._may_continue():
                    return reply
                await self._clock.sleep(min(_BACKOFF_S * 2**attempt, _BUSY_PAUSE_S_MAX))
                reply = await offer()
                if reply.status is not Status.TOO_MANY_REQUESTS:
                    self._busy_since_s = None
                    return reply
        raise AssertionError("unreachable: counting has no end")

    async def _pass(self, source: BookieId, size_bytes: int) -> None:
        await self._pace.before_read(source, size_bytes, self._rank)
        await self._pace.before_add(self._bookie, size_bytes, self._rank)

    async def _wait_to_send(self, wait: Awaitable[None]) -> bool:
        """Wait for the rate, and return whether to send. After a long wait, check again whether the copy is needed."""
        begun_s = self._clock.monotonic_s()
        await wait
        return self._clock.monotonic_s() - begun_s <= LONG_S or await self._may_continue()

    async def _offer_copy(self, copy: Copy, expected_bytes: int) -> CopyReply:
        if not await self._wait_to_send(self._pass(copy.source, expected_bytes)):
            return CopyReply(Status.TOO_MANY_REQUESTS, detail=_NOT_SENT)
        sent_s = self._clock.monotonic_s()
        reply = await self._transport.ask(self._bookie, copy, PULL_TIMEOUT_S)
        seconds = self._clock.monotonic_s() - sent_s
        if reply.status not in _BROKEN:  # without an answer, the traffic between the two is unknown
            self._pace.was_read(copy.source, expected_bytes, reply.stored_bytes, reply.read_s)
            self._pace.record_pulled_bytes(
                self._bookie, expected_bytes, reply.stored_bytes, max(0.0, seconds - reply.read_s)
            )
        return reply

    async def _offer(self, batch: AddBatch, size_bytes: int) -> AddReply:
        """Send a batch, and retry after a timeout or a broken connection."""
        for attempt in itertools.count(1):
            wait = self._pace.before_add(self._bookie, size_bytes, self._rank)  # every attempt counts
            if not await self._wait_to_send(wait):
                return AddReply(Status.TOO_MANY_REQUESTS, _NOT_SENT)
            sent_s = self._clock.monotonic_s()
            with self._pace.loads.add(self._bookie):
                reply = await self._transport.add(self._bookie, batch, ADD_TIMEOUT_S)
            self._pace.added(self._bookie, size_bytes, self._clock.monotonic_s() - sent_s)
            if reply.status not in _BROKEN or attempt >= _BROKEN_ATTEMPTS_MAX:
                return reply
            await self._clock.sleep(min(_BACKOFF_S * 2**attempt, _BACKOFF_S_MAX))
        raise AssertionError("unreachable: counting has no end")
