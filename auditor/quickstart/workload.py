"""Writes the tour's ledgers, and records the acknowledged entries."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from auditor.quickstart.workload_plan import LedgerSpec
from bookie.client.bookkeeper import BookKeeper
from bookie.client.writer.writer import LedgerWriter
from bookie.model.ids import BookieId, EntryId, LedgerId

_CONCURRENT_LEDGERS: Final = 8


def payload_hash(payload: bytes) -> bytes:
    """Return the writer's own fingerprint of a payload, independent of the ledger's digest."""
    return hashlib.blake2b(payload, digest_size=16).digest()


@dataclass(slots=True)
class WrittenLedger:
    """A ledger and the fingerprints of the entries acknowledged to its writer."""

    spec: LedgerSpec
    ledger_id: LedgerId
    hashes: list[bytes] = field(default_factory=list)
    payload_bytes: int = 0
    under_way: list[bytes] = field(default_factory=list)
    """Fingerprints of the entries that were under way when the writer died; it is unknown which of them are stored."""

    def note(self, payload: bytes) -> None:
        """Record the next acknowledged entry."""
        self.hashes.append(payload_hash(payload))
        self.payload_bytes += len(payload)


class LiveLedger:
    """A ledger with its writer still running, so that the tour can write it in parts."""

    def __init__(self, written: WrittenLedger, writer: LedgerWriter) -> None:
        self.written = written
        self.writer = writer
        self._payloads = list(written.spec.payloads())
        self._under_way: list[tuple[bytes, asyncio.Future[EntryId]]] = []

    @classmethod
    async def create(cls, client: BookKeeper, spec: LedgerSpec) -> LiveLedger:
        """Create the ledger; nothing is written yet."""
        writer = await client.create_ledger(spec.options, password=spec.password, custom=dict(spec.custom))
        return cls(WrittenLedger(spec, writer.ledger_id), writer)

    @property
    def members(self) -> tuple[BookieId, ...]:
        """Bookies of the last fragment."""
        return self.writer.metadata.last_fragment.members

    @property
    def remaining(self) -> int:
        """The number of entries of the specification that are not written yet."""
        return len(self._payloads) - len(self.written.hashes)

    async def write(self, count: int | None = None) -> None:
        """Append the next ``count`` entries (default: the rest) and wait for their acknowledgement."""
        start = len(self.written.hashes)
        part = self._payloads[start : None if count is None else start + count]
        waiters = [await self.writer.submit(payload) for payload in part]
        for payload, waiter in zip(part, waiters, strict=True):
            await waiter
            self.written.note(payload)

    async def submit_rest(self) -> None:
        """Submit the remaining entries without waiting for any acknowledgement."""
        for payload in self._payloads[len(self.written.hashes) :]:
            self._under_way.append((payload, await self.writer.submit(payload)))

    async def abandon(self) -> None:
        """Stop like a killed writer: nothing is closed, and the outcome of entries in flight stays unknown."""
        await self.writer.abandon()
        for payload, acknowledged in self._under_way:
            is_acknowledged = acknowledged.done() and not acknowledged.cancelled() and not acknowledged.exception()
            if is_acknowledged and not self.written.under_way:
                self.written.note(payload)
            else:
                self.written.under_way.append(payload_hash(payload))

    async def write_one_by_one(self, on_ack: Callable[[], None]) -> None:
        """Append the remaining entries, each after the one before was acknowledged."""
        for payload in self._payloads[len(self.written.hashes) :]:
            await self.writer.append(payload)
            self.written.note(payload)
            on_ack()


async def write_and_close(
    client: BookKeeper, specs: Sequence[LedgerSpec], on_done: Callable[[WrittenLedger], None]
) -> list[WrittenLedger]:
    """Write each ledger to its end and close it, several at a time."""

    async def one(spec: LedgerSpec) -> WrittenLedger:
        ledger = await LiveLedger.create(client, spec)
        await ledger.write()
        await ledger.writer.close()
        on_done(ledger.written)
        return ledger.written

    return await bounded(partial(one, spec) for spec in specs)


async def bounded(work: Iterable[Callable[[], Awaitable[WrittenLedger]]]) -> list[WrittenLedger]:
    """Call and await all of ``work``, a few at a time; the first failure cancels the rest."""
    gate = asyncio.Semaphore(_CONCURRENT_LEDGERS)

    async def gated(item: Callable[[], Awaitable[WrittenLedger]]) -> WrittenLedger:
        async with gate:
            return await item()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gated(item)) for item in work]
    return [task.result() for task in tasks]
