"""Two workers while sessions end, locks disappear, requests fail and bookies restart: no seed may break a rule."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.metadata.layout import lock_path
from bookie.metadata.port import NoNodeError
from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.fault_points import inject_faults
from tests.seeds import seeds
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata, names, should_hold
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import run_virtual, until

LEDGERS = 4
OPEN_LEDGER = LEDGERS
"""An additional ledger, whose writer has ended."""
COUNT = 30
BOOKIES = "a b c d t u v"
DISTURBANCES = 40


class Chaos:
    """Disturbs a world at random. At most one bookie is lost at a time, so three copies suffice."""

    def __init__(self, world: RepairWorld, workers: list[Running], rng: random.Random) -> None:
        self.world = world
        self.workers = workers
        self.rng = rng
        self.away: str | None = None

    async def flaky(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(self.rng.random() * 0.01)
        return self.rng.choices((None, Fault.FAIL_BEFORE, Fault.LOSE_ANSWER), (97, 1, 2))[0]

    async def disturb(self) -> None:
        await self.rng.choice((self.end_session, self.suspend_briefly, self.take_lock, self.flap, self.cut))()

    async def end_session(self) -> None:
        store = self.rng.choice(self.workers).store
        store.expire()
        await asyncio.sleep(self.rng.random() * 3)
        store.resume()

    async def suspend_briefly(self) -> None:
        store = self.rng.choice(self.workers).store
        store.suspend()
        await asyncio.sleep(self.rng.random())
        store.resume()

    async def take_lock(self) -> None:
        for ledger_id in range(LEDGERS + 1):
            try:
                await self.world.store.delete(lock_path(ROOT, ledger_id))
            except NoNodeError:
                continue

    async def flap(self) -> None:
        """Restart the lost bookie; if there is none, kill one and mark its ledgers as an audit would."""
        if self.away is not None:
            await self.world.register(self.away)
            self.away = None
            return
        self.away = self.rng.choice(BOOKIES.split())
        await self.world.kill(self.away)
        await self.audit()

    async def audit(self) -> None:
        for ledger_id in range(LEDGERS + 1):
            if self.away is not None and BookieId(self.away) in (await self.world.metadata(ledger_id)).members():
                await self.world.tasks.marking.mark(LedgerId(ledger_id), names(self.away))

    async def cut(self) -> None:
        self.world.bookies.transport.cut(BookieId(self.rng.choice(BOOKIES.split())))


async def assert_members_hold_what_they_should(world: RepairWorld, packets: dict[int, dict[EntryId, bytes]]) -> None:
    """I6 and I17: bookies never lose anything here, so a member that lacks an entry was named too early."""
    for ledger_id, expected in packets.items():
        if ledger_id == OPEN_LEDGER:  # a recovery may leave members incomplete, and creates a task for them
            continue
        metadata = await world.metadata(ledger_id)
        for fragment in metadata.fragments:
            assert len(set(fragment.members)) == metadata.ensemble_size
        for bookie in sorted(metadata.members()):
            held = await world.bookies.nodes[bookie].holds(LedgerId(ledger_id))
            assert set(should_hold(metadata, bookie, expected)) <= set(held)


async def history(seed: int) -> None:
    rng = random.Random(seed)
    async with a_world(BOOKIES) as world:
        packets = {
            ledger_id: await world.ledger(
                ledger_id, make_metadata((0, "a b c d"), (11, "b d c a"), quorum=(3, 2), last=COUNT - 1), COUNT
            )
            for ledger_id in range(LEDGERS)
        }
        open_ledger = make_metadata((0, "a b c d"), (11, "b d c a"), quorum=(3, 2), last=None)
        packets[OPEN_LEDGER] = await world.ledger(OPEN_LEDGER, open_ledger, COUNT)
        workers = [
            world.worker(once=False, seed=seed * 2 + i, poll_interval_s=1.0, open_ledger_grace_s=2.0) for i in range(2)
        ]
        chaos = Chaos(world, workers, rng)
        for running in workers:
            running.store.fault_hook = chaos.flaky
        for running in workers:
            running.start()
        for _ in range(DISTURBANCES):
            await chaos.disturb()
            await asyncio.sleep(rng.random() * 0.3)
            await assert_members_hold_what_they_should(world, packets)
        for running in workers:
            running.store.fault_hook = None
        await until(world.is_clean, seconds=1200)
        for running in workers:
            await running.stop()
        for ledger_id, expected in packets.items():
            await world.assert_whole(ledger_id, expected)
            metadata = await world.metadata(ledger_id)
            assert chaos.away not in metadata.members()
            assert metadata.last_entry_id in (COUNT - 1, None)


@pytest.mark.parametrize("seed", seeds(0, 12, in_gate=4))
def test_no_fault_breaks_a_rule_and_everything_is_repaired(seed: int) -> None:
    run_virtual(history(seed))


@pytest.mark.parametrize("seed", seeds(100, 106, in_gate=2))
def test_unlikely_branches_break_no_rule(seed: int) -> None:
    rng = random.Random(seed)
    with inject_faults(lambda name: name.startswith(("replicator.", "queue.", "recovery.")) and rng.random() < 0.2):
        run_virtual(history(seed))
