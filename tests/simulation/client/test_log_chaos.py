"""Logs under random crashes, takeovers, truncations, lost answers and slow answers: rule T13 (docs/invariants.md).

AllNonEmptyLedgersInLedgerList, EntryOrderMaintained, OnlyOneLedgerOpenAtATime; and: no acknowledged entry
is lost, no entry occurs twice, and no ledger is leaked.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from bookie.client.log.values import LogDeposedError, LogEntry, LogOptions, LogPosition, LogTruncatedError
from bookie.client.log.writer import LogWriter
from bookie.client.options import LedgerOptions
from bookie.metadata.logs.log_list import LogConflictError
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError, OutcomeUnknownError, TransientError
from bookie.runtime.fault_points import inject_faults
from tests.seeds import seeds
from tests.worlds.log import BOOKIES, NAME, Client, LogWorld, log_world, read_all
from tests.worlds.virtual_time import run_virtual

OPTIONS = LogOptions(LedgerOptions(3, 3, 2), ledger_bytes_max=200, ledger_age_s_max=30)
WRITERS = 3
CHAOS_S = 120.0


@dataclass(slots=True)
class Session:
    """The entries that one writer submitted, and those acknowledged to it."""

    name: str
    submitted: list[bytes] = field(default_factory=list)
    acked: dict[LogPosition, bytes] = field(default_factory=dict)


class Chaos:
    """Actors on one log."""

    def __init__(self, world: LogWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.sessions: list[Session] = []
        self.tailed: list[LogEntry] = []
        self.is_calm = False
        self.fault_rate = self.rng.choice([0.0, 0.01, 0.05])
        self.point_rate = self.rng.choice([0.0, 0.05, 0.3])

    async def faults(self, operation: str, path: str) -> Fault | None:
        if self.is_calm:
            return None
        if self.rng.random() < 0.2:
            await asyncio.sleep(self.rng.random() * 0.5)
        if self.rng.random() < self.fault_rate:
            is_write = operation in ("create", "set", "delete", "multi")
            return Fault.LOSE_ANSWER if is_write and self.rng.random() < 0.6 else Fault.FAIL_BEFORE
        return None

    def point(self, name: str) -> bool:
        return not self.is_calm and self.rng.random() < self.point_rate

    async def run(self) -> None:
        async with asyncio.timeout(CHAOS_S + 3000):
            actors = [asyncio.create_task(self.write(number)) for number in range(WRITERS)]
            actors += [asyncio.create_task(self.truncate()), asyncio.create_task(self.break_bookies())]
            tail = asyncio.create_task(self.tail())
            await asyncio.sleep(CHAOS_S)
            self.is_calm = True
            await asyncio.gather(*actors)
            await self.finish()
            await asyncio.sleep(60)
            tail.cancel()

    async def write(self, number: int) -> None:
        await asyncio.sleep(self.rng.random() * 20)
        while not self.is_calm:
            client = self.world.client(self.rng.getrandbits(32), self.faults)
            session = Session(f"{number}.{len(self.sessions)}")
            self.sessions.append(session)
            try:
                writer = await client.log(NAME).write(OPTIONS)
                await self.use(client, writer, session)
            except (TransientError, OutcomeUnknownError, LogConflictError):
                pass
            await asyncio.sleep(self.rng.random() * 30)

    async def use(self, client: Client, writer: LogWriter, session: Session) -> None:
        pending: list[asyncio.Task[None]] = []
        for _ in range(self.rng.randrange(1, 40)):
            for _ in range(self.rng.choice([1, 1, 3, 20])):
                payload = f"{session.name}/{len(session.submitted)} ".encode().ljust(self.rng.randrange(8, 40), b".")
                session.submitted.append(payload)
                try:
                    future = await writer.submit(payload)
                except TransientError:
                    session.submitted.pop()  # by contract not admitted, so the next one may be submitted
                    break
                pending.append(asyncio.create_task(self.note(session, payload, future)))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 5)
            if self.is_calm:
                break
        ending = self.rng.random()
        if ending < 0.4:
            await writer.abandon()
        elif ending < 0.8:
            await writer.close()
        else:  # neither closed nor abandoned: it is a writer until another one takes over
            await asyncio.sleep(self.rng.random() * 60)
            await writer.append(b"late " + session.name.encode())
        await asyncio.gather(*pending)

    async def note(self, session: Session, payload: bytes, future: asyncio.Future[LogPosition]) -> None:
        try:
            position = await future
        except (OutcomeUnknownError, BkhealError):
            return
        assert position not in session.acked
        session.acked[position] = payload

    async def truncate(self) -> None:
        client = self.world.client(7, self.faults)
        while not self.is_calm:
            await asyncio.sleep(self.rng.random() * 40)
            acked = sorted(position for session in self.sessions for position in session.acked)
            if acked and self.rng.random() < 0.5:
                try:
                    await client.log(NAME).truncate(self.rng.choice(acked))
                except (TransientError, OutcomeUnknownError, LogConflictError):
                    continue

    async def break_bookies(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(self.rng.random() * 30)
            bookie = self.rng.choice(BOOKIES)
            for broken in (True, False):
                self.world.break_bookie(bookie, is_broken=broken)
                if broken:
                    await asyncio.sleep(self.rng.random() * 10)

    async def tail(self) -> None:
        client = self.world.client(8, self.faults)
        first: LogPosition | None = None
        while True:
            try:
                async for entry in client.log(NAME).tail(first, poll_s=1.0):
                    self.tailed.append(entry)
                    first = entry.position.following()
            except LogTruncatedError as error:
                first = error.first
            except (TransientError, OutcomeUnknownError, BkhealError):
                await asyncio.sleep(1)

    async def finish(self) -> None:
        client = self.world.client(9)
        for bookie in BOOKIES:
            self.world.break_bookie(bookie, is_broken=False)
        writer = await client.log(NAME).write(OPTIONS)
        await writer.append(b"the end")
        await writer.close()

    async def check(self) -> None:
        client = self.world.client(10)
        entries = await read_all(client)
        listed = self.world.listed_now()
        assert listed is not None
        positions = [entry.position for entry in entries]
        assert positions == sorted(set(positions))
        found = {entry.position: entry.payload for entry in entries}
        assert len(set(found.values())) == len(found), "an entry occurs twice"
        for session in self.sessions:
            for position, payload in session.acked.items():
                if position.ledger_id in listed.list.ledgers or position.ledger_id > listed.list.truncated_through:
                    assert found.get(position) == payload, f"acknowledged {position} {payload!r} is lost"
            ours = [entry.payload for entry in entries if entry.payload in set(session.submitted)]
            if ours:  # without gaps; only truncation may remove entries, at the start
                start = session.submitted.index(ours[0])
                assert ours == session.submitted[start : start + len(ours)]
                assert start == 0 or listed.list.truncated_through >= 0
        assert await self.world.log_ledgers() == sorted({*listed.list.ledgers, *listed.list.trimming})
        assert listed.list.trimming == ()
        tailed = [entry.position for entry in self.tailed]
        assert tailed == sorted(set(tailed))
        assert all(found.get(entry.position, entry.payload) == entry.payload for entry in self.tailed)
        missed = [place for place in positions if tailed and place >= tailed[0] and place not in set(tailed)]
        assert missed == [], "a tail skipped entries"


@pytest.mark.parametrize("seed", seeds(0, 12, in_gate=4))
def test_the_guarantees_of_logs_hold_under_faults(seed: int) -> None:
    async def main() -> None:
        async with log_world() as world:
            chaos = Chaos(world, seed)
            with inject_faults(chaos.point):
                await chaos.run()
            await chaos.check()
            assert any(session.acked for session in chaos.sessions)

    run_virtual(main())


def test_the_outcome_of_appends_of_a_replaced_writer_is_unknown() -> None:
    assert issubclass(LogDeposedError, OutcomeUnknownError)
