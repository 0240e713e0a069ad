"""Calls of the client that are cancelled at random moments, beside failing bookies, lost answers and other clients.

A cancelled call may or may not have had its effect. Everything else holds as without it: no acknowledged entry is lost
or changed, a ledger has one end, an object can be used further, every call ends, and no task outlives its writer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

import pytest

from bookie.client.log.values import LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.options import LedgerOptions, WriterOptions
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from tests.worlds.log import BOOKIES, NAME, Client, LogWorld, log_world, read_all
from tests.worlds.virtual_time import run_virtual

T = TypeVar("T")

CALL_S: Final = 300.0
"""More than the longest of these calls takes: a recovery with several hanging bookies."""
OPTIONS: Final = LogOptions(LedgerOptions(3, 3, 2), ledger_bytes_max=200, ledger_age_s_max=30)
SHAPES: Final = [LedgerOptions(1, 1, 1), LedgerOptions(3, 3, 2), LedgerOptions(4, 3, 2)]
ROUNDS: Final = 8


class History:
    """Clients of one cluster, and the entries that were acknowledged to them."""

    def __init__(self, world: LogWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.is_calm = False
        self.number = 0
        self.writers: dict[LedgerId, LedgerWriter] = {}
        self.used: set[LedgerWriter | LogWriter] = set()
        """The writers whose context was entered: it stops them."""
        self.acknowledged: dict[LogPosition, bytes] = {}
        self.logged: dict[LogPosition, bytes] = {}

    def client(self) -> Client:
        return self.world.client(self.rng.getrandbits(32), self.faults)

    async def faults(self, operation: str, path: str) -> Fault | None:
        if self.is_calm:
            return None
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.random() * 2)
        return self.rng.choice(list(Fault)) if self.rng.random() < 0.01 else None

    async def call(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a call that may be cancelled; None if it failed or was cancelled. Any unexpected error is raised."""
        task = asyncio.ensure_future(work)
        if self.rng.random() < 0.4:
            if self.rng.random() < 0.5:
                for _ in range(self.rng.randrange(60)):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(self.rng.random() * self.rng.choice([0.1, 3, 10]))
            task.cancel()
        await asyncio.wait([task], timeout=CALL_S)
        assert task.done(), "a call does not end"
        if task.cancelled() or isinstance(task.exception(), BkhealError | TimeoutError):
            return None
        return task.result()

    def payload(self) -> bytes:
        self.number += 1
        return f"entry {self.number}".encode().ljust(self.rng.randrange(10, 40), b".")

    def writer_options(self) -> WriterOptions:
        return WriterOptions(
            is_ensemble_change_delayed=self.rng.random() < 0.3,
            add_quorum_timeout_s=self.rng.choice([None, 5]),
            explicit_lac_interval_s=self.rng.choice([None, 1]),
        )

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * self.rng.choice([0.01, 1, 5]))

    async def write_ledgers(self) -> None:
        client = self.client()
        for _ in range(ROUNDS):
            writer = await self.call(self.create(client))
            if writer is None:
                continue
            self.writers[writer.ledger_id] = writer
            await self.call(self.fill(writer))
            for _ in range(self.rng.choice([0, 0, 1, 2])):
                await self.call(writer.close())
            if writer not in self.used:
                await writer.abandon()

    async def create(self, client: Client) -> LedgerWriter:
        return await client.create_ledger(self.rng.choice(SHAPES), writer_options=self.writer_options())

    async def fill(self, writer: LedgerWriter) -> None:
        async with writer:
            self.used.add(writer)
            for _ in range(self.rng.choice([0, 0, 1, 2])):
                for _ in range(self.rng.choice([1, 3, 20])):
                    await self.call(self.append(writer))
                await self.pause()

    async def append(self, writer: LedgerWriter) -> None:
        payload = self.payload()
        waiter = await writer.submit(payload)
        ledger_id = writer.ledger_id

        def note(done: asyncio.Future[EntryId]) -> None:
            if not done.cancelled() and done.exception() is None:
                position = LogPosition(ledger_id, done.result())
                assert position not in self.acknowledged
                self.acknowledged[position] = payload

        waiter.add_done_callback(note)
        if self.rng.random() < 0.3:
            await waiter

    async def write_log(self) -> None:
        client = self.client()
        for _ in range(ROUNDS):
            await self.pause()
            writer = await self.call(client.log(NAME).write(OPTIONS, writer_options=self.writer_options()))
            if writer is not None:
                await self.call(self.fill_log(writer))
                for _ in range(self.rng.choice([0, 0, 1, 2])):
                    await self.call(writer.close())
                if writer not in self.used:
                    await writer.abandon()

    async def fill_log(self, writer: LogWriter) -> None:
        async with writer:
            self.used.add(writer)
            for _ in range(self.rng.randrange(4)):
                for _ in range(self.rng.choice([1, 5])):
                    await self.call(self.append_to_log(writer))
                if self.rng.random() < 0.2:
                    await self.call(writer.roll())
                await self.pause()

    async def append_to_log(self, writer: LogWriter) -> None:
        payload = self.payload()
        self.logged[await writer.append(payload)] = payload

    async def truncate(self) -> None:
        log = self.client().log(NAME)
        for _ in range(ROUNDS):
            await asyncio.sleep(self.rng.random() * 20)
            if self.logged:
                await self.call(log.truncate(self.rng.choice(sorted(self.logged))))

    async def recover(self) -> None:
        client = self.client()
        for _ in range(ROUNDS):
            await asyncio.sleep(self.rng.random() * 10)
            if self.writers:
                await self.call(recover_ledger(client.ports, self.rng.choice(sorted(self.writers))))

    async def read(self) -> None:
        client = self.client()
        for _ in range(ROUNDS):
            await asyncio.sleep(self.rng.random() * 10)
            if self.writers:
                await self.call(self.tail(client, self.rng.choice(sorted(self.writers))))

    async def tail(self, client: Client, ledger_id: LedgerId) -> None:
        reader = await client.open_ledger(ledger_id)
        expected = 0
        async with asyncio.timeout(10), aclosing(reader.tail(EntryId(0))) as entries:
            async for entry in entries:
                assert entry.entry_id == expected
                position = LogPosition(ledger_id, entry.entry_id)
                assert self.acknowledged.get(position, entry.payload) == entry.payload
                expected += 1

    async def break_bookies(self) -> None:
        while True:
            await self.pause()
            bookie = self.rng.choice(BOOKIES)
            for is_broken in (True, False):
                self.world.break_bookie(bookie, is_broken=is_broken)
                await self.pause()

    async def run(self) -> None:
        before = asyncio.all_tasks()
        storm = asyncio.create_task(self.break_bookies())
        actors = [self.write_ledgers(), self.write_ledgers(), self.write_log(), self.write_log()]
        await asyncio.gather(*actors, self.truncate(), self.recover(), self.recover(), self.read())
        storm.cancel()
        self.is_calm = True
        for bookie in BOOKIES:
            self.world.break_bookie(bookie, is_broken=False)
        await asyncio.sleep(60)
        assert asyncio.all_tasks() == before, "a task outlives its call or its writer"

    async def check(self) -> None:
        client = self.world.client(99)
        found: dict[LogPosition, bytes] = {}
        for ledger_id, writer in self.writers.items():
            end = (await recover_ledger(client.ports, ledger_id)).metadata.last_entry_id
            assert end is not None
            assert end >= writer.last_add_confirmed
            reader = await client.open_ledger(ledger_id)
            entries = [entry async for entry in reader.read_all()]
            assert [entry.entry_id for entry in entries] == list(range(end + 1))
            found |= {LogPosition(ledger_id, entry.entry_id): entry.payload for entry in entries}
        assert self.acknowledged.items() <= found.items()
        async with await client.log(NAME).write(OPTIONS):
            pass  # the ledger of the last writer is closed now, so it is read to its end
        listed = self.world.listed_now()
        assert listed is not None
        logged = {entry.position: entry.payload for entry in await read_all(client)}
        kept = {at: payload for at, payload in self.logged.items() if at.ledger_id > listed.list.truncated_through}
        assert kept.items() <= logged.items()
        assert len(set(logged.values())) == len(logged), "an entry occurs twice"


async def history(seed: int) -> int:
    """Run one history, and return the number of acknowledged entries."""
    async with log_world() as world:
        one = History(world, seed)
        await one.run()
        await one.check()
        return len(one.acknowledged) + len(one.logged)


@pytest.mark.parametrize(
    "seeds",
    [(4, 23, 25), *(pytest.param(range(first, first + 50), marks=pytest.mark.long) for first in range(100, 300, 50))],
)
def test_a_cancelled_call_loses_nothing_and_leaves_nothing_running(seeds: Sequence[int]) -> None:
    assert sum(run_virtual(history(seed)) for seed in seeds) > len(seeds)
