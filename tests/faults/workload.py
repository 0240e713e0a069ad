"""Clients under faults: they write ledgers, read them, recover those with an interrupted writer, and delete some.

A client repeats what fails. The record of what was acknowledged is a lower bound: an entry without an answer may be
stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.client.writer.writer import LedgerWriter
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from tests.worlds.entries import numbered_payload

SHAPES: Final = (
    LedgerOptions(3, 3, 2),
    LedgerOptions(3, 2, 2),
    LedgerOptions(4, 3, 2),
    LedgerOptions(5, 3, 3),
)
"""Each acknowledged entry has at least two copies, so the loss of one bookie loses none."""
WRITERS: Final = 4
_ENTRIES_MAX: Final = 400
_SIZES: Final = (100, 700, 4_000, 60_000)
_UNDER_WAY_MAX: Final = 32
"""The most entries of a ledger that wait for their acknowledgement."""
_PAUSES_S: Final = (0.0, 0.005, 0.2)
"""Pauses between entries: some ledgers are filled in a second, others stay open over many faults."""
_ABANDONED_SHARE: Final = 0.25
"""The share of writers that end without closing their ledger."""
_KEPT: Final = 150
"""How many closed ledgers are kept."""
_AGAIN_S: Final = 1.0
"""The pause before a failed operation is repeated."""


class WrongBytesError(Exception):
    """A ledger lacks acknowledged entries, or an entry has other bytes than were written."""


def payload(ledger_id: LedgerId, entry: int) -> bytes:
    """Return the bytes of an entry, which differ for all entries."""
    size = _SIZES[(ledger_id + entry) % len(_SIZES)]
    return numbered_payload(ledger_id, entry, size // len(numbered_payload(ledger_id, entry, 1)))


@dataclass(slots=True)
class Workload:
    """All ledgers of a run."""

    rng: random.Random
    acknowledged: dict[LedgerId, int] = field(default_factory=dict)
    """The number of acknowledged entries of each ledger that was not deleted."""
    closed: dict[LedgerId, int] = field(default_factory=dict)
    """The number of entries of each closed ledger."""
    interrupted: list[LedgerId] = field(default_factory=list)
    """Ledgers to recover."""
    doomed: list[LedgerId] = field(default_factory=list)
    """Ledgers to delete."""
    deleted: int = 0
    recovered: int = 0
    read_entries: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Failed operations by the name of the error."""
    _in_use: set[LedgerId] = field(default_factory=set)
    is_ending: bool = False

    def __str__(self) -> str:
        failed = ", ".join(f"{count} {what}" for what, count in sorted(self.failures.items())) or "none"
        return (
            f"ledgers: {len(self.acknowledged)} kept, {self.recovered} recovered, {self.deleted} deleted; "
            f"{sum(self.acknowledged.values())} entries kept, {self.read_entries} read; repeated operations: {failed}"
        )

    def tasks(self, client: BookKeeper) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the clients. Each ends after its current operation once ``is_ending`` is set."""
        writers = [self._repeat(self._write, client) for _ in range(WRITERS)]
        return [
            *writers,
            self._repeat(self._read, client),
            self._repeat(self._recover, client),
            self._repeat(self._delete, client),
        ]

    async def finish(self, client: BookKeeper) -> None:
        """Recover every interrupted ledger. A bookie is read-only for a minute after its disk was full, so repeat this.

        The caller sets the deadline, after which a failed recovery is a finding.
        """
        while self.interrupted:
            try:
                await self._recover(client)
            except BkhealError as error:
                self.failures[f"recover: {type(error).__name__}"] += 1
                await asyncio.sleep(_AGAIN_S)

    async def _repeat(self, operation: Callable[[BookKeeper], Coroutine[Any, Any, None]], client: BookKeeper) -> None:
        while not self.is_ending:
            try:
                await operation(client)
            except BkhealError as error:
                self.failures[f"{operation.__name__[1:]}: {type(error).__name__}"] += 1
                await asyncio.sleep(_AGAIN_S)

    async def _write(self, client: BookKeeper) -> None:
        writer = await client.create_ledger(self.rng.choice(SHAPES))
        self.acknowledged[writer.ledger_id] = 0
        count, pause_s = self.rng.randint(0, _ENTRIES_MAX), self.rng.choice(_PAUSES_S)
        under_way: deque[asyncio.Future[EntryId]] = deque()
        try:
            await self._append(writer, count, pause_s, under_way)
            if self.rng.random() < _ABANDONED_SHARE:
                await writer.abandon()
                self.interrupted.append(writer.ledger_id)
            else:
                await writer.close()
                self.closed[writer.ledger_id] = count
        except BaseException:
            await writer.abandon()
            await asyncio.gather(*under_way, return_exceptions=True)
            self.interrupted.append(writer.ledger_id)
            raise

    async def _append(
        self, writer: LedgerWriter, count: int, pause_s: float, under_way: deque[asyncio.Future[EntryId]]
    ) -> None:
        for entry in range(count):
            under_way.append(await writer.submit(payload(writer.ledger_id, entry)))
            if not self.is_ending:
                await asyncio.sleep(pause_s)
            while under_way and (under_way[0].done() or len(under_way) > _UNDER_WAY_MAX):
                await self._acknowledged(writer.ledger_id, under_way)
        while under_way:
            await self._acknowledged(writer.ledger_id, under_way)

    async def _acknowledged(self, ledger_id: LedgerId, under_way: deque[asyncio.Future[EntryId]]) -> None:
        await asyncio.shield(under_way.popleft())
        self.acknowledged[ledger_id] += 1

    async def _recover(self, client: BookKeeper) -> None:
        if not self.interrupted:
            await asyncio.sleep(_AGAIN_S)
            return
        ledger_id = self.interrupted[0]
        try:
            metadata = await client.recover_ledger(ledger_id)
        except BkhealError:
            self.interrupted.append(self.interrupted.pop(0))
            raise
        assert metadata.last_entry_id is not None
        entries = metadata.last_entry_id + 1
        if entries < self.acknowledged[ledger_id]:
            raise WrongBytesError(
                f"ledger {ledger_id} has {entries} entries after its recovery, and "
                f"{self.acknowledged[ledger_id]} were acknowledged"
            )
        self.interrupted.remove(ledger_id)
        self.closed[ledger_id] = entries
        self.recovered += 1

    async def _read(self, client: BookKeeper) -> None:
        await asyncio.sleep(0.1)
        readable = [ledger_id for ledger_id, entries in self.closed.items() if entries]
        if not readable:
            return
        ledger_id = self.rng.choice(readable)
        first = self.rng.randrange(self.closed[ledger_id])
        last = min(first + 100, self.closed[ledger_id]) - 1
        self._in_use.add(ledger_id)
        try:
            await self.read(client, ledger_id, first, last)
        finally:
            self._in_use.discard(ledger_id)

    async def read(self, client: BookKeeper, ledger_id: LedgerId, first: int, last: int) -> None:
        """Read entries of a closed ledger, and compare them with what was written.

        Raises:
            WrongBytesError: an entry is missing or has other bytes.
        """
        reader = await client.open_ledger(ledger_id)
        expected = first
        async for entry in reader.read_range(EntryId(first), EntryId(last)):
            if entry.entry_id != expected or entry.payload != payload(ledger_id, expected):
                raise WrongBytesError(f"ledger {ledger_id} has other bytes than were written as entry {expected}")
            expected += 1
            self.read_entries += 1
        if expected <= last:
            raise WrongBytesError(f"ledger {ledger_id} was read to entry {expected - 1}, and not to {last}")

    async def _delete(self, client: BookKeeper) -> None:
        while self.doomed:  # repeated if the answer was lost
            await client.delete_ledger(self.doomed[0])
            del self.acknowledged[self.doomed.pop(0)]
            self.deleted += 1
        await asyncio.sleep(_AGAIN_S)
        free = [ledger_id for ledger_id in self.closed if ledger_id not in self._in_use]
        if len(self.closed) <= _KEPT or not free:
            return
        self.doomed.append(self.rng.choice(free))
        del self.closed[self.doomed[-1]]
