"""The work of clients: write ledgers, read them, delete them, and recover those with an interrupted writer."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.client.reader.reader import LedgerReader
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import Entry
from bookie.runtime.clock import Clock

WRITERS: Final = 2
WRITER_BYTES_PER_S: Final = 2_000_000
"""The rate of writes. Half an hour writes 7 GB, which is a hundred write caches."""
ENTRIES: Final = 300
KEPT: Final = 24
"""How many closed ledgers are kept. Each has about five megabytes."""
_SIZES: Final = (100, 700, 4_000, 60_000)
_UNDER_WAY_MAX: Final = 64
"""The most entries of a ledger that wait for their acknowledgement."""
_READ_ENTRIES: Final = 100
_READ_PAUSE_S: Final = 0.2
_DELETE_PAUSE_S: Final = 0.5
_ONE_BOOKIE: Final = LedgerOptions(1, 1, 1)


class WrongBytesError(Exception):
    """A ledger lacks acknowledged entries or bytes."""


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return the bytes of an entry, which differ for all entries."""
    text = f"{ledger_id}/{entry_id} ".encode()
    return (text * (_SIZES[(ledger_id + entry_id) % len(_SIZES)] // len(text))) or text


@dataclass(slots=True)
class Written:
    """Acknowledged entries of one ledger: 0 to ``entries - 1``."""

    entries: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Record that one more entry was acknowledged."""
        self.entries += 1
        self.bytes += size


@dataclass(slots=True)
class Workload:
    """All ledgers of a soak. It outlives the bookie; each life of the bookie has a separate client."""

    clock: Clock
    rng: random.Random
    created: int = 0
    written_bytes: int = 0
    read_entries: int = 0
    open: dict[LedgerId, Written] = field(default_factory=dict)
    """Ledgers that are being written, or whose writer the end of the bookie interrupted."""
    closed: dict[LedgerId, Written] = field(default_factory=dict)
    doomed: dict[LedgerId, Written] = field(default_factory=dict)
    """Ledgers whose deletion was requested, but not answered."""
    deleted: deque[Written] = field(default_factory=deque)
    """Ledgers deleted since the last call of ``take_deleted``."""
    _read_now: set[LedgerId] = field(default_factory=set)

    @property
    def live_bytes(self) -> int:
        """Return the bytes of the ledgers whose deletion has not been confirmed."""
        return sum(one.bytes for group in (self.open, self.closed, self.doomed) for one in group.values())

    def take_deleted(self) -> int:
        """Return the bytes of the ledgers deleted since the last call."""
        size = sum(one.bytes for one in self.deleted)
        self.deleted.clear()
        return size

    async def recover(self, client: BookKeeper) -> None:
        """Recover and read the interrupted ledgers, and repeat the deletions that were not confirmed.

        Raises:
            WrongBytesError: an acknowledged entry is missing, or an entry has other bytes.
        """
        for ledger_id in list(self.doomed):
            await self._delete(client, ledger_id)
        for ledger_id, written in list(self.open.items()):
            reader = await client.open_ledger(ledger_id, recover=True)
            found = Written()
            async for entry in reader.read_all():
                found.add(self._checked(ledger_id, found.entries, entry))
            if found.entries < written.entries:
                raise WrongBytesError(
                    f"ledger {ledger_id} has {found.entries} entries after its recovery, and {written.entries} were "
                    "acknowledged"
                )
            del self.open[ledger_id]
            self.closed[ledger_id] = found

    async def read_everything(self, client: BookKeeper) -> None:
        """Read each entry of each closed ledger.

        Raises:
            WrongBytesError: an entry has other bytes.
        """
        for ledger_id, written in list(self.closed.items()):
            if written.entries:
                await self._read(await client.open_ledger(ledger_id), 0, written.entries - 1)

    async def write(self, client: BookKeeper) -> None:
        """Write one ledger after the other, at the speed of a writer; ends by cancellation or an error."""
        while True:
            writer = await client.create_ledger(_ONE_BOOKIE)
            self.created += 1
            written = self.open[writer.ledger_id] = Written()
            under_way: deque[tuple[int, asyncio.Future[EntryId]]] = deque()
            try:
                for entry_id in range(ENTRIES):
                    body = payload(writer.ledger_id, entry_id)
                    under_way.append((len(body), await writer.submit(body)))
                    await self.clock.sleep(len(body) / WRITER_BYTES_PER_S)
                    while under_way and (under_way[0][1].done() or len(under_way) > _UNDER_WAY_MAX):
                        await self._acknowledged(written, under_way)
                while under_way:
                    await self._acknowledged(written, under_way)
                await writer.close()
            except BaseException:
                await writer.abandon()
                await asyncio.gather(*(future for _, future in under_way), return_exceptions=True)
                raise
            self.closed[writer.ledger_id] = self.open.pop(writer.ledger_id)

    async def _acknowledged(self, written: Written, under_way: deque[tuple[int, asyncio.Future[EntryId]]]) -> None:
        size, future = under_way[0]
        await asyncio.shield(future)
        under_way.popleft()
        written.add(size)
        self.written_bytes += size

    async def read(self, client: BookKeeper) -> None:
        """Read some entries of one closed ledger after the other; ends by cancellation or an error.

        Raises:
            WrongBytesError: an entry has other bytes.
        """
        while True:
            await self.clock.sleep(_READ_PAUSE_S)
            readable = [ledger_id for ledger_id, written in self.closed.items() if written.entries]
            if not readable:
                continue
            ledger_id = self.rng.choice(readable)
            first = self.rng.randrange(self.closed[ledger_id].entries)
            last = min(first + _READ_ENTRIES, self.closed[ledger_id].entries) - 1
            self._read_now.add(ledger_id)
            try:
                await self._read(await client.open_ledger(ledger_id), first, last)
            finally:
                self._read_now.discard(ledger_id)

    async def delete(self, client: BookKeeper) -> None:
        """Delete a random closed ledger if there are more than ``KEPT``; ends by cancellation or an error."""
        while True:
            await self.clock.sleep(_DELETE_PAUSE_S)
            free = [ledger_id for ledger_id in self.closed if ledger_id not in self._read_now]
            if len(self.closed) > KEPT and free:
                ledger_id = self.rng.choice(free)
                self.doomed[ledger_id] = self.closed.pop(ledger_id)
                await self._delete(client, ledger_id)

    async def _delete(self, client: BookKeeper, ledger_id: LedgerId) -> None:
        await client.delete_ledger(ledger_id)
        self.deleted.append(self.doomed.pop(ledger_id))

    async def _read(self, reader: LedgerReader, first: int, last: int) -> None:
        expected = first
        async for entry in reader.read_range(EntryId(first), EntryId(last)):
            self._checked(reader.ledger_id, expected, entry)
            expected += 1
        if expected <= last:
            raise WrongBytesError(f"ledger {reader.ledger_id} was read to entry {expected - 1}, and not to {last}")

    def _checked(self, ledger_id: LedgerId, entry_id: int, entry: Entry) -> int:
        """Return the size of an entry after a check of its content."""
        if entry.entry_id != entry_id or entry.payload != payload(ledger_id, entry_id):
            raise WrongBytesError(
                f"ledger {ledger_id} has other bytes than those that were written as entry {entry_id}"
            )
        self.read_entries += 1
        return len(entry.payload)
